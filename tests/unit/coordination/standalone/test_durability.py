"""What waits for the disk, and what the log and snapshots add up to."""

import random

import pytest

from metaq.coordination.standalone.codes import OpCode
from metaq.coordination.standalone.jute import Malformed, encode_text
from metaq.coordination.standalone.log_entries import Restored
from metaq.coordination.standalone.tree import TreeNode, ZnodeTree
from tests.unit.coordination.standalone.harness import (
    CONTAINER,
    EPHEMERAL,
    SEQUENTIAL,
    Client,
    Server,
    create_body,
    multi_body,
)


@pytest.fixture
def server() -> Server:
    return Server(keeps=True)


def opened(server: Server) -> Client:
    client = Client(server)
    client.connect()
    assert client.session == 0
    server.sync()
    client.opened()
    return client


def test_an_answer_waits_until_its_write_is_on_the_disk(server: Server):
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/a"))
    assert client.replies() == []
    server.sync()
    assert [reply.code for reply in client.replies()] == [0]


def test_reads_and_events_do_not_show_what_a_power_cut_may_take_back(server: Server):
    client, reader = opened(server), opened(server)
    reader.data("/", watch=True)
    client.post(OpCode.SET_DATA, encode_text("/") + b"\0\0\0\1x" + b"\xff\xff\xff\xff")
    reader.post(OpCode.GET_DATA, encode_text("/") + b"\0")
    assert reader.replies() == []
    assert reader.events == []
    server.sync()
    assert [reply.reader.buffer() for reply in reader.replies()] == [b"x"]
    assert len(reader.events) == 1


def test_a_refusal_waits_too_because_it_tells_a_zxid(server: Server):
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/missing/a"))
    assert client.replies() == []
    server.sync()
    assert len(client.replies()) == 1


def test_what_was_synced_goes_out_and_the_rest_waits_on(server: Server):
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/a"))
    first = server.log[-1]
    client.post(OpCode.CREATE, create_body("/b"))
    server.core.synced(first.position)
    server.core.work(100, server.now)
    assert len(client.replies()) == 1
    server.sync()
    assert len(client.replies()) == 1


def test_a_connection_that_is_to_be_closed_gets_its_answers_first(server: Server):
    client = opened(server)
    client.post(OpCode.CLOSE_SESSION)
    assert not client.closed
    server.sync()
    assert (len(client.replies()), client.closed) == (1, True)


def everything(tree: ZnodeTree) -> dict[str, tuple]:
    fields = [name for name in TreeNode.__slots__ if name != "children"]
    return {
        path: (*(getattr(node, name) for name in fields), frozenset(node.children or ()))
        for path, node in tree.nodes.items()
    }


def restored(*parts: bytes) -> Restored:
    found = Restored()
    for part in parts:
        found.apply(part)
    return found


def random_write(rng: random.Random, client: Client, server: Server) -> None:
    paths = [path for path in server.core.database.tree.nodes if not path.startswith("/zookeeper") and path]
    path = rng.choice(paths)
    below = f"{path.rstrip('/')}/{rng.randrange(5)}"
    match rng.randrange(8):
        case 0 | 1 | 2:
            mode = rng.choice((0, EPHEMERAL, SEQUENTIAL, CONTAINER))
            operation = OpCode.CREATE_CONTAINER if mode == CONTAINER else OpCode.CREATE2
            client.post(operation, create_body(below, rng.randbytes(5), mode))
        case 3 | 4:
            client.post(OpCode.SET_DATA, encode_text(path) + b"\0\0\0\2" + rng.randbytes(2) + b"\xff\xff\xff\xff")
        case 5 | 6:
            client.post(OpCode.DELETE, encode_text(path) + b"\xff\xff\xff\xff")
        case 7:
            delete = encode_text(path) + b"\xff\xff\xff\xff"
            client.post(OpCode.MULTI, multi_body((OpCode.CREATE, create_body(below)), (OpCode.DELETE, delete)))


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_that_is_made_while_writes_go_on_and_the_log_behind_its_beginning_are_the_state(seed: int):
    rng = random.Random(seed)
    server = Server(keeps=True)
    clients = [opened(server) for _ in range(3)]
    for _ in range(60):
        random_write(rng, rng.choice(clients), server)
    before = len(server.log)
    entries = server.core.snapshot_entries()
    steps: list[bytes] = []
    ended = False
    while not ended:
        for _ in range(rng.randrange(4)):
            random_write(rng, rng.choice(clients), server)
        if rng.random() < 0.05 and len(clients) > 1:
            clients.pop().post(OpCode.CLOSE_SESSION)
        entry = next(entries, None)
        ended = entry is None
        steps.append(entry or b"")
    log = [entry for batch in server.log for entry in batch.entries]
    whole = restored(*log)
    fuzzy = restored(*steps, *(entry for batch in server.log[before:] for entry in batch.entries))
    now = everything(server.core.database.tree)
    assert everything(fuzzy.tree()) == now
    assert everything(whole.tree()) == now
    assert set(fuzzy.sessions) == set(whole.sessions) == {client.session for client in clients}


def test_a_server_goes_on_where_its_log_ends(server: Server):
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/a", b"x"))
    client.post(OpCode.CREATE, create_body("/e", mode=EPHEMERAL))
    client.post(OpCode.CREATE_CONTAINER, create_body("/c"))
    server.sync()
    again = Server(keeps=True)
    log = restored(*(entry for batch in server.log for entry in batch.entries))
    again.core.restore(log, server.log[-1].last, again.now)
    assert everything(again.core.database.tree) == everything(server.core.database.tree)
    assert again.core.database.zxid == server.core.database.zxid
    back = Client(again)
    back.connect(seen=again.core.database.zxid, session=client.session, password=client.password)
    assert back.session == client.session
    assert back.data("/a") == b"x"
    assert list(again.core.database.tree.ephemerals) == [client.session]
    assert list(again.core.database.tree.containers) == ["/c"]
    other = Client(again)
    other.connect()
    again.sync()
    other.opened()
    assert other.session > client.session


def test_a_container_that_has_gone_is_gone_in_the_log_too(server: Server):
    client = opened(server)
    client.post(OpCode.CREATE_CONTAINER, create_body("/c"))
    client.post(OpCode.CREATE, create_body("/c/a"))
    client.post(OpCode.DELETE, encode_text("/c/a") + b"\xff\xff\xff\xff")
    server.wait(61_000)
    log = restored(*(entry for batch in server.log for entry in batch.entries))
    assert everything(log.tree()) == everything(server.core.database.tree)
    assert not log.tree().containers


@pytest.mark.parametrize("entries", [b"?", b"N\0\0", b"N\xff\xff\xff\xff"])
def test_entries_that_are_none_are_refused(entries: bytes):
    with pytest.raises(Malformed):
        restored(entries)


def test_a_node_without_a_parent_is_refused():
    server = Server(keeps=True)
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/a"))
    client.post(OpCode.CREATE, create_body("/a/b"))
    with pytest.raises(Malformed, match="'/a' is missing"):
        restored(*server.log[-1].entries).tree()


def test_the_end_of_a_session_is_in_the_log_when_it_is_answered(server: Server):
    client = opened(server)
    client.post(OpCode.CLOSE_SESSION)
    server.sync()
    assert [reply.code for reply in client.replies()] == [0]
    assert not restored(*(entry for batch in server.log for entry in batch.entries)).sessions


def test_nothing_goes_to_a_connection_behind_its_end(server: Server):
    """Neither what is made after it, nor what waited for the disk meanwhile."""
    client = opened(server)
    client.post(OpCode.CREATE, create_body("/a"))
    client.connection.closed = True
    unsent = client.connection.unsent
    server.core.outbox.send(client.connection, b"event", 0)
    assert client.connection.unsent == unsent
    server.sync()
    assert client.replies() == []

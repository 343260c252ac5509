"""What others are answered while a large request is worked on, and that it is done as if it were alone."""

import struct
from collections.abc import Callable

from metaq.coordination.standalone.codes import OpCode, RefusalCode
from metaq.coordination.standalone.jute import encode_text
from metaq.coordination.standalone.log_entries import Restored
from tests.unit.coordination.standalone.harness import (
    EPHEMERAL,
    Client,
    Server,
    create_body,
    encode_texts,
    multi_body,
    results_of,
)

READ = OpCode.EXISTS, encode_text("/") + b"\0"
NODES = 2000


def watches(count: int) -> tuple[int, bytes]:
    paths = encode_texts([f"/missing/{number}" for number in range(count)])
    return OpCode.SET_WATCHES, struct.pack("!q", 0) + encode_texts([]) + paths + encode_texts([])


def creations(count: int, mode: int = 0) -> tuple[int, bytes]:
    return OpCode.MULTI, multi_body(*((OpCode.CREATE, create_body(f"/{each}", mode=mode)) for each in range(count)))


def with_ephemerals(client: Client, count: int) -> None:
    client.post(*creations(count, EPHEMERAL))
    assert len(client.replies()) == 1


def steps_of_others(server: Server, client: Client, operation: int, body: bytes = b"") -> list[int]:
    """How many steps each read of another client has waited, asked one after the other until `client` is answered."""
    other = server.client()
    client.post_later(operation, body)
    waited, steps = [], 0
    other.post_later(*READ)
    while server.core.work(64, server.now):
        steps += 1
        if other.replies():
            waited.append(steps)
            steps = 0
            if not client.connection.out:
                other.post_later(*READ)
    return waited


def test_others_are_answered_between_the_steps_of_a_large_request(server: Server, client: Client):
    waited = steps_of_others(server, client, *watches(NODES))
    assert len(waited) > NODES / 64
    assert max(waited) <= 3
    assert len(client.replies()) == 1
    assert len(server.core.database.watches) == NODES


def test_others_wait_for_a_multi_only_while_it_is_applied(server: Server, client: Client):
    waited = steps_of_others(server, client, *creations(NODES))
    assert sorted(waited)[-2] <= 3
    assert max(waited) <= NODES / 64 + 5
    assert len(waited) > 1.9 * NODES / 64  # as it is read, and as it is judged


def test_others_are_answered_while_a_session_with_many_nodes_ends(server: Server, client: Client):
    with_ephemerals(client, NODES)
    waited = steps_of_others(server, client, OpCode.CLOSE_SESSION)
    assert len(waited) >= NODES // 512
    assert max(waited) <= 2 * 256 / 64 + 3  # it may have come behind its turn
    assert [reply.code for reply in client.replies()] == [0]
    assert client.closed
    assert server.client().children("/") == ["zookeeper"]


def test_requests_behind_a_large_one_are_answered_behind_it(server: Server, client: Client):
    large: list[Callable[[], tuple[int, bytes]]] = [lambda: watches(NODES), lambda: creations(NODES)]
    for each in large:
        client.post_later(*each())
        client.post_later(*READ)
    server.work()
    xids = [reply.xid for reply in client.replies()]
    assert xids == sorted(xids)
    assert len(xids) == 4


def test_a_multi_does_not_apply_what_another_write_has_made_impossible(server: Server, client: Client):
    other = server.client()
    client.post_later(*creations(NODES))
    for _ in range(2 * NODES // 64):  # it has been read, and is being judged
        server.core.work(64, server.now)
    other.post_later(OpCode.CREATE, create_body("/5", b"other"))
    server.work()
    (reply,) = client.replies()
    assert [code for _, code in results_of(reply)] == [0] * 5 + [RefusalCode.NODE_EXISTS] + [
        RefusalCode.RUNTIME_INCONSISTENCY
    ] * (NODES - 6)
    assert server.client().children("/") == ["zookeeper", "5"]


def test_a_multi_is_applied_behind_writes_that_do_not_concern_it(server: Server, client: Client):
    client.create("/a")
    other = server.client()
    creating = [(OpCode.CREATE, create_body(f"/a/{number}")) for number in range(NODES)]
    client.post_later(OpCode.MULTI, multi_body(*creating))
    while server.core.work(64, server.now):
        if server.core.database.tree.nodes.get("/b") is None:
            other.post_later(OpCode.CREATE, create_body("/b"))
    assert {code for reply in client.replies() for _, code in results_of(reply)} == {0}
    assert server.client().stat("/a").children == NODES


def test_a_large_multi_of_a_session_that_ends_meanwhile_is_not_done(server: Server, client: Client):
    client.post_later(*creations(NODES))
    server.core.work(64, server.now)
    server.ms += 60_000
    server.core.tick(server.now)
    server.work()
    assert server.client().children("/") == ["zookeeper"]


def test_a_connection_that_is_lost_leaves_no_watches_of_a_large_request(server: Server, client: Client):
    client.post_later(*watches(NODES))
    while not len(server.core.database.watches):
        server.core.work(64, server.now)
    server.core.lost(client.connection)
    server.work()
    assert len(server.core.database.watches) == 0
    assert server.client().ask(*READ).code == 0


def test_a_node_that_is_created_anew_while_its_owner_ends_stays(server: Server, client: Client):
    with_ephemerals(client, NODES)
    other = server.client()
    client.post_later(OpCode.CLOSE_SESSION)
    other.post_later(OpCode.DELETE, encode_text(f"/{NODES - 1}") + struct.pack("!i", -1))
    other.post_later(OpCode.CREATE, create_body(f"/{NODES - 1}", mode=EPHEMERAL))
    server.work()
    assert [reply.code for reply in other.replies()] == [0, 0]
    assert other.children("/") == ["zookeeper", str(NODES - 1)]


def test_a_server_that_stops_while_a_session_ends_has_none_of_its_nodes_when_it_is_back():
    server = Server(keeps=True)
    client = Client(server)
    client.connect()
    server.sync()
    client.opened()
    client.post(*creations(NODES, EPHEMERAL))
    server.sync()
    client.post_later(OpCode.CLOSE_SESSION)
    server.core.work(300, server.now)
    while (batch := server.core.take_log()) is None:
        server.core.work(300, server.now)
    server.log.append(batch)
    assert 0 < len(server.core.database.tree.ephemerals[client.session]) < NODES
    restored = Restored()
    for each in server.log:
        restored.apply(b"".join(each.entries))
    again = Server()
    again.core.restore(restored, server.log[-1].last, again.now)
    assert again.client().children("/") == ["zookeeper"]
    assert again.core.sessions.by_id.keys().isdisjoint([client.session])

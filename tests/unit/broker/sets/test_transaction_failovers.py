"""The leader of a broker set dies after any of its changes: what the node that is elected makes of its transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metaq.broker.sets.transaction_mirror import NAME_PREFIX, WRITTEN, TransactionMirror
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.store import Append
from metaq.broker.transactions import writer
from metaq.broker.transactions.changes import LogChange
from metaq.broker.writing.write import Write
from metaq.protocol.errors import MetaqError, NotLeader
from metaq.protocol.record import Buffer
from metaq.protocol.replication_stream import Lane, StreamEntry
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import Asker, bodies, tx, tx_put

XIDS = [f"XID:1:0{number}:0b:host" for number in range(9)]

Apply = Callable[["Node"], None]


class Recorder:
    """The other nodes as a leader sees them: what they are sent, in order. They have it when `arrive` is called."""

    refusal = None

    def __init__(self) -> None:
        self.events: list[Apply] = []
        self.halves: list[Apply | None] = []
        """Of each event that can be torn: its first half."""
        self._waiting: list[Callable[[], None]] = []

    # --- of the transaction log ---------------------------------------------------------------------------------------

    def replicate(self, changes: Sequence[LogChange], *, disk: bool, done: Callable[[str | None], None]) -> None:
        for change in changes:
            data = b"".join(change.data)
            self._add(_change(change, data), _change(change, data[: len(data) // 2]) if change.position >= 0 else None)
        self._waiting.append(lambda: done(None))

    def refusal_now(self) -> MetaqError | None:
        return None

    def failed(self, failure: MetaqError) -> None:
        raise failure

    # --- of the partitions --------------------------------------------------------------------------------------------

    def check(self, log: PartitionLog) -> None:
        pass

    def when_copied(self, writes: Sequence[Write], done: Callable[[], None]) -> None:
        self._waiting.append(done)

    def appended(
        self, log: PartitionLog, base: int, end: int, count: int, data: Sequence[Buffer], units: Buffer, segment: int
    ) -> None:
        copied, units = b"".join(data), bytes(units)
        self._add(lambda node: node.append(log.topic, log.partition, base, copied, units, segment), None)

    def _add(self, event: Apply, half: Apply | None) -> None:
        self.events.append(event)
        self.halves.append(half)

    def arrive(self) -> bool:
        """Everything has arrived at the other nodes; whether anybody waited for it."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()
        return bool(waiting)


def _change(change: LogChange, data: bytes) -> Apply:
    kind = WRITTEN if change.position >= 0 else change.position - 1
    entry = StreamEntry(NAME_PREFIX + change.name.encode(), max(change.position, 0), kind, Lane.DISK, b"", [data])
    return lambda node: node.mirror.take(entry)


class Node(Harness):
    """A node that follows, until it is elected. All of it in one life of its process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.broker.transactions.abandon("it follows")
        self.mirror = TransactionMirror(
            self.store.files, self.broker.transactions.directory, lambda: self.store.data_paths, self.threads
        )
        self.recorder = Recorder()

    def append(self, topic: str, partition: int, base: int, data: bytes, units: bytes, segment: int) -> None:
        log = self.broker.partitions.for_replica(topic, partition, base)
        log.limit_visibility()
        (taken,) = self.store.append_many([Append(log, [data], units, segment)])
        assert taken.error is None
        assert taken.base == base

    def lead(self) -> None:
        """As sets/node.py does it."""
        self.mirror.when_safe(lambda error: None)
        ready = self.mirror.ready()
        self.threads.run()
        assert ready.called
        with ExitStack() as visible:
            for log in self.store.logs():
                visible.enter_context(log.all_visible())
            self.broker.transactions.open(self.recorder)
        for log in self.store.logs():
            log.unlimited()
        self.store.on_append = self.recorder.appended
        self.broker.writing.copies = self.recorder
        self.settle()

    def settle(self) -> None:
        while self.threads.run() or self.recorder.arrive():
            pass

    def later(self, seconds: float = 1.0) -> None:
        self.reactor.advance(seconds)
        self.store.tick()
        self.broker.transactions.tick()
        self.settle()

    def log_files(self) -> dict[str, bytes]:
        directory = Path(self.broker.transactions.directory)
        return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.is_dir() else {}


class Client(Asker):
    """Its requests are answered when the worker threads have run and the other nodes have everything."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node

    def __call__(self, data: bytes) -> Any:
        self.peer.send(data)
        self.node.settle()
        (answer,) = self.peer.answers()
        return answer


class History:
    """What a leader has been asked, what it has answered, and after how many of its changes."""

    def __init__(self) -> None:
        self.committed: list[tuple[int, int, bytes]] = []  # changes before the request, before the answer, body
        self.prepared: list[tuple[int, str]] = []  # changes before the answer, key
        self.ended: dict[str, int] = {}


PLACES = [("t", 0), ("t", 1), ("safe", 0)]


def transact(node: Node) -> History:
    """Transactions of every kind over several log files, with other messages in between."""
    history = History()
    ask = Client(node)
    events = node.recorder.events

    def begin(key: str) -> None:
        bodies = [f"{key} {part}".encode() for part in range(2)]
        ask.ok(tx(key, "BEGIN"), *(tx_put(key, *place, body) for place in PLACES for body in bodies))

    def commit(key: str, verb: str = "COMMIT_ONE_PHASE") -> None:
        history.ended[key] = before = len(events)
        if verb == "by an operator":
            node.broker.transactions.complete(key, "commit")
            node.settle()
        else:
            ask.ok(tx(key, verb))
        history.committed.append((before, len(events), key.encode()))

    for number in range(3):
        begin(f"TX:s:{number}")
        commit(f"TX:s:{number}")
    for number, key in enumerate(XIDS[:6]):
        begin(key)
        ask.ok(tx(key, "PREPARE"))
        history.prepared.append((len(events), key))
        if number == 0:
            history.ended[key] = len(events)
            ask.ok(tx(key, "ROLLBACK"))
        elif number < 4:
            commit(key, "COMMIT_TWO_PHASE" if number < 3 else "by an operator")
        node.later()
    # something comes between the record of a commit and its messages: the record is put right
    begin("TX:s:7")
    before = len(events)
    ask.peer.send(tx("TX:s:7", "COMMIT_ONE_PHASE"))
    Client(node).peer.send(put("t", 0, b"between"))
    node.settle()
    assert ask.peer.answers()[0].code == 200
    history.committed.append((before, len(events), b"TX:s:7"))
    begin("TX:s:8")
    for log in node.store.logs():
        log.flush()
    node.settle()
    node.later(3600.0)
    begin("TX:s:9")
    commit("TX:s:9")
    return history


def check(node: Node, history: History, changes: int) -> None:
    """After a failover when so many changes had arrived."""
    found = {place: [body for body in bodies(node, *place) if body != b"between"] for place in PLACES}
    names = {place: [body.rpartition(b" ")[0] for body in each] for place, each in found.items()}
    for place, each in found.items():
        assert len(each) == len(set(each)), f"twice in {place}"
        assert [body[-2:] for body in each] == [b" 0", b" 1"] * (len(each) // 2), f"torn apart in {place}"
    first, *others = (sorted(each) for each in names.values())
    assert all(other == first for other in others), "a transaction is in some partitions only"
    there = set(first)
    known = {body for _, _, body in history.committed}
    assert there <= known, "a message of a transaction that nobody has committed"
    missing = {body for _, answered, body in history.committed if answered <= changes} - there
    assert not missing, "what was acknowledged is lost"
    early = {body for asked, _, body in history.committed if asked >= changes} & there
    assert not early, "there before it was asked for"
    recovered = set(Client(node).ok(tx("null", "RECOVER")).split("\r\n"))
    for answered, key in history.prepared:
        if answered <= changes <= history.ended.get(key, changes):
            assert key in recovered, "a prepared transaction is lost"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, History]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "MAX_REDO_BYTES", 2000)
        node = Node(tmp_path_factory.mktemp("leader"))
        node.lead()
        yield node, transact(node)


def test_the_recorded_changes_are_of_every_kind(recorded: tuple[Node, History]) -> None:
    node, history = recorded
    assert len(history.committed) == 8
    assert len(node.log_files()) > 1
    assert sum(half is None for half in node.recorder.halves) > 10


def test_a_follower_with_all_changes_has_the_leaders_files(recorded: tuple[Node, History], tmp_path: Path) -> None:
    leader, _ = recorded
    follower = Node(tmp_path)
    for event in leader.recorder.events:
        event(follower)
    follower.mirror.when_safe(lambda error: None)
    follower.threads.run()
    assert follower.log_files() == leader.log_files()


@pytest.mark.parametrize("torn", [False, True])
def test_transactions_are_whole_and_once_whichever_change_was_the_last_to_arrive(recorded, tmp_path, torn) -> None:
    leader, history = recorded
    events, halves = leader.recorder.events, leader.recorder.halves
    tried = 0
    for count in range(len(events) + 1):
        half = halves[count] if torn and count < len(halves) else None
        if torn and half is None:
            continue
        tried += 1
        node = Node(tmp_path / str(count))
        for event in [*events[:count], *([half] if half else [])]:
            event(node)
        node.lead()
        check(node, history, count)
        node.broker.transactions.close()
        node.store.close()
    assert tried > 10


def test_a_node_leads_again_after_another_has_led(recorded: tuple[Node, History], tmp_path: Path) -> None:
    """And forgets what was under way: its clients are told that they do not know."""
    node = Node(tmp_path)
    node.lead()
    ask = Client(node)
    ask.ok(tx(XIDS[0], "BEGIN"), tx_put(XIDS[0], "t", 0, b"prepared"), tx(XIDS[0], "PREPARE"))
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"open"))
    waiting = Client(node)
    waiting.ok(tx("TX:s:2", "BEGIN"), tx_put("TX:s:2", "t", 0, b"under way"))
    waiting.peer.send(tx("TX:s:2", "COMMIT_ONE_PHASE"))
    node.threads.run()  # on this node's disk, and not on the others
    refusal: MetaqError | None = NotLeader(0)
    node.broker.transactions.refusal = lambda: refusal
    idle = node.broker.transactions.abandon("another node leads")
    (answer,) = waiting.peer.answers()
    assert (answer.code, "another node leads" in answer.text) == (500, True)
    assert "code=-7" in answer.text  # it may have happened
    node.settle()
    assert idle.called
    assert bodies(node, "t", 0) == []
    for verb in (tx("TX:s:1", "COMMIT_ONE_PHASE"), tx(XIDS[0], "COMMIT_TWO_PHASE"), tx("null", "RECOVER")):
        assert "does not lead" in ask.refused(verb)
    node.broker.transactions.tick()
    refusal = None
    node.lead()
    assert bodies(node, "t", 0) == [b"under way"]  # its record was on this node
    assert "has not been started" in ask.refused(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    assert ask.ok(tx("null", "RECOVER")) == XIDS[0]
    ask.ok(tx(XIDS[0], "COMMIT_TWO_PHASE"))
    assert bodies(node, "t", 0) == [b"under way", b"prepared"]

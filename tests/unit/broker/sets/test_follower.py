"""A follower on a broker without a port; its leader is what the test says over the connection."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from metaq.broker.sets.connections import StreamProtocol
from metaq.broker.sets.follower import Follower
from metaq.broker.sets.history import EpochHistory, NodeFile
from metaq.broker.sets.transaction_mirror import BEGIN, END, NAME_PREFIX, TransactionMirror
from metaq.broker.store.batch import encode_puts
from metaq.protocol.record import Buffer, checksum
from metaq.protocol.replication_stream import (
    COPY,
    Ack,
    Kind,
    Lane,
    Ping,
    StreamEntry,
    StreamReader,
    encode_block,
    encode_committed,
    encode_json,
    encode_ping,
    parse_ack,
)
from tests.unit.broker.harness import Harness, StreamTransport

EPOCH = 3


class LeaderSide:
    """What the follower hears, and what it has answered."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.asked: list[int] = []
        files = harness.store.files
        self.file = NodeFile(files, harness.store.data_paths[0])
        mirror = TransactionMirror(
            files, str(harness.broker.transactions.directory), lambda: harness.store.data_paths, harness.threads
        )

        async def ready() -> TransactionMirror:
            await mirror.ready()
            return mirror

        self.follower = Follower(
            harness.broker,
            "b",
            self.file,
            ready,
            grants=self._grants,
            on_hand_over=lambda words: None,
            on_caught_up=lambda: None,
        )
        self.transport = StreamTransport()
        connection = StreamProtocol("meta://a:1", self.follower._messages)
        transport: Any = self.transport
        connection.makeConnection(transport)

        monkeypatch.setattr(self.follower, "_connect", lambda host, port: succeed(connection))
        self.connection = connection
        self.ended = ensureDeferred(self.follower.run("a", 1, EPOCH)).addErrback(lambda failure: None)
        self.transport.clear()  # FOLLOW, a frame
        self._reader = StreamReader()

    def _grants(self, epoch: int) -> bool:
        self.asked.append(epoch)
        return epoch == EPOCH == self.file.epoch

    def say(self, *messages: bytes | list[Buffer]) -> None:
        for message in messages:
            self.connection.dataReceived(message if isinstance(message, bytes) else b"".join(message))

    def welcome(self) -> None:
        history = EpochHistory().begin(EPOCH, {}).to_json()
        words: dict[str, Any] = {"epoch": EPOCH, "common": None, "history": history, "ends": {}, "bytes": 0}
        self.say(encode_json(Kind.WELCOME, words))

    def ping(self, number: int, committed: tuple[int, int] = (0, 0)) -> None:
        self.say(encode_ping(Ping(number, committed)))

    def go_live(self, number: int, disk: Sequence[str] = (), copied: Sequence[StreamEntry] = ()) -> None:
        """Behind a welcome; the copy of the transaction log is empty, and not in its place before the threads run."""
        self.welcome()
        self.harness.threads.run()
        self.harness.reactor.advance(0)  # READY
        for kind in (BEGIN, END):
            self.say(encode_block(COPY, (0, 0), [StreamEntry(NAME_PREFIX, 0, kind, Lane.MEMORY, b"", ())]))
        self.say(encode_block(COPY, (0, 0), copied))
        self.say(encode_json(Kind.LIVE, {"number": number, "committed": [0, 0], "epoch": EPOCH, "disk": list(disk)}))

    def acks(self) -> list[Ack]:
        """Those since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return [parse_ack(payload) for kind, payload in self._reader.receive(data) if kind is Kind.ACK]


@pytest.fixture
def leader(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> LeaderSide:
    return LeaderSide(harness, monkeypatch)


def entry(base: int, lane: Lane = Lane.MEMORY) -> StreamEntry:
    """A message of 24 bytes."""
    data, units = encode_puts([(0, checksum(b"body"), b"body")], base, [(1 << 40) + base])
    return StreamEntry(b"t-0", base, 0, lane, units, data)


def test_a_ping_is_granted_only_when_the_epoch_is_on_the_disk(harness: Harness, leader: LeaderSide) -> None:
    leader.ping(1)
    leader.welcome()
    leader.ping(2)
    assert leader.file.epoch == 0
    assert [ack.ping for ack in leader.acks()] == [0, 0]
    harness.threads.run()  # the epoch is written
    assert leader.file.epoch == EPOCH
    leader.ping(3)
    assert [ack.ping for ack in leader.acks()] == [3]
    assert leader.asked == [0, 0, EPOCH]


def test_what_the_leader_tells_is_shown_at_once_and_not_acknowledged(leader: LeaderSide) -> None:
    leader.go_live(1)
    leader.harness.threads.run()
    leader.say(encode_block(2, (1, 1), [entry(0)]))
    log = leader.harness.store.get("t", 0)
    assert [ack.received for ack in leader.acks()][-1:] == [2]
    assert (log.visible_end, log.end_offset) == (0, 24)
    leader.say(encode_committed((2, 2)))
    assert (log.visible_end, leader.acks()) == (24, [])


def test_the_leaders_promise_counts_and_not_the_followers_own_flush_settings(harness, leader, caplog) -> None:
    leader.go_live(1)
    harness.threads.run()
    leader.say(encode_block(2, (1, 1), [entry(0)]))
    log = harness.store.get("t", 0)
    assert leader.acks()[-1].safe == 2
    assert not log.has_group_commit
    for block in (3, 4):
        leader.say(encode_block(block, (2, 2), [entry(24 * (block - 2), Lane.DISK)]))
        assert (leader.acks()[-1][:2], log.synced_end) == ((block, block - 1), 24 * (block - 2) if block > 3 else 0)
        harness.threads.run()
        assert (leader.acks()[-1].safe, log.synced_end) == (block, 24 * (block - 1))
        harness.broker.member = SimpleNamespace(reconfigured=leader.follower.reconfigured)
        harness.broker.reconfigure(harness.broker.config, harness.broker.reading.filters)
    assert "topic t has ack=disk at meta://a:1 and asynchronous flush here" in caplog.text
    leader.connection.connectionLost(Failure(ConnectionDone()))
    assert not log.has_group_commit


def test_a_topic_that_this_nodes_server_ini_does_not_have_is_copied_and_told_once(harness, leader, caplog) -> None:
    leader.go_live(1)
    for number, name in enumerate((b"elsewhere-0", b"elsewhere-1", b"t-0"), start=2):
        leader.say(encode_block(number, (1, 1), [entry(0)._replace(name=name)]))
    assert harness.store.get("elsewhere", 1).end_offset == 24
    (told,) = [record.getMessage() for record in caplog.records if "server.ini" in record.getMessage()]
    assert told.startswith("topic elsewhere is copied from meta://a:1, and this node's server.ini has no section")


def test_a_copy_counts_when_what_the_leader_promises_to_be_on_the_disk_is_there(harness, leader: LeaderSide) -> None:
    leader.go_live(5, ["t-0"], [entry(0)])
    log = harness.store.get("t", 0)
    assert log.synced_end == 0
    harness.threads.run()
    assert [ack.safe for ack in leader.acks()] == [0]
    harness.reactor.advance(0.1)
    assert (log.synced_end, leader.acks()[-1].safe) == (24, 5)


def test_the_copy_of_a_partition_with_group_commit_is_synced_without_waiting_for_a_put(harness, leader) -> None:
    leader.go_live(5, ["safe-0"], [entry(0)._replace(name=b"safe-0")])
    harness.threads.run()
    assert leader.acks()[-1].safe == 5


def test_all_is_shown_when_the_leader_told_it_before_the_copy_was_in_its_place(leader: LeaderSide) -> None:
    leader.go_live(4)
    leader.ping(1, (4, 4))
    assert not leader.follower.shows_all
    leader.harness.threads.run()
    assert leader.follower.live
    assert leader.follower.shows_all


@pytest.mark.parametrize("chosen", [0, EPOCH])
def test_what_was_told_to_be_committed_is_cut_only_for_a_node_that_an_operator_has_chosen(harness, leader, chosen):
    leader.go_live(1)
    harness.threads.run()
    for number in (2, 3):
        leader.say(encode_block(number, (1, 1), [entry(24 * (number - 2))]))
    leader.say(encode_committed((2, 2)))
    log, history = harness.store.get("t", 0), leader.file.history
    failures: list[str] = []

    def cut(end: int) -> None:
        work = leader.follower._cut(history, history.epochs[-1], {"t-0": end}, {"t-0": log.end_offset}, "c", chosen)
        ensureDeferred(work).addErrback(lambda failure: failures.append(failure.getErrorMessage()))
        for _ in range(5):
            harness.store.tick()
            harness.threads.run()

    cut(24)
    assert (log.end_offset, failures) == (24, [])
    cut(0)
    assert log.end_offset == (0 if chosen else 24)
    told = "the leader c lacks acknowledged messages that b has, in t-0"
    assert [told in each for each in failures] == ([] if chosen else [True])


def test_a_follower_that_has_stopped_takes_and_grants_nothing(leader: LeaderSide) -> None:
    leader.go_live(0)
    leader.harness.threads.run()
    leader.acks()
    asked = list(leader.asked)
    leader.follower.stop()
    leader.follower._messages(StreamReader().receive(encode_ping(Ping(9, (0, 0)))))
    assert (leader.acks(), leader.asked) == ([], asked)


def test_a_leader_answers_once(leader: LeaderSide) -> None:
    leader.welcome()
    leader.welcome()
    assert "a second answer to FOLLOW" in str(leader.connection.lost)

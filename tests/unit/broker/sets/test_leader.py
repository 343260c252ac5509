"""A leader's promises on a broker without a port; its followers are what the test says of them, ZooKeeper is away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from metaq.broker import tuning as broker_tuning
from metaq.broker.sets import tuning
from metaq.broker.sets.connections import StreamProtocol
from metaq.broker.sets.leader import Leader
from metaq.broker.sets.leading import Leading
from metaq.broker.sets.transaction_mirror import BEGIN, END, SAME, WRITTEN, log_bytes, log_digest
from metaq.broker.writing.write import Write
from metaq.protocol.errors import DiskFull, NotLeader
from metaq.protocol.frames import encode_frame
from metaq.protocol.record import encode_record
from metaq.protocol.replication_stream import (
    Ack,
    Kind,
    Lane,
    StreamReader,
    encode_ack,
    encode_json,
    parse_block,
    parse_committed,
    parse_ping,
)
from metaq.protocol.sends import (
    SendBatchRequest,
    SendManyRequest,
    SendRequest,
    decode_replicas,
    decode_rows,
    encode_parts,
)
from metaq.protocol.statuses import RequestCode
from metaq.protocol.transaction_requests import TransactionRequest
from tests.unit.broker.harness import Harness, StreamTransport, put

TOPICS = """
[topic=two]
minInSync=2
[topic=early]
ack=leader
"""

PLACES = [("t", 0), ("t", 1), ("t", 2), ("two", 0)]


class Set:
    """Node a leads; b is in sync and has granted."""

    def __init__(self, harness: Harness, *in_sync: str) -> None:
        self.harness = harness
        self.peer = harness.connect()
        self.failures: list[Exception] = []
        self.core = Leading("a", 1, in_sync)
        self.leader = Leader(
            harness.broker, self.core, self._change, on_established=lambda: None, on_failure=self.failures.append
        )
        harness.broker.writing.copies = self.leader
        self.leader.start()
        for name in in_sync[1:]:
            self.core.connected(name)
            self.core.went_live(name)
            self.grant(name)

    def _change(self, wanted: frozenset[str]) -> Deferred[bool]:
        """ZooKeeper never answers."""
        return Deferred()

    def grant(self, name: str) -> None:
        self.core.granted(name, self.harness.reactor.seconds() + 0.9)

    def acknowledge(self, name: str) -> None:
        """The follower has everything."""
        self.harness.turn()
        self.has_everything(name)
        self.leader._advance()

    def has_everything(self, name: str) -> None:
        self.core.acknowledged(name, Ack(self.core.number, self.core.number, 0))

    def join(self, name: str, transactions: tuple[int, str] = (0, "")) -> Joined:
        """Its connection, on which it has copied what there is. transactions: what it says of its transaction log."""
        joined = Joined(name, self)
        joined.say(encode_json(Kind.READY, {"partitions": {}, "transactions": transactions}))
        self.harness.reactor.advance(0)
        self.harness.threads.run()
        self.harness.reactor.advance(0)
        return joined

    def put(self, topic: str) -> None:
        self.peer.send(put(topic, 0))
        self.harness.turn()

    def codes(self) -> list[int]:
        """Of what was answered since the last call."""
        return [answer.code for answer in self.peer.answers()]

    def end(self, topic: str) -> tuple[int, int]:
        """Where the partition ends, for readers and for the leader."""
        log = self.harness.store.get(topic, 0)
        return log.visible_end, log.end_offset


class Joined:
    """The connection of a follower."""

    def __init__(self, name: str, nodes: Set) -> None:
        leader = nodes.leader
        self.transport = StreamTransport()
        self.connection = StreamProtocol(name, lambda messages: leader.received(name, self.connection, messages))
        transport: Any = self.transport
        self.connection.makeConnection(transport)
        self._reader = StreamReader()
        leader.serve(name, self.connection)

    def say(self, message: bytes) -> None:
        self.connection.dataReceived(message)

    def heard(self) -> list[tuple[Kind, memoryview]]:
        """Since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return self._reader.receive(data)

    def copied(self) -> list[int]:
        """Of which kinds were the changes of the transaction log since the last call."""
        blocks = [parse_block(payload) for kind, payload in self.heard() if kind is Kind.BLOCK]
        return [entry.segment for block in blocks for entry in block.entries if entry.segment < 0]


@pytest.fixture
def alone(harness: Harness) -> Set:
    return Set(harness, "a")


@pytest.fixture
def pair(harness: Harness) -> Set:
    return Set(harness, "a", "b")


def test_alone_it_answers_and_shows_what_it_has(alone: Set) -> None:
    alone.put("t")
    assert (alone.codes(), alone.end("t")) == ([200], (25, 25))


def test_it_answers_and_shows_what_every_in_sync_node_has(pair: Set) -> None:
    pair.put("t")
    assert (pair.codes(), pair.end("t")) == ([], (0, 25))
    pair.acknowledge("b")
    assert (pair.codes(), pair.end("t")) == ([200], (25, 25))


def test_ack_leader_is_answered_before_it_is_shown(pair: Set) -> None:
    pair.peer.send(put("early", 0))
    assert (pair.codes(), pair.end("early")) == ([200], (0, 25))
    pair.acknowledge("b")
    assert pair.end("early") == (25, 25)


def test_ack_leader_waits_for_a_grant(harness: Harness, pair: Set) -> None:
    harness.reactor.advance(1.0)
    pair.put("early")
    assert pair.codes() == []
    pair.grant("b")
    pair.acknowledge("b")
    assert pair.codes() == [200]


def test_the_disk_of_every_node_counts_where_puts_wait_for_it(harness: Harness, pair: Set) -> None:
    pair.put("safe")
    pair.core.acknowledged("b", Ack(pair.core.number, 0, 0))
    harness.threads.run()  # the own disk
    assert pair.codes() == []
    pair.acknowledge("b")
    harness.threads.run()
    assert pair.codes() == [200]


@pytest.mark.parametrize("why", ["its log has failed", "its disk has no room"])
@pytest.mark.parametrize(("in_sync", "left"), [("a", 0), ("ab", 1)])
def test_a_leader_that_cannot_write_leaves_if_another_node_can_lead(harness, monkeypatch, in_sync, left, why) -> None:
    nodes = Set(harness, *in_sync)
    nodes.put("t")
    log, full = harness.store.get("t", 0), why == "its disk has no room"
    if full:
        monkeypatch.setattr(harness.store.files, "space", lambda path: (0, 1 << 30))
        harness.store.space.look_now()
    else:
        log.sync_failed("a background sync has failed")
    harness.reactor.pump([0.2] * 5)
    told = f"{log.directory} is read-only after a failed write: a background sync has failed"
    assert [type(each) if full else str(each) for each in nodes.failures[:1]] == left * [DiskFull if full else told]


def test_too_few_nodes_refuse_a_message_and_store_nothing(alone: Set) -> None:
    answer = alone.peer.ask(put("two", 0))
    assert answer.code == 500
    assert "wants 2 nodes in sync (minInSync) and there are 1: not stored" in answer.text
    assert alone.end("two") == (0, 0)


def test_a_node_that_leads_no_longer_stores_nothing_and_knows_nothing(harness: Harness, pair: Set) -> None:
    pair.put("t")
    pair.leader.stop(NotLeader(0, "meta://other:1"))
    (answer,) = pair.peer.answers()
    assert (answer.code, "meta://other:1" in answer.text) == (500, True)
    assert pair.peer.ask(put("t", 0)).code == 500
    writes = [Write(harness.store.get("t", 0), (b"late",))]
    assert harness.broker.writing.append(writes) == []
    assert isinstance(writes[0].error, NotLeader)
    assert pair.end("t") == (0, 25)


def test_a_follower_that_goes_live_is_asked_for_its_grant_at_once(harness: Harness, alone: Set) -> None:
    joined = alone.join("b")
    *_, (live, _), (ping, asked) = joined.heard()
    assert (live, ping) == (Kind.LIVE, Kind.PING)
    joined.say(encode_ack(Ack(0, 0, parse_ping(asked).number)))
    assert alone.core.followers["b"].granted_until == harness.reactor.seconds() + 0.9


def test_a_follower_that_reads_nothing_is_cut(harness: Harness, alone: Set) -> None:
    """What is told in between would stay in memory."""
    joined = alone.join("b")
    seconds = int(tuning.STUCK_SECONDS)
    for _ in range(2):
        joined.connection.resumeProducing()  # it has read
        joined.connection.pauseProducing()
        harness.reactor.pump([tuning.PING_SECONDS] * int((seconds - 1) / tuning.PING_SECONDS))
    assert joined.connection.lost is None
    harness.reactor.pump([tuning.PING_SECONDS] * 3 * tuning.PINGS_PER_LOOK)
    assert str(joined.connection.lost) == f"b has read nothing for {seconds} s"
    assert [each.connected for each in alone.leader.status()] == [False]


def test_pings_without_an_answer_do_not_gather(harness: Harness, alone: Set) -> None:
    alone.join("b")
    harness.reactor.pump([tuning.PING_SECONDS] * 2 * tuning.KEPT_PINGS)
    assert len(alone.leader._links["b"].pings) == tuning.KEPT_PINGS


def test_a_follower_is_copied_to_once(alone: Set) -> None:
    joined = alone.join("b")
    joined.say(encode_json(Kind.READY, {"partitions": {}, "transactions": (0, "")}))
    assert "a second READY" in str(joined.connection.lost)


@pytest.mark.parametrize("says", [True, False])
def test_a_follower_that_says_why_it_leaves_is_not_told_as_a_lost_connection(alone: Set, says: bool) -> None:
    joined = alone.join("b")
    if says:
        joined.say(encode_json(Kind.LEAVE, {"why": "it stops"}))
    joined.connection.connectionLost(Failure(ConnectionLost()))
    (told,) = alone.leader.status()
    assert told.error == "it stops" if says else told.error.startswith("the connection to b was lost")
    alone.join("b")
    assert [each.error for each in alone.leader.status()] == [""]


def test_what_is_committed_is_told_soon_when_no_block_tells_it_but_not_for_each_block(harness, alone: Set) -> None:
    joined = alone.join("b")
    alone.core.in_sync = frozenset("ab")
    alone.grant("b")
    joined.heard()
    told = []
    for _ in range(10):
        alone.put("t")
        joined.say(encode_ack(Ack(alone.core.number, alone.core.number, 0)))
        harness.turn()
        told += [parse_committed(payload) for kind, payload in joined.heard() if kind is Kind.COMMITTED]
    assert len(told) == 1
    assert told[0][0] < alone.core.committed[0]
    harness.reactor.advance(tuning.TELL_SECONDS)
    ((kind, payload),) = joined.heard()
    assert (kind, parse_committed(payload)) == (Kind.COMMITTED, alone.core.committed)
    harness.reactor.advance(tuning.TELL_SECONDS)
    assert joined.heard() == []


# --- on how many nodes a message is -----------------------------------------------------------------------------------


def _framed(topic: str, kind: str, opaque: int = 1) -> bytes:
    if kind == "send":
        return encode_frame(RequestCode.SEND, opaque, SendRequest(topic, 0).to_ext(), 5) + b"hello"
    record = encode_record(b"hello", 0, 0)
    sizes = len(record).to_bytes(4, "big")
    if kind == "batch":
        ext = SendBatchRequest(topic, 0, 1).to_ext()
        return encode_frame(RequestCode.SEND_BATCH, opaque, ext, len(sizes) + len(record)) + sizes + record
    body = encode_parts([(0, 0, 1), (1, 0, 1)], [len(record)] * 2) + record * 2
    ext = SendManyRequest((topic, "early"), 2, 2).to_ext()
    return encode_frame(RequestCode.SEND_MANY, opaque, ext, len(body)) + body


@pytest.mark.parametrize("kind", ["send", "batch"])
@pytest.mark.parametrize(("topic", "replicas"), [("t", "3"), ("early", "1"), ("safe", "3")])
def test_an_answer_says_how_many_nodes_have_the_message(harness: Harness, kind: str, topic: str, replicas: str) -> None:
    nodes = Set(harness, "a", "b", "c")
    nodes.peer.send(_framed(topic, kind))
    harness.turn()
    harness.threads.run()
    for name in "bc":
        nodes.acknowledge(name)
    assert [answer.ext["replicas"] for answer in nodes.peer.frames()] == [replicas]


def test_a_node_that_is_not_in_sync_yet_counts_once_it_has_the_message(harness: Harness, pair: Set) -> None:
    pair.core.connected("late")
    pair.core.went_live("late")
    pair.peer.send(_framed("t", "send"))
    pair.acknowledge("b")
    pair.peer.send(_framed("t", "send", 2))
    harness.turn()
    pair.core.acknowledged("late", Ack(pair.core.number, 0, 0))
    pair.acknowledge("b")
    assert [frame.ext["replicas"] for frame in pair.peer.frames()] == ["2", "3"]


def test_each_part_of_a_frame_has_its_own_number(pair: Set) -> None:
    pair.peer.send(_framed("t", "many"))
    pair.acknowledge("b")
    (answer,) = pair.peer.frames()
    assert (decode_rows(answer.body, 2).codes, list(decode_replicas(answer.body, 2))) == ([0, 0], [2, 1])


def test_a_put_in_a_transaction_is_on_the_leader_alone(pair: Set) -> None:
    ext = TransactionRequest("TX:s:1", "BEGIN", "s", 0, "").to_ext()
    assert pair.peer.ask_frame(encode_frame(RequestCode.TRANSACTION, 1, ext)).code == 0
    ext = SendRequest("t", 0, tx_key="TX:s:1").to_ext()
    answer = pair.peer.ask_frame(encode_frame(RequestCode.SEND, 2, ext, 5) + b"hello")
    assert (answer.ext["offset"], answer.ext["replicas"]) == ("-1", "1")


@pytest.mark.parametrize("kind", ["send", "batch"])
def test_a_broker_by_itself_says_nothing_of_nodes(harness: Harness, kind: str) -> None:
    assert "replicas" not in harness.connect().ask_frame(_framed("t", kind)).ext
    body = harness.connect().ask_frame(_framed("t", "many")).body
    assert (len(body), decode_replicas(body, 2)) == (48, [0, 0])


def test_a_follower_with_the_same_transaction_log_gets_no_copy_of_it(harness: Harness, alone: Set) -> None:
    files, directory = harness.store.files, harness.broker.transactions.directory
    Path(directory).mkdir()
    Path(directory, "metaq.json").write_bytes(b"{}")
    same = log_bytes(files, directory), log_digest(files, directory)
    assert same[0] == 2
    assert alone.join("b", same).copied() == [SAME]
    for other in ((same[0] + 1, same[1]), (same[0], "another")):
        kinds = alone.join("b", other).copied()
        assert (kinds[0], kinds[-1], set(kinds[1:-1])) == (BEGIN, END, {WRITTEN})


def test_a_copy_keeps_its_pace_until_blocks_wait_for_it(harness: Harness, alone: Set, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "PIECE_BYTES", 30)
    monkeypatch.setattr(tuning, "LIVE_BYTES", 60)
    for _ in range(3):
        alone.put("t")
    sizes: list[int] = []
    pace: Any = SimpleNamespace(pause=lambda: 1.0, spend=sizes.append)  # one piece a second
    alone.leader._pace = pace
    joined = alone.join("b")
    copied = []
    for _ in range(4):
        copied.append(sum(len(parse_block(payload).entries) for kind, payload in joined.heard() if kind is Kind.BLOCK))
        if len(copied) == 3:
            for _ in range(2):  # for the last round, which does not wait
                alone.peer.send(put("t", 0))
        harness.reactor.advance(1)
        harness.threads.run()
    assert sizes == [25, 25, 25]
    assert copied[:3] == [0, 1, 1]
    assert copied[3] >= 3
    assert not alone.leader._links["b"].held


@pytest.fixture
def slowly(harness: Harness, pair: Set, monkeypatch: pytest.MonkeyPatch) -> Set:
    """A put in each of PLACES, which the follower has and readers do not see yet; a slice shows one of them."""
    pair.acknowledge("b")
    pair.peer.send(b"".join(put(topic, partition) for topic, partition in PLACES))
    monkeypatch.setattr(broker_tuning, "WORK_SLICE_SECONDS", 0.0)
    harness.turn()
    pair.has_everything("b")
    pair.leader._advance()
    return pair


def shown(harness: Harness) -> int:
    return sum(harness.store.get(*place).visible_end > 0 for place in PLACES)


def test_what_is_committed_of_very_many_partitions_is_shown_in_turns_and_then_answered(harness, slowly: Set) -> None:
    seen = [0]
    while slowly.leader._showing:
        seen.append(shown(harness))
        assert seen[-1] - seen[-2] <= 1
        assert not slowly.peer.received() or seen[-1] == len(PLACES)
        slowly.leader._showing._go_on()
    assert seen[-1] == len(PLACES)


def test_a_leader_that_has_ended_shows_no_more_and_answers_what_was_committed(harness, slowly: Set) -> None:
    slowly.leader.stop(NotLeader(0))
    harness.turn()
    assert (shown(harness), slowly.codes()) == (1, [200] * len(PLACES))


def test_a_repeated_send_is_answered_when_readers_see_the_first_one(harness: Harness, slowly: Set) -> None:
    answered: list[int] = []
    slowly.leader.replicate((), Lane.MEMORY, lambda error: answered.append(slowly.end(PLACES[-1][0])[0]))
    assert answered == []
    harness.turn()
    assert answered == [25]


def test_what_comes_late_on_a_connection_that_another_has_replaced_counts_for_nothing(alone: Set) -> None:
    old = alone.join("b")
    alone.join("b")
    *_, (_, asked) = old.heard()
    new = alone.core.followers["b"]
    known = new.safe, new.granted_until
    late = StreamReader().receive(encode_ack(Ack(7, 7, parse_ping(asked).number)))
    alone.leader.received("b", old.connection, late)
    assert (new.safe, new.granted_until) == known


def test_a_leader_that_drains_sends_at_once_what_it_has_taken(alone: Set) -> None:
    joined = alone.join("b")
    joined.heard()
    alone.peer.send(put("t", 0, b"x"))
    alone.leader.drain_to("b")
    assert [kind for kind, _ in joined.heard()][:1] == [Kind.BLOCK]

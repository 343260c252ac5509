"""Requests that take long are worked off in slices: others are served in between, and every order is kept."""

from collections.abc import Callable

import numpy as np
import pytest

from metaq.client.producer import queues as queues_module
from metaq.client.producer.outgoing import Outgoing
from metaq.client.records.results import TopicPartition
from metaq.protocol import put_run as put_run_module
from metaq.protocol.frames import ONE_WAY, encode_frame
from metaq.protocol.limits import MAX_PARTS
from metaq.protocol.record import encode_record, iter_headers
from metaq.protocol.sends import SendManyRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get
from tests.doubles.store import check_invariants
from tests.unit.broker.harness import batch, many, pull, put, raw_batch, record
from tests.unit.broker.test_send_many import rows


@pytest.fixture
def slices(monkeypatch):
    """A slice is one record or part, and a turn one slice."""
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    monkeypatch.setattr("metaq.broker.tuning.SEND_SLICE_SECONDS", 0.0)
    monkeypatch.setattr("metaq.broker.tuning.SEND_PARTS", 1)
    monkeypatch.setattr("metaq.broker.store.tuning.SLICE_RECORDS", 1)


def stored(harness, partition, topic="t"):
    log = harness.store.get(topic, partition)
    check_invariants(log)
    data = log.segments.snapshot().read(0, 1 << 20)
    return [data[each.end - each.length : each.end] for each in iter_headers(data)]


def step(harness):
    """What the reactor was asked first to do."""
    harness.reactor.calls.sort(key=lambda call: call.getTime())
    call = harness.reactor.calls.pop(0)
    call.called = 1
    call.func(*call.args, **call.kw)


def turns(harness, between: Callable[[int], None] = lambda turn: None):
    count = 0
    while harness.reactor.getDelayedCalls() and count < 1000:
        between(count)
        step(harness)
        count += 1
    return count


def test_others_are_served_between_the_parts_of_a_request(peer, harness, slices):
    other = harness.connect()
    answered: list[int] = []
    peer.send(many([("t", number % 2, [record(b"part %d" % number)]) for number in range(10)]))
    assert peer.received() == b""
    turns(harness, lambda turn: answered.append(other.ask(put("t", 0, b"other", turn)).code))
    assert len(answered) >= 9  # the first part needs no further turn
    assert set(answered) == {200}
    (answer,) = peer.frames()
    found = rows(answer)
    for partition in (0, 1):
        bodies = stored(harness, partition)
        assert [each for each in bodies if each != b"other"] == [b"part %d" % n for n in range(partition, 10, 2)]
    for number, row in enumerate(found):
        expected = encode_record(b"part %d" % number, row.message_id, 0)
        assert harness.store.get("t", number % 2).segments.read(row.offset, 26) == expected


def test_the_topics_of_a_request_are_counted_in_turns(peer, harness, slices):
    peer.send(many([(f"unknown-{number}", 0, [record()]) for number in range(10)]))
    assert turns(harness) >= 27  # for each: its record is stamped, its topic counted, and its part refused
    assert (harness.broker.metrics.cmd_put, harness.broker.metrics.put_failed) == (10, 10)


def test_what_follows_on_the_same_connection_waits_for_it(peer, harness, slices):
    frame = many([("t", 0, [record(b"%d" % number)]) for number in range(5)])
    peer.send(frame + put("t", 0, b"behind", 2) + encode_get("t", "g", 0, 0, 1000, 3))
    peer.send(put("t", 0, b"last", 4))
    turns(harness)
    assert stored(harness, 0) == [b"0", b"1", b"2", b"3", b"4", b"behind", b"last"]


def test_a_batch_stays_together_while_others_put_to_its_partition(peer, harness, slices):
    other = harness.connect()
    peer.send(batch("t", 0, [b"%d" % number for number in range(6)]))
    turns(harness, lambda turn: other.ask(put("t", 0, b"other")) if turn < 3 else None)
    assert stored(harness, 0) == [b"other"] * 3 + [b"%d" % number for number in range(6)]
    (answer,) = peer.frames()
    assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, "75")
    ids = harness.store.get("t", 0).lookup.units(0, 1000)["id"][3:]
    assert ids.tolist() == list(range(int(answer.ext["msgId"]), int(answer.ext["msgId"]) + 6))


@pytest.mark.parametrize(
    ("last", "closed", "code"),
    [(record(b"abc")[:-1] + b"X", False, ResponseCode.MESSAGE_ILLEGAL), (record(), True, ResponseCode.NO_PERMISSION)],
    ids=["has a damaged record", "is to a partition that is closed meanwhile"],
)
def test_a_batch_is_refused_as_a_whole_that(peer, harness, slices, last, closed, code):
    peer.send(raw_batch("t", 0, [record(), record(), last]))
    if closed:
        harness.broker.partitions.close("t", 0, 0)
    turns(harness)
    assert [frame.code for frame in peer.frames()] == [code]
    assert harness.store.get("t", 0).segments.message_count == 0
    assert harness.broker.metrics.put_failed == (0 if closed else 3)  # a closed partition is not counted


@pytest.mark.parametrize("bound", ["SLICE_BYTES", "SLICE_ATTRIBUTES"])
def test_a_partition_that_is_closed_while_a_batch_is_stamped_takes_none_of_it(
    peer, harness, slices, monkeypatch, bound
):
    """However few records it has: stamping pauses by bytes and by attributes as well."""
    monkeypatch.setattr("metaq.broker.store.tuning.SLICE_RECORDS", 1 << 13)
    monkeypatch.setattr(f"metaq.broker.store.tuning.{bound}", 1)
    peer.send(batch("t", 0, [b"%d" % number for number in range(3)], tag="a"))
    assert turns(harness, lambda turn: harness.broker.partitions.close("t", 0, 0)) > 0
    assert [frame.code for frame in peer.frames()] == [ResponseCode.NO_PERMISSION]
    assert not list(harness.store.logs()) or stored(harness, 0) == []


def test_wrong_sizes_at_the_end_are_found_before_anything_is_appended(peer, harness, slices):
    parts = [("t", 0, [record()]), ("t", 1, [record(), record(b"xy"), record(b"z")])]
    frame = bytearray(many(parts))
    frame[-21 - 22 + 3] += 1  # the length in the last but one record's header
    peer.send(bytes(frame))
    turns(harness)
    answer = peer.frames()[0]
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "record 2" in answer.remark
    assert list(harness.store.logs()) == []


def test_what_follows_a_refused_part_in_its_partition_is_refused_in_later_slices_too(peer, harness, slices):
    peer.ask(put("t", 0))
    log = harness.store.get("t", 0)
    peer.send(many([("t", 0, [record(b"%d" % number)]) for number in range(4)] + [("t", 1, [record()])]))
    log.durability.read_only = "broken for a moment"
    turns(harness, lambda turn: setattr(log.durability, "read_only", None) if turn == 7 else None)
    codes = [row.code for row in rows(peer.frames()[0])]
    first = codes.index(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert set(codes[first:4]) == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert codes[4] == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["many", "batch"])
def test_a_request_of_a_connection_that_is_gone_is_worked_off(peer, harness, slices, kind):
    parts = [("safe", 0, [record()]) for _ in range(5)]
    peer.send(many(parts) if kind == "many" else batch("safe", 0, [b"hello"] * 5))
    peer.lose()
    turns(harness)
    harness.threads.run()
    assert stored(harness, 0, "safe") == [b"hello"] * 5
    assert harness.broker.pending_puts.bytes == 0
    assert peer.received() == b""


def test_a_closing_connection_gets_the_answer_first(peer, harness, slices):
    peer.send(many([("t", 0, [record()]) for _ in range(5)]))
    peer.session.close()
    assert not peer.transport.disconnecting
    turns(harness)
    assert len(rows(peer.frames()[0])) == 5
    assert peer.transport.disconnecting


def test_a_one_way_request_in_slices_has_no_answer(peer, harness, slices):
    peer.send(many([("t", 0, [record()]), ("t", 1, [record()])], one_way=ONE_WAY))
    turns(harness)
    assert peer.received() == b""
    assert [len(stored(harness, partition)) for partition in (0, 1)] == [1, 1]


def test_a_slice_ends_when_its_time_is_over(peer, harness, monkeypatch, appends):
    """Each look at the clock takes a millisecond here."""
    time = 0.0

    def seconds():
        nonlocal time
        time += 0.001
        return time

    monkeypatch.setattr("metaq.broker.tuning.SEND_PARTS", 2)
    monkeypatch.setattr(harness.reactor, "seconds", seconds)
    peer.session.seconds = seconds
    counts = []
    peer.send(many([("t", 0, [record()]) for _ in range(100)]))
    turns(harness, lambda turn: counts.append(len(appends)))
    assert len(counts) > 10
    assert max(np.diff(counts)) <= 20
    assert len(appends) == 100


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_more_parts_than_the_limit_are_refused_with_the_limit(peer, harness):
    body = bytes(12 * (MAX_PARTS + 1))  # rows of zeros
    ext = SendManyRequest(("t",), MAX_PARTS + 1, MAX_PARTS + 1).to_ext()
    answer = peer.ask_frame(encode_frame(RequestCode.SEND_MANY, 1, ext, len(body)) + body)
    assert (answer.code, str(MAX_PARTS) in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert list(harness.store.logs()) == []


def test_our_client_sends_no_more_parts_than_the_limit(monkeypatch):
    monkeypatch.setattr(queues_module, "MAX_PARTS", 3)
    broker = queues_module.BrokerQueue()
    broker.gathers = True
    for number in range(8):
        queue = queues_module.PartitionQueue(TopicPartition("t", 0, number), broker)
        queue.put(Outgoing("t", 0, 0, b"x", 0.0))
        broker.call(queue)
    flights = broker.depart(10, 1 << 20, 10_000)
    assert [len(flight.turns) for flight in flights] == [3, 3, 2]


def test_puts_of_one_read_are_served_in_several_turns_if_they_are_very_many(peer, harness, monkeypatch):
    monkeypatch.setattr(put_run_module, "MOST_PUTS", 100)
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    peer.send(b"".join(put("t", number % 3, b"%d" % number, number) for number in range(250)))
    assert turns(harness) >= 2
    answers = peer.answers()
    assert [answer.opaque for answer in answers] == list(range(250))
    assert {answer.code for answer in answers} == {200}
    assert stored(harness, 1) == [b"%d" % number for number in range(1, 250, 3)]


def test_an_answer_has_a_bounded_number_of_records(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.PULL_SCAN_RECORDS", 10)
    peer.ask_frame(batch("t", 0, [b"hello"] * 25))
    offset, counts = 0, []
    for _ in range(3):
        frame = peer.ask_frame(pull("t", 0, offset))
        counts.append(len(frame.body) // 25)
        offset = int(frame.ext["nextOffset"])
    assert (counts, offset) == ([10, 10, 5], 625)


# --- large requests ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one_large(monkeypatch):
    """Of requests of more than a kilobyte one is under way at once."""
    monkeypatch.setattr("metaq.broker.tuning.LARGE_WORK_BYTES", 1 << 10)
    monkeypatch.setattr("metaq.broker.tuning.MAX_LARGE_WORKS", 1)


def large(number):
    return many([("t", 0, [record(b"%d.%d" % (number, part) + bytes(300))]) for part in range(5)])


def test_few_large_requests_are_under_way_at_once_and_small_ones_do_not_wait_for_them(harness, slices, one_large):
    senders = [harness.connect() for _ in range(4)]
    for number, sender in enumerate(senders):
        sender.send(large(number))
    small = harness.connect()
    small.send(many([("t", 1, [record(b"small")])] * 3))
    answered: list[object] = []

    def between(turn):
        answered.extend(name for name, peer in (*enumerate(senders), ("small", small)) if peer.received())

    turns(harness, between)
    between(0)
    assert answered.count("small") == 1
    assert answered.index("small") < 2
    assert [each for each in answered if each != "small"] == [0, 1, 2, 3]
    parts = [body.rstrip(b"\0") for body in stored(harness, 0)]
    assert parts == [b"%d.%d" % (number, part) for number in range(4) for part in range(5)]


def test_a_large_request_of_a_client_that_left_is_stored_and_gives_its_place_to_the_next(harness, slices, one_large):
    first, second, third = (harness.connect() for _ in range(3))
    for number, sender in enumerate((first, second, third)):
        sender.send(large(number))
    first.lose()
    second.lose()
    turns(harness)
    assert third.received()
    assert len(stored(harness, 0)) == 15
    fourth = harness.connect()
    fourth.send(large(3))
    turns(harness)
    assert fourth.received()

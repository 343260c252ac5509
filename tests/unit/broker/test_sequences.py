"""Numbered sends: a repeated one is stored once, whatever happens between the first one and its answer."""

import os

import pytest

from metaq.broker import tuning
from metaq.broker.memory import sequence_rows
from metaq.broker.memory.topics import SEQUENCES_TOPIC
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.writing import last_rows
from metaq.protocol.errors import DiskFull
from metaq.protocol.sends import decode_rows
from metaq.protocol.statuses import ResponseCode
from tests.raising import raising
from tests.unit.broker import harness
from tests.unit.broker.harness import put, raw_batch, record

OK, NOT_SAFE, STALE = ResponseCode.SUCCESS, ResponseCode.NOT_SAFE, ResponseCode.STALE_SEQUENCE
IN_DOUBT = ResponseCode.SEND_IN_DOUBT
ALICE, BOB = 1, (1 << 63) - 1
LOOSE_AND_SAFE = "topic", ["t", "safe"]


def send(topic, partition, body, producer, sequence, opaque=1, repeat_ms=-1):
    return harness.send(topic, partition, body, opaque, producer=producer, sequence=sequence, repeat_ms=repeat_ms)


def batch(topic, partition, bodies, producer, sequence, **more):
    return raw_batch(topic, partition, list(map(record, bodies)), producer=producer, sequence=sequence, **more)


def many(parts, producer, **more):
    """parts: (topic, partition, bodies, sequence) of each."""
    records = [(topic, partition, list(map(record, bodies))) for topic, partition, bodies, _ in parts]
    return harness.many(records, sequences=[part[3] for part in parts], producer=producer, **more)


def place(frame):
    """First id and offset of what was stored."""
    return harness.place(frame)


def stored(lives, topic="t", partition=0):
    log = lives.harness.store.find(topic, partition)
    return 0 if log is None else log.segments.message_count


def lead_again(lives, seconds=0):
    """Another node led meanwhile; this one's clock is so far ahead."""
    sequences = lives.broker.sequences
    sequences.follow()
    lives.harness.time += seconds
    sequences.tick()
    sequences.lead()


KINDS = {
    "one": lambda topic, producer, sequence: send(topic, 0, b"hello", producer, sequence),
    "batch": lambda topic, producer, sequence: batch(topic, 0, [b"hello", b"you"], producer, sequence),
}


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_send_is_stored_once_and_answered_as_the_first(lives, kind, topic):
    make = KINDS[kind]
    first = place(lives.ask(make(topic, ALICE, 7)))
    count = stored(lives, topic)
    assert place(lives.ask(make(topic, ALICE, 7))) == first
    assert stored(lives, topic) == count
    other = place(lives.ask(make(topic, BOB, 7)))
    assert other != first
    assert place(lives.ask(make(topic, ALICE, 9)))[1] > other[1]  # gaps are allowed
    late = lives.ask(make(topic, ALICE, 8))
    assert (late.code, stored(lives, topic)) == (STALE, 3 * count)
    assert "number 8" in late.remark


def test_the_parts_of_a_send_many_are_judged_each_on_its_own(lives):
    first = lives.ask(many([("t", 0, [b"a"], 1), ("t", 1, [b"b", b"c"], 1), ("safe", 0, [b"d"], 5)], ALICE))
    before = decode_rows(first.body, 3)
    parts = [("t", 0, [b"a"], 1), ("t", 1, [b"e"], 2), ("safe", 0, [b"x"], 4), ("t", 2, [b"y"], 1)]
    again = lives.ask(many(parts, ALICE))
    rows = decode_rows(again.body, 4)
    assert (rows.ids[0], rows.offsets[0]) == (before.ids[0], before.offsets[0])
    assert rows.codes == [OK, OK, STALE, OK]
    assert [stored(lives, topic, partition) for topic, partition, _, _ in parts] == [1, 3, 1, 1]


def test_a_repetition_is_not_acknowledged_before_the_first_one_is_safe(lives):
    lives.peer.send(batch("safe", 0, [b"a"], ALICE, 1))
    other = lives.harness.connect()
    other.send(batch("safe", 0, [b"a"], ALICE, 1))
    other.send(many([("safe", 0, [b"a"], 1)], ALICE))
    other.send(send("safe", 0, b"a", ALICE, 1))
    assert (lives.peer.received(), other.received()) == (b"", b"")
    lives.harness.threads.run()
    (first,), (second, third, fourth) = lives.peer.frames(), other.frames()
    assert place(first) == place(second) == place(fourth)
    assert decode_rows(third.body, 1).ids == [place(first)[0]]
    assert stored(lives, "safe") == 1


def test_a_sync_that_fails_leaves_it_open_whether_a_send_is_stored(lives):
    lives.files.fail("fdatasync")
    assert lives.ask(batch("safe", 0, [b"a"], ALICE, 1)).code == NOT_SAFE
    assert lives.ask(batch("safe", 0, [b"a"], ALICE, 1)).code == NOT_SAFE
    lives.kill()
    place(lives.ask(batch("safe", 0, [b"a"], ALICE, 1)))
    assert stored(lives, "safe") == 1


WRITES = {
    "a batch": lambda: batch("t", 0, [b"a", b"b"], ALICE, 2),
    "two parts": lambda: many([("t", 0, [b"a"], 2), ("t", 0, [b"b"], 3)], ALICE),
    "two parts with one number": lambda: many([("t", 0, [b"a"], 2), ("t", 0, [b"b"], 2)], ALICE),
}


@pytest.mark.parametrize("change", [1, 2])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_failed_was_never_stored(lives, write, change):
    """That of the rows, and that of the (first part's) messages."""
    place(lives.ask(batch("t", 0, [b"first"], ALICE, 1)))
    lives.fail_change(change)
    assert set(codes(lives.ask(WRITES[write]()))) == {ResponseCode.DISK_FULL}
    lives.mend()
    assert stored(lives) == 1
    assert place(lives.ask(batch("t", 0, [b"first"], ALICE, 1)))[1] == 0  # still the last one
    again = place(lives.ask(batch("t", 0, [b"a", b"b"], ALICE, 2)))
    assert stored(lives) == 3
    lives.kill()
    assert place(lives.ask(batch("t", 0, [b"a", b"b"], ALICE, 2))) == again


def test_a_failed_write_does_not_come_back_with_what_lies_in_its_place_later(lives):
    place(lives.ask(batch("t", 0, [b"first"], ALICE, 1)))
    lives.fail_change(2)
    assert lives.ask(batch("t", 0, [b"a"], ALICE, 2)).code == ResponseCode.DISK_FULL
    lives.mend()
    lives.ask(many([("t", 0, [b"b"], 1)], BOB))  # as long, at the same offset
    lives.kill()
    assert place(lives.ask(batch("t", 0, [b"first"], ALICE, 1)))[1] == 0
    place(lives.ask(batch("t", 0, [b"a"], ALICE, 2)))
    assert stored(lives) == 3


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_restart_remembers(lives, topic, end):
    first = place(lives.ask(batch(topic, 0, [b"a", b"b"], ALICE, 3)))
    getattr(lives, end)()
    assert place(lives.ask(batch(topic, 0, [b"a", b"b"], ALICE, 3))) == first
    assert lives.ask(batch(topic, 0, [b"z"], ALICE, 2)).code == STALE
    assert stored(lives, topic) == 2


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("left", [0, 10, 25, 30, 49])
def test_a_kill_in_the_middle_of_a_write_leaves_nothing_of_it(lives, topic, left):
    """The row is there, and of the messages only so many bytes."""
    place(lives.ask(batch(topic, 0, [b"hello"], BOB, 1)))
    lives.peer.send(batch(topic, 0, [b"hello", b"hello"], ALICE, 1))
    lives.files.kill()
    path = lives.harness.store.get(topic, 0).segments.active.path
    os.truncate(path, 25 + left)
    lives.start()
    assert place(lives.ask(batch(topic, 0, [b"hello", b"hello"], ALICE, 1)))[1] == 25
    lives.kill()
    assert place(lives.ask(batch(topic, 0, [b"hello", b"hello"], ALICE, 1)))[1] == 25
    assert stored(lives, topic) == 3


def test_a_send_that_was_stored_is_acknowledged_when_its_partition_takes_nothing_any_more(lives):
    first = place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))
    lives.broker.partitions.close("t", 0, 0)
    assert place(lives.ask(batch("t", 0, [b"a"], ALICE, 1))) == first
    assert place(lives.ask(send("t", 0, b"a", ALICE, 1))) == first
    assert decode_rows(lives.ask(many([("t", 0, [b"a"], 1)], ALICE)).body, 1).codes == [OK]
    assert lives.ask(batch("t", 0, [b"b"], ALICE, 2)).code == ResponseCode.NO_PERMISSION


def test_several_numbered_sends_of_one_read_keep_their_order(lives):
    sends = [send("t", 0, body, ALICE, *numbers) for body, *numbers in ((b"a", 1, 1), (b"c", 2, 3), (b"c", 2, 4))]
    lives.peer.send(sends[0] + put("t", 0, b"b", 2) + sends[1] + sends[2])
    lives.harness.threads.run()
    assert lives.payloads() == [b"a", b"b", b"c"]


NUMBERLESS = [many([("t", -1, [b"a"], 1)], ALICE), many([("t", 0, [b"a"], 0)], ALICE)]


@pytest.mark.parametrize("frame", [send("t", -1, b"a", ALICE, 1), batch("t", -1, [b"a"], ALICE, 1), *NUMBERLESS])
def test_a_numbered_send_has_to_name_its_partition_and_a_number(lives, frame):
    assert lives.ask(frame).code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(lives) == 0


@pytest.mark.parametrize("repeats", ["", "x", "-1", "0,,1", "1.5"])
def test_parts_that_come_again_are_a_list_of_numbers(lives, repeats):
    frame = harness.many([("t", 0, [record()])], wrong={"repeats": repeats}, sequences=[1], producer=ALICE, repeat_ms=5)
    assert lives.ask(frame).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_producer_is_forgotten_after_a_day_without_use(lives):
    lives.ask(batch("t", 0, [b"a"], ALICE, 1))
    lives.harness.time += tuning.SEQUENCE_SECONDS - 60
    lives.ask(batch("t", 0, [b"a"], BOB, 1))
    lives.harness.time += 120
    lives.broker.sequences.tick()
    assert len(lives.broker.sequences) == 1
    place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))
    assert stored(lives) == 3


def test_the_least_recently_used_go_first_beyond_the_limit(lives, monkeypatch):
    monkeypatch.setattr(tuning, "MAX_SEQUENCES", 8)
    for producer in range(1, 9):
        lives.ask(batch("t", 0, [b"a"], producer, 1))
    lives.ask(batch("t", 0, [b"a"], 1, 2))
    lives.ask(batch("t", 0, [b"a"], 9, 1))
    assert len(lives.broker.sequences) == 7
    place(lives.ask(batch("t", 0, [b"a"], 1, 2)))
    assert stored(lives) == 10


REPEATS = {
    "one": lambda producer: send("t", 0, b"hello", producer, 1, repeat_ms=500),
    "batch": lambda producer: batch("t", 0, [b"hello"], producer, 1, repeat_ms=500),
    "many": lambda producer: many(
        [("t", 1, [b"x"], 9), ("t", 0, [b"hello"], 1)], producer, repeat_ms=500, repeats=frozenset({1})
    ),
}


def codes(frame):
    """Of a send's answer, or of its parts."""
    if not frame.body:
        return [frame.code]
    return decode_rows(frame.body, len(frame.body) // 24).codes


def invent(lives, first, count, host="127.0.0.1"):
    """So many strangers send."""
    peer = lives.harness.connect(host)
    for producer in range(first, first + count):
        place(peer.ask_frame(batch("t", 0, [b"a"], producer, 1)))


@pytest.fixture
def slices(monkeypatch):
    """Each bit of a work is a slice of its own."""
    monkeypatch.setattr(tuning, "WORK_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "SEQUENCE_ROWS", 2)
    monkeypatch.setattr(tuning, "SEQUENCES_SWEPT", 1)
    monkeypatch.setattr(tuning, "SEQUENCE_LOG_BYTES", 4096)


def compact(lives):
    """The logs are replaced by what is known."""
    for _ in range(2):
        lives.harness.time += tuning.SEQUENCES_SWEEP_SECONDS + 1
        lives.broker.sequences.tick()
        lives.harness.threads.run()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tuning, "MAX_SEQUENCES", 64)


@pytest.fixture
def forgotten(lives, small):
    """Alice has sent something, and then so many that she is not known any more."""
    lives.ask(send("t", 0, b"hello", ALICE, 1))
    invent(lives, 100, 140)


@pytest.mark.parametrize("kind", REPEATS)
@pytest.mark.parametrize("after", ["nothing", "a restart", "a compaction", "an election"])
def test_a_repetition_of_a_forgotten_producer_is_refused_and_not_stored_again(
    lives, forgotten, kind, after, monkeypatch
):
    if after == "a compaction":
        monkeypatch.setattr(tuning, "SEQUENCE_LOG_BYTES", 4096)
        compact(lives)
    if after in ("a restart", "a compaction"):
        lives.kill()
    elif after == "an election":
        lead_again(lives)
    count = stored(lives)
    answer = lives.ask(REPEATS[kind](ALICE))
    assert codes(answer)[-1] == IN_DOUBT
    assert "may" in answer.remark or "not known" in answer.remark
    assert stored(lives) == count
    assert place(lives.ask(send("t", 0, b"next", ALICE, 2)))  # its next send is taken
    assert place(lives.ask(send("t", 0, b"new", BOB, 1)))  # so is that of a producer that nobody knows


@pytest.mark.parametrize("kind", REPEATS)
def test_a_repetition_of_a_producer_that_is_known_is_answered_as_the_first(lives, small, kind):
    first = place(lives.ask(send("t", 0, b"hello", ALICE, 1)))
    invent(lives, 100, 20)
    count = stored(lives)
    answer = lives.ask(REPEATS[kind](ALICE))
    assert set(codes(answer)) == {OK}
    assert stored(lives) == count
    assert place(lives.ask(send("t", 0, b"hello", ALICE, 1))) == first


@pytest.mark.parametrize("kind", REPEATS)
def test_a_repetition_whose_first_transmission_never_came_is_stored_while_nobody_was_forgotten(lives, small, kind):
    invent(lives, 100, 20)
    assert set(codes(lives.ask(REPEATS[kind](ALICE)))) == {OK}


@pytest.mark.parametrize("elected", [False, True])
def test_a_repetition_is_stored_if_all_that_was_forgotten_is_older_than_its_first_transmission(lives, small, elected):
    invent(lives, 100, 140)
    lives.harness.time += tuning.REPEAT_LATE_SECONDS + 10
    invent(lives, 1000, 1)
    if elected:
        lives.broker.sequences.lead()
    assert place(lives.ask(send("t", 0, b"hello", ALICE, 1, repeat_ms=500)))
    assert lives.ask(send("t", 0, b"hello", BOB, 1, repeat_ms=60_000)).code == IN_DOUBT


def test_a_leader_whose_clock_is_ahead_takes_no_forgotten_repetition(lives, forgotten):
    lead_again(lives, 7200)
    assert lives.ask(send("t", 0, b"hello", ALICE, 1, repeat_ms=500)).code == IN_DOUBT


@pytest.mark.parametrize("kind", REPEATS)
def test_a_repetition_that_may_be_stored_is_in_doubt_also_where_its_partition_takes_nothing(lives, forgotten, kind):
    lives.broker.partitions.close("t", 0, 0)
    assert codes(lives.ask(REPEATS[kind](ALICE)))[-1] == IN_DOUBT
    assert lives.ask(send("t", 0, b"new", BOB, 1)).code == ResponseCode.NO_PERMISSION


def test_the_address_with_the_most_producers_forgets_its_own(lives, small):
    first = place(lives.ask(send("t", 0, b"hello", ALICE, 1)))
    invent(lives, 100, 300, host="10.0.0.9")
    invent(lives, 1000, 30, host="10.0.0.8")
    assert len(lives.broker.sequences) <= 64
    assert place(lives.ask(send("t", 0, b"hello", ALICE, 1, repeat_ms=500))) == first


def test_a_producer_that_sends_after_a_restart_counts_for_its_address(lives, small):
    lives.ask(send("t", 0, b"hello", ALICE, 1))
    invent(lives, 100, 40, host="10.0.0.9")
    lives.kill()
    second = place(lives.ask(send("t", 0, b"again", ALICE, 2)))
    invent(lives, 1000, 300, host="10.0.0.9")
    assert place(lives.ask(send("t", 0, b"again", ALICE, 2, repeat_ms=500))) == second


def test_many_addresses_with_few_producers_each_leave_room(lives, small):
    for number in range(200):
        invent(lives, 100 + number, 1, host=f"10.0.1.{number}")
    assert len(lives.broker.sequences) <= 64


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_the_log_is_replaced_by_what_is_known(lives, topic, monkeypatch):
    monkeypatch.setattr(tuning, "SEQUENCE_LOG_BYTES", 4096)
    monkeypatch.setattr(tuning, "SEQUENCE_ROWS", 2)
    first = place(lives.ask(batch(topic, 0, [b"a"], BOB, 1)))
    for number in range(1, 200):
        last = place(lives.ask(batch(topic, 0, [b"a"], ALICE, number)))
    (log,) = lives.harness.store.internal_logs(SEQUENCES_TOPIC)
    before = log.end_offset - log.first_offset
    compact(lives)
    assert log.end_offset - log.first_offset < before / 20
    assert len([name for name in os.listdir(log.directory) if name.endswith(".meta")]) == 1
    lives.kill()
    assert place(lives.ask(batch(topic, 0, [b"a"], BOB, 1))) == first
    assert place(lives.ask(batch(topic, 0, [b"a"], ALICE, 199))) == last
    assert stored(lives, topic) == 200


def test_a_follower_looks_at_no_numbers_and_a_leader_reads_them_again(lives):
    sequences = lives.broker.sequences
    place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))
    sequences.follow()
    place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))
    assert stored(lives) == 2
    sequences.lead()
    assert place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))[1] == 0
    assert stored(lives) == 2


def test_a_leader_whose_clock_is_a_day_ahead_of_the_former_ones_knows_its_numbers(lives):
    sequences = lives.broker.sequences
    place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))
    lead_again(lives, tuning.SEQUENCE_SECONDS + 3600)
    sequences.tick()
    place(lives.ask(batch("t", 0, [b"b"], BOB, 1)))
    lives.harness.time += tuning.SEQUENCES_SWEEP_SECONDS
    sequences.tick()
    assert place(lives.ask(batch("t", 0, [b"a"], ALICE, 1)))[1] == 0
    assert stored(lives) == 2
    lives.harness.time += tuning.SEQUENCE_SECONDS
    sequences.tick()
    assert len(sequences) == 0


def test_a_node_that_has_started_has_nothing_left_to_read_when_it_is_elected(lives, monkeypatch):
    for number in range(1, 9):
        lives.ask(batch("t", 0, [b"a"], ALICE, number))
    sequences = lives.broker.sequences
    sequences.follow()
    read = []
    tables = sequence_rows.read_tables

    def noted(*arguments):
        for table in tables(*arguments):
            read.append(len(table.rows))
            yield table

    monkeypatch.setattr(last_rows, "read_tables", noted)
    sequences.read_ahead()
    assert sum(read) == 8
    read.clear()
    sequences.lead()
    assert not read
    assert place(lives.ask(batch("t", 0, [b"a"], ALICE, 8)))[1] > 0
    assert stored(lives) == 8


def test_clients_see_nothing_of_the_internal_logs(lives):
    lives.ask(batch("safe", 0, [b"a"], ALICE, 1))
    assert [log.topic for log in lives.harness.store.logs()] == ["safe"]
    assert list(lives.broker.partitions.stored_topics()) == ["safe"]
    for name in ("/sequences", "metaqsequences"):
        assert lives.ask(batch(name, 1, [b"x"], ALICE, 9)).code != OK


def test_others_send_while_the_log_is_replaced_slice_by_slice(lives, slices, monkeypatch):
    topic, peer, sequences = "t", lives.harness.connect(), lives.broker.sequences
    places = {producer: place(lives.ask(batch(topic, 0, [b"a"], producer, 1))) for producer in range(1, 60)}
    for number in range(2, 100):
        places[1] = place(lives.ask(batch(topic, 0, [b"a"], 1, number)))
    (log,) = lives.harness.store.internal_logs(SEQUENCES_TOPIC)
    before, first = log.end_offset - log.first_offset, log.first_offset
    turns = 0
    pause = sequences._compaction.pause

    async def others():
        nonlocal turns
        await pause()
        turns += 1
        places[turns] = place(peer.ask_frame(batch(topic, 0, [b"b"], turns, 200)))

    monkeypatch.setattr(sequences._compaction, "pause", others)
    lives.harness.turn()
    sequences.tick()
    assert turns == 0
    lives.harness.turn()
    assert turns == 30  # two producers are written in a slice
    for _ in range(2):
        lives.harness.threads.run()
        lives.broker.sequences.tick()
    assert log.first_offset > first
    assert log.end_offset - log.first_offset < before
    lives.kill()
    for producer, found in places.items():
        number = 200 if producer <= turns else 1
        assert place(lives.ask(batch(topic, 0, [b"c"], producer, number))) == found


def test_nothing_goes_while_what_is_known_cannot_be_written_anew(lives, slices, monkeypatch, caplog):
    invent(lives, 1, 20)
    for number in range(2, 200):
        lives.ask(batch("t", 0, [b"a"], 20, number))
    (log,) = lives.harness.store.internal_logs(SEQUENCES_TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", raising(DiskFull(log.directory, "0 MiB are free")))
        compact(lives)
    assert "is not made shorter now" in caplog.text
    lives.kill()
    assert len(lives.broker.sequences) == 20


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_node_that_leads_no_more_does_not_go_on_replacing_the_log(lives, slices, leads_again):
    invent(lives, 1, 20)
    for number in range(2, 200):
        lives.ask(batch("t", 0, [b"a"], 20, number))
    (log,) = lives.harness.store.internal_logs(SEQUENCES_TOPIC)
    sequences = lives.broker.sequences
    lives.harness.turn()
    sequences.tick()
    assert sequences._compaction.is_busy
    sequences.follow()
    end = log.end_offset
    if leads_again:
        sequences.lead()
    for _ in range(200):
        lives.harness.turn()
    assert log.end_offset == end
    assert not sequences._compaction.is_busy
    assert len(sequences) == 20


def test_producers_are_forgotten_slice_by_slice(lives, slices):
    invent(lives, 1, 50)
    lives.harness.time += tuning.SEQUENCE_SECONDS + 1
    lives.broker.sequences.tick()
    assert len(lives.broker.sequences) == 49
    lives.ask(batch("t", 0, [b"a"], 50, 2))
    for _ in range(60):
        lives.harness.turn()
    assert len(lives.broker.sequences) == 1

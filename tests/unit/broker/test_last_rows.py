"""The rows of an internal log, read on as it grows, are those that reading all of it finds."""

import random

import pytest

from metaq.broker.memory.records import internal_record
from metaq.broker.memory.sequence_rows import (
    FORGOTTEN,
    encode_head,
    encode_row,
    read_rows,
    read_tables,
)
from metaq.broker.memory.topics import SEQUENCES_TOPIC
from metaq.broker.store.store import Append
from metaq.broker.writing import last_rows
from metaq.broker.writing.last_rows import LastRows
from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from tests.unit.broker.harness import noted


@pytest.fixture
def log(harness):
    return harness.store.internal_log(SEQUENCES_TOPIC, group_commit=False)


def encode_body(topics, rows):
    return encode_head(topics) + b"".join([encode_row(*row) for row in rows])


def append(harness, log, topics, rows, cut=None):
    """One record of them. cut: where its body ends instead."""
    data, unit = internal_record(encode_body(topics, rows)[:cut], 1, log.end_offset)
    append = Append(log, (data,), unit)
    harness.store.append_many([append])
    assert append.error is None


def write(harness, log, *rows, first_id=1):
    """rows: (producer, sequence, records) of topic t, partition 0, in one record."""
    made = [(producer, number, 0, 9, first_id, records, 0, 1) for producer, number, records in rows]
    append(harness, log, ("other", "t"), made)


def known(rows):
    return {producer: [row.sequence for row in found] for (producer, _, _), found in rows.items()}


def all_of(log):
    rows = LastRows(log, 9)
    rows.read_on()
    return known(rows)


def test_the_last_two_rows_of_each_producer_are_known_and_one_without_records_takes_them_back(harness, log):
    rows = LastRows(log, 9)
    for number in (1, 2, 3):
        write(harness, log, (5, number, 1), (6, number, 1))
        rows.read_on()
    assert known(rows) == {5: [2, 3], 6: [2, 3]} == all_of(log)
    write(harness, log, (5, 0, 0))
    rows.read_on()
    assert known(rows) == {6: [2, 3]} == all_of(log)


def test_reading_stops_behind_the_record_with_the_last_byte_that_is_wanted(harness, log):
    for number in range(1, 9):
        write(harness, log, (number, 1, 1))
    rows = LastRows(log, 99)
    read = []
    for _ in range(4):
        rows.read_on(log.end_offset // 4)
        read.append(len(known(rows)))
    assert read == [2, 4, 6, 8]


def test_a_log_whose_end_was_cut_is_read_again(harness, log):
    rows = LastRows(log, 9)
    write(harness, log, (5, 1, 1))
    end = log.end_offset
    write(harness, log, (5, 2, 1), (6, 1, 1))
    rows.read_on()
    done = []
    harness.store.cut({log: end}, lambda kept, error: done.append(error))
    while not done:
        harness.store.tick()
        harness.threads.run()
    assert done == [None]
    write(harness, log, (7, 1, 1), (7, 1, 1))  # as long as before
    rows.read_on()
    assert known(rows) == {5: [1], 7: [1, 1]} == all_of(log)


def test_what_the_log_says_no_more_goes_when_there_is_too_much(harness, log):
    rows = LastRows(log, 2)
    for producer in range(1, 6):
        write(harness, log, (producer, 1, 1))
    rows.read_on()
    log.roll()
    start = log.end_offset
    write(harness, log, (5, 1, 1))
    log.flush()
    harness.threads.run()
    harness.store.drop_internal_before(log, start)
    harness.threads.run()
    assert log.first_offset == start
    rows.read_on()
    assert known(rows) == {5: [1]}


def test_the_older_half_goes_if_the_log_itself_says_too_much(harness, log, monkeypatch):
    rows = LastRows(log, 2)
    reads = noted(monkeypatch, last_rows, "read_tables", lambda snapshot, offset, most_bytes: offset)
    for producer in range(1, 12):
        end = log.end_offset
        write(harness, log, (producer, 1, 1), first_id=producer << TIME_SHIFT)
        rows.read_on()
    assert reads[-1] == end  # and not again from the beginning
    assert known(rows) == {7: [1], 8: [1], 9: [1], 10: [1], 11: [1]}
    assert rows.forgotten_ms == EPOCH_MS + 6


def test_until_when_producers_were_forgotten_is_told_by_a_row_of_none(harness, log):
    rows = LastRows(log, 9)
    write(harness, log, (5, 1, 1))
    rows.read_on()
    assert rows.forgotten_ms == 0
    write(harness, log, (FORGOTTEN, 0, 0), (6, 1, 1), first_id=77 << TIME_SHIFT)
    rows.read_on()
    assert (known(rows), rows.forgotten_ms) == ({5: [1], 6: [1]}, EPOCH_MS + 77)


def test_records_of_several_topics_follow_one_another(harness, log):
    for topics in (("t",), ("t", "u"), ("t",)):
        append(harness, log, topics, [(1, 1, 0, 9, 1, 1, 0, number) for number in range(len(topics))])
    assert [row.topic for row in read_rows(log.segments.snapshot(), 0)] == ["t", "t", "u", "t"]
    (table,) = read_tables(log.segments.snapshot(), 0)
    assert [table.row(number).topic for number in range(4)] == ["t", "t", "u", "t"]


@pytest.mark.parametrize(("topic", "cut"), [(1, None), (0, -1)], ids=["of a topic beyond its own", "cut off"])
def test_rows_that_cannot_be_read_are_an_error_for_every_reader(harness, log, topic, cut):
    append(harness, log, ("u", "v"), [(1, 1, 0, 9, 1, 1, 0, 1)])
    append(harness, log, ("t",), [(1, 1, 0, 9, 1, 1, 0, topic)], cut)
    for read in (read_rows, read_tables):
        with pytest.raises(StoreError, match="cannot be read"):
            list(read(log.segments.snapshot(), 0))


@pytest.mark.parametrize("most_bytes", [None, 1, 100, 1000])
def test_what_is_known_does_not_depend_on_the_pieces_in_which_it_is_read(harness, log, most_bytes):
    rng = random.Random(5)
    expected: dict[tuple[int, str, int], list[int]] = {}
    rows = LastRows(log, 99)
    for sequence in range(1, 200):
        topics = tuple(rng.sample("tuv", rng.randint(1, 3)))
        made = []
        for _ in range(rng.randint(1, 4)):
            producer, partition, number = rng.randint(1, 3), rng.randint(0, 1), rng.randrange(len(topics))
            records = rng.choice((0, 1, 1, 1))
            made.append((producer, sequence, 0, 9, 1, records, partition, number))
            key = producer, topics[number], partition
            if records:
                expected[key] = [*expected.get(key, [])[-1:], sequence]
            else:
                expected.pop(key, None)
        append(harness, log, topics, made)
    for _ in range(log.end_offset):
        before = rows._read_to
        rows.read_on(most_bytes)
        if rows._read_to == before:
            break
    assert {key: [row.sequence for row in found] for key, found in rows.items()} == expected

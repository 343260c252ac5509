"""The checkers of promises: what they must find."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from metaq.protocol.record import HEADER_BYTES, encode_record
from tests.power.history import (
    EMPTY,
    Broken,
    History,
    SectorEdges,
    body_of,
    empty_records,
    name_of,
    named_records,
    record_bytes,
)
from tests.power.promises import Promises

SIZE = 30
STEP = record_bytes("i1.0", SIZE)


def record(name: str, message_id: int | None = None) -> bytes:
    number = int(name[1:].partition(".")[0], 16)
    return encode_record(body_of(name, SIZE), number if message_id is None else message_id, 0)


def history(*marks: dict[str, Any]) -> History:
    return History(json.dumps({"partition": "t-0", **mark}).encode() for mark in marks)


def put(offset: int, *names: str) -> dict[str, Any]:
    return {"kind": "put", "offset": offset, "messages": [(name, SIZE) for name in names]}


def keep(end: int) -> dict[str, Any]:
    return {"kind": "keep", "end": end}


ONE, TWO, THREE = (record(f"i{number}.0") for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (ONE + TWO, None),
        (ONE + TWO + THREE, None),  # put behind what was promised
        (b"", "2 acknowledged messages are lost: i1.0 at 0"),
        (ONE, "1 acknowledged messages are lost: i2.0"),
        (ONE + ONE, "i1.0 is there twice"),
        (ONE + THREE, "i3.0 at 50 was never put there"),
        (ONE + record("i2.0", 7), "i2.0 at 50 has the id 7"),
        (ONE + TWO + record("i9.0"), "i9.0 at 100 was never put there"),
        (ONE + TWO + bytes(20), "a false message at 100"),
        (ONE + TWO + b"x" * 10, "10 bytes at 100 are no message"),
        (ONE[:-1] + b"!" + TWO, "the message at 0 is damaged"),
        (encode_record(b"somebody else's", 1, 0), "a false message at 0"),
    ],
)
def test_what_is_lost_repeated_or_false_is_found(data, problem):
    """Three messages, the first two of them promised."""
    partition = history(put(0, "i1.0"), put(STEP, "i2.0", "i3.0"), keep(2 * STEP)).partitions["t-0"]
    with pytest.raises(Broken, match=problem) if problem else nullcontext():
        partition.check("t-0", 0, data)


def test_only_what_was_to_be_removed_may_be_missing_at_the_front():
    marks = [put(0, "i1.0", "i2.0"), keep(2 * STEP)]
    with pytest.raises(Broken, match=r"1 acknowledged messages are lost: i1\.0 at 0"):
        history(*marks).partitions["t-0"].check("t-0", STEP, record("i2.0"))
    history(*marks, {"kind": "removed", "end": STEP}).partitions["t-0"].check("t-0", STEP, record("i2.0"))


def test_another_message_in_the_place_of_a_lost_one_is_right_unless_that_was_promised():
    again = [put(0, "i1.0", "i2.0"), put(STEP, "i3.1"), keep(2 * STEP)]
    history(*again).partitions["t-0"].check("t-0", 0, record("i1.0") + record("i3.1"))
    with pytest.raises(Broken, match=r"lost: i3.1 at 50"):
        history(*again).partitions["t-0"].check("t-0", 0, record("i1.0") + record("i2.0"))


def test_a_body_names_itself_only_as_a_whole():
    body = body_of("i1.0", 100)
    assert (name_of(body), name_of(body[:-1]), name_of(body[:50] + bytes(50))) == ("i1.0", None, None)
    assert name_of(b"") is None


# --- empty messages at the edge of a sector ---------------------------------------------------------------------------

EDGE = 512 - 8
"""Where a record has its length and checksum in one sector and the rest in the next."""


def emptied(name: str) -> bytes:
    """A record whose first eight bytes the disk does not have, as far as its header goes."""
    return bytes(8) + record(name)[8:HEADER_BYTES]


def before_edge(end: int) -> tuple[list[dict[str, Any]], bytes]:
    """Promised messages up to byte offset `end`: markers and bytes."""
    marks: list[dict[str, Any]] = []
    data = b""
    while len(data) < end:
        left = end - len(data) - HEADER_BYTES
        name, size = f"i{len(marks) + 1:x}.0", SIZE if left > 2 * STEP else left
        marks.append({"kind": "put", "offset": len(data), "messages": [(name, size)]})
        data += encode_record(body_of(name, size), len(marks), 0)
    return [*marks, keep(end)], data


@pytest.mark.parametrize("segments", [(0,), (-20, 0, 5000)])
def test_a_cut_may_leave_an_empty_message_in_place_of_one_that_was_never_promised(segments):
    marks, data = before_edge(EDGE)
    partition = history(*marks, put(EDGE, "iff.0")).partitions["t-0"]
    partition.check("t-0", 0, data + emptied("iff.0"), SectorEdges(segments))


@pytest.mark.parametrize("torn", [True, False])
def test_a_history_knows_whether_a_cut_could_lose_single_sectors(torn):
    assert History(torn=torn).torn is torn
    assert EDGE not in SectorEdges()


@pytest.mark.parametrize("at", [2 * STEP, EDGE - 4, EDGE - 1, EDGE + 1, EDGE + 8])
def test_no_empty_message_is_excused_elsewhere(at):
    assert at not in SectorEdges([0])
    marks, data = before_edge(at)
    partition = history(*marks, put(at, "iff.0")).partitions["t-0"]
    with pytest.raises(Broken, match=f"a false message at {at}: b''"):
        partition.check("t-0", 0, data + emptied("iff.0"), SectorEdges([0]))


@pytest.mark.parametrize(
    ("more", "data", "edges"),
    [
        ([put(EDGE, "iff.0")], emptied("iff.0"), SectorEdges()),  # no cut lost single sectors
        ([put(EDGE, "iff.0")], emptied("iff.0"), SectorEdges([0, 100])),  # not at the edge of its own file's
        ([put(EDGE, "iff.0"), keep(EDGE + STEP)], emptied("iff.0"), SectorEdges([0])),  # acknowledged
        ([], emptied("iff.0"), SectorEdges([0])),  # nothing was put there
        ([put(EDGE, "iff.0")], encode_record(b"somebody else's", 255, 0), SectorEdges([0])),  # not empty
    ],
)
def test_nothing_else_is_excused_at_an_edge(more, data, edges):
    marks, before = before_edge(EDGE)
    partition = history(*marks, *more).partitions["t-0"]
    with pytest.raises(Broken, match=f"a false message at {EDGE}"):
        partition.check("t-0", 0, before + data, edges)


def test_an_empty_message_that_a_start_has_found_and_kept_must_stay_and_what_lay_there_is_not_missed():
    marks, data = before_edge(EDGE)
    behind = EDGE + len(emptied("iff.0"))
    found = [*marks, put(EDGE, "iff.0"), {"kind": "empty", "offset": EDGE}, keep(behind)]
    later = history(*found, put(behind, "i100.1"), keep(behind + STEP)).partitions["t-0"]
    assert empty_records(0, data + emptied("iff.0")) == [EDGE]
    later.check("t-0", 0, data + emptied("iff.0") + record("i100.1"))
    with pytest.raises(Broken, match=f"acknowledged messages are lost:  at {EDGE}"):
        later.check("t-0", 0, data)


# --- transactions -----------------------------------------------------------------------------------------------------

A, B = [{"kind": "tx_put", "key": "k", "partition": "t-0", "name": name} for name in ("a", "b")]
PLAIN = [{"kind": "plain", "partition": "t-0", "name": "p"}, {"kind": "plain_done", "name": "p"}]


def asked(verb: str) -> dict[str, Any]:
    return {"kind": "tx_asked", "key": "k", "verb": verb}


def done(verb: str) -> list[dict[str, Any]]:
    return [asked(verb), {"kind": "tx_done", "key": "k", "verb": verb}]


COMMITTED = [A, B, *done("COMMIT_ONE_PHASE")]
PREPARED = [A, B, *done("PREPARE")]


@pytest.mark.parametrize(
    ("marks", "names", "prepared", "problem"),
    [
        ([A, B], [], [], None),
        ([A, B], ["a", "b"], [], "was not committed"),
        (COMMITTED, ["a", "b"], [], None),
        (COMMITTED, [], [], "its messages are lost"),
        (COMMITTED, ["a"], [], "1 of its 2 messages are there"),
        (COMMITTED, ["a", "b", "a", "b"], [], "a is there twice"),
        (COMMITTED, ["b", "a"], [], "torn apart"),
        ([*COMMITTED, *PLAIN], ["p", "a", "b"], [], None),
        ([*COMMITTED, *PLAIN], ["a", "p", "b"], [], "torn apart"),
        # an empty message takes nobody's place
        ([*COMMITTED, *PLAIN], ["p", EMPTY, "a", "b", EMPTY], [], None),
        ([*COMMITTED, *PLAIN], ["p", "a", EMPTY, "b"], [], "torn apart"),
        ([*COMMITTED, *PLAIN], [EMPTY, "a", "b"], [], "the acknowledged message p is lost"),
        ([*COMMITTED, *PLAIN], ["p", "a", EMPTY], [], "1 of its 2 messages are there"),
        ([A, B, asked("COMMIT_ONE_PHASE")], [], [], None),
        ([A, B, asked("COMMIT_ONE_PHASE")], ["a", "b"], [], None),
        ([A, B, asked("PREPARE")], [], [], None),
        (PREPARED, [], ["k"], None),
        (PREPARED, [], [], "not waiting for its coordinator"),
        (PREPARED, ["a", "b"], ["k"], "was not committed"),
        ([*PREPARED, asked("COMMIT_TWO_PHASE")], ["a", "b"], ["k"], "its messages are there"),
        ([*PREPARED, *done("ROLLBACK")], [], [], None),
        ([*PREPARED, *done("ROLLBACK")], ["a", "b"], [], "was not committed"),
        ([], [], ["k"], "unknown transactions"),
        (PLAIN, [], [], "the acknowledged message p is lost"),
        ([], ["p"], [], "p was never put there"),
    ],
)
def test_promises_of_transactions_are_kept_or_what_is_broken_is_said(marks, names, prepared, problem):
    with pytest.raises(Broken, match=problem) if problem else nullcontext():
        Promises(marks).check({"t-0": names}, prepared)


@pytest.mark.parametrize(
    ("data", "problem"),
    [(ONE[:-1], "are no message"), (ONE[:-1] + b"!", "is damaged"), (ONE + bytes(20), "a false mes")],
)
def test_bytes_that_are_no_messages_of_ours_are_found(data, problem):
    assert [name for _, name in named_records("t-0", 0, ONE)] == ["i1.0"]
    with pytest.raises(Broken, match=problem):
        list(named_records("t-0", 0, data))

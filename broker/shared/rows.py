"""How the broker stores shared groups: as sections in records of the internal logs `/shared` (store/internal_logs.py).

    a record's body    version u16 | serial u64 | sections
    a section          kind u8 | partition u32 | bytes of the group u16 | of the topic u16 | group | topic | payload
    LEASED             token u64 | until i64 | bytes of the member u16 | count u32 | member |
                       count × (offset u64 | size u32 | attempts u32 | priority u8)
    DONE               count u32 | count × (start u64 | end u64)
    SKIPPED            count u32 | count × (start u64 | end u64 | records u32)
    CHANGED            count u32 | count × (offset u64 | until i64 | attempts u32 | state u8)
    STATE              low u64 | ranges u32 | held u32 | ranges × (start u64 | end u64 | records u32) |
                       held × (offset u64 | token u64 | until i64 | size u32 | attempts u32 | priority u8 | state u8)
    FORGOTTEN          nothing
    a note             LEASED with a count of 0: token is the note's kind, until is 0, and member is a text
    FILTER (1)         text: the filter of the group on the topic (group_filter.py). After a STATE, and when it changes
    SUSPECTS (2)       text: [[offset, suspicion, 1 if the last lease has expired unsettled], …]. After a STATE, and
                       after each section about a suspect

All numbers are big-endian. until: Unix milliseconds. DONE: the records at [start, end). SKIPPED: bytes that no member
has to acknowledge, because the group's filter excludes their records or they contain no record. STATE and FORGOTTEN
replace all earlier sections of the same group and partition. There are two logs `/shared`: one with group commit and
one with asynchronous flush. serial: a number that identifies a record; each new record gets a higher one, no matter to
which of the two logs it is appended. If both logs have sections of the same group and partition, only one log is used
for them: the one with the highest serial among these sections. It has the whole state, because its first section of
this group and partition is a STATE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct, error
from typing import NamedTuple

import numpy as np
import simplejson

from metaq.protocol.errors import StoreError
from metaq.protocol.record import HEADER_BYTES

from .crew import Suspicion
from .group_filter import GroupFilter
from .state import Grant, HeldState, SharedState, Suspect

__all__ = [
    "RowKind",
    "RowSection",
    "SharedKey",
    "apply",
    "changed_section",
    "check_sections",
    "done_section",
    "encode_body",
    "filter_section",
    "forgotten_section",
    "leased_section",
    "read_filter",
    "read_state",
    "sections",
    "skipped_section",
    "state_section",
    "suspects_section",
]

_VERSION = 1
_HEAD = Struct(">HQ")
_SECTION = Struct(">BIHH")
_LEASED = Struct(">QqHI")
_COUNT = Struct(">I")
_STATE = Struct(">QII")
_GRANT = Struct(">QIBI")
_RANGE = Struct(">QQ")
_GRANT_ROW = np.dtype([("offset", ">u8"), ("size", ">u4"), ("priority", "u1"), ("attempts", ">u4")])
_RANGE_ROW = np.dtype([("start", ">u8"), ("end", ">u8")])
_CHANGE_ROW = np.dtype([("offset", ">u8"), ("until", ">i8"), ("attempts", ">u4"), ("state", "u1")])
_COUNTED_ROW = np.dtype([("start", ">u8"), ("end", ">u8"), ("records", ">u4")])
_HELD_ROW = np.dtype(
    [
        ("offset", ">u8"),
        ("token", ">u8"),
        ("until", ">i8"),
        ("size", ">u4"),
        ("attempts", ">u4"),
        ("priority", "u1"),
        ("state", "u1"),
    ]
)
_SUSPECTS_IN_NOTE = 2000  # up to 24 bytes each; the text may have 64 KiB
_STATES = {1: HeldState.LEASED, 2: HeldState.DELAYED}
_NUMBERS = {state: number for number, state in _STATES.items()}


class RowKind(IntEnum):
    """The kind of a section."""

    LEASED = 1
    DONE = 2
    CHANGED = 3
    SKIPPED = 4
    STATE = 5
    FORGOTTEN = 6


_ROWS = {RowKind.DONE: _RANGE_ROW, RowKind.SKIPPED: _COUNTED_ROW, RowKind.CHANGED: _CHANGE_ROW}


class _Note(IntEnum):
    """The kinds of notes (see the module's docstring)."""

    FILTER = 1
    SUSPECTS = 2


class SharedKey(NamedTuple):
    """Identifies a shared group on one partition of this broker."""

    group: str
    topic: str
    partition: int


class RowSection(NamedTuple):
    """One section of a record. payload: the section's content; the module's docstring describes its format for each
    kind.
    """

    kind: RowKind
    key: SharedKey
    payload: memoryview


def encode_body(serial: int, encoded: Sequence[bytes]) -> bytes:
    """Return the body of a record that consists of these encoded sections."""
    return _HEAD.pack(_VERSION, serial) + b"".join(encoded)


def _section(kind: RowKind, key: SharedKey, payload: bytes) -> bytes:
    group, topic = key.group.encode("utf-8"), key.topic.encode("utf-8")
    return _SECTION.pack(kind, key.partition, len(group), len(topic)) + group + topic + payload


def leased_section(key: SharedKey, grants: Sequence[Grant], token: int, until_ms: int, member: str) -> bytes:
    """Return a section which says that these records were leased."""
    name = member.encode("utf-8")
    rows = b"".join([_GRANT.pack(*grant) for grant in grants])
    return _section(RowKind.LEASED, key, _LEASED.pack(token, until_ms, len(name), len(grants)) + name + rows)


def _note(kind: _Note, key: SharedKey, text: str) -> bytes:
    raw = text.encode("utf-8")
    return _section(RowKind.LEASED, key, _LEASED.pack(kind, 0, len(raw), 0) + raw)


def filter_section(key: SharedKey, found: GroupFilter) -> bytes:
    """Return a section with the group's filter on the topic."""
    return _note(_Note.FILTER, key, found.to_text())


def suspects_section(key: SharedKey, suspects: Sequence[Suspect]) -> bytes:
    """Return one or more SUSPECTS sections with the information about these suspects, joined, or b"" if `suspects` is
    empty.
    """
    notes = []
    for first in range(0, len(suspects), _SUSPECTS_IN_NOTE):
        rows = [
            [offset, int(level), int(ended)] for offset, level, ended in suspects[first : first + _SUSPECTS_IN_NOTE]
        ]
        notes.append(_note(_Note.SUSPECTS, key, simplejson.dumps(rows, separators=(",", ":"))))
    return b"".join(notes)


def done_section(key: SharedKey, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return a section which says that the records in these ranges are done. ranges: the first byte offset and the end
    offset of each range.
    """
    return _section(RowKind.DONE, key, _COUNT.pack(len(ranges)) + b"".join([_RANGE.pack(*each) for each in ranges]))


def skipped_section(key: SharedKey, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    """Return a section which says that no member has to acknowledge the bytes in these ranges. ranges: for each range
    the first byte offset, the end offset and the number of records.
    """
    return _section(RowKind.SKIPPED, key, _COUNT.pack(len(ranges)) + np.array(ranges, _COUNTED_ROW).tobytes())


def changed_section(key: SharedKey, changes: Sequence[tuple[int, int, int, HeldState]]) -> bytes:
    """Return a section about records that were released or extended. changes: offset, until (Unix ms), attempts and
    state (LEASED or DELAYED) of each of these records.
    """
    rows = [(offset, until, attempts, _NUMBERS[state]) for offset, until, attempts, state in changes]
    return _section(RowKind.CHANGED, key, _COUNT.pack(len(rows)) + np.array(rows, _CHANGE_ROW).tobytes())


def state_section(key: SharedKey, state: SharedState, now: float, now_ms: int) -> bytes:
    """Return sections with the whole state of the group on the partition: a STATE, and SUSPECTS if there are suspects.
    now, now_ms: see SharedState.begin.
    """
    ranges = list(state.ranges())
    held = []
    for offset, each in state.items():
        timed = each.state in _NUMBERS  # records in other states may be leased at once
        until = now_ms + int((each.until - now) * 1000) if timed else 0
        number = _NUMBERS[each.state if timed else HeldState.DELAYED]
        held.append((offset, each.token, until, each.size, each.attempts, each.priority, number))
    rows = np.array(ranges, _COUNTED_ROW).tobytes() + np.array(held, _HELD_ROW).tobytes()
    section = _section(RowKind.STATE, key, _STATE.pack(state.low, len(ranges), len(held)) + rows)
    return section + suspects_section(key, state.suspects())


def forgotten_section(key: SharedKey) -> bytes:
    """Return a section which says that the group was removed, so that no earlier section of it on this partition
    counts.
    """
    return _section(RowKind.FORGOTTEN, key, b"")


def sections(body: bytes) -> tuple[int, Iterator[RowSection]]:
    """Return the serial of a record and an iterator over its sections. Raises StoreError, also during the iteration."""
    try:
        version, serial = _HEAD.unpack_from(body)
    except error as wrong:
        raise StoreError(f"rows of shared groups cannot be read: {wrong}") from wrong
    if version != _VERSION:
        raise StoreError(f"rows of shared groups of version {version}: a newer broker has written them")
    return serial, _sections(memoryview(body))


def check_sections(record: bytes) -> None:
    """Raise StoreError if the sections of a record cannot be read."""
    for _ in sections(record[HEADER_BYTES:])[1]:
        pass


def _sections(body: memoryview) -> Iterator[RowSection]:
    place = _HEAD.size
    try:
        while place < len(body):
            kind, partition, group_bytes, topic_bytes = _SECTION.unpack_from(body, place)
            place += _SECTION.size
            group = str(body[place : place + group_bytes], "utf-8")
            place += group_bytes
            topic = str(body[place : place + topic_bytes], "utf-8")
            place += topic_bytes
            size = _payload_bytes(RowKind(kind), body, place)
            if place + size > len(body):
                raise StoreError("rows of shared groups cannot be read: a record has a part of a section")
            yield RowSection(RowKind(kind), SharedKey(group, topic, partition), body[place : place + size])
            place += size
    except (error, UnicodeDecodeError, ValueError) as wrong:
        raise StoreError(f"rows of shared groups cannot be read: {wrong}") from wrong


def _payload_bytes(kind: RowKind, body: memoryview, place: int) -> int:
    if kind is RowKind.LEASED:
        _, _, name, count = _LEASED.unpack_from(body, place)
        return int(_LEASED.size + name + count * _GRANT_ROW.itemsize)
    if kind is RowKind.STATE:
        _, ranges, held = _STATE.unpack_from(body, place)
        return int(_STATE.size + ranges * _COUNTED_ROW.itemsize + held * _HELD_ROW.itemsize)
    if kind is RowKind.FORGOTTEN:
        return 0
    row = _ROWS[kind]
    return int(_COUNT.size + _COUNT.unpack_from(body, place)[0] * row.itemsize)


def _note_of(section: RowSection, kind: _Note) -> str | None:
    if section.kind is not RowKind.LEASED:
        return None
    token, _, size, count = _LEASED.unpack_from(section.payload)
    if count or token != kind:
        return None
    return str(section.payload[_LEASED.size : _LEASED.size + size], "utf-8")


def read_filter(section: RowSection) -> GroupFilter | None:
    """Return the group's filter if the section contains it, else None. Raises StoreError."""
    text = _note_of(section, _Note.FILTER)
    return None if text is None else GroupFilter.from_text(text)


def _suspects(text: str) -> list[Suspect]:
    try:
        return [Suspect(offset, Suspicion(level), bool(ended)) for offset, level, ended in simplejson.loads(text)]
    except (ValueError, TypeError) as wrong:
        raise StoreError(f"the suspects of a shared group cannot be read: {wrong}") from wrong


def apply(section: RowSection, state: SharedState) -> None:
    """Change the state of a group on a partition as a section says; both are being read from the same log. Must not be
    called for a STATE, FORGOTTEN or FILTER section. Raises StoreError.
    """
    kind, payload = section.kind, section.payload
    if kind is RowKind.LEASED:
        if (text := _note_of(section, _Note.SUSPECTS)) is not None:
            state.read_suspects(_suspects(text))
            return
        token, until, name, count = _LEASED.unpack_from(payload)
        place = _LEASED.size
        member = str(payload[place : place + name], "utf-8")
        rows = np.frombuffer(payload, _GRANT_ROW, count, place + name)
        state.read_grants([Grant._make(row) for row in rows.tolist()], token, until, member)
        return
    (count,) = _COUNT.unpack_from(payload)
    if kind is RowKind.CHANGED:
        for offset, until, attempts, number in np.frombuffer(payload, _CHANGE_ROW, count, _COUNT.size).tolist():
            state.read_change(offset, until, attempts, _STATES[number])
        return
    for start, end, *records in np.frombuffer(payload, _ROWS[kind], count, _COUNT.size).tolist():
        state.read_done(start, end, *records)


def read_state(payload: memoryview, state: SharedState) -> None:
    """Fill a new, empty SharedState from the content of a STATE section."""
    low, ranges, held = _STATE.unpack_from(payload)
    state.low = state.scanned = low
    place = _STATE.size
    for start, end, records in np.frombuffer(payload, _COUNTED_ROW, ranges, place).tolist():
        state.read_done(start, end, records)
    place += ranges * _COUNTED_ROW.itemsize
    for offset, token, until, size, attempts, priority, number in np.frombuffer(
        payload, _HELD_ROW, held, place
    ).tolist():
        state.read_grants([Grant(offset, size, priority, attempts)], token, until, "", _STATES[number])

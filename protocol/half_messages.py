"""Encode and decode half messages (messages whose transaction is not decided yet), and the requests END_HALF,
END_HALVES, CHECK_HALVES and LIST_HALVES.

A half message is sent by an ordinary send. Its record has DELAYED_FLAG and the property `metaq.half`. The value of
`metaq.half` is the name of the producer group; the broker asks producers of this group whether the transaction was
committed or rolled back, which is called the outcome. The record may also have the properties `metaq.check-after` and
`metaq.half-producer`. `metaq.half-producer` names the producer that sent the half message; the broker asks this
producer for the outcome before it asks other producers of the group. Either all records of a batch are half messages,
or none is. In the broker's answer to the send, msgId is the id of the first half message. This id has the form of a
delayed message's id (delays.py), but the time in it is the time of the half message's first check, when the broker
first asks a producer for the outcome. The ids of a batch are consecutive. The offset in this answer is -1.

The body of CHECK_HALVES' answer has one item for each half message:

    topic bytes u16 | topic | partition u32 | asked u32 | taken i64 | record: header, body            all big-endian

The body of END_HALVES has one item for each half message. The answer's body has as many items, in the same order. The
first line below shows an item of END_HALVES, and the second line an item of the answer:

    message id i64 | outcome u8: 1 committed, 2 rolled back                                           all big-endian
    outcome u8: the same, or 0 unknown | message id i64 | offset i64                                  all big-endian

asked: how often the broker has given the half message to a producer to ask for its outcome, this answer included.
taken: an ordinary message id that contains the half message's arrival time. The record's header has the id of the half
message. The flag, the checksum and the body of the record are as they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from struct import Struct, error
from sys import intern
from typing import Annotated, NamedTuple

from .errors import InvalidName, RemoteProtocolError
from .fields import (
    AnyGroupField,
    AnyTopicField,
    ExtFields,
    Field,
    GroupField,
    PartitionField,
    TopicField,
    choice,
    flag,
    number,
)
from .limits import (
    INT64_MAX,
    MAX_CHECK_AFTER_SECONDS,
    MAX_CHECK_WAIT_MS,
    MAX_CHECKED_HALVES,
    MAX_CHECKED_TOPICS,
    MAX_ENDED_HALVES,
    MAX_LISTED_HALVES,
    check_group,
    check_topic,
)
from .record import (
    ATTRIBUTE_FLAG,
    CHECK_AFTER_PROPERTY,
    DELAY_PROPERTY,
    DELAYED_FLAG,
    DUE_PROPERTY,
    HALF_PRODUCER_PROPERTY,
    HALF_PROPERTY,
    HEADER,
    HEADER_BYTES,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    checksum,
    own_list,
    property_of,
)

__all__ = [
    "CheckHalvesRequest",
    "CheckedHalf",
    "EndHalfReply",
    "EndHalfRequest",
    "EndHalvesRequest",
    "HalfOutcome",
    "HalfState",
    "HalfTerms",
    "ListHalvesRequest",
    "decode_checked",
    "decode_ended",
    "decode_ends",
    "encode_checked",
    "encode_ended",
    "encode_ends",
    "half_of",
    "is_half",
]

_HALF, _CHECK_AFTER = HALF_PROPERTY.encode(), CHECK_AFTER_PROPERTY.encode()
_PRODUCER = HALF_PRODUCER_PROPERTY.encode()
_TIMES = DUE_PROPERTY.encode(), DELAY_PROPERTY.encode()
_LIST_FLAGS = ATTRIBUTE_FLAG | PROPERTIES_FLAG | DELAYED_FLAG
_MOST_DIGITS = 15
_REMEMBERED_BYTES = 512
_is_producer = re.compile(r"[0-9A-Za-z_-]{1,64}").fullmatch
_NAME_LENGTH = Struct(">H")
_ITEM = Struct(">IIq")
_END, _ENDED = Struct(">qB"), Struct(">Bqq")


# --- records ----------------------------------------------------------------------------------------------------------


def is_half(flag: int, body: Buffer) -> bool:
    """Return whether a record is a half message; such a record has DELAYED_FLAG."""
    if flag & _LIST_FLAGS != _LIST_FLAGS:
        return False
    attribute = attribute_of(body, flag)
    return attribute is not None and property_of(own_list(attribute), _HALF) is not None


class HalfTerms(NamedTuple):
    """The settings in the properties of a half message. group: the producer group. check_after_ms: milliseconds from
    the message's arrival at the broker to its first check; None means that the broker chooses the time. producer: the
    name of the producer that sent the message; "" if the message does not contain this name, because an older version
    of metaq sent it.
    """

    group: str
    check_after_ms: int | None
    producer: str = ""


def half_of(flag: int, body: Buffer) -> HalfTerms:
    """Return the settings in the properties of a half message. Raises RemoteProtocolError if the record is not a half
    message, or if the settings are invalid.
    """
    attribute = attribute_of(body, flag) if flag & _LIST_FLAGS == _LIST_FLAGS else None
    if attribute is None:
        raise _no_half()
    attribute = own_list(attribute)
    return _said_before(attribute) if len(attribute) <= _REMEMBERED_BYTES else _said(attribute)


def _said(attribute: bytes) -> HalfTerms:
    """Decode the settings in the attribute of a half message. `_said_before` does the same with a cache."""
    group = property_of(attribute, _HALF)
    if group is None:
        raise _no_half()
    if any(property_of(attribute, name) is not None for name in _TIMES):
        raise RemoteProtocolError("a half message cannot be delayed, too: send it without deliver_at and delay")
    try:
        name = intern(check_group(str(group, "utf-8")))
    except (InvalidName, UnicodeDecodeError) as wrong:
        raise RemoteProtocolError(f"{HALF_PROPERTY}: {wrong}") from wrong
    said = property_of(attribute, _PRODUCER)
    producer = "" if said is None else _checked_producer(str(said, "utf-8", "replace"))
    after = property_of(attribute, _CHECK_AFTER)
    if after is None:
        return HalfTerms(name, None, producer)
    if not (after.isdigit() and len(after) <= _MOST_DIGITS and int(after) <= MAX_CHECK_AFTER_SECONDS * 1000):
        raise RemoteProtocolError(
            f"{CHECK_AFTER_PROPERTY}={str(after, 'utf-8', 'replace')[:40]!r} is no number of milliseconds up to "
            f"{MAX_CHECK_AFTER_SECONDS * 1000}"
        )
    return HalfTerms(name, int(after), producer)


_said_before = lru_cache(1024)(_said)
"""Like `_said`, with a cache. The cache saves time because the attributes of many half messages are equal. For long
attributes the cache is not used: they contain keys or users' properties, so two of them are rarely equal.
"""


def _checked_producer(name: str) -> str:
    """Check the name of a producer, and return it as an interned str, which saves memory because many half messages
    contain the same name. Raises RemoteProtocolError if the name is invalid.
    """
    if not _is_producer(name):
        raise RemoteProtocolError(f"{name[:40]!r} names no producer: 1 to 64 letters, digits, '-' and '_' do")
    return intern(name)


def _no_half() -> RemoteProtocolError:
    return RemoteProtocolError("half messages and others cannot be in one batch: send two")


# --- requests ---------------------------------------------------------------------------------------------------------


class HalfOutcome(StrEnum):
    """The outcome of a half message."""

    COMMITTED = "committed"
    """The transaction is committed: the message is in its partition."""
    ROLLED_BACK = "rolled-back"
    """The transaction is rolled back: no consumer will ever see the message."""
    UNKNOWN = "unknown"
    """In a broker's answer: the broker has no waiting half message with this id, and does not know, or no longer knows,
    the outcome of such a half message. As the result of a producer's check of its transaction: the transaction is not
    decided yet, so the broker will ask again.
    """


class HalfState(StrEnum):
    """The state of a waiting half message."""

    WAITING = "waiting"
    """The half message waits for the outcome, and its first check is not due yet: so far the broker has asked no
    producer.
    """
    ASKED = "asked"
    """The time of the half message's first check has come; from this time on the broker asks producers until one
    reports the outcome.
    """
    PARKED = "parked"
    """Producers were asked the maximum number of times. The broker asks no more, so the half message is only decided if
    an operator decides it or a producer reports the outcome late.
    """


_ANSWERS = [HalfOutcome.COMMITTED.value, HalfOutcome.ROLLED_BACK.value]


@dataclass(slots=True)
class EndHalfRequest(ExtFields):
    """END_HALF: tell the broker the outcome of a half message that was sent to this partition. Repeating the request
    has no further effect. message_id: the half message's id.
    """

    topic: TopicField
    partition: PartitionField
    message_id: Annotated[int, number("msgId", 1, INT64_MAX)]
    outcome: Annotated[str, choice("outcome", _ANSWERS)]


@dataclass(slots=True)
class EndHalfReply(ExtFields):
    """The answer to END_HALF. The broker sends this answer when the decision is stored as safely as messages of the
    topic are, for example synced to the disk.
    outcome: the stored decision, which may differ from the requested outcome. message_id, offset: the id and the offset
    of the committed message, which consumers see; 0 and -1 if no message was committed.
    """

    outcome: Annotated[str, choice("outcome", [each.value for each in HalfOutcome])]
    message_id: Annotated[int, number("msgId", 0, INT64_MAX)] = 0
    offset: Annotated[int, number("offset", -1, INT64_MAX)] = -1


@dataclass(slots=True)
class EndHalvesRequest(ExtFields):
    """END_HALVES: tell the broker the outcomes of at most MAX_ENDED_HALVES half messages of this partition. The body
    contains their ids and outcomes.

    Each outcome in the body has the same effect as a separate END_HALF request. The broker answers when all outcomes
    are stored safely. If the broker answers with an error, some of the half messages may be decided; all others
    continue to wait.
    """

    topic: TopicField
    partition: PartitionField


def _read_topics(text: str) -> frozenset[str]:
    if text.count(" ") >= MAX_CHECKED_TOPICS:
        raise RemoteProtocolError(f"extFields.topics names more than {MAX_CHECKED_TOPICS} topics")
    return frozenset(map(check_topic, text.split(" ")))


def _write_topics(topics: frozenset[str] | None) -> str:
    return " ".join(sorted(topics or ()))


@dataclass(slots=True)
class CheckHalvesRequest(ExtFields):
    """CHECK_HALVES: a producer asks the broker for at most `limit` half messages of its producer group, to determine
    their outcomes.

    The broker answers when a half message is due for a check, at the latest after wait_ms milliseconds. For some time
    after the answer, the broker gives the half messages in it to no other producer. The request also tells the broker
    that this producer has finished its work on the half messages in the previous answer.

    topics: the names of one or more topics; only half messages of these topics are returned. On the wire the names are
    separated by blanks. If the field is missing, as in the requests of older producers, the value is None, which means
    all topics. producer: the name of the asking producer, which its half messages contain in `metaq.half-producer`; ""
    if it has no name.
    """

    group: GroupField
    limit: Annotated[int, number("limit", 1, MAX_CHECKED_HALVES)] = 32
    wait_ms: Annotated[int, number("waitMs", 0, MAX_CHECK_WAIT_MS)] = 0
    topics: Annotated[frozenset[str] | None, Field("topics", _read_topics, _write_topics, left_out=True)] = None
    producer: Annotated[str, Field("producer", _checked_producer, left_out=True)] = ""


@dataclass(slots=True)
class ListHalvesRequest(ExtFields):
    """LIST_HALVES: ask for the number of waiting half messages, and for a list of them in the order of their first
    checks. The list begins after the id `after`.

    topic, group, state: count and list only half messages with this topic, group and state; "" means any. limit:
    maximum number of half messages in the list; 0 means that only the number is returned. The answer's body is JSON.
    `count`: the number of all half messages. `states`: for each state, the number of half messages. `groups`: for each
    producer group with half messages whose first check is due: the number of half messages in the states asked and
    parked, and `askers`, the number of producers whose CHECK_HALVES waits at the broker. `halves`: the list. Each half
    message in it has id, state, group, topic, partition, bytes (size), and asked (how often a producer was asked for
    the outcome). It also has three times in Unix ms: taken (arrival), first (first check) and next (next check).
    `next`: the value of `after` with which the next request continues the list; 0 if the list is complete.

    whole: return at most one half message, and add its `flag` and its `body` (in base64), as they were sent.
    """

    topic: AnyTopicField = ""
    group: AnyGroupField = ""
    state: Annotated[str, choice("state", ["", *(each.value for each in HalfState)])] = ""
    limit: Annotated[int, number("limit", 0, MAX_LISTED_HALVES)] = 100
    after: Annotated[int, number("after", 0, INT64_MAX, left_out=True)] = 0
    whole: Annotated[bool, flag("whole", left_out=True)] = False


# --- the bodies of END_HALVES and of its answer -----------------------------------------------------------------------

_OUTCOMES = (HalfOutcome.UNKNOWN, HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK)
_NUMBERS: dict[str, int] = {outcome: number for number, outcome in enumerate(_OUTCOMES)}


def encode_ends(outcomes: Iterable[tuple[int, HalfOutcome]]) -> bytes:
    """Encode the body of END_HALVES: the ids and outcomes of half messages."""
    return b"".join([_END.pack(half_id, _NUMBERS[outcome]) for half_id, outcome in outcomes])


def decode_ends(data: Buffer) -> list[tuple[int, HalfOutcome]]:
    """Decode the body of END_HALVES, the inverse of `encode_ends`. Raises RemoteProtocolError."""
    if not data or len(data) % _END.size or len(data) > MAX_ENDED_HALVES * _END.size:
        raise RemoteProtocolError(
            f"{len(data)} bytes are not the outcomes of 1 to {MAX_ENDED_HALVES} half messages, {_END.size} each"
        )
    found = []
    for half_id, outcome in _END.iter_unpack(data):
        if half_id < 1 or outcome not in (1, 2):
            raise RemoteProtocolError(f"half message {half_id}: the outcome {outcome} is neither 1 nor 2")
        found.append((half_id, _OUTCOMES[outcome]))
    return found


def encode_ended(replies: Iterable[EndHalfReply]) -> bytes:
    """Encode the body of the answer to END_HALVES."""
    return b"".join([_ENDED.pack(_NUMBERS[each.outcome], each.message_id, each.offset) for each in replies])


def decode_ended(data: Buffer) -> list[EndHalfReply]:
    """Decode the body of the answer to END_HALVES, the inverse of `encode_ended`. Raises RemoteProtocolError."""
    if len(data) % _ENDED.size:
        raise RemoteProtocolError(f"{len(data)} bytes are no answers about half messages, {_ENDED.size} each")
    found = []
    for outcome, message_id, offset in _ENDED.iter_unpack(data):
        if outcome >= len(_OUTCOMES):
            raise RemoteProtocolError(f"a half message has the outcome {outcome}")
        found.append(EndHalfReply(_OUTCOMES[outcome], message_id, offset))
    return found


# --- the body of CHECK_HALVES' answer ---------------------------------------------------------------------------------


class CheckedHalf(NamedTuple):
    """A half message in the answer to CHECK_HALVES. The module's docstring describes the fields."""

    topic: str
    partition: int
    asked: int
    taken: int
    id: int
    flag: int
    checksum: int
    body: Buffer


def encode_checked(halves: Iterable[CheckedHalf]) -> list[Buffer]:
    """Encode the body of the answer to CHECK_HALVES. Return it as a list of buffers."""
    pieces: list[Buffer] = []
    for topic, partition, asked, taken, half_id, bits, crc, body in halves:
        name = topic.encode("utf-8")
        front = _NAME_LENGTH.pack(len(name)) + name + _ITEM.pack(partition, asked, taken)
        pieces += (front + HEADER.pack(len(body), crc, half_id, bits), body)
    return pieces


def decode_checked(data: Buffer) -> list[CheckedHalf]:
    """Decode the body of the answer to CHECK_HALVES, the inverse of `encode_checked`. Raises RemoteProtocolError."""
    found, start, view = [], 0, memoryview(data)
    try:
        while start < len(view):
            (name_bytes,) = _NAME_LENGTH.unpack_from(view, start)
            start += _NAME_LENGTH.size + name_bytes
            topic = str(view[start - name_bytes : start], "utf-8")
            partition, asked, taken = _ITEM.unpack_from(view, start)
            length, crc, half_id, flag = HEADER.unpack_from(view, start + _ITEM.size)
            start += _ITEM.size + HEADER_BYTES
            if not 0 <= length <= len(view) - start:
                raise RemoteProtocolError(f"a half message has {length} bytes, and {len(view) - start} are left")
            body = bytes(view[start : start + length])
            start += length
            if checksum(body) != crc:
                raise RemoteProtocolError(f"half message {half_id} has a wrong checksum")
            found.append(CheckedHalf(topic, partition, asked, taken, half_id, flag, crc, body))
    except (error, UnicodeDecodeError) as wrong:
        raise RemoteProtocolError(f"half messages cannot be read: {wrong}") from wrong
    return found

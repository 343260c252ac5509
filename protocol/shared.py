"""Encode and decode the requests ACQUIRE, SETTLE and SHARED_STATUS. With ACQUIRE a shared consumer leases messages of a
partition, and with SETTLE it acknowledges or releases them (docs/protocol.md).

    answer to ACQUIRE   rows, then the records in the order of the rows
        a row           offset u64 | token u64 | attempts u32 | size of the record u32
    body of SETTLE      rows
        a row           offset u64 | token u64 | milliseconds u32 | action u8
    answer to SETTLE    outcome u8 of each row

All numbers are big-endian. token: 63 random bits that identify one lease; a later lease of the same message has another
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Annotated, NamedTuple

from .errors import RemoteProtocolError
from .fields import AnyGroupField, ExtFields, Field, GroupField, PartitionField, TopicField, choice, flag, number
from .limits import (
    INT32_MAX,
    INT64_MAX,
    MAX_ACQUIRED,
    MAX_LEASE_MS,
    MAX_MEMBER_CHARACTERS,
    MAX_RELEASE_MS,
    MAX_SETTLEMENTS,
)
from .pulls import MAX_WAIT_MS, TagsField
from .record import HEADER_BYTES, Buffer

__all__ = [
    "STARTS",
    "AcquireReply",
    "AcquireRequest",
    "Leased",
    "SettleAction",
    "SettleOutcome",
    "SettleRequest",
    "Settlement",
    "SharedForgetRequest",
    "SharedStatusRequest",
    "decode_leased",
    "decode_outcomes",
    "decode_settlements",
    "encode_leased",
    "encode_settlements",
    "split_settlements",
]

STARTS = "earliest", "latest"
"""The values of `AcquireRequest.start`, which matter only for a shared group that has never sent an ACQUIRE for the
partition. `earliest`: the group begins with the partition's earliest message. `latest`: the group gets only messages
that are stored from now on.
"""

_new = tuple.__new__  # costs a third of a NamedTuple's constructor
_LEASED = Struct(">QQII")
_SETTLED = Struct(">QQIB")


def _read_member(text: str) -> str:
    if not 1 <= len(text) <= MAX_MEMBER_CHARACTERS or not text.isprintable():
        raise RemoteProtocolError(
            f"extFields.member={text[:40]!r} is no name of a member: 1 … {MAX_MEMBER_CHARACTERS} printable characters"
        )
    return text


@dataclass(slots=True)
class AcquireRequest(ExtFields):
    """ACQUIRE: lease messages to `member` for `lease_ms` milliseconds: at most `max_records` messages, whose sizes add
    up to at most `max_bytes` bytes (a single message may be larger). max_records=0 means that the member wants no more
    messages; the broker then at once answers those ACQUIRE requests of the member that still wait.

    wait_ms: as in PullRequest. start: one of STARTS. It says with which message the group begins if it has never sent
    an ACQUIRE for this partition. ordered: whether the broker leases messages with the same key one at a time and in
    their order. All members of the group have to use the same value of `ordered`. where: a filter by content
    (docs/filters.md), "" = no filter; messages that do not match count as acknowledged by the group. tags: lease only
    messages with one of these tags, empty = all messages; messages that have none of these tags count as acknowledged.
    The broker compares only hashes of tags, so the member checks the tags again.
    """

    topic: TopicField
    partition: PartitionField
    group: GroupField
    member: Annotated[str, Field("member", _read_member)]
    max_records: Annotated[int, number("maxRecords", 0, MAX_ACQUIRED)]
    max_bytes: Annotated[int, number("maxBytes", 1, INT32_MAX)]
    lease_ms: Annotated[int, number("leaseMs", 1, MAX_LEASE_MS)]
    wait_ms: Annotated[int, number("waitMs", 0, MAX_WAIT_MS)] = 0
    start: Annotated[str, choice("start", STARTS)] = "earliest"
    ordered: Annotated[bool, flag("ordered", left_out=True)] = False
    where: Annotated[str, Field("where", left_out=True)] = ""
    tags: TagsField = ()


@dataclass(slots=True)
class AcquireReply(ExtFields):
    """Answer to ACQUIRE, with the response code SUCCESS or PULL_NOT_FOUND.

    records: number of rows in the body. waiting: a lower bound of the number of further messages that could be leased
    immediately. damaged: number of bytes of the partition that were skipped for this answer, because they contain no
    valid record. suspect: 1 means that the answer has one message, and that this message is a suspect: an earlier lease
    of it has ended although the lease's member had neither acknowledged nor released the message, so the message may
    have killed that member. 2 means the same as 1, and also that the broker has leased no other message of the group to
    the member that gets this answer. If a lease with suspect=2 also ends without an acknowledgement or a release, it
    counts as an attempt.
    """

    records: Annotated[int, number("records", 0, MAX_ACQUIRED)]
    waiting: Annotated[int, number("waiting", 0, INT64_MAX)] = 0
    damaged: Annotated[int, number("damaged", 0, INT64_MAX, left_out=True)] = 0
    suspect: Annotated[int, number("suspect", 0, 2, left_out=True)] = 0


class Leased(NamedTuple):
    """A leased record. attempts: how often the message was leased, including this lease but without the leases that
    ended by RETURN.
    """

    offset: int
    token: int
    attempts: int
    record: memoryview


encode_leased = _LEASED.pack
"""encode_leased(offset, token, attempts, size of the record): return one row of the answer to ACQUIRE."""


def decode_leased(body: memoryview, count: int) -> list[Leased]:
    """Decode the body of an answer to ACQUIRE with `count` records. Raises RemoteProtocolError if the rows and records
    do not exactly fill the body.
    """
    position = count * _LEASED.size
    if len(body) < position:
        raise RemoteProtocolError(f"{count} leased records have a body of {len(body)} bytes only")
    leased: list[Leased] = []
    for offset, token, attempts, size in _LEASED.iter_unpack(body[:position]):
        if size < HEADER_BYTES:
            raise RemoteProtocolError(f"a leased record has {size} bytes")
        leased.append(_new(Leased, (offset, token, attempts, body[position : position + size])))
        position += size
    if position != len(body):
        raise RemoteProtocolError(f"leased records end at byte {position} of {len(body)}")
    return leased


class SettleAction(IntEnum):
    """The actions of SETTLE on a leased message."""

    ACK = 1
    """The message is acknowledged: the group never gets it again."""
    RELEASE = 2
    """End the lease. The broker may lease the message again when the given milliseconds have passed."""
    EXTEND = 3
    """Extend the lease: it ends the given number of milliseconds from now."""
    RETURN = 4
    """End the lease. The message may be leased again at once. Nobody has worked on the message, so the attempt does not
    count.
    """


class SettleOutcome(IntEnum):
    """The outcome of the action on one leased message."""

    DONE = 0
    LOST = 1
    """The action was not carried out. Either the lease had ended and the broker has leased the message again, or no
    lease of this message ever had this token.
    """
    GONE = 2
    """The message is neither leased nor waiting, because it was acknowledged or retention has deleted it."""


class Settlement(NamedTuple):
    """The action on one leased message, a row in the body of SETTLE. ms: the milliseconds for the actions RELEASE and
    EXTEND.
    """

    offset: int
    token: int
    ms: int
    action: int


@dataclass(slots=True)
class SettleRequest(ExtFields):
    """The frame SETTLE, which settles `records` leased messages: acknowledges them, releases them for another attempt,
    extends their leases, or returns them untried. The body has a row for each message, which states the action.
    """

    topic: TopicField
    partition: PartitionField
    group: GroupField
    records: Annotated[int, number("records", 1, MAX_SETTLEMENTS)]


def encode_settlements(settlements: Sequence[Settlement]) -> bytes:
    """Encode the body of a SETTLE."""
    return b"".join([_SETTLED.pack(*each) for each in settlements])


_ACTIONS = frozenset(action.value for action in SettleAction)


def split_settlements(body: Buffer, count: int, most: int) -> list[Buffer]:
    """Split the body of a SETTLE with `count` rows into pieces of at most `most` rows. Raises RemoteProtocolError."""
    if len(body) != count * _SETTLED.size:
        raise RemoteProtocolError(f"{count} settlements have a body of {len(body)} bytes")
    view = memoryview(body)
    return [view[first : first + most * _SETTLED.size] for first in range(0, len(body), most * _SETTLED.size)]


def decode_settlements(body: Buffer) -> list[Settlement]:
    """Decode a piece that `split_settlements` returned. Raises RemoteProtocolError."""
    rows = [_new(Settlement, row) for row in _SETTLED.iter_unpack(body)]
    for offset, token, ms, action in rows:
        if action not in _ACTIONS:
            raise RemoteProtocolError(f"a settlement has the action {action}, not one of {sorted(_ACTIONS)}")
        if offset > INT64_MAX or token > INT64_MAX:
            raise RemoteProtocolError(f"a settlement has an offset or a token above {INT64_MAX}")
        if ms > (MAX_LEASE_MS if action == SettleAction.EXTEND else MAX_RELEASE_MS):
            raise RemoteProtocolError(
                f"a settlement has {ms} ms, more than {MAX_LEASE_MS} (a lease) or {MAX_RELEASE_MS} (a release)"
            )
    return rows


_OUTCOMES = {outcome.value: outcome for outcome in SettleOutcome}


def decode_outcomes(body: Buffer, count: int) -> list[SettleOutcome]:
    """Decode the body of the answer to a SETTLE of `count` rows: one outcome for each row. Raises
    RemoteProtocolError.
    """
    outcomes = bytes(body)
    if len(outcomes) != count or not _OUTCOMES.keys() >= set(outcomes):
        raise RemoteProtocolError(f"the answer to {count} settlements has {len(outcomes)} outcomes, or others")
    return [_OUTCOMES[each] for each in outcomes]


@dataclass(slots=True)
class SharedStatusRequest(ExtFields):
    """SHARED_STATUS: ask for the members and the unacknowledged messages of shared groups in this broker's partitions.
    The answer's body is JSON. group: only this group; "" = all groups.
    """

    group: AnyGroupField = ""


@dataclass(slots=True)
class SharedForgetRequest(ExtFields):
    """SHARED_FORGET: tell the broker to delete everything that it has stored about a shared group in its partitions.
    The group must have no members.
    """

    group: GroupField

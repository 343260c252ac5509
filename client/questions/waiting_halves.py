"""Tell a broker the outcomes of half messages, and ask it which half messages it keeps. Producers and operators' tools
use this module.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import simplejson

from metaq.protocol.errors import RemoteProtocolError, RequestRefused
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import (
    CheckedHalf,
    CheckHalvesRequest,
    EndHalfReply,
    EndHalfRequest,
    EndHalvesRequest,
    HalfOutcome,
    HalfState,
    ListHalvesRequest,
    decode_checked,
    decode_ended,
    encode_ends,
)
from metaq.protocol.limits import MAX_LISTED_HALVES
from metaq.protocol.previews import Preview
from metaq.protocol.record import Buffer
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..records.results import TopicPartition
from ..transport.connection import Reply
from .asking import Asked, accepted, ask, need_frames

__all__ = [
    "HalvesPage",
    "WaitingHalf",
    "check_halves",
    "each_half",
    "end_half",
    "ends_request",
    "find_half",
    "list_halves",
    "read_ended",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def end_half(
    connection: Asked, partition: TopicPartition, half_id: int, outcome: HalfOutcome, timeout: float | None = None
) -> EndHalfReply:
    """Commit a half message or roll it back. Return the outcome that the half message has at the broker now. The
    returned outcome differs from the argument `outcome` if the opposite outcome was reported before.
    """
    outcomes = ((half_id, outcome),)
    reply = connection.call(lambda opaque: ends_request(opaque, partition, outcomes), timeout)
    return read_ended(reply, connection, partition, 1)[0]


def ends_request(
    opaque: int, partition: TopicPartition, outcomes: Sequence[tuple[int, HalfOutcome]]
) -> Sequence[Buffer]:
    """Return the bytes of a request that reports the outcomes of at most MAX_ENDED_HALVES half messages. outcomes:
    pairs of a half message's id and its outcome.
    """
    if len(outcomes) == 1:
        ext = EndHalfRequest(partition.topic, partition.partition, *outcomes[0]).to_ext()
        return (encode_frame(RequestCode.END_HALF, opaque, ext),)
    body = encode_ends(outcomes)
    ext = EndHalvesRequest(partition.topic, partition.partition).to_ext()
    return encode_frame(RequestCode.END_HALVES, opaque, ext, len(body)), body


def read_ended(reply: Reply, connection: Asked, partition: TopicPartition, count: int) -> Sequence[EndHalfReply]:
    """Decode the broker's answer to a request that reported `count` outcomes, and return one result for each outcome.
    If this function raises an error, it is unknown which of the outcomes the broker has accepted.
    """
    frame = accepted(reply, connection, partition, ())
    if count == 1:
        return (EndHalfReply.from_ext(frame.ext),)
    found = decode_ended(frame.body)
    if len(found) != count:
        raise RemoteProtocolError(f"{connection.endpoint} answered {len(found)} of {count} outcomes")
    return found


def check_halves(
    connection: Asked,
    group: str,
    broker: int,
    limit: int,
    wait_seconds: float,
    timeout: float,
    topics: frozenset[str],
    producer: str,
) -> list[CheckedHalf]:
    """Request from the broker at most `limit` half messages of this group and these topics for whose outcomes the
    broker wants to ask now, and return them. If there are none, the request waits at the broker until there is one, or
    returns [] after `wait_seconds`.

    producer: the name of the calling producer. Earlier broker versions ignore `topics` and `producer`, and return half
    messages of all topics and producers.
    """
    ext = CheckHalvesRequest(group, limit, int(wait_seconds * 1000), topics, producer).to_ext()
    frame = ask(connection, RequestCode.CHECK_HALVES, ext, TopicPartition("", broker, -1), timeout)
    return decode_checked(frame.body)


class WaitingHalf(NamedTuple):
    """A half message that waits at a broker. id: the half message's id, as in SendResult.message_id. taken: the time at
    which the broker accepted the half message. first_check: the time at which the broker first asks a producer for the
    outcome. next_check: the time at which the broker will next ask for the outcome; it is None if the broker will not
    ask again.
    asked: how many times the broker has asked so far. size: number of bytes of the body. preview: the half message's
    keys and the beginning of its payload. record: the half message's flag and body, if they were requested.
    """

    id: int
    state: HalfState
    group: str
    topic: str
    partition: int
    taken: datetime | None
    first_check: datetime
    next_check: datetime | None
    asked: int
    size: int
    preview: Preview
    record: tuple[int, bytes] | None = None


class HalvesPage(NamedTuple):
    """One page of the list of half messages of a broker. total: number of all half messages of the broker. states:
    number of half messages in each state: `waiting` (the broker has not asked for the outcome yet), `asked` and
    `parked`. groups: three numbers for each producer group. `asked` is the number of half messages about whose outcome
    the broker still asks. `parked` is the number of half messages about which the broker has asked without getting an
    outcome, and no longer asks. `askers` is the number of the group's producers whose requests wait at the broker for
    its questions.
    next: the argument `after` for the next page, or 0 if this is the last page.
    """

    total: int
    states: Mapping[str, int]
    groups: Mapping[str, Mapping[str, int]]
    halves: list[WaitingHalf]
    next: int


def list_halves(
    connection: Asked,
    topic: str = "",
    group: str = "",
    state: str = "",
    limit: int = 100,
    after: int = 0,
    timeout: float | None = None,
    *,
    whole: bool = False,
) -> HalvesPage:
    """Return one page of the broker's list of waiting half messages: how many there are, and at most `limit` (0 … 1000)
    of them, in the order of the times at which the broker first asks for their outcomes.

    topic, group, state: return only half messages of this topic, producer group and state; "" means all. after: the
    field `next` of the previous page, or 0 for the first page. A page may contain fewer than `limit` half messages if
    many half messages belong to other topics or groups. whole: if true, return at most one half message, with its
    record. Raises RequestRefused if the broker keeps no half messages (a Java broker, or an earlier version).
    """
    need_frames(connection, "keeps no half messages", "ask one of ours")
    frame = ask(
        connection,
        RequestCode.LIST_HALVES,
        ListHalvesRequest(topic, group, state, limit, after, whole).to_ext(),
        TopicPartition(topic, -1, -1),
        timeout,
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    )
    if frame.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RequestRefused(frame.code, f"{connection.endpoint} keeps no half messages: it is older, update it")
    try:
        return _page(simplejson.loads(bytes(frame.body)))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"{connection.endpoint} answered with no list of halves: {error!r}") from error


def find_half(connection: Asked, half_id: int) -> WaitingHalf | None:
    """Return the half message with this id, including its record. Return None if no such half message waits at this
    broker. Raises the errors of `list_halves`, and RequestRefused if the broker does not return records.
    """
    # The list is sorted by id.
    for each in list_halves(connection, limit=1, after=half_id - 1, whole=True).halves:
        if each.id == half_id:
            if each.record is None:
                refusal = f"{connection.endpoint} gives no whole half messages: it is older, update it"
                raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, refusal)
            return each
    return None


def each_half(
    connection: Asked, topic: str = "", group: str = "", state: str = "", most: int | None = None
) -> Iterator[WaitingHalf]:
    """Yield the broker's waiting half messages, in the order of `list_halves`. `most` is the maximum number of half
    messages; None means that there is no limit. The half messages are requested page by page. Each page is requested
    only when the caller needs its first half message. Raises the errors of `list_halves`.
    """
    after = 0
    while most is None or most > 0:
        limit = min(MAX_LISTED_HALVES, most or MAX_LISTED_HALVES)
        page = list_halves(connection, topic, group, state, limit, after)
        yield from page.halves
        if most is not None:
            most -= len(page.halves)
        after = page.next
        if not after:
            return


def _page(said: Mapping[str, Any]) -> HalvesPage:
    halves = [
        WaitingHalf(
            int(each["id"]),
            HalfState(each["state"]),
            str(each["group"]),
            str(each["topic"]),
            int(each["partition"]),
            _time(each["taken"]),
            _EPOCH + timedelta(milliseconds=int(each["first"])),
            _time(each["next"]),
            int(each["asked"]),
            int(each["bytes"]),
            Preview.of(each),
            (int(each["flag"]), b64decode(str(each["body"]))) if "body" in each else None,
        )
        for each in said["halves"]
    ]
    return HalvesPage(int(said["count"]), dict(said["states"]), dict(said["groups"]), halves, int(said["next"]))


def _time(ms: Any) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=int(ms))

"""Serve END_HALVES and LIST_HALVES, and encode the answer to CHECK_HALVES. LIST_HALVES counts and lists the half
messages that wait for their outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from metaq.protocol.delays import due_ms
from metaq.protocol.frames import Frame
from metaq.protocol.half_messages import (
    CheckedHalf,
    EndHalfReply,
    EndHalvesRequest,
    ListHalvesRequest,
    decode_ends,
    encode_checked,
    encode_ended,
    half_of,
)
from metaq.protocol.limits import MAX_LISTED_GROUPS
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.previews import encode_preview

from .. import tuning
from ..halves.halves import Halves
from ..memory.delayed_records import Pending
from ..reading.answers import Bytes, answer_frame
from .delayed import Batch, Listings, Slices, following, read_pendings

__all__ = ["checked_frame", "end_halves", "ended_frame", "list_halves"]


def end_halves(halves: Halves, frame: Frame) -> Deferred[list[EndHalfReply]]:
    """Commit or roll back half messages. The Deferred gets the outcome of each half message. Raises
    RemoteProtocolError.
    """
    request = EndHalvesRequest.from_ext(frame.ext)
    return halves.end_many((request.topic, request.partition), decode_ends(frame.body))


def ended_frame(opaque: int, replies: Sequence[EndHalfReply]) -> Bytes:
    """Return the frame that answers END_HALVES with these outcomes."""
    body = encode_ended(replies)
    return [answer_frame(opaque, {}, body=len(body)), body]


def checked_frame(opaque: int, halves: Sequence[CheckedHalf]) -> Bytes:
    """Return the frame that answers CHECK_HALVES with these half messages."""
    body = encode_checked(halves)
    return [answer_frame(opaque, {}, body=sum(map(len, body))), *body]


def list_halves(listings: Listings, halves: Halves, request: ListHalvesRequest) -> Deferred[bytes]:
    """Return a Deferred that gets the answer to LIST_HALVES as JSON."""
    return listings.encoded(halves, partial(_list, halves, request), "halves", request.limit)


async def _list(halves: Halves, request: ListHalvesRequest, slices: Slices) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "count": len(halves),
        "states": {state.value: count for state, count in sorted(halves.states().items())},
        "groups": {name: figures._asdict() for name, figures in halves.figures(MAX_LISTED_GROUPS).items()},
        "halves": [],
        "next": 0,
    }
    after, looked_at = request.after, 0
    found: list[dict[str, Any]] = answer["halves"]
    limit = min(1, request.limit) if request.whole else request.limit
    while len(found) < limit and looked_at < tuning.DELAYED_LOOKED_AT:
        most = min(tuning.DELAYED_TURN_RECORDS, max(limit - len(found), 16))
        batches, ids = following(halves, after, most)
        if not ids:
            return answer
        read: dict[int, dict[str, Any]] = await halves.in_thread(partial(_describe, batches, request.whole, slices))
        for half_id in ids:
            looked_at += 1
            answer["next"] = after = half_id
            if half_id in read and (described := _with_state(halves, half_id, read[half_id], request)) is not None:
                found.append(described)
                if len(found) == limit:
                    break
        else:
            answer["next"] = 0 if len(ids) < most else after
            if len(ids) < most:
                return answer
    return answer


def _describe(batches: Sequence[Batch], whole: bool, slices: Slices) -> dict[int, dict[str, Any]]:
    """Return a description of each half message in these batches, by message id. Runs in a worker thread."""
    return {pending.id: _said(pending, whole) for pending in read_pendings(batches, slices)}


def _said(pending: Pending, whole: bool) -> dict[str, Any]:
    topic, partition = pending.place
    return {
        "id": pending.id,
        "group": half_of(pending.flag, pending.body).group,
        "topic": topic,
        "partition": partition,
        "bytes": len(pending.body),
        "taken": store_time_ms(pending.taken),
        "first": due_ms(pending.id),
        **encode_preview(pending.flag, pending.body),
        **({"flag": pending.flag, "body": pending.body} if whole else {}),
    }


def _with_state(
    halves: Halves, half_id: int, said: dict[str, Any], request: ListHalvesRequest
) -> dict[str, Any] | None:
    """Return None if the half message does not have the topic, group or state that the request asks for. Otherwise add
    its state to its description `said`, and return the description.
    """
    state, half = halves.state(half_id)
    wanted = {"topic": request.topic, "group": request.group, "state": request.state}
    said["state"] = state.value
    if any(value not in ("", said[name]) for name, value in wanted.items()):
        return None
    said["next"] = said["first"] if half is None else halves.next_check_ms(half)
    said["asked"] = 0 if half is None else half.asked
    return said

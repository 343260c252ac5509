"""END_HALVES, CHECK_HALVES' answer, and LIST_HALVES: how many half messages wait for their outcome, and which."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.delays import due_ms
from metaq.protocol.frames import Frame
from metaq.protocol.halves import (
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
from ..store.delayed_records import Pending
from .answers import Bytes, answer_frame
from .delayed import following, read_pendings

__all__ = ["checked_frame", "end_halves", "ended_frame", "list_halves"]


def end_halves(halves: Halves, frame: Frame) -> Deferred[list[EndHalfReply]]:
    """What became of each. Raises RemoteProtocolError."""
    request = EndHalvesRequest.from_ext(frame.ext)
    return halves.end_many((request.topic, request.partition), decode_ends(frame.body))


def ended_frame(opaque: int, replies: Sequence[EndHalfReply]) -> Bytes:
    """The answer with these."""
    body = encode_ended(replies)
    return [answer_frame(opaque, {}, body=len(body)), body]


def checked_frame(opaque: int, halves: Sequence[CheckedHalf]) -> Bytes:
    """The answer with these."""
    body = encode_checked(halves)
    return [answer_frame(opaque, {}, body=sum(map(len, body))), *body]


def list_halves(halves: Halves, request: ListHalvesRequest) -> Deferred[dict[str, Any]]:
    """What becomes the JSON of the answer."""
    return ensureDeferred(_list(halves, request))


async def _list(halves: Halves, request: ListHalvesRequest) -> dict[str, Any]:
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
        read: list[Pending] = await halves.in_thread(partial(read_pendings, batches))
        messages = {each.id: each for each in read}
        for half_id in ids:
            looked_at += 1
            answer["next"] = after = half_id
            pending = messages.get(half_id)
            if pending is not None and (described := _described(halves, pending, request)) is not None:
                found.append(described)
                if len(found) == limit:
                    break
        else:
            answer["next"] = 0 if len(ids) < most else after
            if len(ids) < most:
                return answer
    return answer


def _described(halves: Halves, pending: Pending, request: ListHalvesRequest) -> dict[str, Any] | None:
    """None: it is not asked for."""
    group = half_of(pending.flag, pending.body).group
    state, half = halves.state(pending.id)
    topic, partition = pending.place
    if any(
        asked not in ("", is_so)
        for asked, is_so in zip((request.topic, request.group, request.state), (topic, group, state), strict=True)
    ):
        return None
    whole = {"flag": pending.flag, "body": b64encode(pending.body).decode()} if request.whole else {}
    return {
        "id": pending.id,
        "state": state.value,
        "group": group,
        "topic": topic,
        "partition": partition,
        "bytes": len(pending.body),
        "taken": store_time_ms(pending.taken),
        "first": due_ms(pending.id),
        "next": due_ms(pending.id) if half is None else halves.next_check_ms(half),
        "asked": 0 if half is None else half.asked,
        **encode_preview(pending.flag, pending.body),
        **whole,
    }

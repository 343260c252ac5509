"""LIST_DELAYED: how many messages wait for their time, and which."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.delays import ListDelayedRequest, due_ms
from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.previews import encode_preview

from .. import tuning
from ..delays.contents import read_records
from ..delays.delays import Delays
from ..store.delayed_records import Ids, Pending, decode_pending
from ..store.segments import Snapshot
from .answers import encode_json

__all__ = ["Batch", "encoded_list", "following", "list_delayed", "read_pendings"]

Batch = tuple[Snapshot, Ids, Ids]
"""Ids in order, and where their records lie in the snapshot."""

_MOST_BYTES = 4 << 20
"""Of records that are read at once."""


def list_delayed(delays: Delays, request: ListDelayedRequest) -> Deferred[bytes]:
    """The JSON of the answer."""
    return encoded_list(delays, _list(delays, request), "messages")


def encoded_list(
    delays: Delays,
    listing: Coroutine[Any, Any, dict[str, Any]],
    items: str,
    encode: Callable[[dict[str, Any]], bytes] = encode_json,
) -> Deferred[bytes]:
    """What the listing gives as JSON, made in a worker thread if there are any of its items."""

    async def encoded() -> bytes:
        answer = await listing
        return cast(bytes, await delays.in_thread(partial(encode, answer))) if answer[items] else encode_json(answer)

    return ensureDeferred(encoded())


async def _list(delays: Delays, request: ListDelayedRequest) -> dict[str, Any]:
    topics: dict[str, int] = {}
    for (topic, _), count in sorted(delays.counts().items()):
        topics[topic] = topics.get(topic, 0) + count
    late = {
        f"{topic}-{number}": {"count": count, "why": why} for (topic, number), (count, why) in delays.late().items()
    }
    answer: dict[str, Any] = {
        "count": topics.get(request.topic, 0) if request.topic else sum(topics.values()),
        "topics": topics,
        "late": late,
        "messages": [],
        "next": 0,
    }
    if not request.limit or (request.topic and not answer["count"]):
        return answer
    after, looked_at = request.after, 0
    found: list[dict[str, Any]] = []
    while len(found) < request.limit and looked_at < tuning.DELAYED_LOOKED_AT:
        most = min(tuning.DELAYED_TURN_RECORDS, max(request.limit - len(found), 16))
        batches, ids = following(delays, after, most)
        if not ids:
            after = 0
            break
        read: list[dict[str, Any]] = await delays.in_thread(partial(_describe, batches))
        described = {each["id"]: each for each in read}
        for message_id in ids:
            looked_at += 1
            after = message_id
            each = described.get(message_id)
            if each is not None and request.topic in ("", each["topic"]):
                found.append(each)
                if len(found) == request.limit:
                    break
    answer["messages"], answer["next"] = found, after
    return answer


def following(delays: Delays, after: int, most: int) -> tuple[list[Batch], list[int]]:
    """The next ids, in order, and where their records lie."""
    batches: list[Batch] = []
    for contents in delays.contents():
        snapshot = contents.log.segments.snapshot()
        batches += [(snapshot, *table.after(after, most)) for table in contents.tables()]
    ids = sorted(message_id for _, ids, _ in batches for message_id in ids.tolist())[:most]
    if not ids:
        return [], []
    chosen = [
        (snapshot, found, offsets, int(found.searchsorted(ids[-1], "right"))) for snapshot, found, offsets in batches
    ]
    return [(snapshot, found[:count], offsets[:count]) for snapshot, found, offsets, count in chosen if count], ids


def _describe(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    return [
        {
            "id": pending.id,
            "due": due_ms(pending.id),
            "topic": pending.place[0],
            "partition": pending.place[1],
            "bytes": len(pending.body),
            "taken": store_time_ms(pending.taken),
            **encode_preview(pending.flag, pending.body),
        }
        for pending in read_pendings(batches)
    ]


def read_pendings(batches: Sequence[Batch]) -> list[Pending]:
    """Worker thread. Of records that went meanwhile there is nothing."""
    found: list[Pending] = []
    for snapshot, ids, offsets in batches:
        start = 0
        while start < len(ids):
            try:
                records = read_records(snapshot.read, offsets[start:], _MOST_BYTES)
            except StoreError:
                start += 1
                continue
            assert records is not None
            start += len(records)
            found += filter(None, map(decode_pending, records))
    return found

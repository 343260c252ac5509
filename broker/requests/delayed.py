"""Serve LIST_DELAYED: count and list the delayed messages that wait."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.delays import ListDelayedRequest, due_ms
from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.previews import encode_preview

from .. import tuning
from ..delays.delayed_log import read_records
from ..delays.delays import Delays
from ..memory.delayed_records import Ids, Pending, decode_pending
from ..reading.answers import encode_json
from ..runtime.account import Account
from ..runtime.reactor import ReactorTime
from ..runtime.threads import run_coroutine
from ..store.segments import Snapshot
from ..store.worker_turns import Turns

__all__ = ["Batch", "Listings", "Slices", "following", "list_delayed", "read_pendings"]

Batch = tuple[Snapshot, Ids, Ids]
"""A snapshot of an internal log, sorted message ids, and the byte offsets of these messages' records in the log."""

_MOST_BYTES = 4 << 20
"""The most bytes of records that are read from the log at once."""


class Slices:
    """Divides the long work of a worker thread into slices: after each slice the thread pauses, so that other threads
    can run Python code.
    """

    def __init__(self, pause: Callable[[float], None]) -> None:
        """pause(seconds): sleeps in the worker thread."""
        self._pause = pause
        self._done = 0

    def worked(self, size: int) -> None:
        """Count `size` bytes of a record that were read or encoded. Pause if enough work was done since the last
        pause.
        """
        self._done += size + tuning.LISTING_RECORD_BYTES
        if self._done >= tuning.LISTING_BYTES:
            self._done = 0
            self._pause(tuning.LISTING_PAUSE_SECONDS)


class Listings:
    """Makes the lists of waiting (delayed or half) messages that clients ask for, one list at a time. If several client
    addresses ask for lists, they are served in turn. Used only on the reactor thread.

    A worker thread reads and encodes the messages. Only one list is made at a time, because many such threads would
    leave the reactor thread little time to run Python code.
    """

    def __init__(self, account: Account, reactor: ReactorTime, pause: Callable[[float], None]) -> None:
        """pause(seconds): sleeps in the worker thread that makes a list."""
        self._account = account
        self._pause = pause
        self._turns = Turns(run_coroutine, 1, pause=self._pause_between, call_later=reactor.callLater)
        self._one_ended = False  # whether a list ended in this iteration of the reactor, and others wait

    def encoded(
        self, delays: Delays, begin: Callable[[Slices], Coroutine[Any, Any, dict[str, Any]]], items: str, limit: int
    ) -> Deferred[bytes]:
        """Run the coroutine that `begin` returns; the Deferred gets the coroutine's result as JSON. If the result
        contains messages, a worker thread encodes it. items: the key whose value in the result is the list of messages.
        limit: the most messages in the list. Raises AccountSpent if too many lists are waiting or being made.
        """
        slices = Slices(self._pause)

        async def encoded() -> bytes:
            answer = await begin(slices)
            encode = partial(_encode, answer, items, slices)
            return cast(bytes, await delays.in_thread(encode)) if answer[items] else encode_json(answer)

        if not limit:  # the answer is only a number, for which no thread is needed
            return ensureDeferred(encoded())
        answer: Deferred[bytes] = Deferred()
        address, places = self._account.asker, self._account.lists
        places.check(address)

        def ended(result: Any) -> None:
            places.add(address, -1)
            self._one_ended = len(self._turns) > 0
            answer.callback(result)  # or the failure

        self._turns.run(address, encoded, ended)
        return answer

    def _pause_between(self) -> float:
        """Return how many seconds to pause before the next list. If other lists waited when a list was done, the pause
        is so long that the next list is begun in another iteration of the reactor.
        """
        one_ended, self._one_ended = self._one_ended, False
        return tuning.LISTING_PAUSE_SECONDS if one_ended else 0.0


def _encode(answer: dict[str, Any], items: str, slices: Slices) -> bytes:
    """Encode an answer as JSON; the values of the key `body` in its items are bytes, and are encoded as base64. Runs in
    a worker thread.
    """
    others = {name: value for name, value in answer.items() if name != items}
    parts = [encode_json(others)[:-1], b", ", encode_json(items), b": ["]
    for number, item in enumerate(answer[items]):
        body = item.pop("body", None)
        encoded = encode_json(item)
        if number:
            parts.append(b", ")
        if body is None:
            parts.append(encoded)
        else:
            parts += [encoded[:-1], b', "body": "', *_base64(body, slices), b'"}']
        slices.worked(len(encoded))
    parts.append(b"]}")
    return b"".join(parts)


def _base64(body: bytes, slices: Slices) -> Iterator[bytes]:
    step = tuning.LISTING_BYTES // 3 * 3
    for start in range(0, len(body), step):
        piece = body[start : start + step]
        yield b64encode(piece)
        slices.worked(len(piece))


def list_delayed(listings: Listings, delays: Delays, request: ListDelayedRequest) -> Deferred[bytes]:
    """Return a Deferred that gets the answer to LIST_DELAYED as JSON."""
    return listings.encoded(delays, partial(_list, delays, request), "messages", request.limit)


async def _list(delays: Delays, request: ListDelayedRequest, slices: Slices) -> dict[str, Any]:
    topics: dict[str, int] = {}
    for (topic, _), count in sorted(delays.counts().items()):
        if request.topic in ("", topic):  # others may be none of the client's business
            topics[topic] = topics.get(topic, 0) + count
    late = {
        f"{topic}-{number}": {"count": count, "why": why}
        for (topic, number), (count, why) in delays.late().items()
        if request.topic in ("", topic)
    }
    answer: dict[str, Any] = {
        "count": sum(topics.values()),
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
        read: list[dict[str, Any]] = await delays.in_thread(partial(_describe, batches, slices))
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
    """Find the waiting messages with the lowest ids above `after`, at most `most` messages. Return two values: these
    messages in batches, with the offsets of their records; and the ids of all these messages in one sorted list.
    """
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


def _describe(batches: Sequence[Batch], slices: Slices) -> list[dict[str, Any]]:
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
        for pending in read_pendings(batches, slices)
    ]


def read_pendings(batches: Sequence[Batch], slices: Slices) -> Iterator[Pending]:
    """Yield the decoded messages of these batches. Messages whose records were removed from the log after the batch was
    made are left out. Runs in a worker thread.
    """
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
            for record in records:
                if (pending := decode_pending(record)) is not None:
                    yield pending
                slices.worked(len(record))

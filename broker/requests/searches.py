"""Searches for messages over many partitions: a bounded number at once, in steps, in worker threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, DeferredSemaphore, ensureDeferred

from metaq.protocol.errors import PartitionClosed, SearchesBusy
from metaq.protocol.searches import ALL_PARTITIONS

from ..partitions import Partitions
from ..store.files import Files
from ..store.partition_log import PartitionLog
from ..store.search import find_id, find_key, read_matches
from ..store.search_values import Budget, Found, KeyQuery, LogView, Match
from ..store.store import Store

__all__ = ["MAX_RUNNING_SEARCHES", "MAX_WAITING_SEARCHES", "SearchResult", "Searches"]

MAX_RUNNING_SEARCHES = 2
"""Each keeps a worker thread busy and reads up to MAX_SEARCH_BYTES."""

MAX_WAITING_SEARCHES = 64
"""Further ones are refused."""

_LOGS_PER_STEP = 64
"""So many partitions' views are made at once on the reactor thread."""

_SAME_ID = 8
"""Messages that are given for one id. Ids of ours are unique; those of Java brokers need not be."""

Search = Callable[[Files, Sequence[LogView], Budget], Found]


class SearchResult(NamedTuple):
    """Matches with their records. unsearched: bytes that were not looked at. more: there are further matches."""

    records: list[tuple[Match, bytes]]
    unsearched: int
    more: bool


class Searches:
    """All searches of one broker. Lives on the reactor thread."""

    def __init__(self, store: Store, partitions: Partitions, in_thread: Callable[[Callable[[], Any]], Deferred[Any]]):
        self._store = store
        self._partitions = partitions
        self._in_thread = in_thread
        self._running = DeferredSemaphore(MAX_RUNNING_SEARCHES)

    def by_id(self, topic: str, partition: int, message_id: int, max_bytes: int) -> Deferred[SearchResult]:
        """The message with an id. partition: ALL_PARTITIONS or one. max_bytes: of records, the first comes whole.

        Raises SearchesBusy, TopicNotAccepted, InvalidName, WrongPartition, PartitionClosed.
        """

        def search(files: Files, views: Sequence[LogView], budget: Budget) -> Found:
            return find_id(files, views, message_id, _SAME_ID, budget)

        unique = message_id > 0
        return self._start(
            topic, partition, search, partial(_Choice, 1 if unique else _SAME_ID, True, unique), max_bytes
        )

    def by_key(self, topic: str, partition: int, query: KeyQuery, max_bytes: int) -> Deferred[SearchResult]:
        """The messages with a key, as `by_id`; the newest or oldest come first, whatever their partitions."""

        def search(files: Files, views: Sequence[LogView], budget: Budget) -> Found:
            return find_key(files, views, query, budget)

        return self._start(
            topic, partition, search, partial(_Choice, query.limit, query.oldest_first, False), max_bytes
        )

    def _start(
        self, topic: str, partition: int, search: Search, choice: Callable[[], _Choice], max_bytes: int
    ) -> Deferred[SearchResult]:
        logs, closed_bytes = self._logs(topic, partition)
        if len(self._running.waiting) >= MAX_WAITING_SEARCHES:
            raise SearchesBusy(f"{MAX_WAITING_SEARCHES} searches wait already")
        return self._running.run(lambda: ensureDeferred(self._search(logs, search, choice(), max_bytes, closed_bytes)))

    def _logs(self, topic: str, partition: int) -> tuple[list[PartitionLog], int]:
        """What is to be searched, and the bytes of closed partitions, which nobody may read."""
        if partition != ALL_PARTITIONS:
            log = self._partitions.find(topic, partition)
            return [] if log is None else [log], 0
        logs, closed_bytes = [], 0
        for log in self._store.logs():
            if log.topic != topic:
                continue
            try:
                logs.append(self._partitions.for_read(topic, log.partition))
            except PartitionClosed:
                closed_bytes += log.size_bytes
        if not logs:
            self._partitions.topic(topic)
        return logs, closed_bytes

    async def _search(
        self, logs: Sequence[PartitionLog], search: Search, choice: _Choice, max_bytes: int, unsearched: int
    ) -> SearchResult:
        searching, budget = self._store.searching, Budget()
        for start in range(0, len(logs), _LOGS_PER_STEP):
            chosen = logs[start : start + _LOGS_PER_STEP]
            views = [searching.view(log) for log in chosen]
            found: Found = await self._in_thread(partial(search, self._store.files, views, budget))
            searching.take_in(found, chosen)
            unsearched += found.unsearched
            if choice.add(found):
                unsearched = 0
                break
        matches = choice.matches
        records = await self._in_thread(partial(read_matches, self._store.files, matches, max_bytes))
        return SearchResult(records, unsearched, choice.more or len(records) < len(matches))


class _Choice:
    """The `limit` matches that count of all that were found."""

    def __init__(self, limit: int, oldest_first: bool, unique: bool) -> None:
        self.matches: list[Match] = []
        self.more = False
        self._limit = limit
        self._oldest_first = oldest_first
        self._unique = unique

    def add(self, found: Found) -> bool:
        """Whether there can be no better ones."""
        matches = sorted([*self.matches, *found.matches], key=_order, reverse=not self._oldest_first)
        self.more |= found.more or len(matches) > self._limit
        self.matches = matches[: self._limit]
        return self._unique and bool(matches)


def _order(match: Match) -> tuple[int, int, int]:
    return abs(match.time_ms), match.partition, match.offset

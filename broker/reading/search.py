"""VIEW_MESSAGE_BY_ID and QUERY_MESSAGE: find messages by their id or by a key, in one or all partitions of a topic.

Searches run in worker threads, each in several steps. At most MAX_RUNNING_SEARCHES searches run at the same time;
further searches wait, and the client addresses that have asked for them are served in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from metaq.protocol.errors import PartitionClosed, PartitionNotFound, SearchesBusy
from metaq.protocol.limits import MAX_FOUND_MESSAGES, MAX_FRAME_BYTES, MAX_FRAME_HEADER_BYTES
from metaq.protocol.record import Buffer
from metaq.protocol.remoting import (
    ALL_PARTITIONS,
    FOUND_ROW_BYTES,
    FoundReply,
    FoundRow,
    QueryMessageRequest,
    ViewMessageRequest,
    encode_found,
)
from metaq.protocol.statuses import ResponseCode

from .. import tuning
from ..partitions.partitions import Partitions
from ..runtime.account import Account
from ..runtime.threads import run_coroutine
from ..store.files import Files
from ..store.partition_log import PartitionLog
from ..store.search import find_id, find_key, read_matches
from ..store.searching import Budget, FoundMatches, KeyQuery, LogView, Match
from ..store.store import Store
from ..store.worker_turns import Turns
from .answers import Bytes, answer_frame

__all__ = ["MAX_RUNNING_SEARCHES", "SearchResult", "Searches", "found_frame"]

MAX_RUNNING_SEARCHES = 2
"""The maximum number of searches that run at the same time. Each search occupies a worker thread and reads up to
MAX_SEARCH_BYTES.
"""

_MOST_BYTES = MAX_FRAME_BYTES - MAX_FRAME_HEADER_BYTES - MAX_FOUND_MESSAGES * FOUND_ROW_BYTES
"""The most bytes of records in one answer, even if the configured maxTransferSize is larger."""

_SAME_ID = 8
"""The maximum number of messages that a search by id returns. A metaq broker never uses an id twice, but several
messages from Java brokers can have the same id.
"""

Search = Callable[[Files, Sequence[LogView], Budget], FoundMatches]


class SearchResult(NamedTuple):
    """The result of a search: the matches with their records. unsearched: number of bytes of the searched partitions
    that were not examined. more: whether there are matches that the answer leaves out.
    """

    records: list[tuple[Match, bytes]]
    unsearched: int
    more: bool


class Searches:
    """Runs the searches of one broker. Used only on the reactor thread."""

    def __init__(
        self,
        store: Store,
        partitions: Partitions,
        in_thread: Callable[[Callable[[], Any]], Deferred[Any]],
        max_transfer_bytes: int,
        account: Account,
    ) -> None:
        """max_transfer_bytes: the most bytes of records in one answer; the first record is always returned whole."""
        self._store = store
        self._max_bytes = min(max_transfer_bytes, _MOST_BYTES)
        self._partitions = partitions
        self._in_thread = in_thread
        self._account = account
        self._turns = Turns(run_coroutine, MAX_RUNNING_SEARCHES)  # of addresses

    def by_id(self, request: ViewMessageRequest) -> Deferred[SearchResult]:
        """Find the messages with this id.

        Raises SearchesBusy, TopicNotAccepted, InvalidName, WrongPartition, PartitionClosed.
        """

        def search(files: Files, views: Sequence[LogView], budget: Budget) -> FoundMatches:
            return find_id(files, views, request.message_id, _SAME_ID, budget)

        unique = request.message_id > 0
        choice = partial(_Choice, 1 if unique else _SAME_ID, True, unique)
        return self._start(request.topic, request.partition, search, choice)

    def by_key(self, request: QueryMessageRequest) -> Deferred[SearchResult]:
        """Find the messages with a key; the newest or the oldest messages of all searched partitions come first. Raises
        the errors of `by_id`.
        """
        query = KeyQuery(request.key, request.max_messages, request.begin_ms, request.end_ms, request.oldest_first)

        def search(files: Files, views: Sequence[LogView], budget: Budget) -> FoundMatches:
            return find_key(files, views, query, budget)

        choice = partial(_Choice, query.limit, query.oldest_first, False)
        return self._start(request.topic, request.partition, search, choice)

    def _start(
        self, topic: str, partition: int, search: Search, choice: Callable[[], _Choice]
    ) -> Deferred[SearchResult]:
        logs = self._logs(topic, partition)
        address, places = self._account.asker, self._account.searches
        if (why := places.why_not(address)) is not None:
            raise SearchesBusy(why)
        places.add(address, 1)
        answer: Deferred[SearchResult] = Deferred()

        def ended(result: Any) -> None:
            places.add(address, -1)
            answer.callback(result)  # or its failure

        self._turns.run(address, lambda: self._search(logs, search, choice()), ended)
        return answer

    def _logs(self, topic: str, partition: int) -> list[PartitionLog]:
        """Return the logs to search. With ALL_PARTITIONS, the logs of closed partitions are included."""
        if partition != ALL_PARTITIONS:
            log = self._partitions.find(topic, partition)
            return [] if log is None else [log]
        logs = [log for log in self._store.logs() if log.topic == topic]
        if logs:
            self._readable(logs[:1])
        else:
            self._partitions.topic(topic)
        return logs

    def _readable(self, logs: Sequence[PartitionLog]) -> tuple[list[PartitionLog], int]:
        """Clients may not read the logs of closed partitions. Return the other ones of these logs, and the total number
        of bytes in the logs of closed partitions. The logs of deleted partitions count neither in the list nor in the
        number of bytes.
        """
        found, closed_bytes = [], 0
        for log in logs:
            try:
                found.append(self._partitions.for_read(log.topic, log.partition))
            except PartitionClosed:
                closed_bytes += log.segments.size_bytes
            except PartitionNotFound:
                continue
        return found, closed_bytes

    async def _search(self, logs: Sequence[PartitionLog], search: Search, choice: _Choice) -> SearchResult:
        searching, budget = self._store.searching, Budget()
        unsearched = 0
        for start in range(0, len(logs), tuning.SEARCH_LOGS_PER_STEP):
            chosen, closed_bytes = self._readable(logs[start : start + tuning.SEARCH_LOGS_PER_STEP])
            unsearched += closed_bytes
            views = [searching.view(log) for log in chosen]
            found: FoundMatches = await self._in_thread(partial(search, self._store.files, views, budget))
            searching.take_in(found, chosen)
            unsearched += found.unsearched
            if choice.add(found):
                unsearched = 0
                break
        matches = choice.matches
        records = await self._in_thread(partial(read_matches, self._store.files, matches, self._max_bytes))
        return SearchResult(records, unsearched, choice.more or len(records) < len(matches))


class _Choice:
    """Collects the matches of one search, and keeps the first `limit` of them in the order that the request asks
    for.
    """

    def __init__(self, limit: int, oldest_first: bool, unique: bool) -> None:
        self.matches: list[Match] = []
        self.more = False
        self._limit = limit
        self._oldest_first = oldest_first
        self._unique = unique

    def add(self, found: FoundMatches) -> bool:
        """Add matches. Return True if no further log needs to be searched: the search is for an id that only one
        message can have, and this message was found.
        """
        matches = sorted([*self.matches, *found.matches], key=_order, reverse=not self._oldest_first)
        self.more |= found.more or len(matches) > self._limit
        self.matches = matches[: self._limit]
        return self._unique and bool(matches)


def _order(match: Match) -> tuple[int, int, int]:
    return abs(match.time_ms), match.partition, match.offset


def found_frame(opaque: int, result: SearchResult) -> Bytes:
    """Return the answer frame with the result of a search by id or by key."""
    rows = [FoundRow(match.partition, match.offset, match.time_ms, match.size) for match, _ in result.records]
    table = encode_found(rows)
    reply = FoundReply(len(rows), result.unsearched, result.more)
    code = ResponseCode.SUCCESS if rows else ResponseCode.QUERY_NOT_FOUND
    size = len(table) + sum(row.size for row in rows)
    parts: list[Buffer] = [answer_frame(opaque, reply.to_ext(), code, body=size), table]
    return [*parts, *(data for _, data in result.records)]

"""Before a group reads the first message of a partition, commit the offset where the group begins to read, so that
later members of the group begin at the same offset.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.logs import get_log

from ..fetching.core import ConsumerCore
from ..fetching.cursor import Request
from ..fetching.fetcher import Fetcher
from ..fetching.tuning import BEGINNINGS_GATHER_SECONDS
from ..runtime.timers import Timers
from .offset_commit import OffsetCommitter

__all__ = ["Beginnings"]

log = get_log(__name__)


class Beginnings:
    """Commits the offsets where a group begins to read partitions. All offsets that are queued are written together.
    Any thread may call `put`; the timer thread writes.

    If the offset were not committed, a partition would have no committed offset until a message of it is consumed. If
    another member took over such a partition with start="latest", it would begin at the partition's end at that later
    time and skip messages. A failed write is repeated. Until the write succeeds, the member reads nothing from the
    partitions whose offsets are in the write.
    """

    def __init__(
        self,
        committer: OffsetCommitter,
        core: ConsumerCore,
        fetcher: Fetcher,
        timers: Timers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committer = committer
        self._core = core
        self._fetcher = fetcher
        self._timers = timers
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._backoff = Backoff(core.config.error_min_seconds, core.config.error_max_seconds)
        self._complaint = ""  # the last error that was logged; timers' thread only

    def put(self, request: Request) -> None:
        """Queue a RECORD request, whose offset is to be committed. If an interrupt (interrupts.py) ends this call
        before it has set the timer for the write, the offset is committed nevertheless, because the fetcher makes the
        request again.
        """
        with self._lock:
            self._waiting.append(request)
        self._timers.call_later(BEGINNINGS_GATHER_SECONDS, self._write)

    def _write(self) -> None:
        with self._lock:
            requests, self._waiting = self._waiting, []
        if not requests:
            return
        try:
            written = self._committer.record(requests)
        except Exception as error:  # a user's store may raise anything, and the partitions must not wait forever
            self._failed(requests, error)
            return
        self._core.recorded(written)
        self._backoff.reset()
        self._complaint = ""
        self._fetcher.go_on(written)

    def _failed(self, requests: list[Request], error: Exception) -> None:
        pause, reason = self._backoff.next(), str(error) or type(error).__name__
        if reason != self._complaint:
            self._complaint = reason
            log.warning(
                "%s%s cannot be read before the offset is committed where the group begins, next try in %.2f s: %s",
                requests[0].cursor,
                f" and {len(requests) - 1} more" if len(requests) > 1 else "",
                pause,
                reason,
            )
        now = self._clock()
        self._fetcher.go_on([each for each in requests if each.cursor.put_off(each, now, pause)], pause)

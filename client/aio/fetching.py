"""Send the requests of a consumer's core on an event loop. fetching/fetcher.py, from whose class the class here
inherits, decides what follows an answer.

Pulls and their answers stay on the loop. The few other requests (where a partition begins, where damage ends) wait for
their answers on some threads, whose number does not depend on the number of brokers or partitions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ..fetching.core import ConsumerCore
from ..fetching.cursor import Ask, PartitionCursor, Request
from ..fetching.fetcher import EndpointOf, Fetcher
from ..transport.channel import Channel
from ..transport.wire import Endpoint
from .loop import BlockingThread, LoopTimers
from .pool import LoopPool

__all__ = ["LoopFetcher"]

_THREADS = 4
"""Number of threads for questions to brokers. With more brokers, some share a thread, and one of them that hangs delays
the questions to the others by the request timeout.
"""


class LoopFetcher(Fetcher):
    """Sends a consumer's requests on an event loop. Any thread may call the methods, except `wait_here`; on another
    thread than the loop's, their effect comes soon.
    """

    def __init__(
        self,
        core: ConsumerCore,
        pool: LoopPool,
        endpoint_of: EndpointOf,
        timers: LoopTimers,
        record: Callable[[Request], None],
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
    ) -> None:
        """thread_id: the id of the loop's thread; the constructor may run on another one."""
        super().__init__(core, pool, endpoint_of, timers, record)
        self._loop = loop
        self._thread_id = thread_id
        self._loop_pool = pool
        self._is_woken = False
        self._polling: asyncio.Future[None] | None = None
        self._questions = [BlockingThread(f"metaq-questions-{number}", loop) for number in range(_THREADS)]
        self._threads: dict[Endpoint, BlockingThread] = {}

    # --- the task in poll() -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._is_woken = True
        if threading.get_ident() == self._thread_id:
            self._wake_here()
        else:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        if self._polling is not None and not self._polling.done():
            self._polling.set_result(None)

    def listen(self) -> None:
        self._is_woken = False

    async def wait_here(self, seconds: float) -> None:
        """Wait at most `seconds` until `wake` is called. Return at once if `wake` was called since the last `listen`.
        Only one task at a time may call this.
        """
        if self._is_woken:
            return
        polling = self._polling = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake_here)
        try:
            await polling
        finally:
            timer.cancel()
            self._polling = None

    # --- requests ---------------------------------------------------------------------------------------------------

    def ask(self, cursor: PartitionCursor) -> None:
        if threading.get_ident() == self._thread_id:
            super().ask(cursor)
        else:
            self._timers.call_later(0, partial(super().ask, cursor))

    def _ask_aside(self, request: Request, endpoint: Endpoint) -> None:
        if request.ask is Ask.PULL and self._loop_pool.must_connect(endpoint):
            self._loop_pool.when_connected(endpoint, partial(self._pull_now, request))
        else:
            super()._ask_aside(request, endpoint)

    def _pull_now(self, request: Request) -> None:
        if request.cursor.awaits(request):
            self._send(request)

    def _begin_aside(self, endpoint: Endpoint, action: Callable[[], None]) -> None:
        thread = self._threads.get(endpoint)
        if thread is None:
            thread = self._threads[endpoint] = self._questions[len(self._threads) % _THREADS]
        thread.begin(action)

    def _use(self, connection: Channel) -> None:
        """Do nothing: the event loop reads all connections."""

    def end(self) -> None:
        """End the threads for questions after the ones that wait now. Called on the loop's thread."""
        for thread in self._questions:
            thread.close()

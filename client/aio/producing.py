"""Drive a producer's core on an event loop. The decisions are those of the driver with threads (producer/driver.py),
from which the class here inherits; only what waits differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ..producer.driver import Driver
from ..producer.outgoing import Outgoing
from ..producer.queues import Flight
from ..producer.routing import Router
from ..producer.sending import Sender
from ..runtime.timers import Scheduler
from ..settings.config import ProducerConfig
from .loop import LoopTimers, WaitingTasks
from .metadata import LoopMetadata
from .pool import LoopPool

__all__ = ["LoopDriver"]


class _LoopSender(Sender):
    """A Sender that does not wait while the pool connects to a broker: the flight goes out when the pool has
    connected.
    """

    pool: LoopPool

    def transmit(self, flight: Flight, caller: Outgoing | None = None) -> None:
        partition = flight.turns[0].queue.partition
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        if endpoint is not None and self.pool.must_connect(endpoint):
            flight.taken = True
            self.pool.when_connected(endpoint, partial(super().transmit, flight))
        else:
            super().transmit(flight)


class LoopDriver(Driver):
    """Drives a producer's core on an event loop. All methods are called on the loop's thread. An object of this class
    has no store for undelivered messages.
    """

    _interruptible = staticmethod(lambda: False)

    def __init__(
        self,
        config: ProducerConfig,
        metadata: LoopMetadata,
        pool: LoopPool,
        router: Router,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        random: Callable[[], float],
        *,
        gathers: bool = True,
    ) -> None:
        self._loop = loop
        self._loop_pool = pool
        self._room = WaitingTasks(loop)
        self._ends = WaitingTasks(loop)
        super().__init__(config, metadata, pool, router, None, clock, random, gathers=gathers)

    def _scheduler(self, name: str) -> Scheduler:
        return LoopTimers(self._loop)

    def _make_sender(self) -> Sender:
        sender = self._sender_of(_LoopSender)
        sender.pool = self._loop_pool
        return sender

    def try_begin(self, outgoing: Outgoing) -> bool:
        """Accept a message and send it. Return False, and do nothing, if the buffer has no room for it now. The topic
        must be known to the metadata. Raises NoPartition, ClientError (closed), and exceptions of a user's selector.
        """
        core = self.core
        accepted = core.add(outgoing, self._route(outgoing))
        if accepted is None:
            return False
        if core.due or core.expire_at < self._look_armed:
            self._arm()
        self._sender.transmit_all(accepted[1])
        return True

    async def wait_for_room(self, outgoing: Outgoing) -> None:
        """Wait until the buffer has room for the message. Raises RequestTimedOut at the message's deadline."""
        left = outgoing.deadline - self._clock()
        if not await self._room.wait_for(partial(self.core.has_room, outgoing), left):
            raise self.core.no_room()

    def _released(self) -> None:
        if self._room:
            self._room.wake_first()
        if self._ends and self._has_told_all():
            self._ends.wake_all()

    def _ring(self) -> None:
        self._released()

    # --- the end ----------------------------------------------------------------------------------------------------

    async def flush_within(self, seconds: float) -> bool:
        """Wait until every message is delivered or has failed. Return False if `seconds` pass first."""
        self.core.hurry()
        self._arm()
        return await self._ends.wait_for(self._has_told_all, seconds)

    async def end_within(self, seconds: float) -> None:
        """Wait at most `seconds` until all accepted messages are delivered or have failed. Then accept no more
        messages, and end the remaining ones with an error, also if the task is cancelled.
        """
        try:
            await self.flush_within(seconds)
        finally:
            self.core.stop_trying()
            self._do(self.core.close())
            self._room.wake_all()

"""A producer's view of its cluster, for an event loop: the calls that may ask ZooKeeper run on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import MetaqError

from ..transport.metadata import Metadata, TopicView
from .loop import BlockingThread

__all__ = ["LoopMetadata"]

log = get_log(__name__)


class LoopMetadata:
    """Wraps a Metadata object, whose changes it reports on the event loop. Before `view` is called for a topic, `learn`
    must have been called for it: only `learn` may wait for ZooKeeper.
    """

    def __init__(self, metadata: Metadata, thread: BlockingThread, loop: asyncio.AbstractEventLoop) -> None:
        self._metadata = metadata
        self._thread = thread
        self._loop = loop
        self._known: set[str] = set()
        self._topics: Collection[str] = ()
        self._learning: dict[str, asyncio.Future[None]] = {}

    def knows(self, topic: str) -> bool:
        """Whether `learn` has read this topic, so that `view` returns at once."""
        return topic in self._known

    async def learn(self, topic: str) -> None:
        """Read a topic for the first time. Tasks that ask for the same topic at the same time share one reading, which
        goes on if a task is cancelled. If no broker publishes the topic, also read the names of all topics, because an
        error's text names the most similar one. Raises CoordinationUnavailable, InvalidName.
        """
        if topic in self._known:
            return
        reading = self._learning.get(topic)
        if reading is None:
            reading = self._learning[topic] = self._loop.create_task(self._read(topic))
            reading.add_done_callback(partial(self._read_ended, topic))
        await asyncio.shield(reading)

    def _read_ended(self, topic: str, reading: asyncio.Future[None]) -> None:
        del self._learning[topic]
        if not reading.cancelled():
            reading.exception()  # the tasks that wait get it; if all were cancelled, nobody needs it

    async def _read(self, topic: str) -> None:
        view = await self._thread.run(partial(self._metadata.view, topic))
        if not view.partitions:
            try:
                self._topics = await self._thread.run(lambda: set(self._metadata.topics()))
            except MetaqError as failure:  # a failed hint must not replace the message's error
                log.info("which topics there are is unknown: %s", failure)
        self._known.add(topic)

    def view(self, topic: str) -> TopicView:
        return self._metadata.view(topic)

    def topics(self) -> Collection[str]:
        """Return the names of the topics as they were when the last topic without a broker was read."""
        return self._topics

    def is_set(self, broker_id: int) -> bool:
        return self._metadata.is_set(broker_id)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(topic)` on the event loop after each change of a view."""

        def tell(topic: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(listener, topic)

        self._metadata.on_change(tell)

    def close(self, timeout: float = 10.0) -> None:
        self._metadata.close(timeout)

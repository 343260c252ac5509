"""The asyncio client behind the methods of the client with threads, so that the same tests can run on both."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from metaq import ConnectionConfig
from metaq.aio import Producer
from metaq.client.aio.connection import open_connection
from metaq.client.aio.loop import BlockingThread
from metaq.client.transport.connection import Endpoint
from tests.waiting import DEADLINE

T = TypeVar("T")


def try_to_connect(endpoint: Endpoint, config: ConnectionConfig) -> None:
    """Open a connection on an event loop, and close it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        thread = BlockingThread("test-names", loop)
        try:
            (await open_connection(endpoint, config, thread.run, loop, time.monotonic)).close()
        finally:
            thread.close()

    asyncio.run(main())


class Loop:
    """An event loop on a thread of its own."""

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()
        return self

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result(DEADLINE)

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


async def _wait(outcome: Awaitable[T]) -> T:
    return await outcome


class LoopProducer:
    """A Producer of the asyncio client. Its calls block."""

    def __init__(self, loop: Loop, **given: Any) -> None:
        self._loop = loop
        self._producer = Producer(**given)
        loop.run(self._producer.start())

    def send(self, *given: Any, **options: Any) -> Any:
        return self._loop.run(self._producer.send(*given, **options))

    def send_async(self, *given: Any, **options: Any) -> Future[Any]:
        return self._loop.begin(_wait(self._loop.run(self._producer.produce(*given, **options))))

    def send_batch(self, *given: Any, **options: Any) -> Any:
        return self._loop.run(self._producer.send_batch(*given, **options))

    def send_batch_async(self, *given: Any, **options: Any) -> Future[Any]:
        return self._loop.begin(_wait(self._loop.run(self._producer.produce_batch(*given, **options))))

    def cancel(self, *given: Any, **options: Any) -> bool:
        return self._loop.run(self._producer.cancel(*given, **options))

    def partitions(self, topic: str) -> Any:
        return self._loop.run(self._producer.partitions(topic))

    def flush(self, *given: Any) -> None:
        self._loop.run(self._producer.flush(*given))

    def close(self, *given: Any) -> None:
        self._loop.run(self._producer.close(*given))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

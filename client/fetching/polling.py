"""The method poll() and its helpers, which Consumer and PartitionReader have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from metaq.coordination.runtime.forks import ForkGuard
from metaq.protocol.errors import ClientError, ConfigError
from metaq.protocol.limits import INT32_MAX

from ..records.message import Message
from ..runtime.durations import Duration, check_wait
from ..runtime.unclosed import Closing
from ..settings.config import check_number
from ..settings.moved_options import by_position
from .core import ConsumerCore
from .fetcher import Fetcher

if TYPE_CHECKING:
    import pyarrow

__all__ = ["NOT_ALONE", "Poller", "Taken", "checked_poll"]

NOT_ALONE = "poll() or run() is under way, on another thread or around this call-back: give each thread one of its own"

Taken = TypeVar("Taken", bound=Sized)


class Poller(Closing):
    """Base class of clients with poll(). The thread that calls poll() takes the messages from a core. The client may be
    used by only one thread at a time, but another thread may call close(). In a forked process every call raises
    ClientError, except close(), which does not affect the parent's client.
    """

    def __init__(self, core: ConsumerCore, fetcher: Fetcher) -> None:
        self._core = core
        self._fetcher = fetcher
        self._guard = ForkGuard(type(self).__name__)
        self._polling = False
        self._closed = False

    def poll(self, *former: Any, timeout: Duration = 1.0, max_messages: int = 500) -> list[Message]:
        """Return the next messages: at least one if any comes within `timeout` seconds, otherwise [].

        The messages that earlier calls returned now count as consumed. Raises CorruptRecord if bytes of a partition are
        damaged; the error's `position` and `end` are the offsets where the damage begins and ends. Each call raises
        this error again until you seek to the end of the damage. If ConsumerConfig.damage is "skip", poll() skips the
        damage instead. Raises AccessRefused if there are no messages and a broker has refused to hand out messages of a
        partition or to log the user in. The consumer then asks again after a pause, and poll() raises the error again
        as long as the broker refuses. Raises CoordinationRefused in the same way if ZooKeeper's access rights do not
        let this consumer work in its group. Also raises ClientError (closed, or called on two threads at once), and
        exceptions of `accept`, on_assigned, on_revoked and on_damaged.

        former: max_messages and timeout by position, as earlier releases allowed; this causes a DeprecationWarning.
        """
        if former:
            given = by_position(f"{type(self).__name__}.poll", former, "max_messages", "timeout")
            max_messages, timeout = given["max_messages"], given.get("timeout", timeout)
        seconds = checked_poll(max_messages, timeout)
        messages = self._poll(partial(self._core.take, max_messages), seconds) or []
        self._core.under_way = False
        return messages

    def poll_arrow(self, *former: Any, timeout: Duration = 1.0, max_messages: int = 65_536) -> pyarrow.RecordBatch:
        """Return the next messages as `poll` does, but as one pyarrow.RecordBatch
        (`metaq.client.records.arrow.SCHEMA`).

        The RecordBatch may be empty. If many messages wait at the broker, a batch contains the messages of one answer,
        about `arrow_fetch_bytes` bytes. This method is fast, because no Python code runs for the single messages.
        """
        if former:
            given = by_position(f"{type(self).__name__}.poll_arrow", former, "max_messages", "timeout")
            max_messages, timeout = given["max_messages"], given.get("timeout", timeout)
        from ..records.arrow import EMPTY  # pyarrow is an extra

        seconds = checked_poll(max_messages, timeout)
        self._core.codec.reads_in_bulk = True
        batch = self._poll(partial(self._core.take_batch, max_messages), seconds) or EMPTY
        self._core.under_way = False
        return batch

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until close(). A message counts as consumed when the caller requests the next one."""
        while not self._closed:
            yield from self.poll(max_messages=1, timeout=1.0)

    def _poll(self, take: Callable[[], Taken], timeout: float) -> Taken | None:
        """Call `take` until its result is not empty, and return this result. Return None if the result is still empty
        after `timeout` seconds.
        """
        self._check_open()
        if self._polling:
            raise ClientError(NOT_ALONE)
        # No lock: a signal handler may raise when acquire() returns, and then nobody would release the lock.
        self._polling = True
        try:
            core = self._core
            core.acknowledge()
            deadline = 0.0
            while True:
                taken = self._take(take)
                if taken:
                    return taken
                now = time.monotonic()
                deadline = deadline or now + timeout
                if now >= deadline or self._closed:
                    return None
                self._wait(deadline - now)
                # an empty (filtered out) range may have been skipped: the user has no message of it
                core.acknowledge()
        finally:
            self._polling = False

    def _take(self, take: Callable[[], Taken]) -> Taken:
        """Call `take`, and return its result, which may be empty. Raises the refusal of a broker, if there is one and
        no message.
        """
        self._attend()
        taken = take()
        self._fetcher.serve()
        if not taken and (refusal := self._core.take_refusal()) is not None:
            self._core.under_way = False
            raise refusal
        return taken

    def _attend(self) -> None:
        """Do the work that only the polling thread may do, such as calling the user's callbacks. Called each time
        before the core is asked for messages.
        """
        self._fetcher.listen()

    def _wait(self, seconds: float) -> None:
        """Wait at most `seconds` until messages may have arrived."""
        self._fetcher.wait(seconds)

    def _settle(self) -> None:
        """If an exception ended the last poll, set each position back to the end of the last message that the user has
        got.
        """
        self._guard.check()
        if not self._polling:  # otherwise the call comes from a filter or a handler
            self._core.settle()

    def _check_open(self) -> None:
        self._guard.check()
        if self._closed:
            raise ClientError(f"this {type(self).__name__} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def checked_poll(max_messages: int, timeout: Duration) -> float:
    """Return `timeout` in seconds. Raises ConfigError, WrongDuration."""
    if type(max_messages) is not int or not 1 <= max_messages <= INT32_MAX:
        if isinstance(max_messages, float | timedelta):
            raise ConfigError("max_messages", max_messages, f"choose a whole number, or write timeout={max_messages!r}")
        check_number("max_messages", max_messages, most=INT32_MAX)
    return check_wait("timeout", timeout)

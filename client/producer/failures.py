"""Decide what follows a failed request: the request is repeated unchanged, its messages go into other requests, or its
messages end with an error.

`ProducerCore._lock` guards everything here except `overdue`.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import (
    CannotConnect,
    ClientError,
    MetaqError,
    NoPartition,
    NotLeader,
    NotSafe,
    RequestTimedOut,
    TopicNotAccepted,
    WrongPartition,
)

from ..settings.config import ProducerConfig
from . import tuning
from .outgoing import GivenUp, Outgoing
from .queues import PartitionQueue, Turn
from .routing import Routes

__all__ = ["Closed", "Failures"]


class Failures:
    """Decides what happens after failed requests. The decision depends on the error, on whether the broker may have
    stored the messages, and on the messages' deadlines.

    closing: True once the producer is closing; then nothing is sent again.
    """

    def __init__(
        self,
        config: ProducerConfig,
        places: Routes,
        clock: Callable[[], float],
        random: Callable[[], float],
        follow: Callable[[MetaqError], float | None],
    ) -> None:
        self.closing = False
        self._config = config
        self._places = places
        self._clock = clock
        self._random = random
        self._follow = follow

    def failed(self, turn: Turn, error: MetaqError, unknown: bool, sent_at: float) -> list[GivenUp]:
        """Handle a failed turn (here: the messages of one partition in a request). Nothing is sent from the partition's
        queue until the queue's `retry_at`. Return the messages that are not retried, each with its error.

        unknown: whether the request had a sequence number and may have reached the broker, although no answer came.
        sent_at: when the request was sent, in monotonic seconds.
        """
        queue, batch = turn
        if queue.repeat is not None:  # a node that does not lead cannot know the request that this one repeats
            unknown = unknown or isinstance(error, NotLeader)
        if (unknown and error.retriable) or isinstance(error, NotSafe):
            return self._keep(queue, batch, error, sent_at)
        return self._back(queue, batch, error)

    def overdue(self, outgoing: Outgoing) -> ClientError:
        """Return the error with which a message ends at its deadline; its text names the cause of the last failed try.
        Any thread may call this.
        """
        cause = outgoing.cause
        if (cause is None or isinstance(cause, NoPartition)) and self._places.is_away(outgoing):
            return NoPartition(
                f"topic {outgoing.topic!r}: no broker that is registered now has "
                + ("the topic" if outgoing.fixed is None else f"partition {outgoing.fixed}")
                + ", and none came back before the message's deadline"
            )
        tries = f"; the last of {outgoing.attempts} tries failed: {cause}" if cause else ""
        return RequestTimedOut(f"a message to topic {outgoing.topic!r} was not acknowledged in time{tries}")

    def may_repeat(self, queue: PartitionQueue) -> bool:
        """Return whether the failed request in the queue's `repeat` may be sent again. It may be sent again until the
        queue's `repeat_until`, as long as at least one of its messages has no outcome yet and has not passed its
        deadline.
        """
        now = self._clock()
        assert queue.repeat is not None
        return now < queue.repeat_until and any(not each.done and now < each.deadline for each in queue.repeat)

    def _keep(self, queue: PartitionQueue, batch: list[Outgoing], error: MetaqError, sent_at: float) -> list[GivenUp]:
        """Called for a failed request that has a sequence number and that the broker may have stored: keep the request,
        so that it can be repeated unchanged until the last deadline of its messages. If all deadlines have passed,
        return all its messages with their errors instead.
        """
        now = self._clock()
        follows = self._note(batch, error, now)
        if queue.repeat is None:
            queue.repeat_until = now + tuning.REPEAT_SECONDS
            queue.sent_at = sent_at
        # a new list: if this flight is reported again, it must not find its own list here
        queue.under_way = queue.repeat = list(batch)
        self._pause(queue, follows, now)
        if follows is None:
            pause = self._seconds(queue.failures)
            self._places.avoid(queue.partition, error, pause)
            queue.retry_at = now if queue.failures == 1 else now + pause
        if not self.closing and self.may_repeat(queue):
            return []
        return [(each, self._end(each)) for each in queue.give_up_repeat()]

    def _back(self, queue: PartitionQueue, batch: list[Outgoing], error: MetaqError) -> list[GivenUp]:
        """Handle a failed request that the broker has certainly not stored: put those of its messages that may be sent
        again at the front of the queue. Return the other messages with their errors.
        """
        again: list[Outgoing] = []
        ended: list[GivenUp] = []
        now = self._clock()
        follows = self._note(batch, error, now)
        elsewhere = False
        if follows is None:
            pause = self._seconds(queue.failures + 1)
            if isinstance(error, CannotConnect):  # until somebody has changed a setting
                pause = max(pause, self._config.connection.reconnect_max_seconds)
            elsewhere = self._places.avoid(queue.partition, error, pause)
        for outgoing in batch:
            if not _may_retry(outgoing, error, elsewhere):
                ended.append((outgoing, error))
            elif outgoing.done or self.closing or now >= outgoing.deadline:
                ended.append((outgoing, self._end(outgoing)))
            else:
                again.append(outgoing)
        queue.under_way = ()
        queue.repeat = None
        self._pause(queue, follows, now)
        queue.put_back(again)
        if follows is None:
            moves = elsewhere and any(each.attempts == 1 and each.key is None and each.fixed is None for each in again)
            queue.retry_at = now if moves or queue.failures == 1 else now + pause
        return ended

    def _note(self, batch: list[Outgoing], error: MetaqError, now: float) -> float | None:
        """Store the error in the failed messages, as their `cause`. If the request failed only because another node of
        the broker set is the leader, return the seconds to wait before the request is sent to that node; such a failure
        does not count as a try of the messages. For other errors return None.
        """
        follows = self._follow(error)
        for outgoing in batch:
            outgoing.attempts += follows is None
            outgoing.cause = _telling(outgoing, error, now)
        return follows

    def _pause(self, queue: PartitionQueue, follows: float | None, now: float) -> None:
        queue.busy = False
        queue.paused = True
        queue.stop_gathering()
        queue.follows = follows is not None
        if follows is not None:  # the partition has not failed: its messages stay there
            queue.retry_at = now + follows
        else:
            queue.failures += 1

    def _seconds(self, failures: int) -> float:
        backoff = Backoff(self._config.retry_min_seconds, self._config.retry_max_seconds, self._random)
        backoff.tries = failures - 1
        return backoff.next()

    def _end(self, outgoing: Outgoing) -> ClientError:
        return Closed() if self.closing else self.overdue(outgoing)


class Closed(ClientError):
    """The error of a message that was not acknowledged before the producer was closed. The error is retriable: another
    producer may send the message.
    """

    retriable = True

    def __init__(self) -> None:
        super().__init__("the producer was closed before this message was acknowledged")


def _may_retry(outgoing: Outgoing, error: MetaqError, elsewhere: bool) -> bool:
    """elsewhere: whether the topic has partitions to which no send has just failed."""
    if outgoing.once:
        return False
    if isinstance(error, CannotConnect):
        return elsewhere and outgoing.key is None and outgoing.fixed is None
    if isinstance(error, (TopicNotAccepted, WrongPartition)):
        return outgoing.attempts < tuning.VIEW_RETRIES
    return error.retriable


def _telling(outgoing: Outgoing, error: MetaqError, now: float) -> MetaqError:
    """Return the error that best explains why a message failed: `error`, or the error of an earlier try
    (`outgoing.cause`). The earlier error is returned if the last try ended only because the message's deadline passed,
    or because the broker is no longer registered. Such a last error would not explain the failure.
    """
    known = outgoing.cause
    if known is None or isinstance(known, NoPartition):
        return error
    return known if now >= outgoing.deadline or isinstance(error, NoPartition) else error

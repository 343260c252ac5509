"""Send failed messages (messages on which a handler has failed) to a broker. The broker keeps a failed message until
the time of its next attempt. After the last attempt, the message is sent to the group's dead letters.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from random import random
from typing import NamedTuple, Protocol

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable
from metaq.protocol.own_topics import dead_topic, retry_topic
from metaq.protocol.retries import MAX_CAUSE_CHARACTERS, Failure, encode_failed, shortened

from ..records.message import Message
from ..records.results import SendResult, TopicPartition
from .retry import Retry

__all__ = ["FailedMessages", "FailedSender", "Sending", "by_preference", "cause_of", "giving_back"]

log = get_log(__name__)

_FILE_CHARACTERS = 300
"""Maximum number of characters of a file's path in the cause of a failure. A longer path is cut at its beginning,
because the end of a path distinguishes the file from other files.
"""


class FailedSender(Protocol):
    """The methods of a Producer that this module needs."""

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]: ...
    def send_batch_async(
        self, topic: str, payloads: Sequence[Message], *, partition: TopicPartition
    ) -> Future[Sequence[SendResult]]: ...
    def close(self, timeout: float = 10.0) -> None: ...


class Sending(NamedTuple):
    """A failed message that is being sent to `partition`, and the future of the send."""

    future: Future[Sequence[SendResult]]
    partition: TopicPartition


def cause_of(error: BaseException) -> str:
    """Return a text of two lines: the type and text of an exception, and the place where the program raised it."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    places = [f"{each.filename[-_FILE_CHARACTERS:]}:{each.lineno} in {each.name}" for each in frames]
    room = MAX_CAUSE_CHARACTERS - sum(len(each) + 1 for each in places)
    return shortened("\n".join([text if len(text) <= room else text[: room - 1] + "…", *places]))


def by_preference(
    partitions: Iterable[TopicPartition], home: int, avoided: Collection[int], random: Callable[[], float]
) -> list[TopicPartition]:
    """Sort the partitions to which a failed message can be sent, and return them, the preferred ones first: the
    partitions of the broker `home`, then the partitions of other brokers in random order, and last the partitions of
    the brokers in `avoided`. random: returns a number in [0, 1).
    """
    return sorted(partitions, key=lambda each: (each.broker in avoided, each.broker != home, random()))


def giving_back(
    deliver: Callable[[Sequence[Message]], object], failed: FailedMessages
) -> Callable[[Sequence[Message]], object]:
    """Return a function that calls `deliver` with a message from a local store. If the handler fails, the function
    sends the message to a broker as a message that has failed for the first time. The function blocks until the broker
    has stored the message, and raises MetaqError if that is impossible. When the function returns, the caller can
    remove the message from the local store.
    """

    def deliver_or_send(messages: Sequence[Message]) -> None:
        try:
            deliver(messages)
        except Exception as error:
            (message,) = messages
            failure = failed.failure(message, error, message.attempts)
            sending = failed.send(message, failure)
            sending.future.result()
            log.warning(
                "the handler failed on %r, which was kept on this machine: it lies in %s now",
                message,
                sending.partition.topic,
                exc_info=error,
            )

    return deliver_or_send


class FailedMessages:
    """Sends the failed messages of one call of run(). Any thread may call the methods. The Producer is created at the
    first failure.

    takes: returns whether the broker with a given id keeps delayed messages. Once `takes` has returned true for a
    broker, it is not called again for this broker. now: returns the time in Unix seconds.
    """

    def __init__(
        self,
        retry: Retry,
        group: str,
        make_sender: Callable[[], FailedSender],
        takes: Callable[[int], bool],
        *,
        now: Callable[[], float] = time.time,
        random: Callable[[], float] = random,
    ) -> None:
        """Raises InvalidName if the group's name is too long for its topics."""
        self.retry = retry
        self.retry_topic, self.dead_topic = retry_topic(group), dead_topic(group)
        self._make_sender = make_sender
        self._takes = takes
        self._now = now
        self._random = random
        self._lock = threading.Lock()
        self._sender: FailedSender | None = None
        self._taking: set[int] = set()

    def failure(self, message: Message, error: Exception, attempts: int) -> Failure:
        """Return a Failure, which contains the cause, the time and the number of attempts. The Failure is sent to the
        broker with the message, and the broker stores both. message: the original message.
        attempts: number of failed attempts.
        """
        return Failure(message.origin, attempts, cause_of(error), int(self._now() * 1000))

    def is_last(self, failure: Failure) -> bool:
        """Return whether the failed attempt was the last one that the Retry allows."""
        return failure.attempts >= self.retry.attempts

    def pause(self, failures: int) -> float:
        """Return the seconds to wait before the next attempt. failures: number of failures so far."""
        return self.retry.pause(failures, self._random)

    def send(self, message: Message, failure: Failure, avoided: Collection[int] = ()) -> Sending:
        """Begin to send a failed message to the retry topic for its next attempt, or, after the last attempt, to the
        dead letters.

        message: the original message; if possible, the message goes to the broker from which it came. avoided: ids of
        brokers that did not accept the message in the last try to send it; they get it only if no other broker can.
        Raises MetaqError.
        """
        pause = None if self.is_last(failure) else self.pause(failure.attempts)
        topic = self.dead_topic if pause is None else self.retry_topic
        delay_ms = None if pause is None else math.ceil(pause * 1000)
        flag, body = encode_failed(message.flag, message.body, failure, delay_ms)
        sender = self._open()
        partitions = by_preference(sender.partitions(topic), message.partition.broker, avoided, self._random)
        partition = self._first_that_takes(partitions, topic)
        future = sender.send_batch_async(topic, [Message(partition, 0, 0, flag, body)], partition=partition)
        return Sending(future, partition)

    def _open(self) -> FailedSender:
        with self._lock:
            if self._sender is None:
                self._sender = self._make_sender()
            return self._sender

    def _first_that_takes(self, partitions: Iterable[TopicPartition], topic: str) -> TopicPartition:
        for each in partitions:
            if each.broker in self._taking:
                return each
            if self._takes(each.broker):
                self._taking.add(each.broker)
                return each
        raise BrokerUnavailable(f"no broker that can be reached now takes messages of {topic}")

    def close(self, timeout: float) -> None:
        """Close the Producer, if it was created."""
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close(timeout)

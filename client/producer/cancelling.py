"""Cancel a delayed message."""

from __future__ import annotations

import time
from collections.abc import Callable

from metaq.protocol.delays import CancelDelayedReply, CancelDelayedRequest, Cancelled
from metaq.protocol.errors import (
    BrokerUnavailable,
    ConfigError,
    MessageNotFound,
    MetaqError,
    NoPartition,
    NotLeader,
    RequestTimedOut,
)
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode

from ..questions.asking import Asked, Follow, HasEndpoint, accepted, ask
from ..records.results import SendResult, TopicPartition
from ..transport.connection import Connection, Reply

__all__ = ["Cancelling", "cancel_at", "cancel_delayed"]

_PAUSE_SECONDS = 0.1

Connect = Callable[[str, int, float], Connection]
"""A function connect(topic, broker id, seconds) that returns a connection to the broker. Raises NoPartition,
BrokerUnavailable, ClientError.
"""


def cancel_at(connection: Asked, partition: TopicPartition, message_id: int, timeout: float | None = None) -> Cancelled:
    """Ask the broker of this connection to cancel a delayed message. If the broker refuses, raise its error. Raises
    BrokerUnavailable, RequestTimedOut.
    """
    ext = CancelDelayedRequest(partition.topic, partition.partition, message_id).to_ext()
    reply = ask(connection, RequestCode.CANCEL_DELAYED, ext, partition, timeout)
    return Cancelled(CancelDelayedReply.from_ext(reply.ext).state)


class Cancelling:
    """The cancellation of one delayed message, without I/O; see Producer.cancel. The driver sends requests until one is
    answered with anything but an error for which `pause_after` returns a pause. follow: see ConnectionPool.follow.

    Raises TypeError and ConfigError if `result` is not the result of a delayed message.
    """

    def __init__(self, result: SendResult, follow: Follow, deadline: float) -> None:
        if not isinstance(result, SendResult):
            raise TypeError(f"{result!r:.80} is no SendResult: give what send() returned, or future.result()")
        if result.due is None:
            raise ConfigError("result", result, "give the result of a message that was sent with deliver_at or delay")
        self.partition = result.partition
        self._id = result.message_id
        self._follow = follow
        self._deadline = deadline

    def pause_after(self, error: MetaqError, now: float) -> float:
        """Return the seconds after which the broker is asked again, although a request has failed with this error.
        Raises `error` if asking again is useless, and RequestTimedOut if there is no time left.
        """
        pause = self._follow(error) if isinstance(error, NotLeader) else _PAUSE_SECONDS
        if not isinstance(error, NotLeader | BrokerUnavailable | NoPartition) or pause is None:
            raise error
        if now + pause >= self._deadline:
            raise RequestTimedOut(f"message {self._id} was not cancelled in time: {error}") from error
        return pause

    def is_cancelled(self, state: Cancelled) -> bool:
        """Return whether the message was cancelled, as the broker's answer tells. Raises MessageNotFound."""
        if state is Cancelled.UNKNOWN:
            raise MessageNotFound(f"no message {self._id} waits for {self.partition.topic} {self.partition}")
        return state is Cancelled.CANCELLED

    def request(self, opaque: int) -> tuple[bytes]:
        """Return the bytes of the request."""
        ext = CancelDelayedRequest(self.partition.topic, self.partition.partition, self._id).to_ext()
        return (encode_frame(RequestCode.CANCEL_DELAYED, opaque, ext),)

    def state(self, reply: Reply, connection: HasEndpoint) -> Cancelled:
        """Return what the answer to the request tells. Raises the error that belongs to it."""
        frame = accepted(reply, connection, self.partition, ())
        return Cancelled(CancelDelayedReply.from_ext(frame.ext).state)


def cancel_delayed(
    connect: Connect,
    follow: Follow,
    result: SendResult,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Cancel a delayed message; see Producer.cancel. connect: see Connect. follow: see ConnectionPool.follow."""
    cancelling = Cancelling(result, follow, deadline)
    partition = result.partition
    while True:
        try:
            left = deadline - clock()
            connection = connect(partition.topic, partition.broker, left)
            state = cancel_at(connection, partition, result.message_id, left)
            break
        except MetaqError as error:
            sleep(cancelling.pause_after(error, clock()))
    return cancelling.is_cancelled(state)

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
from metaq.protocol.statuses import RequestCode

from ..questions.asking import Asked, Follow, ask
from ..records.results import SendResult, TopicPartition
from ..transport.connection import Connection

__all__ = ["cancel_at", "cancel_delayed"]

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


def cancel_delayed(
    connect: Connect,
    follow: Follow,
    result: SendResult,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Cancel a delayed message; see Producer.cancel. connect: see Connect. follow: see ConnectionPool.follow."""
    if not isinstance(result, SendResult):
        raise TypeError(f"{result!r:.80} is no SendResult: give what send() returned, or future.result()")
    if result.due is None:
        raise ConfigError("result", result, "give the result of a message that was sent with deliver_at or delay")
    partition = result.partition
    while True:
        try:
            left = deadline - clock()
            connection = connect(partition.topic, partition.broker, left)
            state = cancel_at(connection, partition, result.message_id, left)
            break
        except MetaqError as error:
            pause = follow(error) if isinstance(error, NotLeader) else _PAUSE_SECONDS
            if not isinstance(error, NotLeader | BrokerUnavailable | NoPartition) or pause is None:
                raise
            if clock() + pause >= deadline:
                raise RequestTimedOut(f"message {result.message_id} was not cancelled in time: {error}") from error
            sleep(pause)
    if state is Cancelled.UNKNOWN:
        raise MessageNotFound(f"no message {result.message_id} waits for {partition.topic} {partition}")
    return state is Cancelled.CANCELLED

"""Read the state of shared groups at brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import simplejson

from metaq.protocol.errors import RemoteProtocolError, RequestRefused
from metaq.protocol.limits import SHARED_MARK
from metaq.protocol.shared import SharedForgetRequest, SharedStatusRequest
from metaq.protocol.statuses import RequestCode, Status

from ..records.results import TopicPartition
from ..transport.connection import Connection
from .asking import ask

__all__ = ["SharedPartition", "forget_shared_group", "shared_status"]


class SharedPartition(NamedTuple):
    """The state of a shared group on one partition.

    left: number of unacknowledged messages, including leased messages. leased: number of leased messages. delayed:
    number of messages that a member has released with a delay which is not over, so that they cannot be leased yet.
    most_attempts: the highest number of times that one of the leased or released messages was leased. oldest_ms: age in
    milliseconds of the first unacknowledged message; it is None if there is no such message, or if the broker does not
    know when the message was stored.
    ordered: whether messages with the same key are leased one at a time. members: for each member, the number of its
    leased messages. Members that have neither leased messages nor sent a request in the last minute are left out.
    """

    group: str
    partition: TopicPartition
    left: int
    leased: int
    delayed: int
    most_attempts: int
    oldest_ms: int | None
    ordered: bool
    damaged_bytes: int
    members: Mapping[str, int]


def shared_status(
    connection: Connection, broker_id: int, group: str = "", timeout: float | None = None
) -> list[SharedPartition]:
    """Return the state of one shared group or of all shared groups on each partition of one broker. group: the group's
    name; "" means all groups. Raises RequestRefused if the broker does not support shared groups.
    """
    _need_shared(connection)
    frame = ask(connection, RequestCode.SHARED_STATUS, SharedStatusRequest(group).to_ext(), _none(broker_id), timeout)
    try:
        return [_row(broker_id, each) for each in simplejson.loads(bytes(frame.body))]
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"{connection.endpoint} answered what is no status of shared groups") from error


def forget_shared_group(connection: Connection, broker_id: int, group: str, timeout: float | None = None) -> int:
    """Make one broker delete its record of which messages a shared group has acknowledged. Return the number of
    partitions for which something was deleted. Raises SharedRefused if the group has members at this broker, or does
    not exist there.
    """
    _need_shared(connection)
    frame = ask(connection, RequestCode.SHARED_FORGET, SharedForgetRequest(group).to_ext(), _none(broker_id), timeout)
    count = simplejson.loads(bytes(frame.body))
    if not isinstance(count, int):
        raise RemoteProtocolError(f"{connection.endpoint} answered what is no number of partitions")
    return count


def _none(broker_id: int) -> TopicPartition:
    return TopicPartition("", broker_id, -1)


def _need_shared(connection: Connection) -> None:
    if not connection.takes_shared:
        text = f"{connection.endpoint} has no shared groups: its version says no {SHARED_MARK}"
        raise RequestRefused(Status.BAD_REQUEST, text)


def _row(broker_id: int, found: Mapping[str, Any]) -> SharedPartition:
    return SharedPartition(
        found["group"],
        TopicPartition(found["topic"], broker_id, found["partition"]),
        found["left"],
        found["leased"],
        found["delayed"],
        found["mostAttempts"],
        found["oldestMs"],
        found["ordered"],
        found["damagedBytes"],
        found["members"],
    )

"""Requests for operators: who may make them, CLOSE_PARTITIONS, OPEN_PARTITIONS and RELOAD_CONFIG."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Any

import simplejson
from twisted.internet.defer import Deferred

from metaq.protocol.frames import Frame
from metaq.protocol.record import Buffer
from metaq.protocol.remoting import ClosePartitionsRequest, OpenPartitionsRequest

from ..broker import AdminFrom, Broker
from .answers import Answer, Bytes, answer_frame

__all__ = [
    "ADMIN_CODES",
    "admits",
    "answer_close_partitions",
    "answer_json",
    "answer_open_partitions",
    "answer_reload_config",
]

ADMIN_CODES = frozenset(range(1020, 1027))
"""Request codes that are answered NO_PERMISSION to everybody else."""


def admits(admin_from: AdminFrom, host: str, listen: str = "") -> bool:
    """Whether a peer at this address (numeric, as the socket names it) may make admin requests.

    listen: the only address that is listened on, if there is one: who has it is this machine.
    """
    if admin_from == "any":
        return True
    try:
        address = ip_address(host)
    except ValueError:  # no address at all: a peer whose origin is unknown
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or (listen != "" and address == ip_address(listen))


def answer_json(frame: Frame, value: Any) -> Bytes:
    """A successful answer whose body is `value` as JSON (UTF-8)."""
    body = simplejson.dumps(value).encode("utf-8")
    parts: list[Buffer] = [answer_frame(frame.opaque, {}, body=len(body)), body]
    return parts


def answer_close_partitions(broker: Broker, frame: Frame) -> Answer:
    """Raises TopicNotAccepted for a topic without a section, WrongPartition outside the topic's count."""
    topic, start, end = ClosePartitionsRequest.from_ext(frame.ext)
    broker.partitions.close(topic, start, end)
    return answer_json(frame, {"topic": topic, "closed": broker.partitions.closed(topic)})


def answer_open_partitions(broker: Broker, frame: Frame) -> Answer:
    """Opening what is not closed is no error."""
    (topic,) = OpenPartitionsRequest.from_ext(frame.ext)
    opened = broker.partitions.closed(topic)
    broker.partitions.open(topic)
    return answer_json(frame, {"topic": topic, "opened": opened})


def answer_reload_config(broker: Broker, frame: Frame) -> Deferred[Bytes]:
    """Read server.ini again; the answer says what that changed. ConfigError if it cannot be loaded: nothing changed."""
    return broker.reload_config().addCallback(lambda report: answer_json(frame, report.to_json()))

"""`version`: also the 1.x client's heartbeat; tells our clients of frames and of SEND_MANY."""

from __future__ import annotations

from metaq.protocol.limits import FRAMES_MARK, MANY_MARK
from metaq.protocol.statuses import Status
from metaq.protocol.text import Version, encode_result

from ..broker import Broker

__all__ = ["answer_version"]


def answer_version(broker: Broker, version: Version) -> bytes:
    return encode_result(Status.SUCCESS, f"{broker.version} {MANY_MARK} {FRAMES_MARK}", version.opaque)

"""Report the status of shared groups to operators."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simplejson

from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import Frame
from metaq.protocol.shared import SharedStatusRequest

from ..reading.answers import Work, body_frame
from .queue import SharedQueue
from .shared_groups import SharedGroups

__all__ = ["answer_status"]


def answer_status(shared: SharedGroups, now_ms: Callable[[], int], frame: Frame) -> Work:
    """Answer a SHARED_STATUS request. The answer describes many groups and is made in several turns of the reactor, so
    it can show the groups at different moments. Raises RemoteProtocolError, NotLeader.
    """
    request = SharedStatusRequest.from_ext(frame.ext)
    texts = []
    for queue in shared.each(request.group):
        described = yield from _described(queue, now_ms())
        texts.append(simplejson.dumps(described))
        yield
    return body_frame(frame.opaque, f"[{', '.join(texts)}]".encode())


def _described(queue: SharedQueue, now_ms: int) -> Generator[None, None, dict[str, Any]]:
    """Return a description of one group on one partition, for JSON. The field oldestMs is the age of the first
    unacknowledged message in milliseconds. It is None if there is no such message, or if its age is unknown.
    """
    state = queue.state
    delayed, most_attempts, members = yield from state.figures()
    return {
        "group": queue.key.group,
        "topic": queue.key.topic,
        "partition": queue.key.partition,
        "low": state.low,
        "left": queue.left,
        "leased": state.leased,
        "delayed": delayed,
        "available": state.available,
        "mostAttempts": most_attempts,
        "oldestMs": _oldest_ms(queue, now_ms),
        "ordered": state.ordered,
        "damagedBytes": queue.damaged_bytes,
        "members": {name: members.get(name, 0) for name in sorted({*queue.members, *members})},
    }


def _oldest_ms(queue: SharedQueue, now_ms: int) -> int | None:
    log, low = queue.log, queue.state.low
    if log is None or low >= log.visible_end:
        return None
    try:
        units = log.lookup.units(max(low, log.first_offset), 1, 1)
    except MetaqError:  # shown as unknown, so that the other figures are still shown
        return None
    return max(0, now_ms - abs(int(units[0]["time_ms"]))) if len(units) else None

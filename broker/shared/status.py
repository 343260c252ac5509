"""What operators are told of shared groups."""

from __future__ import annotations

from typing import Any

from metaq.protocol.errors import MetaqError

from .queue import SharedQueue

__all__ = ["describe", "messages_left"]


def messages_left(queue: SharedQueue) -> int:
    """Messages that are not acknowledged, leased ones too."""
    if queue.log is None:
        return 0
    return max(0, queue.log.lookup.messages_behind(queue.state.low) - queue.state.done_above)


def describe(queue: SharedQueue, now_ms: int) -> dict[str, Any]:
    """One group on one partition, for JSON. oldestMs: how long ago the first message that is not acknowledged was
    stored; None if there is none, or nobody knows."""
    state = queue.state
    return {
        "group": queue.key.group,
        "topic": queue.key.topic,
        "partition": queue.key.partition,
        "low": state.low,
        "left": messages_left(queue),
        "leased": state.leased,
        "delayed": state.delayed,
        "available": state.available,
        "mostAttempts": state.most_attempts(),
        "oldestMs": _oldest_ms(queue, now_ms),
        "ordered": state.ordered,
        "damagedBytes": queue.damaged_bytes,
        "members": {name: state.members().get(name, 0) for name in sorted({*queue.members, *state.members()})},
    }


def _oldest_ms(queue: SharedQueue, now_ms: int) -> int | None:
    log, low = queue.log, queue.state.low
    if log is None or low >= log.visible_end:
        return None
    try:
        units = log.lookup.units(max(low, log.first_offset), 1, 1)
    except MetaqError:  # shown as unknown: the other figures are not hidden by it
        return None
    return max(0, now_ms - abs(int(units[0]["time_ms"]))) if len(units) else None

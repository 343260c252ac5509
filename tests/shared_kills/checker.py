"""What is wrong in a history of a shared group. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Confirmed", "Event", "Handed", "Released", "parse", "problems"]

SLACK_SECONDS = 2.0
"""A lease begins when the broker decides; its member hears of it when that is on the disk, so much later at most."""


class Handed(NamedTuple):
    """A message was handed to a member. until: when the lease ends, as far as the member knows; the message may have
    waited in the member before."""

    member: str
    offset: int
    attempts: int
    time: float
    until: float


class Released(NamedTuple):
    """A member was going to release it for so long."""

    member: str
    offset: int
    delay: float
    time: float


class Confirmed(NamedTuple):
    """The broker had confirmed its acknowledgement."""

    member: str
    offset: int
    time: float


Event = Handed | Released | Confirmed


def parse(member: str, lines: Iterable[str]) -> list[Event]:
    """A member's file; a killed one may have written a part of its last line."""
    events: list[Event] = []
    for line in lines:
        if not line.endswith("\n"):
            break
        kind, offset, *rest = line.split()
        if kind == "H":
            events.append(Handed(member, int(offset), int(rest[0]), float(rest[1]), float(rest[2])))
        elif kind == "R":
            events.append(Released(member, int(offset), float(rest[0]), float(rest[1])))
        else:
            events.append(Confirmed(member, int(offset), float(rest[0])))
    return events


def problems(events: Sequence[Event], sent: Iterable[int]) -> list[str]:
    """One text for each. sent: the offsets of acknowledged messages; all of them have been acknowledged by members, as
    the broker says."""
    by_offset: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.time):
        by_offset[event.offset].append(event)
    found = [f"message @{each} was never handed to anybody" for each in sent if not by_offset.get(each)]
    for offset, history in by_offset.items():
        found += _of_one(offset, history)
    return found


def _next_attempts(last: Handed, released: Released | None, time: float) -> range:
    """A release counts; the end of a lease does if the member had nothing else. A release may come after that, if the
    broker was away, or never, if its member was killed."""
    is_counted = released is not None and time < last.until - SLACK_SECONDS
    return range(last.attempts + is_counted, last.attempts + 2)


def _of_one(offset: int, history: Sequence[Event]) -> list[str]:
    found: list[str] = []
    last: Handed | None = None
    released: Released | None = None
    confirmed: Confirmed | None = None
    for event in history:
        if isinstance(event, Released):
            released = event
        elif isinstance(event, Confirmed):
            confirmed = event
        else:
            if confirmed is not None:
                found.append(f"@{offset} was handed to {event.member} after {confirmed.member} had acknowledged it")
            if last is not None and event.attempts not in _next_attempts(last, released, event.time):
                found.append(f"@{offset} came with attempt {event.attempts} after {last.attempts}")
            if released is not None:
                if event.time < released.time + released.delay:
                    found.append(f"@{offset} came {released.time + released.delay - event.time:.3f} s too early")
            elif last is not None and event.time < last.until - SLACK_SECONDS:
                found.append(
                    f"@{offset} was handed to {event.member} {last.until - event.time:.3f} s before the lease of "
                    f"{last.member} ended"
                )
            last, released = event, None
    return found

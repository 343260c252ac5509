"""Find problems in a history of a shared group. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.kills.journal import Line
from tests.kills.outcome import Problem

__all__ = ["Confirmed", "Event", "Handed", "Released", "events_in", "judge"]

SLACK_SECONDS = 2.0
"""Longest time in seconds between the beginning of a lease at the broker and its arrival at the member: the lease is
written to the disk first."""


class Handed(NamedTuple):
    """A delivery of a message to a member. until: when the lease ends, as far as the member knows; before the delivery
    the message may have waited in the member."""

    member: str
    offset: int
    attempts: int
    time: float
    until: float


class Released(NamedTuple):
    """A member is about to release a message for `delay` seconds."""

    member: str
    offset: int
    delay: float
    time: float


class Confirmed(NamedTuple):
    """The broker has confirmed the acknowledgement of a message."""

    member: str
    offset: int
    time: float


Event = Handed | Released | Confirmed


def events_in(member: str, lines: Iterable[Line]) -> list[Event]:
    """Return the events of a member's journal."""
    events: list[Event] = []
    for kind, time, offset, *rest in lines:
        if kind == "handed":
            events.append(Handed(member, offset, rest[0], time, rest[1]))
        elif kind == "release":
            events.append(Released(member, offset, rest[0], time))
        else:
            events.append(Confirmed(member, offset, time))
    return events


def judge(events: Sequence[Event], sent: Iterable[int]) -> list[Problem]:
    """Return the problems. sent: the offsets of acknowledged sends; according to the broker, members have acknowledged
    all of these messages."""
    by_offset: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.time):
        by_offset[event.offset].append(event)
    unseen = [each for each in sent if each not in by_offset]
    found = [Problem("unseen", f"message @{each} was never handed to anybody") for each in unseen]
    for offset, history in by_offset.items():
        found += _of_one(offset, history)
    return found


def _next_attempts(last: Handed, released: Released | None, time: float) -> range:
    """Return the allowed numbers of the next attempt. A release counts; the end of a lease counts if the member had no
    other message. The broker may get a release after the end of the lease, if it was away, or never, if the member was
    killed."""
    is_counted = released is not None and time < last.until - SLACK_SECONDS
    return range(last.attempts + is_counted, last.attempts + 2)


def _of_one(offset: int, history: Sequence[Event]) -> list[Problem]:
    found: list[Problem] = []
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
                text = f"@{offset} was handed to {event.member} after {confirmed.member} had acknowledged it"
                found.append(Problem("twice", text))
            if last is not None and event.attempts not in _next_attempts(last, released, event.time):
                text = f"@{offset} came with attempt {event.attempts} after {last.attempts}"
                found.append(Problem("attempts", text))
            if released is not None:
                if event.time < released.time + released.delay:
                    text = f"@{offset} came {released.time + released.delay - event.time:.3f} s too early"
                    found.append(Problem("early", text))
            elif last is not None and event.time < last.until - SLACK_SECONDS:
                text = f"@{offset} was handed to {event.member} {last.until - event.time:.3f} s before the lease of "
                found.append(Problem("leased", f"{text}{last.member} ended"))
            last, released = event, None
    return found

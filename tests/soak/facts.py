"""The events of a run, as values: the input of the checkers. tests.history.facts has what all groups have in common.

Times are seconds of the machine's monotonic clock, which brokers, ZooKeeper and members of one run share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.history.facts import Ack, Delivery, Stored
from tests.kills.journal import clock

__all__ = ["Claim", "Committed", "Facts", "Window", "fetched_on", "monotonic"]


class Window(NamedTuple):
    """A time span. end >= begin."""

    begin: float
    end: float


class Claim(NamedTuple):
    """One ownership of a partition, from its claim to the last moment at which it was certainly still held.

    gone: the first moment at which it was certainly no longer held; infinity if that was never seen.
    """

    partition: str
    consumer: str
    begin: float
    end: float
    gone: float = math.inf


class Committed(NamedTuple):
    """A group's committed position of a partition: the next byte to read. time: of the write."""

    time: float
    partition: str
    offset: int


@dataclass(slots=True)
class Facts:
    """All input of the checkers.

    unowned: per partition the time spans in which a broker offered it and no live member owned it. excused: the spans
    in which that is allowed, such as a session time-out after a kill; patience: seconds that none may exceed even then.
    fetched_on: by consumer, the spans that the function `fetched_on` returns.
    """

    group: str = "g"
    acks: list[Ack] = field(default_factory=list)
    stored: dict[str, list[Stored]] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    unowned: dict[str, list[Window]] = field(default_factory=dict)
    excused: list[Window] = field(default_factory=list)
    patience: float = math.inf
    fetched_on: Mapping[str, Sequence[Window]] = field(default_factory=dict)


_WALL_AT_ZERO = time.time() - clock()


def monotonic(wall: float) -> float:
    """Return a time of the wall clock as a time of the monotonic clock."""
    return wall - _WALL_AT_ZERO


def fetched_on(log: Iterable[str]) -> list[Window]:
    """Return the time spans in which a Java consumer fetched from partitions that it had given up, from its log lines.

    1.x, in syncedRebalance: a try that fails before it has stopped fetching (a broker's node vanishes while it is read)
    deletes the consumer's owner nodes, sleeps zkSyncTimeMs, and only the next try stops. Others may claim meanwhile.
    """
    spans: list[Window] = []
    fetching, begin = False, None
    for line in log:
        if begin is not None and ("Comitting all offsets" in line or "Starting fetch runners" in line):
            spans.append(Window(begin, _logged_at(line)))  # after the listeners that still ran
            begin = None
        if "Starting fetch runners" in line:
            fetching = True
        elif "Stopping fetch runners" in line:
            fetching = False
        elif "rebalance failed,try" in line and fetching and begin is None:
            begin = _logged_at(line)
    return spans if begin is None else [*spans, Window(begin, math.inf)]


def _logged_at(line: str) -> float:
    """Return the time of a log line `2026-11-22 17:59:39,730 WARN ...`, in local time; the log cuts milliseconds
    instead of rounding them."""
    date, clock_time, _ = line.split(" ", 2)
    seconds, milliseconds = clock_time.split(",")
    return monotonic(time.mktime(time.strptime(f"{date} {seconds}", "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000)

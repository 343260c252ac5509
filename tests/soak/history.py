"""What happened in a run, as facts: the checker's input, and the journals that the processes of a run write.

Times are seconds of the machine's wall clock, which brokers, ZooKeeper and members of one run share. Partitions are
named as in ZooKeeper, "<broker>-<partition>". A message is known by its producer and the producer's number for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "Ack",
    "Claim",
    "Commit",
    "Delivery",
    "History",
    "JournalLine",
    "Stored",
    "Window",
    "deliveries",
    "fetched_on",
    "read_acks",
    "read_journal",
]


@dataclass(frozen=True, slots=True)
class Ack:
    """A send that the broker acknowledged. offset: where it said the message is, in bytes."""

    producer: str
    number: int
    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A record of the log as it is at the end of the run. message_id: the broker's, unique in its partition."""

    partition: str
    offset: int
    message_id: int
    producer: str
    number: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message handed to the application of a consumer, once for each time."""

    time: float
    consumer: str
    partition: str
    offset: int
    producer: str
    number: int


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time. end >= begin."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Claim:
    """One ownership of a partition, from its claim to the last moment at which it was certainly still held."""

    partition: str
    consumer: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed position of a partition: the next byte to read. time: of the write."""

    time: float
    partition: str
    offset: int


@dataclass(slots=True)
class History:
    """Everything that the checker judges.

    unowned: per partition the spans in which it was offered by a broker and owned by nobody alive. excused: the spans
    in which that is allowed, such as a session time-out after a kill; patience: seconds that none may exceed even then.
    stored: empty if the log was not read. fetched_on: by consumer, as `fetched_on` reads them.
    """

    acks: list[Ack] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    unowned: dict[str, list[Window]] = field(default_factory=dict)
    excused: list[Window] = field(default_factory=list)
    patience: float = math.inf
    fetched_on: Mapping[str, Sequence[Window]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalLine:
    """A delivery as a consumer wrote it down, before anything could be committed because of it.

    The Java client does not tell its application the offset; the record is found by its message id.
    """

    time: float
    partition: str
    message_id: int
    producer: str
    number: int


def read_acks(path: Path) -> Iterator[Ack]:
    """A producer's journal: lines `<producer> <number> <partition> <offset>`; a last line cut by a kill is left out."""
    for producer, number, partition, offset in _lines(path):
        yield Ack(producer, int(number), partition, int(offset))


def read_journal(path: Path) -> Iterator[JournalLine]:
    """A consumer's journal: lines `<time in µs> <partition> <message id> <producer> <number>`; as in read_acks."""
    for time_us, partition, message_id, producer, number in _lines(path):
        yield JournalLine(int(time_us) / 1e6, partition, int(message_id), producer, int(number))


def deliveries(consumer: str, journal: Iterable[JournalLine], stored: Iterable[Stored]) -> list[Delivery]:
    """The consumer's deliveries with their offsets. Raises KeyError for a record that is not in the log."""
    offsets = {(record.partition, record.message_id): record.offset for record in stored}
    return [
        Delivery(
            line.time, consumer, line.partition, offsets[line.partition, line.message_id], line.producer, line.number
        )
        for line in journal
    ]


def fetched_on(log: Iterable[str]) -> list[Window]:
    """The spans in which a Java consumer fetched from partitions that it had given up, by the lines of its log.

    1.x, in syncedRebalance: a try that fails before it has stopped fetching (a broker's node vanishes while it is read)
    deletes the consumer's owner nodes, sleeps zkSyncTimeMs, and only the next try stops. Others may claim meanwhile.
    """
    spans: list[Window] = []
    fetching, begin = False, None
    for line in log:
        if begin is not None and ("Comitting all offsets" in line or "Starting fetch runners" in line):
            spans.append(Window(begin, _logged_at(line)))  # behind the listeners that still ran
            begin = None
        if "Starting fetch runners" in line:
            fetching = True
        elif "Stopping fetch runners" in line:
            fetching = False
        elif "rebalance failed,try" in line and fetching and begin is None:
            begin = _logged_at(line)
    return spans if begin is None else [*spans, Window(begin, math.inf)]


def _logged_at(line: str) -> float:
    """`2026-11-22 17:59:39,730 WARN ...`, in local time; the log's milliseconds are cut, not rounded."""
    date, clock, _ = line.split(" ", 2)
    seconds, milliseconds = clock.split(",")
    return time.mktime(time.strptime(f"{date} {seconds}", "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000


def _lines(path: Path) -> Iterator[list[str]]:
    """The words of each complete line."""
    if path.exists():
        complete, _, _ = path.read_text("ascii").rpartition("\n")
        yield from (line.split(" ") for line in complete.splitlines())

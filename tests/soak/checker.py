"""The judge of a run: what was lost, delivered again, out of order, owned twice or by nobody, and whether it may be.

The promise that is checked is at least once, in order within a partition, one owner at a time:

    lost             acknowledged, but delivered to nobody
    undelivered      in the log without an acknowledgement, and delivered to nobody: a consumer skipped it
    misplaced        acknowledged at an offset at which the log has another message, or none
    duplicated       the same record delivered more than once. It is illegal if the group had committed a position
                     behind it before its consumer claimed the partition, or if the same ownership delivered it before
    stored twice     one message at several offsets: its producer tried again
    out of order     delivered after a later record, the first time by anybody; or going back within one ownership
    out of sequence  acknowledged messages of one producer whose numbers do not rise with the offsets of a partition
    owned twice      delivered to one consumer while another certainly owned the partition
    unowned          offered by a broker, owned by nobody alive, outside the spans in which that is excused, or for
                     longer than the patience of the run
    fetched on       delivered by a Java consumer from a partition that it had given up, which 1.x does: such a delivery
                     is counted, saves its message from being lost, and proves nothing else

`metaq.cli.demo.delivery` is a relative that only counts, in one numpy pass over the demo's 336,776 flights, and knows
no owners; here each anomaly is named with its record, consumer and time, which is what finds the bug.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .history import Ack, Claim, Commit, Delivery, History, Stored, Window
from .timelines import Ownerships, Positions

__all__ = ["OwnedTwice", "Verdict", "judge"]

Fact = TypeVar("Fact", Delivery, Claim, Commit)

Place = tuple[str, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class OwnedTwice:
    """Deliveries to `consumer` while `owner` held the partition. begin, end: of those deliveries."""

    partition: str
    owner: str
    consumer: str
    begin: float
    end: float
    deliveries: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome. Lists name what must not be; numbers count what may be."""

    acknowledged: int
    delivered: int
    fetched_on: int
    duplicated: int
    stored_twice: int
    lost: Sequence[Ack]
    undelivered: Sequence[Stored]
    misplaced: Sequence[Ack]
    illegally_duplicated: Sequence[Delivery]
    out_of_order: Sequence[Delivery]
    out_of_sequence: Sequence[Ack]
    owned_twice: Sequence[OwnedTwice]
    unowned: dict[str, Sequence[Window]]
    unexcused: dict[str, Sequence[Window]]
    """The parts of `unowned` outside every excused span, or after the run's patience."""

    @property
    def ok(self) -> bool:
        """Whether the promise holds."""
        return not (
            self.lost
            or self.undelivered
            or self.misplaced
            or self.illegally_duplicated
            or self.out_of_order
            or self.out_of_sequence
            or self.owned_twice
            or any(self.unexcused.values())
        )


def judge(history: History) -> Verdict:
    """Judge a complete run. O(n log n) in the number of messages."""
    ordered = sorted(history.deliveries, key=lambda delivery: delivery.time)
    owning = [delivery for delivery in ordered if not _is_fetched_on(delivery, history)]
    by_partition = _grouped(owning)
    ownerships = {partition: Ownerships(claims) for partition, claims in _grouped(history.claims).items()}
    none = Ownerships(())
    commits = _grouped(sorted(history.commits, key=lambda commit: commit.time))
    begun = {partition: _first_times(those) for partition, those in _grouped(ordered).items()}
    duplicated, illegal, disordered, twice = 0, [], [], []
    for partition, those in by_partition.items():
        owned = ownerships.get(partition, none)
        repeated, forbidden = _repeated(those, owned, Positions(commits.get(partition, ())))
        duplicated += repeated
        illegal += forbidden
        disordered += _out_of_order(those, owned, begun[partition])
        twice += _owned_twice(those, owned)
    delivered = {(delivery.producer, delivery.number) for delivery in ordered}
    return Verdict(
        acknowledged=len(history.acks),
        delivered=len(ordered),
        fetched_on=len(ordered) - len(owning),
        duplicated=duplicated,
        stored_twice=_stored_twice(history.stored),
        lost=[ack for ack in history.acks if (ack.producer, ack.number) not in delivered],
        undelivered=_undelivered(history, {(delivery.partition, delivery.offset) for delivery in ordered}),
        misplaced=_misplaced(history),
        illegally_duplicated=illegal,
        out_of_order=disordered,
        out_of_sequence=list(_out_of_sequence(history.acks)),
        owned_twice=twice,
        unowned={partition: list(windows) for partition, windows in sorted(history.unowned.items())},
        unexcused={
            partition: [part for window in windows for part in _unexcused(window, history)]
            for partition, windows in sorted(history.unowned.items())
        },
    )


def _is_fetched_on(delivery: Delivery, history: History) -> bool:
    return any(span.begin <= delivery.time <= span.end for span in history.fetched_on.get(delivery.consumer, ()))


def _repeated(deliveries: Sequence[Delivery], owned: Ownerships, positions: Positions) -> tuple[int, list[Delivery]]:
    """How many deliveries (of one partition, in order of time) repeat a record, and those that must not."""
    owners: dict[int, set[Claim | None]] = defaultdict(set)
    repeated, illegal = 0, []
    for delivery in deliveries:
        claim = owned.of(delivery)
        before = owners[delivery.offset]
        if before:
            repeated += 1
            begin = delivery.time if claim is None else claim.begin
            if (claim is not None and claim in before) or delivery.offset < positions.lowest(begin, delivery.time):
                illegal.append(delivery)
        before.add(claim)
    return repeated, illegal


def _first_times(deliveries: Sequence[Delivery]) -> dict[int, float]:
    """When each record of a partition was first delivered. deliveries: in order of time."""
    return {delivery.offset: delivery.time for delivery in reversed(deliveries)}


def _out_of_order(deliveries: Sequence[Delivery], owned: Ownerships, begun: Mapping[int, float]) -> list[Delivery]:
    """First deliveries after that of a later record, and steps back within one ownership. begun: `_first_times` of all,
    of those that were fetched on, too."""
    found = []
    furthest = -1
    last: dict[tuple[str, Claim | None], int] = {}
    for delivery in deliveries:
        ownership = delivery.consumer, owned.of(delivery)
        is_late = delivery.offset < furthest and delivery.time <= begun[delivery.offset]
        if is_late or (ownership[1] is not None and delivery.offset < last.get(ownership, -1)):
            found.append(delivery)
        furthest = max(furthest, delivery.offset)
        last[ownership] = delivery.offset
    return found


def _owned_twice(deliveries: Sequence[Delivery], owned: Ownerships) -> list[OwnedTwice]:
    intruding: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        owner = owned.certain_owner(delivery.time)
        if owner not in (None, delivery.consumer):
            intruding[str(owner), delivery.consumer].append(delivery)
    return [
        OwnedTwice(those[0].partition, owner, consumer, those[0].time, those[-1].time, len(those))
        for (owner, consumer), those in intruding.items()
    ]


def _undelivered(history: History, delivered: set[Place]) -> list[Stored]:
    acknowledged = {(ack.partition, ack.offset) for ack in history.acks}
    return [
        record
        for record in history.stored
        if (place := (record.partition, record.offset)) not in delivered and place not in acknowledged
    ]


def _misplaced(history: History) -> list[Ack]:
    if not history.stored:
        return []
    log = {(record.partition, record.offset): (record.producer, record.number) for record in history.stored}
    return [ack for ack in history.acks if log.get((ack.partition, ack.offset)) != (ack.producer, ack.number)]


def _stored_twice(stored: Iterable[Stored]) -> int:
    copies = Counter((record.producer, record.number) for record in stored)
    return sum(count - 1 for count in copies.values())


def _out_of_sequence(acks: Iterable[Ack]) -> Iterator[Ack]:
    furthest: dict[tuple[str, str], int] = {}
    for ack in sorted(acks, key=lambda ack: ack.number):
        where = ack.producer, ack.partition
        if ack.offset <= furthest.get(where, -1):
            yield ack
        furthest[where] = max(ack.offset, furthest.get(where, -1))


def _unexcused(window: Window, history: History) -> list[Window]:
    parts = _outside(window, history.excused)
    limit = window.begin + history.patience
    if window.end > limit:
        parts = [*(Window(part.begin, min(part.end, limit)) for part in parts if part.begin < limit)]
        parts.append(Window(limit, window.end))
    return parts


def _outside(window: Window, excused: Iterable[Window]) -> list[Window]:
    """The parts of `window` that no excused span covers."""
    parts, begin = [], window.begin
    for span in sorted(excused, key=lambda span: span.begin):
        if span.end <= begin:
            continue
        if span.begin >= window.end:
            break
        if span.begin > begin:
            parts.append(Window(begin, span.begin))
        begin = span.end
    if begin < window.end:
        parts.append(Window(begin, window.end))
    return parts


def _grouped(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = {}
    for fact in facts:
        found.setdefault(fact.partition, []).append(fact)
    return found

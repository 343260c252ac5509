"""Check a run with Java members for violations. tests.history.checkers judge the deliveries to its group, with the
ownerships that ZooKeeper has seen (`OF_GROUPS`). In addition:

    committed     a record is delivered again although the group had committed a later position before its consumer
                  claimed the partition
    owned twice   delivered to one consumer while another certainly owned the partition
    unowned       offered by a broker and owned by no live member, outside the time spans in which that is excused, or
                  for longer than the patience of the run

A Java consumer may continue to fetch from a partition that it has given up (facts.py). Such a delivery counts as one:
its message is not unseen, and later messages have not skipped it. It proves nothing else. Commits may go back: a Java
consumer commits late what it has given up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.history.checkers import CHECKERS as ALL_OF_GROUPS
from tests.history.facts import Call, Delivery, Done, History, Owner
from tests.kills.outcome import Problem

from .facts import Claim, Facts, Window

__all__ = ["CHECKERS", "OF_GROUPS", "history_of", "judge"]

OF_GROUPS = ("lost", "false", "unseen", "reordered", "skipped")


def judge(facts: Facts) -> list[Problem]:
    """Return all problems of all checkers."""
    history = history_of(facts)
    found = [problem for kind in OF_GROUPS for problem in ALL_OF_GROUPS[kind](history)]
    return found + [problem for checker in CHECKERS.values() for problem in checker(facts)]


def history_of(facts: Facts) -> History:
    """Return the history. Each claim is an ownership; deliveries without a seen claim, or from a partition that was
    given up, are ownerships of their own."""
    claims = _claims(facts)
    owners: dict[object, Owner] = {}
    for each in sorted(facts.deliveries, key=lambda delivery: delivery.time):
        fetched_on = _is_fetched_on(each, facts)
        claim = None if fetched_on else _claim_of(each, claims)
        begin, end = (each.time, each.time) if claim is None else (claim.begin, claim.end)
        new = Owner(facts.group, each.member, each.partition, begin, end, proves=not fetched_on)
        owners.setdefault(claim or object(), new).calls.append(Call(each.time, each.time, [each.place]))
    excused = [Done(*span, "disturbed", "") for span in facts.excused]
    return History(
        facts.stored,
        facts.acks,
        list(owners.values()),
        faults=excused,
        groups=[facts.group],
        has_java_brokers=True,
    )


def committed(facts: Facts) -> Iterator[Problem]:
    claims, seen = _claims(facts), set()
    commits: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for time, partition, offset in sorted(facts.commits):
        commits[partition].append((time, offset))
    for each in _owning(facts):
        claim = _claim_of(each, claims)
        lowest = _lowest(commits[each.partition], each.time if claim is None else claim.begin, each.time)
        if (each.partition, each.place.offset) in seen and each.place.offset < lowest:
            text = f"{facts.group}.{each.member} was handed @{each.place.offset} again, and @{lowest} was committed"
            yield Problem("committed", text, each.partition, each.time)
        seen.add((each.partition, each.place.offset))


def _lowest(commits: Sequence[tuple[float, int]], begin: float, end: float) -> int:
    """Return the lowest committed position from `begin` to `end`; 0 before the first commit."""
    first, last = (bisect_right(commits, (time, math.inf)) for time in (begin, end))
    return min([commits[first - 1][1] if first else 0, *(offset for _, offset in commits[first:last])])


def owned_twice(facts: Facts) -> Iterator[Problem]:
    claims = _claims(facts)
    intruding: dict[tuple[str, str, str], list[Delivery]] = defaultdict(list)
    for each in _owning(facts):
        last = _last(claims[each.partition], each.time)
        if last is not None and each.time <= last.end and last.consumer != each.member:
            intruding[each.partition, last.consumer, each.member].append(each)
    for (partition, owner, member), those in intruding.items():
        text = f"{facts.group}.{member} was handed {len(those)} messages while {owner} owned it, up to "
        yield Problem("owned twice", f"{text}{those[-1].time - those[0].time:.3f} s later", partition, those[0].time)


def unowned(facts: Facts) -> Iterator[Problem]:
    for partition, windows in sorted(facts.unowned.items()):
        for begin, end in (part for window in windows for part in _unexcused(window, facts)):
            text = f"nobody of {facts.group} owned it for {end - begin:.1f} s, which nothing excuses"
            yield Problem("unowned", text, partition, begin)


def _unexcused(window: Window, facts: Facts) -> list[Window]:
    """Return the parts of a time span outside every excused span, or after the run's patience."""
    parts = _outside(window, facts.excused)
    limit = window.begin + facts.patience
    if window.end > limit:
        parts = [Window(part.begin, min(part.end, limit)) for part in parts if part.begin < limit]
        parts.append(Window(limit, window.end))
    return parts


def _outside(window: Window, excused: Iterable[Window]) -> list[Window]:
    """Return the parts of `window` that no excused span covers."""
    parts, begin = [], window.begin
    for span in sorted(excused):
        if span.end <= begin:
            continue
        if span.begin >= window.end:
            break
        if span.begin > begin:
            parts.append(Window(begin, span.begin))
        begin = span.end
    return parts if begin >= window.end else [*parts, Window(begin, window.end)]


def _claims(facts: Facts) -> Mapping[str, list[Claim]]:
    """Return the claims by partition, in order of time."""
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in sorted(facts.claims, key=lambda each: each.begin):
        found[claim.partition].append(claim)
    return found


def _last(claims: Sequence[Claim], time: float) -> Claim | None:
    """Return the last claim that began until `time`."""
    index = bisect_right(claims, time, key=lambda claim: claim.begin)
    return claims[index - 1] if index else None


def _claim_of(delivery: Delivery, claims: Mapping[str, Sequence[Claim]]) -> Claim | None:
    """Return the last claim of the delivery's consumer before the delivery; None if it had ended by then: the later
    claim was not seen."""
    here = claims.get(delivery.partition, ())
    last = _last([claim for claim in here if claim.consumer == delivery.member], delivery.time)
    return last if last is not None and delivery.time <= last.gone else None


def _owning(facts: Facts) -> list[Delivery]:
    """Return the deliveries in order of time, without those from partitions that were given up."""
    owning = [each for each in facts.deliveries if not _is_fetched_on(each, facts)]
    return sorted(owning, key=lambda delivery: delivery.time)


def _is_fetched_on(delivery: Delivery, facts: Facts) -> bool:
    return any(begin <= delivery.time <= end for begin, end in facts.fetched_on.get(delivery.member, ()))


CHECKERS: Mapping[str, Callable[[Facts], Iterator[Problem]]] = {
    "committed": committed,
    "owned twice": owned_twice,
    "unowned": unowned,
}

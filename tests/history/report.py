"""Report a run to a person, with what is needed to understand a problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.kills.outcome import Problem

from .checkers import duplicates
from .facts import Call, History

__all__ = ["explain", "figures"]

_SHOWN = 3
"""Number of problems of each kind that are explained."""
_BEFORE, _AFTER = 15.0, 5.0
"""Seconds before and after a problem that are shown."""
_MOST_LINES = 80


def figures(history: History, missed: int) -> dict[str, int]:
    """Return the number of faults by kind, and of their results. missed: faults that found no victim."""
    faults = Counter(fault.kind for fault in history.faults)
    return {
        "faults": len(history.faults),
        **{f"fault {kind}": number for kind, number in sorted(faults.items())},
        "faults without a victim": missed,
        "acknowledged": len(history.acks),
        "not acknowledged": history.failed_sends,
        "stored": sum(map(len, history.stored.values())),
        "handed out": sum(len(call.places) for owner in history.owners for call in owner.calls),
        "handed out again": duplicates(history),
        "ownerships": len(history.owners),
        "commits seen": len(history.commits),
    }


def explain(history: History, problems: Iterable[Problem]) -> str:
    """Return the problems as text, the first ones of each kind with the events around them."""
    lines = []
    shown: Counter[str] = Counter()
    for problem in problems:
        shown[problem.kind] += 1
        if shown[problem.kind] > _SHOWN:
            continue
        lines.append(f"\n{problem}")
        if problem.time is not None:
            lines += around(history, problem)
    more = {kind: count - _SHOWN for kind, count in shown.items() if count > _SHOWN}
    if more:
        lines.append(f"\nand {', '.join(f'{count} more {kind}' for kind, count in more.items())}")
    return "\n".join(lines)


def around(history: History, problem: Problem) -> list[str]:
    """Return the events of the problem's partition, in order; times are relative to the problem."""
    assert problem.time is not None
    begin, end = problem.time - _BEFORE, problem.time + _AFTER
    groups = [group for group in history.groups if f"{group}." in problem.text or f"of {group} " in problem.text]
    events = sorted(each for each in _events(history, problem.partition, groups) if begin <= each[0] <= end)
    cut = events if len(events) <= _MOST_LINES else _nearest(events, problem.time)
    return [f"  {time - problem.time:+9.3f}  {text}" for time, text in cut]


def _nearest(events: Sequence[tuple[float, str]], time: float) -> list[tuple[float, str]]:
    return sorted(sorted(events, key=lambda each: abs(each[0] - time))[:_MOST_LINES])


def _events(history: History, partition: str, groups: Sequence[str]) -> Iterator[tuple[float, str]]:
    for owner in history.owners:
        if owner.partition != partition or owner.group not in groups:
            continue
        who = f"{owner.group}.{owner.member}"
        yield owner.begin, f"{who} {'is assigned it' if owner.announced else 'begins, unannounced'}"
        if owner.end < math.inf:
            yield owner.end, f"{who} is told that it is revoked"
        for call in owner.calls:
            yield call.time, f"{who} is handed {_offsets(call)} (asked {call.time - call.began:.3f} s before)"
            if call.done is not None and math.isfinite(call.done):
                yield call.done, f"{who} is done with {_offsets(call)}"
    for commit in history.commits:
        if commit.partition == partition and commit.group in groups:
            yield commit.seen, f"{commit.group} has committed {commit.offset} (zxid {commit.zxid:x})"
    for fault in history.faults:
        yield fault.begin, f"[{fault.kind} {fault.victim}"
        yield fault.end, f"{fault.kind} {fault.victim}]"


def _offsets(call: Call) -> str:
    first, last = call.places[0], call.places[-1]
    return f"@{first.offset}" if len(call.places) == 1 else f"@{first.offset} … @{last.offset} ({len(call.places)})"

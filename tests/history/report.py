"""What a person gets to see: a line a run, a table of all, and what is needed to understand a problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .checkers import CHECKERS, Problem, duplicates
from .facts import Call, History
from .run import Outcome

__all__ = ["explain", "line", "table"]

_SHOWN = 3
"""Problems of each kind that are explained."""
_BEFORE, _AFTER = 15.0, 5.0
"""Seconds around a problem."""
_MOST_LINES = 80

_KINDS = (*CHECKERS, "stuck", "crashed")


def line(outcome: Outcome) -> str:
    """One run."""
    history = outcome.history
    wrong = Counter(problem.kind for problem in outcome.problems)
    said = ", ".join(f"{kind} {count}" for kind, count in wrong.items()) or "all right"
    return (
        f"seed {outcome.seed}: {len(history.faults)} faults, {len(history.acks)} acknowledged, "
        f"{history.failed_sends} failed, {_stored(history)} stored, {_handed(history)} handed out "
        f"({duplicates(history)} again), {len(history.commits)} commits seen, {outcome.seconds:.0f} s: {said}"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Faults by kind, messages, and problems by kind, of all runs together."""
    faults = Counter(fault.kind for outcome in outcomes for fault in outcome.history.faults)
    wrong = Counter(problem.kind for outcome in outcomes for problem in outcome.problems)
    histories = [outcome.history for outcome in outcomes]
    rows = [("runs", len(outcomes)), ("faults", sum(faults.values()))]
    rows += [(f"  {kind}", number) for kind, number in sorted(faults.items())]
    rows += [
        ("messages acknowledged", sum(len(each.acks) for each in histories)),
        ("  not acknowledged", sum(each.failed_sends for each in histories)),
        ("  stored", sum(map(_stored, histories))),
        ("  handed out, of all groups", sum(map(_handed, histories))),
        ("  handed out again", sum(map(duplicates, histories))),
        ("ownerships", sum(len(each.owners) for each in histories)),
        ("commits seen", sum(len(each.commits) for each in histories)),
        ("problems", sum(wrong.values())),
    ]
    rows += [(f"  {kind}", wrong[kind]) for kind in _KINDS]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}} {number:8,}" for name, number in rows)


def explain(outcome: Outcome, directory: Path) -> str:
    """The problems, the first of each kind with what happened around it."""
    lines = [f"seed {outcome.seed}: {len(outcome.problems)} problems; everything is in {directory}"]
    shown: Counter[str] = Counter()
    for problem in outcome.problems:
        shown[problem.kind] += 1
        if shown[problem.kind] > _SHOWN:
            continue
        lines.append(f"\n{problem}")
        if problem.time is not None:
            lines += around(outcome.history, problem)
    more = {kind: count - _SHOWN for kind, count in shown.items() if count > _SHOWN}
    if more:
        lines.append(f"\nand {', '.join(f'{count} more {kind}' for kind, count in more.items())}")
    return "\n".join(lines)


def around(history: History, problem: Problem) -> list[str]:
    """What happened to the partition, in order; times count from the problem."""
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


def _stored(history: History) -> int:
    return sum(map(len, history.stored.values()))


def _handed(history: History) -> int:
    return sum(len(call.places) for call in _all_calls(history))


def _all_calls(history: History) -> Iterable[Call]:
    return (call for owner in history.owners for call in owner.calls)

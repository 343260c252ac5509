"""The outcome of a run, in the same form for every scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "Problem", "Say", "by_kind", "lost", "twice", "unmeant"]

Say = Callable[[str], object]
"""Reports the progress of a run to a person."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. partition, time: where to look in the journals; "-" and None if it has none."""

    kind: str
    text: str
    partition: str = "-"
    time: float | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.partition}: {self.text}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. figures: faults and results, by name. details: further input for a table of several runs;
    JSON values. explanation: of the problems, for a person."""

    problems: Sequence[Problem]
    figures: Mapping[str, int]
    details: Mapping[str, Any] = field(default_factory=dict)
    explanation: str = ""


def by_kind(problems: Iterable[Problem]) -> dict[str, int]:
    return dict(Counter(problem.kind for problem in problems))


# --- checkers of names: of messages in a partition, or of what was promised of them -----------------------------------


def lost(promised: Iterable[str], found: Iterable[str]) -> list[Problem]:
    return [Problem("lost", f"{each[:80]} was promised, and is not there") for each in sorted({*promised} - {*found})]


def twice(found: Iterable[str]) -> list[Problem]:
    counts = sorted(Counter(found).items())
    return [Problem("twice", f"{each[:80]} is there {count} times") for each, count in counts if count > 1]


def unmeant(kind: str, found: Iterable[str], forbidden: Iterable[str]) -> list[Problem]:
    """Return a problem for each found message that must not be there."""
    return [Problem(kind, f"{each[:80]} is there") for each in sorted({*found} & {*forbidden})]

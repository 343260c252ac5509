"""Run scenarios one after the other, each in a process of its own, for a given time or number of rounds."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from .children import run_program
from .outcome import Outcome, by_kind
from .scenarios import SCENARIOS

__all__ = ["Campaign", "Result", "read_result", "words_of", "write_result"]

_SHOWN = 5
"""Number of problems of each kind that a result shows."""
_RUN_SECONDS = 3600.0
"""Seconds after which a run counts as hanging."""


def words_of(scenario: str, seed: int, options: Mapping[str, object]) -> list[str]:
    """Return the command line of one run, after the interpreter."""
    said = []
    for name, value in options.items():
        word = name.replace("_", "-")
        said += [f"--{word}" if value else f"--no-{word}"] if isinstance(value, bool) else [f"--{word}", str(value)]
    return ["-m", "tests.kills", scenario, "--seed", str(seed), *said]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. problems: how many of each kind; examples: some of each."""

    scenario: str
    seed: int
    again: str
    seconds: float
    figures: Mapping[str, int]
    problems: Mapping[str, int]
    examples: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: str, seed: int, options: Mapping[str, object], outcome: Outcome, seconds: float) -> Self:
        again = shlex.join(["python", *words_of(scenario, seed, options)])
        shown: Counter[str] = Counter()
        examples = []
        for each in outcome.problems:
            shown[each.kind] += 1
            if shown[each.kind] <= _SHOWN:
                examples.append(str(each))
        kinds = by_kind(outcome.problems)
        return cls(scenario, seed, again, round(seconds, 1), outcome.figures, kinds, examples, outcome.details)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:,}" for name, value in self.figures.items())
        wrong = ", ".join(f"{kind} {number}" for kind, number in self.problems.items()) or "all right"
        said = f"{self.scenario}, seed {self.seed}: {figures}; {self.seconds:.0f} s: {wrong}"
        return "\n  ".join([said, *self.examples])


def _path(directory: Path, scenario: str, seed: int) -> Path:
    return directory / f"{scenario}-{seed}.json"


def write_result(directory: Path, result: Result) -> None:
    _path(directory, result.scenario, result.seed).write_text(json.dumps(asdict(result), indent=1))


def read_result(directory: Path, scenario: str, seed: int) -> Result | None:
    """Return the result of a run; None if the run did not complete."""
    path = _path(directory, scenario, seed)
    return Result(**json.loads(path.read_text())) if path.exists() else None


class Campaign:
    """A series of runs. results: of completed runs. failed: the commands that repeat failed ones."""

    def __init__(
        self,
        names: Sequence[str],
        directory: Path,
        options: Mapping[str, object],
        keep: bool = False,
        program: Callable[[Sequence[str], Path, float], int] = run_program,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """options: for those runs that have an option of this name. directory: for results; an existing result is used
        instead of a run.

        program: executes one run, with its log and a limit in seconds, and returns its exit code.
        """
        self.results: list[Result] = []
        self.failed: list[str] = []
        self._names = names
        self._directory = directory
        self._options = options
        self._keep = keep
        self._program = program
        self._clock = clock
        self._say = say

    @property
    def has_failed(self) -> bool:
        return bool(self.failed)

    def run(self, seed: int, minutes: float | None, rounds: int | None) -> None:
        """Run rounds. A round has one run of each scenario, with the same seed; the next round has the next seed. At
        least one round is run; after the time no run begins."""
        end = math.inf if minutes is None else self._clock() + 60 * minutes
        for number in range(rounds or (1 if minutes is None else sys.maxsize)):
            for name in self._names:
                if number and self._clock() > end:
                    return
                self._do(name, seed + number)

    def _do(self, name: str, seed: int) -> None:
        result = read_result(self._directory, name, seed)
        words = words_of(name, seed, self._options)
        if result is None:
            log = self._directory / f"{name}-{seed}.log"
            log.unlink(missing_ok=True)
            try:
                code = self._program(
                    [*words, "--directory", str(self._directory), *(["--keep"] if self._keep else [])],
                    log,
                    _RUN_SECONDS,
                )
                said = f"ended with {code}"
            except AssertionError:
                said = f"did not end within {_RUN_SECONDS:.0f} s"
            result = read_result(self._directory, name, seed)
            if result is None:
                again = shlex.join(["python", *words])
                self._say(f"{log.read_text()}\n{name}, seed {seed}: {said}\nagain: {again}")
                self.failed.append(again)
                return
        self.results.append(result)
        self._say(str(result))
        if result.problems:
            self._say(f"files: {self._directory / f'{name}-{seed}'}\nagain: {result.again}")
            self.failed.append(result.again)

    def table(self) -> str:
        """Return the results in Markdown: for each scenario its own table, if it has one, and the sums of its
        figures."""
        parts = []
        for name in self._names:
            found = [each for each in self.results if each.scenario == name]
            if found:
                own = getattr(SCENARIOS[name].load(), "table", None)
                parts += [*([own(found)] if own else []), _sums(name, found)]
        again = [f"again: {each}" for each in self.failed]
        return "\n\n".join([*parts, f"{len(self.results)} runs, {len(self.failed)} with problems", *again])


def _sums(name: str, found: Sequence[Result]) -> str:
    figures: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for each in found:
        figures.update(each.figures)
        problems.update(each.problems)
    rows = [f"| {name} | {len(found)} runs |", "|---|---|"]
    rows += [f"| {figure} | {value:,} |" for figure, value in figures.items()]
    rows += [f"| **{kind}** | **{value}** |" for kind, value in problems.items()]
    return "\n".join([*rows, f"| **problems** | **{problems.total()}** |"])

"""Many cuts of many workloads in a few processes, and a table of what came of them."""

from __future__ import annotations

import gc
import logging
import math
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.kills.scratch import scratch_directory

from .cuts import COLUMNS, Failure, Recording, Workload, cut, record
from .flips import Change, flip
from .shim import Shim

__all__ = ["Results", "Task", "cutting", "flipping", "repeat_cut", "repeat_flip", "run"]

_CUTS_PER_TRACE = 12
_STARTS_PER_CUT = 1.8
"""Most cuts are followed by one in the life after it."""

ROUGHLY_ALL = 7000
"""Changes that there are of one directory: what a number of them is a share of."""


@dataclass(slots=True)
class Results:
    """starts: of each workload or directory. seconds: all of it took."""

    starts: Counter[str] = field(default_factory=Counter)
    failures: defaultdict[str, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    @property
    def failed(self) -> list[Failure]:
        return [failure for failures in self.failures.values() for failure in failures]

    def table(self, names: Iterable[str]) -> str:
        """A line for each workload, and one for all."""
        lines = [f"{'':22} {'starts':>7} " + " ".join(f"{column:>9}" for column in COLUMNS)]
        totals: Counter[str] = Counter()
        for name in names:
            columns = Counter(failure.column for failure in self.failures[name])
            totals.update(columns)
            lines.append(_line(name, self.starts[name], columns))
        total = sum(self.starts.values())
        lines.append(_line("all", total, totals) + f"   {total / max(self.seconds, 0.001):.0f} starts/s")
        return "\n".join(lines)


def _line(name: str, starts: int, columns: Mapping[str, int]) -> str:
    return f"{name:22} {starts:7} " + " ".join(f"{columns.get(column, 0) or '-':>9}" for column in COLUMNS)


Task = tuple[str, Callable[[Shim, Path], Iterator[Failure | None]]]
"""Name, and what to do with the process's shim and a directory: a failure, or None, for each start."""


def cutting(workloads: Sequence[Workload], starts: int, seed: int) -> list[Task]:
    """About `starts` starts after cuts, spread over the workloads. Traces have the seeds `seed`, `seed` + 1, ..."""
    cuts = max(1, math.ceil(starts / _STARTS_PER_CUT / len(workloads)))
    traces = math.ceil(cuts / _CUTS_PER_TRACE)
    per_trace = math.ceil(cuts / traces)
    return [
        (workload.name, partial(_case, workload, seed=seed + number, cuts=per_trace))
        for number in range(traces)
        for workload in workloads
    ]


def flipping(names: Sequence[str], changes: int, seed: int, jobs: int) -> list[Task]:
    """About so many changes at rest in each of these directories; 0: each that there is."""
    slices = max(jobs, 1)

    def chosen(job: int, number: int, change: Change) -> bool:
        if number % slices != job:
            return False
        return not changes or random.Random(f"chosen {seed} {number}").random() * ROUGHLY_ALL < changes

    return [
        (name, partial(flip, name=name, seed=seed, chosen=partial(chosen, job)))
        for name in names
        for job in range(slices)
    ]


def run(tasks: Sequence[Task], jobs: int) -> Results:
    """Do all tasks in so many processes. Raises what a task raises."""
    results = Results()
    started = time.monotonic()
    context = get_context("fork")  # nothing of a task can be sent
    with scratch_directory() as scratch, ProcessPoolExecutor(jobs, context, _begin, (tasks, scratch)) as pool:
        for (name, _), found in zip(tasks, pool.map(_do, range(len(tasks))), strict=True):
            results.starts[name] += len(found)
            results.failures[name] += [each for each in found if each is not None]
    results.seconds = time.monotonic() - started
    return results


class _Worker(NamedTuple):
    """One of the processes."""

    tasks: Sequence[Task]
    shim: Shim
    scratch: Path


_worker: _Worker
"""This one; made by _begin()."""


def _begin(tasks: Sequence[Task], scratch: Path) -> None:
    global _worker
    logging.disable(logging.CRITICAL)
    directory = scratch / str(os.getpid())
    directory.mkdir()
    gc.collect()
    gc.freeze()  # or each child's first collection would copy everything
    _worker = _Worker(tasks, Shim(), directory)


def _do(number: int) -> list[Failure | None]:
    """The starts of a task."""
    _, task = _worker.tasks[number]
    return list(task(_worker.shim, _worker.scratch))


def _case(
    workload: Workload, shim: Shim, scratch: Path, seed: int, cuts: int, only: int | None = None
) -> Iterator[Failure | None]:
    recording, failure = record(workload, shim, scratch, seed)
    if failure is not None:
        yield failure
    else:
        yield from cut(workload, shim, scratch, seed, recording, cuts, only)


def repeat_cut(workload: Workload, case: str, directory: Path, traces: Path | None = None) -> list[Failure]:
    """Do one cut again, with the broker's log on stderr, and leave its files in `directory`. case: as in the table.

    traces: those that were kept of processes.
    """
    seed, _, number = case.rstrip("n").partition(".")
    only = 0 if "/" in seed else int(number)  # else the recording itself failed
    if traces is not None:
        again = cut(workload, Shim(), directory, int(seed), Recording.kept(traces), only + 1, only)
        return [each for each in again if each is not None]
    found = _case(workload, Shim(), directory, int(seed.partition("/")[0]), only + 1, only)
    return [each for each in found if each is not None]


def repeat_flip(name: str, case: str, directory: Path) -> list[Failure]:
    """The same for a change at rest."""
    seed, _, where = case.partition(":")
    found = flip(Shim(), directory, name, int(seed), lambda number, change: str(change) == where)
    return [each for each in found if each is not None]

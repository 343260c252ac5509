"""Many cuts of many workloads in a few processes, and a table of what came of them."""

from __future__ import annotations

import gc
import logging
import math
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from .cuts import COLUMNS, Failure, Workload, cut, record
from .shim import Shim

__all__ = ["Results", "repeat", "run", "scratch_directory"]

_CUTS_PER_TRACE = 12
_STARTS_PER_CUT = 1.8
"""Most cuts are followed by one in the life after it."""


@dataclass(slots=True)
class Results:
    """starts: of each workload, after a cut. seconds: all of it took."""

    starts: Counter[str] = field(default_factory=Counter)
    failures: defaultdict[str, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    @property
    def failed(self) -> list[Failure]:
        return [failure for failures in self.failures.values() for failure in failures]

    def table(self, names: Iterable[str]) -> str:
        """A line for each workload, and one for all."""
        lines = [f"{'workload':22} {'starts':>7} " + " ".join(f"{column:>8}" for column in COLUMNS)]
        totals: Counter[str] = Counter()
        for name in names:
            columns = Counter(failure.column for failure in self.failures[name])
            totals.update(columns)
            lines.append(_line(name, self.starts[name], columns))
        total = sum(self.starts.values())
        lines.append(_line("all", total, totals) + f"   {total / max(self.seconds, 0.001):.0f} starts/s")
        return "\n".join(lines)


def _line(name: str, starts: int, columns: Mapping[str, int]) -> str:
    return f"{name:22} {starts:7} " + " ".join(f"{columns.get(column, 0) or '-':>8}" for column in COLUMNS)


def run(workloads: Sequence[Workload], starts: int, seed: int, jobs: int) -> Results:
    """About `starts` starts after cuts, spread over the workloads. Traces have the seeds `seed`, `seed` + 1, ..."""
    cuts = max(1, math.ceil(starts / _STARTS_PER_CUT / len(workloads)))
    traces = math.ceil(cuts / _CUTS_PER_TRACE)
    per_trace = math.ceil(cuts / traces)
    cases = [(workload, seed + number) for number in range(traces) for workload in workloads]
    results = Results()
    started = time.monotonic()
    for name, failure in _run_jobs(cases, per_trace, jobs):
        results.starts[name] += 1
        if failure is not None:
            results.failures[name].append(failure)
    results.seconds = time.monotonic() - started
    return results


_Result = tuple[str, Failure | None]


def _run_jobs(cases: Sequence[tuple[Workload, int]], per_trace: int, jobs: int) -> Iterator[_Result]:
    readers: list[BinaryIO] = []
    children = []
    for job in range(jobs):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _work(writer, cases[job::jobs], per_trace)
        os.close(writer)
        children.append(child)
        readers.append(os.fdopen(reader, "rb"))
    for source in readers:
        with source:
            while True:
                try:
                    yield pickle.load(source)
                except EOFError:
                    break
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"processes of the harness ended with {codes}; their tracebacks are above")


def _work(writer: int, cases: Iterable[tuple[Workload, int]], per_trace: int) -> None:
    """In a process of its own, which ends here."""
    code = 1
    try:
        logging.disable(logging.CRITICAL)
        with os.fdopen(writer, "wb") as out, scratch_directory() as scratch:
            gc.collect()
            gc.freeze()  # or each child's first collection would copy everything
            shim = Shim()
            for workload, seed in cases:
                for failure in _case(workload, shim, scratch, seed, per_trace):
                    pickle.dump((workload.name, failure), out)
                    out.flush()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _case(
    workload: Workload, shim: Shim, scratch: Path, seed: int, cuts: int, only: int | None = None
) -> Iterator[Failure | None]:
    recording, failure = record(workload, shim, scratch, seed)
    if failure is not None:
        yield failure
    else:
        yield from cut(workload, shim, scratch, seed, recording, cuts, only)


def repeat(workload: Workload, case: str, directory: Path) -> list[Failure]:
    """Do one cut again, with the broker's log on stderr, and leave its files in `directory`. case: as in the table."""
    seed, _, number = case.rstrip("n").partition(".")
    if "/" in seed:
        seed, number = seed.partition("/")[0], "0"
    only = int(number)
    return [each for each in _case(workload, Shim(), directory, int(seed), only + 1, only) if each is not None]


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """In memory if there is room: what is written there is to be lost anyway."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="metaq-power-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)

"""Cut the power of real traces, thousands of times: `python -m tests.power --cuts 2000 --seed 1`, or `make proof`."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .shim import Shim, is_loaded, restart_with_shim

_CUTS_PER_TRACE = 12


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=2000, help="starts after a power cut, of all workloads together")
    parser.add_argument("--seed", type=int, default=1, help="of the first traces")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", help="a workload; may be repeated")
    parser.add_argument("--case", help="seed.cut of one cut to repeat, as the table shows it; with --only")
    parser.add_argument("--keep", type=Path, help="keep the files of the last state in this directory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    if not is_loaded():
        restart_with_shim("tests.power", arguments)
    from .workloads import WORKLOADS

    names = options.only or list(WORKLOADS)
    if options.case:
        return _repeat(options, names[0])
    traces = max(1, round(options.cuts / (_CUTS_PER_TRACE * 2.0 * len(names))))
    cases = [(name, options.seed + number) for number in range(traces) for name in names]
    started = time.monotonic()
    counts: Counter[str] = Counter()
    failures: defaultdict[str, list[object]] = defaultdict(list)
    for name, failure in _run_jobs(cases, options.jobs):
        counts[name] += 1
        if failure is not None:
            failures[name].append(failure)
    seconds = time.monotonic() - started
    return _print(names, counts, failures, seconds)


def _run_jobs(cases: Sequence[tuple[str, int]], jobs: int) -> Iterator[tuple[str, object]]:
    """Each start's workload and failure, from `jobs` processes."""
    readers = []
    for job in range(jobs):
        reader, writer = os.pipe()
        if not os.fork():
            code = 1
            try:
                with os.fdopen(writer, "wb") as out:
                    for result in _run_cases(cases[job::jobs]):
                        pickle.dump(result, out)
                        out.flush()
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        os.close(writer)
        readers.append(os.fdopen(reader, "rb"))
    for reader_file in readers:
        with reader_file:
            while True:
                try:
                    yield pickle.load(reader_file)
                except EOFError:
                    break
    bad = sum(os.waitstatus_to_exitcode(os.wait()[1]) != 0 for _ in range(jobs))
    if bad:
        raise SystemExit(f"{bad} of {jobs} processes failed: see above")


def _scratch() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="metaq-power-", dir=memory if os.access(memory, os.W_OK) else None))


def _run_cases(cases: Iterable[tuple[str, int]]) -> Iterator[tuple[str, object]]:
    from .cuts import cut, record
    from .workloads import WORKLOADS

    logging.disable(logging.CRITICAL)
    shim = Shim()
    scratch = _scratch()
    gc.collect()
    gc.freeze()
    try:
        for name, seed in cases:
            workload = WORKLOADS[name]
            recording, failure = record(workload, shim, scratch, seed)
            if failure is not None:
                yield name, failure
                continue
            for result in cut(workload, shim, scratch, seed, recording, _CUTS_PER_TRACE):
                yield name, result
    finally:
        shutil.rmtree(scratch)


def _repeat(options: argparse.Namespace, name: str) -> int:
    from .cuts import cut, record
    from .workloads import WORKLOADS

    logging.basicConfig(level=logging.INFO)
    seed, _, number = options.case.rstrip("n").partition(".")
    scratch = options.keep or _scratch()
    shim = Shim()
    recording, failure = record(WORKLOADS[name], shim, scratch, int(seed))
    found = [failure]
    if failure is None:
        found = list(cut(WORKLOADS[name], shim, scratch, int(seed), recording, _CUTS_PER_TRACE, number))
    for each in found:
        print(each)
    return int(any(found))


def _print(names: Sequence[str], counts: Counter[str], failures: dict[str, list], seconds: float) -> int:  # type: ignore[type-arg]
    print(f"{'workload':24} {'starts':>7} {'failed':>7}")
    for name in names:
        print(f"{name:24} {counts[name]:7} {len(failures[name]):7}")
    total, bad = sum(counts.values()), sum(map(len, failures.values()))
    print(f"{'all':24} {total:7} {bad:7}   {total / seconds:.0f} starts/s")
    for name in names:
        for failure in failures[name]:
            print(f"\n{name} --case {failure.where}: {failure.kind}: {failure.text}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run pytest without a guard, and choose the tests that may fail then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .sites import ROOT

__all__ = ["MARKS", "Found", "Reached", "find", "first_failure", "make_marks", "read_marks"]

MARKS = ROOT / ".guards"
KINDS = ("tests/unit", "tests/component")

_AT_FIRST = 25
"""Number of tests that run first, of those that reach a guard; the others run only if none of these fails."""

_TEST_S = 60
"""Seconds after which a test counts as failed without a guard: it waits for something that does not come."""

_NONE_CHOSEN = 5
"""pytest's exit code if no test was chosen."""


class Reached(NamedTuple):
    """The tests in which each guard has done its work, the most useful ones first, and the seconds that each test
    took."""

    tests: dict[str, list[str]]
    seconds: dict[str, float]


class Found(NamedTuple):
    """The result for a guard. test: the node id of the first test that failed, or None; tried: number of tests that
    reach the guard; seconds: of all runs."""

    test: str | None
    tried: int
    seconds: float


def make_marks(jobs: int) -> None:
    """Run all unit and component tests once; every guard notes that it did its work. The results go to MARKS."""
    MARKS.mkdir(exist_ok=True)
    for old in MARKS.glob("*.json"):
        old.unlink()
    for kind in KINDS:
        command = [*_pytest(), "-n", str(jobs), "--dist", "worksteal", kind]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"METAQ_GUARD_MARKS": str(MARKS)}, check=False)


def read_marks() -> Reached:
    """Return the results of make_marks. Unit tests come first, then tests of the same part of the product, then tests
    that reach the fewest guards."""
    reached: defaultdict[str, list[tuple[bool, bool, int, str]]] = defaultdict(list)
    seconds: dict[str, float] = {}
    for file in sorted(MARKS.glob("*.json")):
        content = json.loads(file.read_text("utf-8"))
        for test, (took, numbers) in content["tests"].items():
            seconds[test] = took
            for number in numbers:
                guard = content["guards"][number]
                is_elsewhere = f"/{guard.partition('/')[0]}/" not in test
                reached[guard].append((not test.startswith(KINDS[0]), is_elsewhere, len(numbers), test))
    if not seconds:
        sys.exit("python -m tests.guards marks comes first: it asks all tests which guards they go to")
    return Reached({guard: [test for *_, test in sorted(tests)] for guard, tests in reached.items()}, seconds)


def find(guard: str, reached: Reached, paths: Sequence[str] = ()) -> Found:
    """Run the tests that reach a guard, without the guard, until one fails; with `paths`, the tests in these files
    instead.

    Raises RuntimeError if a test also fails with the guard, or does not fail each time without it.
    """
    began = time.monotonic()
    tests = reached.tests.get(guard, [])
    rounds = [list(paths)] if paths else [tests[:_AT_FIRST], tests[_AT_FIRST:]]
    failed = None
    for some in rounds:
        if some and failed is None:
            failed = first_failure(some, guard, sum(reached.seconds.get(test, 10.0) for test in some))
    if failed is not None and first_failure([failed]) is not None:
        raise RuntimeError(f"{failed} fails with {guard} as well")
    if failed is not None and first_failure([failed], guard) is None:
        raise RuntimeError(f"{failed} fails without {guard} by chance, or behind other tests only")
    return Found(failed, len(paths or tests), time.monotonic() - began)


def first_failure(tests: Sequence[str], guard: str | None = None, expected_s: float = 60.0) -> str | None:
    """Return the node id of the first of these tests that fails, ends its process or never ends; they run in order.

    If no guard is removed, a test that does not exist any more counts as failed, after the others; otherwise it is
    skipped. tests: node ids, or files whose tests run all. expected_s: the least seconds that they take together.
    """
    with tempfile.TemporaryDirectory() as directory:
        chosen, report = Path(directory, "tests"), Path(directory, "report")
        chosen.write_text("\n".join(tests), "utf-8")
        report.touch()
        environment = os.environ | {
            "METAQ_GUARD_TESTS": str(chosen),
            "METAQ_GUARD_REPORT": str(report),
            "HYPOTHESIS_STORAGE_DIRECTORY": directory,  # no examples from other runs
        }
        if guard is not None:
            environment["METAQ_GUARD"] = guard
        files = [file for file in dict.fromkeys(test.partition("::")[0] for test in tests) if (ROOT / file).exists()]
        if not files:
            return tests[0] if guard is None else None
        command = [*_pytest(), "-x", "--timeout", str(_TEST_S), *files]
        code, said = _run(command, environment, 120 + 10 * expected_s)
        lines = [line.split(" ", 1) for line in report.read_text("utf-8").splitlines()]
    if code in (0, _NONE_CHOSEN):
        begun = {test for _, test in lines} | set(files)
        return next((test for test in tests if test not in begun), None) if guard is None else None
    failed = [test for word, test in lines if word == "failed"] or [test for _, test in lines[-1:]]
    if not failed:
        raise RuntimeError(f"pytest ended with {code} before any test:\n{said[-2000:]}")
    return failed[0]


def _pytest() -> list[str]:
    options = "-q -p no:cacheprovider -p tests.guards.plugin --hypothesis-seed=0"
    return [sys.executable, "-m", "pytest", *options.split()]


def _run(command: Sequence[str], environment: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """Return the command's exit code and output. After timeout_s seconds it is killed, with all its child processes."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            said = "too long"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said

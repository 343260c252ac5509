"""Power cuts of real traces, and files damaged at rest: a run of tests.kills."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tests.kills.outcome import Outcome, Problem, Say

from . import campaign
from .flips import DIRECTORIES
from .shim import is_loaded, restart_with_shim
from .workloads import WORKLOADS

__all__ = ["begin", "run"]

_GROUPS = {"": [*WORKLOADS, *DIRECTORIES], "cuts": [*WORKLOADS], "flips": [*DIRECTORIES]}


def begin(words: Sequence[str], plain: bool) -> None:
    """Go on with the shim."""
    if not is_loaded():
        restart_with_shim(words[0], words[1:])


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    cuts: int = 300,
    flips: int = 60,
    only: str = "",
    jobs: int = 2,
    case: str = "",
    traces: str = "",
) -> Outcome:
    """What a store, a broker or a ZooKeeper promised, after power cuts and with damaged bytes.

    cuts: starts after power cuts, of all workloads together. flips: changes at rest in each directory; 0: every byte.
    only: names of workloads and directories, with commas between them, or `cuts`, or `flips`. jobs: processes. case:
    the one cut or change to repeat, of the only workload or directory, as a failure names it, with the broker's log;
    its files are those of the run. traces: the directory that was kept of a failure of a process.
    """
    names = _GROUPS.get(only) or only.split(",")
    assert {*names} <= {*_GROUPS[""]}, f"names of workloads and directories: {', '.join(_GROUPS[''])}"
    workloads = [WORKLOADS[name] for name in names if name in WORKLOADS]
    if case:
        logging.basicConfig(level=logging.INFO)
        failed = (
            campaign.repeat_cut(workloads[0], case, directory, Path(traces) if traces else None)
            if workloads
            else campaign.repeat_flip(only, case, directory)
        )
        return Outcome([Problem(f"{each.workload}: {each.kind}", each.text) for each in failed], {})
    tasks = campaign.cutting(workloads, cuts, seed) if workloads else []
    tasks += campaign.flipping([name for name in names if name in DIRECTORIES], flips, seed, jobs)
    results = campaign.run(tasks, jobs)
    say(f"\n{results.table(names)}")
    again = "python -m tests.kills power --keep --only {0.workload} --case '{0.where}': {0.text}"
    return Outcome(
        [Problem(f"{each.workload}: {each.kind}", again.format(each)) for each in results.failed],
        {
            "starts after cuts": sum(count for name, count in results.starts.items() if name in WORKLOADS),
            "changes at rest": sum(count for name, count in results.starts.items() if name in DIRECTORIES),
        },
    )

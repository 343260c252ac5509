"""Measure how long the most used commands take from start to end: `python -m bench.starts`.

It measures the Python environment that runs it; install metaq there from its wheel, as users do. Each command runs once
before it is measured, so that its bytecode exists. The commands take turns. Wall time and processor time are printed;
on a machine that does other work, processor time is more reliable.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from .processes import Server

__all__ = ["main"]

METAQ = [sys.executable, "-m", "metaq"]
CODE = [sys.executable, "-c"]


def _commands(zookeeper: str) -> dict[str, tuple[list[str], int | None]]:
    """Return by name the commands, each with the limit that its wall time must stay below, in ms (None: no limit)."""
    return {
        "python -c pass": ([*CODE, "pass"], None),
        "from metaq import Producer": ([*CODE, "from metaq import Producer"], 150),
        "metaq --help": ([*METAQ, "--help"], 150),
        "metaq topics list": ([*METAQ, "topics", "list", "--zk", zookeeper], 250),
    }


def _measure(command: list[str]) -> tuple[float, float]:
    """Return wall and processor time in ms."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def main(runs: int) -> int:
    """Print the medians; return the exit code: 1 if a bar is missed."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="metaq-starts-") as directory, ExitStack() as stack:
        up = [*METAQ, "up", "--data-dir", f"{directory}/data", "--port", "0", "--zookeeper-port", "0", "--topic", "t"]
        server = stack.enter_context(Server(up, Path(directory) / "log", "zookeeper serves at"))
        words = server.log.read_text().partition("zookeeper serves at ")[2].split(";")[0]
        commands = _commands(words.strip())
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for run in range(runs + 1):
            for name, (command, _) in commands.items():
                measured = _measure(command)
                if run:
                    times[name].append(measured)
    print("| start | median ms | least … most | processor ms | bar |\n|---|--:|--:|--:|--:|")
    for name, (_, bar) in commands.items():
        walls = [wall for wall, _ in times[name]]
        missed += bar is not None and median(walls) >= bar
        figures = [f"{median(walls):.0f}", f"{min(walls):.0f} … {max(walls):.0f}"]
        figures += [f"{median(cpu for _, cpu in times[name]):.0f}", "" if bar is None else f"< {bar}"]
        print(f"| `{name}` | {' | '.join(figures)} |")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 15))

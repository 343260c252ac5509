"""Scenarios that measure only metaq's broker. Each is a separate program, because it takes long or needs gigabytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bars import MEMORY_PEAK_MB, MEMORY_REST_MB, Bar
from .measured import Measured
from .names import OURS

__all__ = ["SPECIALS", "Special", "SpecialFailed", "figures", "run_special"]


class SpecialFailed(RuntimeError):
    """A program ended with an error or printed no figures."""


@dataclass(frozen=True, slots=True)
class Special:
    """A program `python -m <module> <arguments>` that prints one JSON object. The numbers in this object are the
    figures; the names of nested objects are joined with dots.

    The program has an option `--directory` for its data.
    """

    name: str
    title: str
    about: str
    module: str
    arguments: tuple[str, ...]
    bars: tuple[Bar, ...]


STARTUP_BARS = (
    Bar(OURS, most=5.0, figure="seconds_to_serving"),
    Bar(OURS, most=5.0, figure="seconds_to_serving_at_rest"),
    Bar(OURS, least=500.0, figure="rebuild_megabytes_per_second"),
    Bar(OURS, most=MEMORY_REST_MB, figure="memory_at_rest_megabytes"),
    Bar(OURS, most=4096, figure="descriptors"),
)

SPECIALS = {
    special.name: special
    for special in (
        Special(
            "startup",
            "start after kill -9, 10,240 partitions, asynchronous flush",
            "Our broker is killed with 10 GB in 10,240 partitions and started again; then its indexes are rebuilt.",
            "bench.startup",
            (),
            STARTUP_BARS,
        ),
        Special(
            "startup-sync",
            "start after kill -9, 10,240 partitions, synchronous flush",
            "The same with a journal to be replayed.",
            "bench.startup",
            ("--durable",),
            STARTUP_BARS,
        ),
        Special(
            "backlog",
            "a backlog larger than memory",
            "Cold consumers read a backlog larger than memory while others produce and read what is new.",
            "bench.backlog",
            ("--gigabytes", "30", "--rounds", "5"),
            (
                Bar(OURS, least=0.8, figure="ratio"),
                Bar(OURS, most=20.0, figure="hot_and_cold_readers_only.latency.p99_ms"),
                Bar(OURS, most=MEMORY_PEAK_MB, figure="broker_memory.peak_mb"),
            ),
        ),
    )
}


def run_special(special: Special, directory: Path | None, log: Callable[[str], None]) -> Measured:
    """Run the program. Its messages on stderr are shown immediately. directory: for its data. Raises SpecialFailed."""
    where = () if directory is None else ("--directory", str(directory))
    command = [sys.executable, "-m", special.module, *special.arguments, *where]
    log(f"--- {special.title}: {' '.join(command[1:])}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = figures(done.stdout)
    if not found:
        raise SpecialFailed(f"{' '.join(command)} ended with code {done.returncode} and without figures")
    return Measured(special.name, {OURS: [found]}, at=time.strftime("%Y-%m-%d %H:%M"))


def figures(output: str) -> dict[str, float]:
    """Return the numbers in the JSON object that a program printed; an empty dict if it printed nothing."""
    return dict(_numbers("", json.loads(output))) if output.strip() else {}


def _numbers(prefix: str, content: dict[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in content.items():
        if isinstance(value, dict):
            found += _numbers(f"{prefix}{name}.", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((f"{prefix}{name}", float(value)))
    return found

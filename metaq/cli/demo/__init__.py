"""The command `metaq demo`: show metaq at work on real input, from an empty directory to a checked result."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

__all__ = ["demo"]

PIPE_COLUMNS = 100
"""Width of the output in characters if it does not go to a terminal."""


@click.command()
@click.option("--flights", type=click.IntRange(1000), help="Only the first flights; default: all 336,776.")
@click.option("--brokers", type=click.IntRange(1, 8), default=2, show_default=True, help="Number of broker processes.")
@click.option(
    "--rate",
    type=click.IntRange(100),
    default=12_000,
    show_default=True,
    help="Maximum messages per second of each consumer, so that joins and crashes happen in mid-stream.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory for data and logs; default: one that is removed at the end.",
)
@click.option("--keep", is_flag=True, help="Leave the cluster running until Ctrl-C, to play with.")
@click.option("--install-spark", is_flag=True, help="Install PySpark (500 MB) during the demo, if it is missing.")
def demo(flights: int | None, brokers: int, rate: int, data_dir: Path | None, keep: bool, install_spark: bool) -> int:
    """Show the whole system at work on the flights that left New York City in 2013.

    The demo starts a cluster and sends all flights as JSON. A consumer group receives them; meanwhile one process joins
    the group and one is killed. Spark computes the mean delay of each carrier. Finally the demo checks that no message
    is lost and that Spark's results are right. If Java is not installed, Spark's part of the demo is left out.

    \b
    Example
      metaq demo
      metaq demo --flights 50000 --data-dir /tmp/metaq-demo
      metaq demo --keep
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if data_dir is not None:
        return _play(flights, brokers, rate, data_dir, keep, install_spark)
    with tempfile.TemporaryDirectory(prefix="metaq-demo-") as directory:
        return _play(flights, brokers, rate, Path(directory), keep, install_spark)


def _play(flights: int | None, brokers: int, rate: int, directory: Path, keep: bool, install_spark: bool) -> int:
    from ..servers import locked_directory
    from ..terminal import console
    from ..up import commands_to_try
    from .flights import carrier_names
    from .report import Report
    from .story import FLIGHTS, Script, play

    report = Report(console(sys.stdout, pipe_columns=PIPE_COLUMNS))
    with locked_directory("--data-dir", directory):
        script = Script(directory.resolve(), brokers=brokers, flights=flights, rate=rate, install_spark=install_spark)
        with play(script, report) as (outcome, connect_string):
            report.carriers(outcome, carrier_names())
            report.summary(outcome)
            if keep:
                report.say(f"the cluster serves until you press Ctrl-C; {commands_to_try(connect_string, FLIGHTS)}")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
    return 1 if outcome.failures else 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt at SIGTERM, as Python does at Ctrl-C, so that all `finally` blocks are executed. These
    blocks end the processes that the demo has started.
    """
    raise KeyboardInterrupt

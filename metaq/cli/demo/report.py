"""Print the demo's output: its steps, their progress, the rebalances, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .delivery import Delivery
from .flights import CarrierDelay
from .group import Rebalance

__all__ = ["BySpark", "DemoFigures", "Report"]


class BySpark(NamedTuple):
    """The result of the Spark job, and how many seconds the job took, including its start."""

    seconds: float
    delays: Mapping[str, CarrierDelay]


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """All results that the table at the end of the demo shows. Rates are in messages per second."""

    delivery: Delivery
    rebalances: Sequence[Rebalance]
    send_rate: float
    receive_rate: float
    lag: Mapping[str, int | None]
    """The group's lag in each partition after all consumers have left the group: the number of messages after the
    committed offset, or None if the number is unknown.
    """
    by_spark: BySpark | None
    """The result of the Spark job, or None if the step with Spark was left out."""
    by_pandas: Mapping[str, CarrierDelay]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """One sentence for each check of the demo that failed. The list is empty if the demo succeeded."""
        found = []
        if not self.delivery.ok:
            found.append(f"delivery: {self.delivery}")
        if any(lag != 0 for lag in self.lag.values()):
            found.append(f"lag is left: {dict(self.lag)}")
        if self.by_spark is not None and self.by_spark.delays != self.by_pandas:
            found.append("Spark's figures differ from those of pandas")
        return found


class Report:
    """Prints the demo's output on `console`; without a terminal it shows no bars and no spinners."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0
        self._began = time.monotonic()

    def step(self, title: str) -> None:
        """Print the title of the next step."""
        self._steps += 1
        self._console.rule(f"[bold]{self._steps}  {escape(title)}", align="left", style="dim")

    def say(self, text: str) -> None:
        """Print one line of plain text."""
        self._console.print(f"   {text}", markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar while the `with` block runs. Yield a function that sets how much of `total` is done."""
        columns = (
            TextColumn("  "),
            SpinnerColumn(),
            TextColumn(title),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>10}"),
            TimeElapsedColumn(),
        )
        began = time.monotonic()
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as bar:
            task = bar.add_task(title, total=total, rate="")

            def set_done(done: int) -> None:
                rate = done / max(1e-9, time.monotonic() - began)
                bar.update(task, completed=done, rate=f"{rate:,.0f}/s")

            yield set_done

    @contextmanager
    def waiting(self, title: str) -> Iterator[None]:
        """Show a spinner with `title` while the `with` block runs."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(f"   {escape(title)}"):
            yield

    def rebalance(self, rebalance: Rebalance, partitions: int) -> None:
        """Print which member owns which partitions after a rebalance, and how long the rebalance took."""
        self._console.print(f"   [bold]{escape(rebalance.cause)}[/]: {rebalance.seconds:.2f} s", highlight=False)
        for name, owned in rebalance.owned.items():
            bar = "■" * len(owned) + "·" * (partitions - len(owned))
            self._console.print(f"     [cyan]{escape(name)}[/]  {bar}  {' '.join(owned)}", highlight=False)

    def carriers(self, outcome: DemoFigures, names: Mapping[str, str]) -> None:
        """Print Spark's results and pandas' results for each carrier side by side."""
        if outcome.by_spark is None:
            return
        title = "Mean departure delay by carrier"
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title, title_style="bold")
        table.add_column("carrier", no_wrap=True)
        for column in ("flights\nSpark", "flights\npandas", "minutes\nSpark", "minutes\npandas"):
            table.add_column(column, justify="right")
        table.add_column("")
        found = outcome.by_spark.delays
        for carrier in sorted(outcome.by_pandas.keys() | found.keys()):
            by_spark, by_pandas = found.get(carrier), outcome.by_pandas.get(carrier)
            table.add_row(
                f"{carrier} {escape(names.get(carrier, ''))}",
                *(text for pair in zip(_figures(by_spark), _figures(by_pandas), strict=True) for text in pair),
                "[green]equal" if by_spark == by_pandas else "[bold red]differs",
            )
        self._console.print(table)

    def summary(self, outcome: DemoFigures) -> None:
        """Print the table at the end, and the failures if there are any."""
        delivery = outcome.delivery
        table = Table(box=ROUNDED, show_header=False, title="metaq demo", title_style="bold", min_width=60)
        table.add_column(style="bold")
        table.add_column()
        table.add_row("sent", f"{delivery.sent:,} messages")
        table.add_row("received", f"{delivery.received:,} messages")
        table.add_row(
            "duplicates", f"{delivery.duplicates:,} (received, not yet committed when its consumer was killed)"
        )
        table.add_row("lost", _must_be_zero(delivery.lost))
        table.add_row("out of order", _must_be_zero(delivery.out_of_order))
        for rebalance in outcome.rebalances:
            table.add_row("rebalance", f"{rebalance.seconds:5.2f} s  {escape(rebalance.cause)}")
        table.add_row("send rate", f"{outcome.send_rate:,.0f} messages/s")
        table.add_row("receive rate", f"{outcome.receive_rate:,.0f} messages/s (each consumer is slowed down)")
        by_spark = outcome.by_spark
        table.add_row(
            "Spark job",
            "left out" if by_spark is None else f"{by_spark.seconds:.1f} s, {len(by_spark.delays)} carriers",
        )
        table.add_row("lag", "  ".join(f"{name}: {lag}" for name, lag in outcome.lag.items()))
        table.add_row("time", f"{outcome.seconds:.1f} s")
        self._console.print(table, highlight=False)
        for failure in outcome.failures:
            self._console.print(f"[bold red]FAILED[/] {escape(failure)}", highlight=False)
        if not outcome.failures:
            self._console.print(f"[bold green]OK[/] nothing lost{'' if by_spark is None else ', all figures equal'}")


def _figures(delay: CarrierDelay | None) -> tuple[str, str]:
    if delay is None:
        return "missing", ""
    return f"{delay.flights:,}", "-" if delay.mean is None else f"{delay.mean:.6f}"


def _must_be_zero(count: int) -> str:
    return "[green]0" if count == 0 else f"[bold red]{count:,}"

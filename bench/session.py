"""Run the benchmark once: start the stages one after the other, and publish the results after each scenario."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .compare import Comparison, Plan, stage_topics
from .measured import Results
from .memory import MARGIN_BYTES, free_bytes, warm_memory
from .plot import write_plots
from .report import markdown
from .scenarios import STAGES, Scenario, Stage
from .systems import start_stage

__all__ = ["Session", "touch_free_memory"]

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the benchmark: the measured scenarios and systems, the plan, and the destination of the results.

    systems: names of the systems that may take part; output: gets results.json, RESULTS.md and plots/; zk: host:port of
    a running ZooKeeper, None to start one for each stage; directory: for data and logs while a stage runs.
    """

    scenarios: Sequence[Scenario]
    systems: Sequence[str]
    plan: Plan
    results: Results
    output: Path
    log: Log
    zk: str | None = None
    directory: Path | None = None

    def run(self) -> None:
        """Run all stages that have scenarios. Raises JavaUnavailable, and ProcessFailed if ZooKeeper does not start."""
        for stage in STAGES:
            scenarios = [scenario for scenario in self.scenarios if scenario.stage == stage.name]
            if scenarios:
                self._run_stage(stage, scenarios)

    def _run_stage(self, stage: Stage, scenarios: list[Scenario]) -> None:
        taking_part = {run.system for scenario in scenarios for run in scenario.runs.values()}
        names = [name for name in self.systems if name in taking_part]
        if not names:
            return
        self.log(f"--- {stage.title}: starting {', '.join(names)}")
        topics = stage_topics(stage, scenarios, self.plan)
        with (
            tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=self.directory) as data,
            start_stage(stage, topics, names, Path(data), self.zk, self.log) as running,
        ):
            comparison = Comparison(stage, running, self.plan, self.log)
            for scenario in scenarios:
                measured = comparison.measure(scenario)
                if measured.runs or measured.failures:
                    self.results.put(measured)
                    self.publish()

    def publish(self) -> str:
        """Write all results so far to the output directory; return the text of RESULTS.md."""
        plots = write_plots(self.results, self.output / "plots")
        page = markdown(self.results, {name: path.relative_to(self.output).as_posix() for name, path in plots.items()})
        (self.output / "RESULTS.md").write_text(page, "utf-8")
        self.results.write(self.output / "results.json")
        return page


def touch_free_memory(log: Log) -> None:
    """Touch all free memory once, except a margin for other programs; memory.warm_memory tells why."""
    size = free_bytes() - MARGIN_BYTES
    log(f"touching {size / 1e9:.1f} GB of free memory once (--cold-memory leaves that out)")
    on_terminal = sys.stderr.isatty()

    def show(touched: int) -> None:
        if on_terminal:
            print(f"\r{touched / 1e9:6.1f} GB", end="", file=sys.stderr, flush=True)

    touched = warm_memory(size, show)
    log(f" of {touched / 1e9:.1f} GB touched" if on_terminal else f"{touched / 1e9:.1f} GB touched")

"""The results of measurements: the runs of each scenario. They are kept as JSON, so that several runs of the benchmark
can complete them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Measured", "OtherMachine", "Results"]

Answer = dict[str, Any]


class OtherMachine(ValueError):
    """Results of another machine or of other versions exist, so new ones cannot be added to them. The message names the
    differences.
    """


@dataclass(slots=True)
class Measured:
    """The results of one scenario.

    runs: by label, the load generators' answers in the order of the rounds. memory: by broker, in units of 10^6 bytes:
    `rest_mb` after the broker's start and before the first command, and `peak_mb` during this scenario. failures: by
    label, why there are no (further) runs. at: when the scenario ended, in local time.
    """

    scenario: str
    runs: dict[str, list[Answer]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    at: str = ""

    def add(self, label: str, answer: Answer) -> None:
        """Append one run."""
        self.runs.setdefault(label, []).append(answer)

    def median(self, label: str, figure: str = "rate") -> float | None:
        """Return the median of a figure over the rounds; None if the label was not measured or has no such figure."""
        values = [run[figure] for run in self.runs.get(label, []) if figure in run]
        return median(values) if values else None

    def ratio(self, label: str, to: str, figure: str = "rate") -> float | None:
        """Return the median over the rounds of a figure relative to another label's figure in the same round.

        Rounds are short and the systems take turns in them, so a machine that is slow for a while slows both systems.
        """
        pairs = zip(self.runs.get(label, []), self.runs.get(to, []), strict=False)
        ratios = [ours[figure] / theirs[figure] for ours, theirs in pairs if theirs[figure]]
        return median(ratios) if ratios else None


@dataclass(slots=True)
class Results:
    """All results of one machine with one set of versions. environment: the description of machine and versions by
    environment.py.
    """

    environment: Mapping[str, str]
    scenarios: dict[str, Measured] = field(default_factory=dict)

    def put(self, measured: Measured) -> None:
        """Add the result of a scenario, or replace its earlier result."""
        self.scenarios[measured.scenario] = measured

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        scenarios = [asdict(measured) for measured in self.scenarios.values()]
        path.write_text(json.dumps({"environment": self.environment, "scenarios": scenarios}, indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path, environment: Mapping[str, str]) -> Results:
        """Return the results that write() has written, so that more can be added; empty results if the file does not
        exist. Raises OtherMachine.
        """
        if not path.exists():
            return cls(environment)
        content = json.loads(path.read_text("utf-8"))
        before = content["environment"]
        different = [
            f"{name} was {before.get(name)!r} and is {environment.get(name)!r}"
            for name in sorted({*before, *environment})
            if before.get(name) != environment.get(name)
        ]
        if different:
            raise OtherMachine(f"{path} is of another machine or of other versions: {'; '.join(different)}")
        measured = [Measured(**fields) for fields in content["scenarios"]]
        return cls(environment, {each.scenario: each for each in measured})

"""Bars as data: the figure that a system must reach in a scenario, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass

from .measured import Measured

__all__ = ["MEMORY_PEAK_MB", "MEMORY_REST_MB", "Bar", "Verdict", "judge", "judge_memory"]

MEMORY_REST_MB = 150.0
MEMORY_PEAK_MB = 400.0
"""Limit in MB for the resident memory of metaq's broker, before the first command and at its peak in any scenario."""

UNITS = {"rate": ("messages/s", 0), "_ms": ("ms", 2), "_mb": ("MB", 0), "_seconds": ("s", 2), "": ("", 2)}
"""By the end of a figure's name: its unit, and the number of decimals shown."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that `who` must reach (`least`) or not exceed (`most`); exactly one of the two is given.

    who: a label of the scenario. of: another label; then the bar is a ratio to its figure in the same round (median of
    the rounds), otherwise it is the figure itself (median). figure: a key of the generators' answers.
    """

    who: str
    least: float | None = None
    most: float | None = None
    of: str | None = None
    figure: str = "rate"

    def value(self, measured: Measured) -> float | None:
        """Return the reached value; None if one side was not measured, so that it is unknown."""
        if self.of is None:
            return measured.median(self.who, self.figure)
        return measured.ratio(self.who, self.of, self.figure)

    def met(self, value: float) -> bool:
        """Whether a value meets the bar; equality does."""
        return value >= self.least if self.least is not None else value <= (self.most or 0.0)

    def text(self) -> str:
        """Return the bar as text: `≥ 0.9 × java`, `p99 ≤ 4 ms`."""
        limit = self.least if self.least is not None else self.most
        what = "" if self.figure == "rate" else self.figure.removesuffix("_ms") + " "
        return f"{what}{'≥' if self.least is not None else '≤'} {limit:,g} {self._of_what()}".rstrip()

    def shown(self, value: float) -> str:
        """Return a value with the number of decimals of its kind."""
        if self.of is not None:
            return f"{value:.2f} × {self.of}"
        unit, decimals = self._unit()
        return f"{value:,.{decimals}f} {unit}".rstrip()

    def _of_what(self) -> str:
        return f"× {self.of}" if self.of is not None else self._unit()[0]

    def _unit(self) -> tuple[str, int]:
        return next(UNITS[end] for end in UNITS if self.figure.endswith(end))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar after a run: the system, the requirement, the reached value, and whether it is enough; None: unknown,
    because the system to which it is relative failed."""

    scenario: str
    who: str
    bar: str
    reached: str
    met: bool | None


def judge(measured: Measured, bars: tuple[Bar, ...]) -> list[Verdict]:
    """Return a verdict for each bar whose two sides were selected. If `who` has no figure the bar is missed."""
    verdicts = []
    for bar in bars:
        sides = [side for side in (bar.who, bar.of) if side is not None]
        if any(side not in measured.runs and side not in measured.failures for side in sides):
            continue
        value = bar.value(measured)
        met: bool | None
        if value is not None:
            reached, met = bar.shown(value), bar.met(value)
        else:
            failed = [side for side in sides if side in measured.failures]
            reached = f"{failed[0]} failed" if failed else f"no {bar.figure}"
            met = None if failed == [bar.of] else False
        verdicts.append(Verdict(measured.scenario, bar.who, bar.text(), reached, met))
    return verdicts


def judge_memory(measured: Measured, broker: str) -> list[Verdict]:
    """Return the verdicts for the memory of a broker, if it was running."""
    memory = measured.memory.get(broker)
    if memory is None:
        return []
    return [
        Verdict(measured.scenario, f"{broker}, memory", f"< {bar:g} MB {when}", f"{value:,.0f} MB", value < bar)
        for when, value, bar in (
            ("at rest", memory["rest_mb"], MEMORY_REST_MB),
            ("at most", memory["peak_mb"], MEMORY_PEAK_MB),
        )
    ]

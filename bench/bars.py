"""Bars as data. A bar is the figure that a system must reach in a scenario; a verdict says whether the system reached
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .measured import Measured

__all__ = ["MEMORY_PEAK_MB", "MEMORY_REST_MB", "Bar", "Verdict", "judge", "judge_memory"]

MEMORY_REST_MB = 150.0
MEMORY_PEAK_MB = 400.0
"""Limit in MB for the resident memory of metaq's broker, before the first command and at its peak in any scenario."""

UNITS = {"rate": ("messages/s", 0), "_ms": ("ms", 2), "_mb": ("MB", 0), "_seconds": ("s", 2), "": ("", 2)}
"""The unit and the number of shown decimals for each ending of a figure's name."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that `who` must reach (`least`) or not exceed (`most`); exactly one of the two is given.

    who: a label of the scenario. of: another label, or None. With a label, the bar applies to the ratio to that label's
    figure in the same round (median over the rounds). If it is None, the bar applies to the figure itself (median).
    figure: a key of the load generators' answers.
    """

    who: str
    least: float | None = None
    most: float | None = None
    of: str | None = None
    figure: str = "rate"

    def value(self, measured: Measured) -> float | None:
        """Return the reached value; None if it is unknown because one of the two labels was not measured."""
        if self.of is None:
            return measured.median(self.who, self.figure)
        return measured.ratio(self.who, self.of, self.figure)

    def met(self, value: float) -> bool:
        """Return whether a value meets the bar; a value equal to the limit does."""
        return value >= self.least if self.least is not None else value <= (self.most or 0.0)

    def text(self) -> str:
        """Return the bar as text: `≥ 0.9 × java`, `p99 ≤ 4 ms`."""
        limit = self.least if self.least is not None else self.most
        what = "" if self.figure == "rate" else self.figure.removesuffix("_ms") + " "
        return f"{what}{'≥' if self.least is not None else '≤'} {limit:,g} {self._of_what()}".rstrip()

    def shown(self, value: float) -> str:
        """Return a value as text, with the number of decimals for this kind of figure."""
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
    """The judgement of one bar after a run: the system, the requirement, the reached value, and whether the value meets
    the requirement. `met` is None if this is unknown because the system with which it is compared failed.
    """

    scenario: str
    who: str
    bar: str
    reached: str
    met: bool | None


def judge(measured: Measured, bars: tuple[Bar, ...]) -> list[Verdict]:
    """Return a verdict for each bar whose systems were both selected. If `who` has no figure, the bar is missed."""
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
    """Return the verdicts for the memory of a broker; none if the broker was not running."""
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

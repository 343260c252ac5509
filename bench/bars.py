"""Bars as data: what a system must reach in a scenario, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass

from .measured import Measured

__all__ = ["MEMORY_PEAK_MB", "MEMORY_REST_MB", "Bar", "Verdict", "judge", "judge_memory"]

MEMORY_REST_MB = 150.0
MEMORY_PEAK_MB = 400.0
"""Less resident memory than this: our broker before the first command, and at its highest in any scenario."""

UNITS = {"rate": ("messages/s", 0), "_ms": ("ms", 2), "_mb": ("MB", 0), "_seconds": ("s", 2), "": ("", 2)}
"""How a figure's name ends -> its unit and the decimals it is shown with."""


@dataclass(frozen=True, slots=True)
class Bar:
    """`who` must reach at least `least`, or stay at or below `most`; just one of the two is given.

    who: a label of the scenario; of: another label, then the bar is a ratio to its figure in the same round (median of
    the rounds), else the figure itself (median); figure: a key of the generators' answers.
    """

    who: str
    least: float | None = None
    most: float | None = None
    of: str | None = None
    figure: str = "rate"

    def value(self, measured: Measured) -> float | None:
        """What was reached; None when it cannot be told because one side was not measured."""
        if self.of is None:
            return measured.median(self.who, self.figure)
        return measured.ratio(self.who, self.of, self.figure)

    def met(self, value: float) -> bool:
        """Whether a value reaches the bar; the bar itself does."""
        return value >= self.least if self.least is not None else value <= (self.most or 0.0)

    def text(self) -> str:
        """`≥ 0.9 × java`, `p99 ≤ 4 ms`."""
        limit = self.least if self.least is not None else self.most
        what = "" if self.figure == "rate" else self.figure.removesuffix("_ms") + " "
        return f"{what}{'≥' if self.least is not None else '≤'} {limit:,g} {self._of_what()}".rstrip()

    def shown(self, value: float) -> str:
        """A value with as many decimals as its kind has."""
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
    """One bar after a run: who, what was asked, what was reached, and whether that is enough; None: nobody can tell,
    because the system it is relative to failed.
    """

    scenario: str
    who: str
    bar: str
    reached: str
    met: bool | None


def judge(measured: Measured, bars: tuple[Bar, ...]) -> list[Verdict]:
    """A verdict for each bar whose sides were selected. Without a figure of `who` it is missed."""
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
    """The same for the memory of a broker, if it was running."""
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

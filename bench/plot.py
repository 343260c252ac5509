"""Draw a bar chart of each scenario. Each system has a bar for its median, with an error bar for the range of its
rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measured import Measured, Results
from .names import BASE_OF, BROKER_OF, OUR_BROKERS, OURS
from .scenarios import REPLICA_SCENARIOS, SCENARIOS, Scenario

__all__ = ["write_plots"]

LATENCY_FIGURES = ("p50_ms", "p99_ms")
LEAST_MS = 0.1
WIDTH_INCHES, BAR_INCHES, MARGIN_INCHES, DPI = 8.0, 0.36, 1.1, 100
OURS_COLOR, OUR_BROKER_COLOR, OTHER_COLOR = "#d95f02", "#f2b98a", "#9aa5b1"


def write_plots(results: Results, directory: Path) -> dict[str, Path]:
    """Write `<scenario>.png` into `directory` for each scenario that has runs; create the directory if it does not
    exist. Return the files by scenario.
    """
    directory.mkdir(exist_ok=True)
    written = {}
    for scenario in (*SCENARIOS, *REPLICA_SCENARIOS.values()):
        measured = results.scenarios.get(scenario.name)
        if measured is not None and measured.runs:
            written[scenario.name] = _write(scenario, measured, directory / f"{scenario.name}.png")
    return written


def _write(scenario: Scenario, measured: Measured, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figures = LATENCY_FIGURES if scenario.has_latency else ("rate",)
    bars = [(label, figure) for label in measured.runs for figure in figures]
    picture = Figure((WIDTH_INCHES, MARGIN_INCHES + BAR_INCHES * len(bars)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    for place, (label, figure) in enumerate(bars):
        _draw(axes, place, scenario, measured, label, figure)
    names = [label if figure == "rate" else f"{label}, {figure.removesuffix('_ms')}" for label, figure in bars]
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    if scenario.has_latency:
        axes.set_xscale("log")
        axes.set_xlim(left=LEAST_MS)  # on a logarithmic scale, bars need a common start
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.14)  # space for the figures next to the bars
    axes.set_xlabel("ms, less is better" if scenario.has_latency else "messages a second")
    axes.set_title(f"{scenario.title}, {scenario.size:,} bytes a message", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=DPI)
    return path


def _draw(axes: Any, place: int, scenario: Scenario, measured: Measured, label: str, figure: str) -> None:
    values = [run[figure] for run in measured.runs[label]]
    middle = measured.median(label, figure) or 0.0
    errors = [[middle - min(values)], [max(values) - middle]]
    system = scenario.runs[label].system
    ours = OURS_COLOR if BASE_OF.get(system, system) == OURS else OUR_BROKER_COLOR
    color = ours if BROKER_OF[system] in OUR_BROKERS else OTHER_COLOR
    axes.barh(place, middle, xerr=errors, color=color, ecolor="#444444", error_kw={"elinewidth": 1, "capsize": 2})
    text = f" {middle:,.2f}" if scenario.has_latency else f" {middle:,.0f}"
    axes.annotate(text, (max(values), place), xytext=(3, 0), textcoords="offset points", va="center", fontsize="small")

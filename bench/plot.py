"""A picture of each scenario: a bar for each system at its median, with the range of its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .compare import Measured

__all__ = ["write_plots"]

LATENCY_FIGURES = ("p50_ms", "p99_ms")
LEAST_MS = 0.1
WIDTH_INCHES, BAR_INCHES, MARGIN_INCHES = 8.0, 0.45, 1.2


def write_plots(scenarios: Sequence[Measured], directory: Path) -> list[Path]:
    """Write `<scenario>.png` for each that has runs into `directory`, which is created; the files, in order."""
    directory.mkdir(exist_ok=True)
    return [_write(measured, directory / f"{measured.scenario}.png") for measured in scenarios if measured.runs]


def _write(measured: Measured, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figures = LATENCY_FIGURES if measured.scenario == "latency" else ("rate",)
    bars = [(system, figure) for system in measured.runs for figure in figures]
    figure = Figure((WIDTH_INCHES, MARGIN_INCHES + BAR_INCHES * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, (system, name) in enumerate(bars):
        values = [run[name] for run in measured.runs[system]]
        middle = measured.median(system, name) or 0.0
        errors = [[middle - min(values)], [max(values) - middle]]
        axes.barh(place, middle, xerr=errors, color="tab:blue" if system.startswith("our") else "tab:gray")
    labels = [system if name == "rate" else f"{system}, {name.removesuffix('_ms')}" for system, name in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.invert_yaxis()
    if measured.scenario == "latency":
        axes.set_xscale("log")
        axes.set_xlim(left=LEAST_MS)  # bars on a logarithmic scale need a beginning in common
    axes.set_xlabel("ms" if measured.scenario == "latency" else "messages/s")
    axes.set_title(measured.scenario)
    figure.savefig(path)
    return path

"""What the broker shows of itself: lines of `stats`, and metrics in Prometheus's terms."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Lines", "Metric", "Metrics", "counter", "gauge", "gauges"]

Lines: TypeAlias = Iterator[str | None]
"""Lines of `stats`, and None where others may be served."""


class Metric(NamedTuple):
    """The samples of one name: a value for each label. kind: `gauge` or `counter`. text: its help."""

    name: str
    kind: str
    text: str
    labels: Sequence[str]
    samples: Iterable[tuple[Sequence[str], float]]


Metrics: TypeAlias = Generator[Metric | None, None, None]
"""Metrics, and None where others may be served."""


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return Metric(name, "gauge", text, (), [((), value)])


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter. name: without its ending."""
    return Metric(f"{name}_total", "counter", text, (), [((), value)])


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge with one value for each value of the label."""
    return Metric(name, "gauge", text, (label,), (((labelled,), value) for labelled, value in values))

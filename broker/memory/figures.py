"""The types in which the broker reports its counters and states: lines of `stats`, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Lines", "Metric", "Metrics", "counter", "gauge", "gauges"]

Lines: TypeAlias = Iterator[str | None]
"""Yields lines of `stats`, and None at points where the broker can serve other requests."""


class Metric(NamedTuple):
    """A metric for Prometheus with its samples. kind: `gauge` or `counter`. text: the metric's help text. labels: the
    names of the labels. samples: pairs; each pair has the labels' values, and the metric's value for these labels.
    """

    name: str
    kind: str
    text: str
    labels: Sequence[str]
    samples: Iterable[tuple[Sequence[str], float]]


Metrics: TypeAlias = Generator[Metric | None, None, None]
"""Yields metrics, and None at points where the broker can serve other requests."""


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return Metric(name, "gauge", text, (), [((), value)])


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels. name: without the ending `_total`."""
    return Metric(f"{name}_total", "counter", text, (), [((), value)])


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge with one label. values: the gauge's value for each value of the label."""
    return Metric(name, "gauge", text, (label,), (((labelled,), value) for labelled, value in values))

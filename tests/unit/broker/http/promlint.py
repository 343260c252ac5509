"""The rules of `promtool check metrics` that our metrics could break, as Prometheus's documents publish them."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["complaints"]

_ABBREVIATED = re.compile(r"_(?:s|ms|us|ns|sec|b|kb|mb|gb|tb|pb|m|h|d)(?:_|$)")
_NOT_BASE = re.compile(r"_(?:milliseconds|microseconds|minutes|hours|days|kilobytes|megabytes|bits|celsius)(?:_|$)")
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? \S+$")


def complaints(text: str) -> Iterator[str]:
    """One for each rule that a metric breaks."""
    helps = set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE):
        if name not in helps:
            yield f"{name}: no help text"
        if kind == "counter" and not name.endswith("_total"):
            yield f'{name}: counter metrics should have "_total" suffix'
        if kind != "counter" and name.endswith("_total"):
            yield f'{name}: non-counter metrics should not have "_total" suffix'
        if kind not in ("histogram", "summary") and name.endswith(("_count", "_sum", "_bucket")):
            yield f"{name}: the suffix is a histogram's or a summary's"
        if re.search(rf"_{kind}(?:_|$)|[A-Z:]", name):
            yield f"{name}: the type, a colon or a capital in the name"
        if _ABBREVIATED.search(name) or _NOT_BASE.search(name):
            yield f"{name}: no base unit, or an abbreviated one"
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and re.search(r"\b(?:quantile|le)=", sample[2] or ""):
            yield f"{sample[1]}: the label is a histogram's or a summary's"

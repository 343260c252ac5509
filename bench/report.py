"""The figures as a page and as JSON: medians, ratios within the rounds of the same run, and the bars."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .compare import Measured
from .peers import peer_versions
from .scenarios import LATENCY, MESSAGE_BYTES, SCENARIOS, Scenario
from .systems import JAVA, MIXED, OURS, PEERS

__all__ = ["environment", "markdown", "results", "unmet_bars"]

LIBRARIES = ("metaq", "twisted", "kazoo", "numpy", "simplejson", "isal", "kafka-python", "aiokafka", "confluent-kafka")


def environment() -> dict[str, str]:
    """Machine and versions, as printed with the figures."""
    return {
        "processor": f"{_processor()}, {_cores()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "java metaq": "1.4.6.2",
        **peer_versions(),
        **{name: version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cores() -> int:
    return Path("/proc/cpuinfo").read_text().count("processor\t")


def _java() -> str:
    first = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return first.split('"')[1]


def results(rates: list[Measured], latency: Measured | None) -> dict[str, Any]:
    """Everything measured, for machines."""
    measured = [*rates, *([latency] if latency else [])]
    return {"environment": environment(), "runs": {each.scenario: each.runs for each in measured}}


def _scenario(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def _ratios(rates: list[Measured]) -> Iterable[tuple[Scenario, str, float, float | None]]:
    """(scenario, system, ratio to Java, bar) for every measured pair that has a Java figure."""
    for measured in rates:
        scenario = _scenario(measured.scenario)
        for system, bar in ((OURS, scenario.own_bar), (MIXED, scenario.broker_bar)):
            ratio = measured.ratio(system, JAVA)
            if ratio is not None:
                yield scenario, system, ratio, bar


def _peer_ratios(rates: list[Measured]) -> Iterable[tuple[Scenario, str, float, float | None]]:
    """(scenario, peer, our rate relative to it, bar) for every measured peer."""
    for measured in rates:
        scenario = _scenario(measured.scenario)
        for peer in PEERS:
            ratio = measured.ratio(OURS, peer)
            if ratio is not None:
                yield scenario, peer, ratio, scenario.peer_bars.get(peer)


def unmet_bars(rates: list[Measured], latency: Measured | None) -> list[str]:
    """One line for each bar that was measured and missed."""
    missed = [
        f"{scenario.name}: {system} reaches {ratio:.2f} of Java's rate, the bar is {bar}"
        for scenario, system, ratio, bar in _ratios(rates)
        if bar is not None and ratio < bar
    ]
    missed += [
        f"{scenario.name}: {OURS} reaches {ratio:.2f} of {peer}'s rate, the bar is {bar}"
        for scenario, peer, ratio, bar in _peer_ratios(rates)
        if bar is not None and ratio < bar
    ]
    for figure, bar in (("p50_ms", LATENCY.p50_bar_ms), ("p99_ms", LATENCY.p99_bar_ms)):
        ours = latency.median(OURS, figure) if latency else None
        if ours is not None and ours >= bar:
            missed.append(f"latency: {figure} is {ours:.2f}, the bar is below {bar}")
    return missed


def markdown(rates: list[Measured], latency: Measured | None, rounds: int, plots: Sequence[str] = ()) -> str:
    """The page bench/RESULTS.md. plots: paths of the images relative to it."""
    lines = [
        "# metaq beside Java metaq 1.4.6.2, Apache Kafka and RocketMQ",
        "",
        f"Made by `make bench`: {MESSAGE_BYTES}-byte messages, one partition, asynchronous flush (metaq: 1,000",
        "messages or 10 s; Kafka and RocketMQ: their default), each load generator in a process of its own, everything",
        f"warmed up first; medians of {rounds} rounds in which the systems take turns. Rates are messages a second; in",
        "brackets the median of the rounds' ratios, in metaq's own table to the Java broker with the Java client.",
        "",
        *(f"- {name}: {value}" for name, value in environment().items()),
        "",
    ]
    if rates:
        lines += [*_rate_table(rates), *_peer_table(rates)]
    if latency:
        lines += _latency_table(latency)
    if plots:
        lines += [*(f"![{Path(plot).stem}]({plot})" for plot in plots), ""]
    return "\n".join(lines)


def _rate_table(rates: list[Measured]) -> list[str]:
    if not any(system in measured.runs for measured in rates for system in (JAVA, OURS, MIXED)):
        return []
    ratios = {(scenario.name, system): ratio for scenario, system, ratio, _ in _ratios(rates)}
    rows = [
        "| scenario | Java broker, Java client | our broker, our client | bar | our broker, Java client | bar |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for measured in rates:
        scenario = _scenario(measured.scenario)
        cells = [
            scenario.title,
            _figure(measured.median(JAVA)),
            _figure(measured.median(OURS), ratios.get((scenario.name, OURS))),
            _bar(scenario.own_bar),
            _figure(measured.median(MIXED), ratios.get((scenario.name, MIXED))),
            _bar(scenario.broker_bar),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, "", "1.x has no batches: in their rounds Java sends pipelined single messages, its fastest way.", ""]


def _peer_table(rates: list[Measured]) -> list[str]:
    ratios = {(scenario.name, peer): (ratio, bar) for scenario, peer, ratio, bar in _peer_ratios(rates)}
    peers = [peer for peer in PEERS if any(peer in measured.runs for measured in rates)]
    if not peers:
        return []
    rows = [
        "Other systems; in brackets how many times their rate our broker with our client reaches, and the bar for it.",
        "`kafka` is its Java client; the other three are Kafka's clients in Python.",
        "",
        f"| scenario | our broker, our client | {' | '.join(peers)} |",
        f"|---|---:|{'---:|' * len(peers)}",
    ]
    for measured in rates:
        scenario = _scenario(measured.scenario)
        cells = [scenario.title, _figure(measured.median(OURS))]
        for peer in peers:
            ratio, bar = ratios.get((scenario.name, peer), (None, None))
            cells.append(_figure(measured.median(peer), ratio) + ("" if bar is None else f" {_bar(bar)}"))
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, ""]


def _figure(rate: float | None, ratio: float | None = None) -> str:
    if rate is None:
        return "–"
    return f"{rate:,.0f}" + (f" ({ratio:.2f}×)" if ratio is not None else "")


def _bar(bar: float | None) -> str:
    return "–" if bar is None else f"≥ {bar}×"


def _latency_table(latency: Measured) -> list[str]:
    rows = [
        f"End-to-end latency, send call to listener, at {LATENCY.per_second:,} messages a second, in ms; the bars",
        f"for ours are p50 < {LATENCY.p50_bar_ms:g} and p99 < {LATENCY.p99_bar_ms:g}:",
        "",
        "| system | p50 | p99 | max |",
        "|---|---:|---:|---:|",
    ]
    for system in latency.runs:
        figures = (latency.median(system, name) or 0.0 for name in ("p50_ms", "p99_ms", "max_ms"))
        rows.append(f"| {system} | {' | '.join(f'{figure:,.2f}' for figure in figures)} |")
    return [*rows, ""]

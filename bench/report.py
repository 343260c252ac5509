"""Make the page bench/RESULTS.md: all bars with their verdicts, then the figures, the memory and the plot of each
scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .bars import Verdict, judge, judge_memory
from .measured import Measured, Results
from .names import BROKER_OF, OUR_BROKERS, OURS
from .scenarios import REPLICA_SCENARIOS, SCENARIOS, Scenario
from .special import SPECIALS, Special

__all__ = ["failed", "markdown", "missed", "verdicts"]

INTRODUCTION = """\
Made by `make bench` (bench/README.md says how): brokers, load generators and ZooKeeper on one machine, every system
with the settings and in the way its users have it, free memory touched once before, everything warmed up; medians of
short rounds in which the systems take turns, forwards and backwards. "Ours relative to it" is the median over the
rounds of our figure relative to the system's in the same round. Memory is the resident memory of the broker's process
in 10⁶ bytes with mapped files, at rest before its first command and at its highest in the scenario; systems with the
same broker share it. Kafka and RocketMQ have a heap of 1 GiB, as Kafka's own script gives it, Java metaq the JVM's
default."""

_ALL = (*SCENARIOS, *REPLICA_SCENARIOS.values())


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts on all bars that could be judged, in the order of the scenarios."""
    found = []
    bars = {each.name: each.bars for each in _ALL} | {each.name: each.bars for each in SPECIALS.values()}
    for name in bars:
        if measured := results.scenarios.get(name):
            found += judge(measured, bars[name])
            found += [verdict for broker in OUR_BROKERS for verdict in judge_memory(measured, broker)]
    return found


def missed(results: Results) -> list[str]:
    """Return one line for each missed bar."""
    return [
        f"{each.scenario}: {each.who}: {each.reached}, the bar is {each.bar}"
        for each in verdicts(results)
        if each.met is False
    ]


def failed(results: Results) -> list[str]:
    """Return one line for each system that failed in a scenario."""
    return [
        f"{measured.scenario}: {label}: {why}"
        for measured in results.scenarios.values()
        for label, why in measured.failures.items()
    ]


def markdown(results: Results, plots: Mapping[str, str]) -> str:
    """Return the page as Markdown. plots: by scenario, the path of its image relative to the page."""
    lines = ["# metaq beside Java metaq 1.4.6.2, Apache Kafka and RocketMQ", "", INTRODUCTION, ""]
    lines += [*(f"- {name}: {value}" for name, value in results.environment.items()), ""]
    lines += _bar_table(verdicts(results))
    for scenario in _ALL:
        if measured := results.scenarios.get(scenario.name):
            lines += _section(scenario, measured, plots.get(scenario.name))
    for special in SPECIALS.values():
        if measured := results.scenarios.get(special.name):
            lines += _figures(special, measured)
    return "\n".join(lines)


def _bar_table(judged: Sequence[Verdict]) -> list[str]:
    if not judged:
        return []
    reached = sum(each.met is True for each in judged)
    words = {True: "yes", False: "**missed**", None: "not comparable"}
    rows = [
        "## Bars",
        "",
        f"{reached} of {len(judged)} are reached.",
        "",
        "| scenario | who | bar | reached | |",
        "|---|---|---|---|---|",
    ]
    for each in judged:
        cells = (each.scenario, each.who, each.bar, each.reached, words[each.met])
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, ""]


def _section(scenario: Scenario, measured: Measured, plot: str | None) -> list[str]:
    rounds = max((len(runs) for runs in measured.runs.values()), default=0)
    measuring = f"{rounds} round{'s' * (rounds != 1)}, {measured.at}"
    heads = ["system", *_heads(scenario), "ours relative to it", "memory at rest", "at most"]
    lines = [
        f"## {scenario.title}",
        "",
        f"`{scenario.name}`: {scenario.about} {scenario.size:,} bytes a message, {measuring}.",
        "",
        f"| {' | '.join(heads)} |",
        f"|---|{'---:|' * (len(heads) - 1)}",
        *(f"| {' | '.join(_row(scenario, measured, label))} |" for label in measured.runs),
        "",
    ]
    lines += [f"{label} failed: {why}" + "\n" for label, why in measured.failures.items()]
    if plot:
        lines += [f"![{scenario.name}]({plot})", ""]
    return lines


def _heads(scenario: Scenario) -> list[str]:
    if scenario.has_latency:
        return [f"{figure.removesuffix('_ms')}, ms" for figure in scenario.figures]
    return ["messages/s", "lowest–highest"]


def _row(scenario: Scenario, measured: Measured, label: str) -> list[str]:
    figure = scenario.figures[0]
    middles = [measured.median(label, each) for each in scenario.figures]
    if scenario.has_latency:
        cells = ["–" if middle is None else f"{middle:,.2f}" for middle in middles]
    else:
        rates = [run[figure] for run in measured.runs[label]]
        cells = [f"{middles[0] or 0.0:,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}"]
    ours = next((each for each in scenario.of_our_brokers if each in measured.runs), None)
    ratio = measured.ratio(ours, label, figure) if ours is not None and ours != label else None
    memory = measured.memory.get(BROKER_OF[scenario.runs[label].system], {})
    held = [f"{memory[name]:,.0f}" if name in memory else "–" for name in ("rest_mb", "peak_mb")]
    return [label, *cells, "–" if ratio is None else f"{ratio:.2f} ×", *held]


def _figures(special: Special, measured: Measured) -> list[str]:
    return [
        f"## {special.title}",
        "",
        f"`{special.name}`: {special.about} Once, {measured.at}.",
        "",
        "| figure | |",
        "|---|---:|",
        *(f"| {name} | {_number(value)} |" for run in measured.runs[OURS] for name, value in run.items()),
        "",
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value.is_integer() else f"{value:.4g}"

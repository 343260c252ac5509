"""Runs the scenarios: every system warmed up first, then rounds in which the systems take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .scenarios import LATENCY, MESSAGE_BYTES, Scenario
from .systems import JAVA, MIXED, System

__all__ = ["Measured", "Plan", "measure_latency", "measure_rates"]

PROBE = 5_000
HIDDEN = 2_000
"""So many messages of a backlog are not consumed, since the Java broker hides what it has not flushed yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything takes. rounds: measured, of each scenario; seconds: of a measured send run; warm_up_seconds:
    of the unmeasured one before; backlog: messages that `consume` finds, more than HIDDEN.
    """

    rounds: int = 5
    seconds: float = 3.0
    warm_up_seconds: float = 6.0
    backlog: int = 400_000

    @property
    def consumed(self) -> int:
        return self.backlog - HIDDEN


Log = Callable[[str], None]


@dataclass(slots=True)
class Measured:
    """All runs of one scenario: system name -> the generators' answers, in order."""

    scenario: str
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, system: str, answer: dict[str, Any]) -> None:
        """Append one run."""
        self.runs.setdefault(system, []).append(answer)

    def median(self, system: str, figure: str = "rate") -> float | None:
        """The median of a figure over the rounds; None when the system was not measured."""
        runs = self.runs.get(system)
        return median(run[figure] for run in runs) if runs else None

    def ratio(self, system: str, to: str) -> float | None:
        """The median over the rounds of a system's rate relative to another's of the same round.

        Rounds are short and the two take turns in them, so a machine that is slow for a while slows both.
        """
        pairs = list(zip(self.runs.get(system, []), self.runs.get(to, []), strict=False))
        return median(ours["rate"] / theirs["rate"] for ours, theirs in pairs) if pairs else None


def measure_rates(scenarios: list[Scenario], systems: list[System], plan: Plan, log: Log) -> list[Measured]:
    """Measure every scenario; a run is sized from the warm-up to last about `plan.seconds`."""
    if any(scenario.name == "consume" for scenario in scenarios):
        fill_backlogs(systems, plan.backlog, log)
    return [_measure(scenario, systems, plan, log) for scenario in scenarios]


def fill_backlogs(systems: list[System], backlog: int, log: Log) -> None:
    """Send the messages that `consume` reads, once for each broker."""
    filled = set()
    for system in systems:
        if system.broker not in filled:
            log(f"filling the backlog of the {system.broker} broker with {backlog:,} messages")
            system.generator.call("send_async", "backlog", 256, backlog, MESSAGE_BYTES)
            filled.add(system.broker)


def _measure(scenario: Scenario, systems: list[System], plan: Plan, log: Log) -> Measured:
    able = [system for system in systems if scenario.java_command is None or system.name != MIXED]
    counts = {system.name: _warm_up(scenario, system, plan, log) for system in able}
    measured = Measured(scenario.name)
    for number in range(plan.rounds):
        for system in able if number % 2 == 0 else reversed(able):
            answer = _run(scenario, system, counts[system.name], f"round-{number}")
            measured.add(system.name, answer)
            log(f"{scenario.name} round {number + 1}: {system.name} {answer['rate']:,.0f}/s")
    return measured


def _warm_up(scenario: Scenario, system: System, plan: Plan, log: Log) -> int:
    """Run unmeasured, long enough for a JVM to compile its hot paths; return the size of a measured run."""
    if scenario.name == "consume":
        for again in range(2):
            _run(scenario, system, plan.consumed, f"warm-up-{again}")
        return plan.consumed
    rate = float(_run(scenario, system, PROBE, "probe")["rate"])
    rate = float(_run(scenario, system, _whole(rate * plan.warm_up_seconds), "warm-up")["rate"])
    log(f"{scenario.name} warm-up: {system.name} {rate:,.0f}/s")
    return _whole(rate * plan.seconds)


def _whole(count: float) -> int:
    """A number of messages that every batch size divides."""
    return max(1, round(count / 1000)) * 1000


def _run(scenario: Scenario, system: System, count: int, run: str) -> dict[str, Any]:
    group = f"{scenario.name}-{run}-{system.name}".replace(" ", "-").replace(",", "")
    command = scenario.java_command or scenario.command if system.name == JAVA else scenario.command
    return system.generator.call(*command.format(count=count, group=group, size=MESSAGE_BYTES).split())


def measure_latency(systems: list[System], rounds: int, log: Log) -> Measured:
    """Send-to-listener latency of every system, on topics of their own named latency-<system>-<round>."""
    measured = Measured("latency")
    for number in range(rounds):
        for position, system in enumerate(systems):
            topic = latency_topic(position, number)
            answer = system.generator.call(
                "latency", topic, topic, LATENCY.per_second, LATENCY.warm_up, LATENCY.count, MESSAGE_BYTES
            )
            measured.add(system.name, answer)
            figures = f"p50 {answer['p50_ms']:.2f} ms, p99 {answer['p99_ms']:.2f} ms"
            log(f"latency round {number + 1}: {system.name} {figures}")
    return measured


def latency_topic(system: int, round_number: int) -> str:
    """The topic of one latency run: new each time, so that the first message is the first of the run."""
    return f"latency_{system}_{round_number}"

"""Run scenarios: every system is warmed up first, then the systems take turns in each round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .measured import Measured
from .memory import reset_peak, resident_mb
from .names import JAVA, MIXED
from .processes import ProcessFailed
from .scenarios import (
    LATENCY_PER_SECOND,
    Run,
    Scenario,
    Stage,
    Topic,
    batch_command,
    pipelined_command,
)
from .systems import Running, System

__all__ = ["HIDDEN", "Comparison", "Plan", "stage_topics"]

PROBE = 2_000
TOUCH_WINDOW = 64
"""The most unanswered messages while each partition gets its first message. It is small, because creating a partition's
files takes longer than sending a message, and clients have deadlines.
"""
LEAST_CONSUMED = 100_000
"""The least number of messages of a run that consumes. A consumer may get tens of thousands at once, and the time is
measured from the first received messages on.
"""
HIDDEN = 2_000
"""Number of messages of a backlog that are not consumed, because the Java broker hides what it has not flushed yet."""
BACKLOG_BYTES = 1024
CALL_SECONDS = 300.0
"""Seconds after which a load generator that has not answered is killed, so that a hanging system does not stop the
comparison.
"""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Durations of all measurements.

    rounds: measured rounds of each scenario; seconds: length of a measured run; warm_up_seconds: length of the
    unmeasured run before it; backlog: number of messages to consume, more than HIDDEN; latency_seconds: length of a
    measured latency run. A third of latency_seconds is run before each latency run and not counted.
    """

    rounds: int = 5
    seconds: float = 1.5
    warm_up_seconds: float = 3.0
    backlog: int = 1_000_000
    latency_seconds: float = 3.0

    @property
    def consumed(self) -> int:
        """The most messages that one consumer reads."""
        return self.backlog - HIDDEN


def stage_topics(stage: Stage, scenarios: list[Scenario], plan: Plan) -> dict[str, Topic]:
    """Return the topics of a stage and of its latency runs. Each latency run has a new topic, so that the run's first
    message is also the topic's first message.
    """
    more = {
        _latency_topic(scenario, label, number): Topic()
        for scenario in scenarios
        if scenario.has_latency
        for label in scenario.runs
        for number in range(plan.rounds)
    }
    return {**stage.topics, **more}


class Comparison:
    """Runs scenarios, one after the other, on the running systems of one stage."""

    def __init__(
        self, stage: Stage, running: Running, plan: Plan, log: Log, settle: Callable[[], None] = os.sync
    ) -> None:
        """settle: called before each measured run. By default it syncs all written data to the disk, so that one
        system's run does not include the disk writes of another system.
        """
        self._stage = stage
        self._running = running
        self._plan = plan
        self._log = log
        self._settle = settle
        self._prepared: set[tuple[str, str]] = set()

    def measure(self, scenario: Scenario) -> Measured:
        """Run one scenario. A system that fails is left out from then on, and the reason is added to the result's
        failures.
        """
        measured = Measured(scenario.name)
        for broker in self._brokers(scenario):
            for pid in self._running.brokers[broker].pids:
                reset_peak(pid)
        sizes: dict[str, int] = {}
        for label, run in scenario.runs.items():
            if run.system in self._running.failures:
                measured.failures[label] = self._running.failures[run.system]
            elif run.system in self._running.systems:
                size = self._attempt(measured, label, partial(self._warm_up, scenario, run))
                if size is not None:
                    sizes[label] = size
        for number in range(self._plan.rounds):
            self._round(scenario, number, sizes, measured)
        for broker in self._brokers(scenario):
            there = self._running.brokers[broker]
            measured.memory[broker] = {
                "rest_mb": there.rest_mb,
                "peak_mb": max(resident_mb(pid)[1] for pid in there.pids),
            }
        measured.at = time.strftime("%Y-%m-%d %H:%M")
        return measured

    def _brokers(self, scenario: Scenario) -> list[str]:
        taking_part = (self._running.systems.get(run.system) for run in scenario.runs.values())
        return sorted({system.broker for system in taking_part if system is not None})

    def _round(self, scenario: Scenario, number: int, sizes: dict[str, int], measured: Measured) -> None:
        labels = list(sizes)
        for label in labels if number % 2 == 0 else reversed(labels):
            run, count = scenario.runs[label], sizes[label]
            self._settle()
            name = f"round-{number}"
            answer = self._attempt(measured, label, partial(self._run, scenario, run, label, count, name))
            if answer is None:
                del sizes[label]
                continue
            measured.add(label, answer)
            if "rate" in answer:
                sizes[label] = self._size(scenario, answer["rate"])
            figures = ", ".join(f"{name} {answer[name]:,.{0 if name == 'rate' else 2}f}" for name in scenario.figures)
            self._log(f"{scenario.name} round {number + 1}: {label}: {figures}")

    def _attempt(self, measured: Measured, label: str, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except ProcessFailed as failure:
            self._log(f"{measured.scenario}: {label} failed: {failure}")
            measured.failures[label] = str(failure).splitlines()[0]
            return None

    def _warm_up(self, scenario: Scenario, run: Run) -> int:
        """Run without measuring, long enough for a JVM to compile its hot paths. Return the number of messages for a
        measured run.
        """
        label = run.system
        if scenario.has_latency:
            return int(LATENCY_PER_SECOND * self._plan.latency_seconds)
        self._prepare(scenario, self._running.systems[run.system])
        rate = self._run(scenario, run, label, self._size(scenario, PROBE / self._plan.seconds), "probe")["rate"]
        count = self._size(scenario, rate * self._plan.warm_up_seconds / self._plan.seconds)
        rate = self._run(scenario, run, label, count, "warm-up")["rate"]
        self._log(f"{scenario.name} warm-up: {label} {rate:,.0f}/s")
        return self._size(scenario, rate)

    def _size(self, scenario: Scenario, rate: float) -> int:
        """Return the number of messages for a run at that rate. Unless the run consumes, it is a multiple of every
        batch size.
        """
        whole = max(1, round(rate * self._plan.seconds / 1000)) * 1000
        return min(max(whole, LEAST_CONSUMED), self._plan.consumed) if scenario.consumes else whole

    def _prepare(self, scenario: Scenario, system: System) -> None:
        """Before the first run on a broker, send it the messages that will be consumed, or one message to every
        partition.
        """
        topic = "backlog" if scenario.consumes else scenario.touches
        if topic is None or (topic, system.broker) in self._prepared:
            return
        if scenario.consumes:
            count = -(-self._plan.backlog // 1000) * 1000
            singly = system.name in (JAVA, MIXED)  # 1.x's client has no batches
            command = (pipelined_command if singly else batch_command)(topic)
        else:
            count, command = self._stage.topics[topic].partitions, pipelined_command(topic, TOUCH_WINDOW)
        self._log(f"{scenario.name}: {system.name} sends {count:,} messages to {topic} first")
        system.generator.call(*command.format(count=count, size=BACKLOG_BYTES).split(), seconds=CALL_SECONDS)
        self._prepared.add((topic, system.broker))

    def _run(self, scenario: Scenario, run: Run, label: str, count: int, name: str) -> dict[str, Any]:
        number = name.rpartition("-")[2]
        words = run.command.format(
            count=count,
            group=f"{scenario.name}-{name}-{label}".replace(" ", "-").replace(",", ""),
            topic=_latency_topic(scenario, label, int(number)) if scenario.has_latency else "",
            size=scenario.size,
            per_second=LATENCY_PER_SECOND,
            warm_up=count // 3,
        )
        return self._running.systems[run.system].generator.call(*words.split(), seconds=CALL_SECONDS)


def _latency_topic(scenario: Scenario, label: str, number: int) -> str:
    return f"latency_{list(scenario.runs).index(label)}_{number}"

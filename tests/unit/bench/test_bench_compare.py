"""How a scenario is run: what is sent first, how many messages a round has, who goes on when somebody fails."""

import os
from pathlib import Path

import pytest

from bench.compare import HIDDEN, Comparison, Plan, stage_topics
from bench.memory import STEP_BYTES, free_bytes, reset_peak, resident_mb, warm_memory
from bench.names import BROKER_OF, JAVA, MIXED, OURS
from bench.processes import ProcessFailed
from bench.scenarios import SCENARIOS, STAGES, Scenario, Stage
from bench.systems import Broker, Running, System


class Generator:
    """Answers every command with a rate, or percentiles, and keeps the commands; fails from command `fails` on."""

    def __init__(self, rate: float = 1000.0, fails: int | None = None):
        self.rate = rate
        self.fails = fails
        self.commands: list[str] = []

    def call(self, *words: object, seconds: float | None = None) -> dict[str, float]:
        assert seconds is not None  # who hangs must not stop the rest
        if len(self.commands) == self.fails:
            raise ProcessFailed("it is gone", Path("/nowhere.log"))
        self.commands.append(" ".join(map(str, words)))
        return (
            {"rate": self.rate}
            if words[0] != "latency"
            else {"p50_ms": 1.0, "p99_ms": 2.0, "p99.9_ms": 2.5, "max_ms": 3.0}
        )


def scenario(name: str) -> Scenario:
    return next(each for each in SCENARIOS if each.name == name)


def stage(name: str) -> Stage:
    return next(each for each in STAGES if each.name == scenario(name).stage)


def compare(name: str, plan: Plan, failures: dict[str, str] | None = None, **generators: Generator):
    """Measure a scenario with generators, by their short names, of brokers that are this process."""
    names = {"java": JAVA, "ours": OURS, "mixed": MIXED}
    systems = {names[key]: System(names[key], BROKER_OF[names[key]], generators[key]) for key in generators}  # type: ignore[arg-type]
    brokers = {system.broker: Broker("", (os.getpid(),), 12.0) for system in systems.values()}
    running = Running(systems, brokers, failures or {})
    comparison = Comparison(stage(name), running, plan, log=lambda line: None, settle=lambda: None)
    return comparison.measure(scenario(name))


def test_java_sends_singly_where_it_has_no_batches_and_our_broker_under_it_is_left_out():
    java, ours, mixed = Generator(), Generator(), Generator()
    measured = compare("batch", Plan(rounds=2, seconds=1.0), java=java, ours=ours, mixed=mixed)
    assert len(java.commands) == len(ours.commands) == 4  # probe, warm-up, two rounds
    assert all(command.startswith("send_async bench 256") for command in java.commands)
    assert all(command.startswith("send_batch bench 500") for command in ours.commands)
    assert mixed.commands == []
    assert {label: len(runs) for label, runs in measured.runs.items()} == {JAVA: 2, OURS: 2}


def test_a_run_is_as_long_as_planned_at_the_rate_of_the_one_before():
    ours = Generator(rate=20_400.0)
    compare("pipelined-128", Plan(rounds=1, seconds=2.0, warm_up_seconds=4.0), ours=ours)
    assert ours.commands == [f"send_async bench 256 {count} 128" for count in (2_000, 82_000, 41_000)]


def test_a_backlog_is_filled_once_for_each_broker_and_never_read_to_its_hidden_end():
    ours, mixed = Generator(rate=1e6), Generator(rate=1e6)
    compare("consume", Plan(rounds=1, backlog=9_500), ours=ours, mixed=mixed)
    filling = [command for command in (*ours.commands, *mixed.commands) if command.startswith("send")]
    assert filling == ["send_batch backlog 500 10000 1024"]
    assert ours.commands[-1] == f"consume backlog consume-round-0-ours {9_500 - HIDDEN} 120"
    assert len({*ours.commands, *mixed.commands}) == 1 + 3 + 3  # every run has a group of its own


def test_every_partition_gets_a_message_before_the_warm_up():
    ours = Generator()
    compare("batch-10240", Plan(rounds=1), ours=ours)
    assert ours.commands[0] == "send_async many 64 10240 1024"
    assert [command.split()[1] for command in ours.commands[1:]] == ["many"] * 2 + ["one"] * 2 + ["many", "one"]


def test_each_latency_run_has_a_topic_of_its_own_that_its_stage_creates():
    plan, ours, java = Plan(rounds=2, latency_seconds=0.3), Generator(), Generator()
    measured = compare("latency", plan, ours=ours, java=java)
    asked = [command.split() for command in (*ours.commands, *java.commands)]
    topics = [words[1] for words in asked]
    assert len({*topics}) == 4
    assert {*topics} <= stage_topics(stage("latency"), [scenario("latency")], plan).keys()
    assert asked[0][3:] == ["1000", "100", "300", "1024"]
    assert measured.median(OURS, "p99_ms") == 2.0


def test_who_fails_in_a_round_is_left_out_of_the_rest():
    java, ours = Generator(fails=3), Generator()
    measured = compare("pipelined", Plan(rounds=3), java=java, ours=ours)
    assert len(measured.runs[JAVA]) == 1
    assert len(measured.runs[OURS]) == 3
    assert measured.failures == {JAVA: "it is gone"}


def test_a_broker_that_does_not_start_is_a_failure_of_its_systems():
    measured = compare("pipelined", Plan(rounds=1), failures={JAVA: "no start"}, ours=Generator())
    assert measured.failures == {JAVA: "no start"}
    assert [*measured.runs] == [OURS]


def test_memory_of_each_taking_part_broker_is_kept():
    measured = compare("pipelined", Plan(rounds=1), ours=Generator(), mixed=Generator())
    assert [*measured.memory] == ["ours"]
    assert measured.memory["ours"]["rest_mb"] == 12.0
    assert measured.memory["ours"]["peak_mb"] > 1.0


def test_highest_memory_begins_anew():
    held = bytearray(64 << 20)
    now, peak = resident_mb(os.getpid())
    assert peak >= now >= 64
    del held
    reset_peak(os.getpid())
    assert resident_mb(os.getpid())[1] <= peak - 32


def test_memory_is_touched_in_whole_steps_and_given_back():
    shown: list[int] = []
    before = resident_mb(os.getpid())[0]
    assert warm_memory(STEP_BYTES + 1, shown.append) == STEP_BYTES
    assert shown == [STEP_BYTES]
    assert resident_mb(os.getpid())[0] < before + 64
    assert warm_memory(-1, shown.append) == 0
    assert free_bytes() > 0


@pytest.mark.parametrize("each", STAGES, ids=lambda each: each.name)
def test_every_stage_is_used(each: Stage):
    assert any(scenario.stage == each.name for scenario in SCENARIOS)

"""The benchmark with replicas: what takes part, what its nodes promise, and what is concluded from their logs."""

import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import chosen, main
from bench.catch_up import main as catch_up
from bench.failover import Round, _parts, _result, distribution
from bench.failover import main as failover
from bench.load import Gap, History
from bench.measured import Measured, Results
from bench.names import BASE_OF, BROKER_OF, CONFLUENT, JAVA, KAFKA, NODES_OF, OURS, OURS_SET_OF_ONE, two_replicas
from bench.peers import kafka_properties
from bench.report import markdown, missed
from bench.scenarios import REPLICA_SCENARIOS, SCENARIOS, STAGES, Topic
from bench.sets import logged_at
from bench.systems import PYTHON_CLIENTS, _flushed, _promised, _sections

OURS_TWO, KAFKA_TWO = two_replicas(OURS), two_replicas(KAFKA)


# --- what takes part ------------------------------------------------------------------------------------------------


def test_one_replica_is_what_it_always_was():
    assert chosen(["batch"], [JAVA, OURS], ["1"], node=False) == (
        [each for each in SCENARIOS if each.name == "batch"],
        [JAVA, OURS],
    )


@pytest.mark.parametrize(
    ("replicas", "node", "systems"),
    [
        (["2"], False, [OURS_TWO, KAFKA_TWO]),
        (["1"], True, [OURS_SET_OF_ONE, OURS, KAFKA]),
        (["1", "2"], False, [OURS_TWO, KAFKA_TWO, OURS, KAFKA]),
    ],
)
def test_systems_of_one_node_and_of_two_take_turns_in_one_scenario(replicas, node, systems):
    scenarios, taking_part = chosen(["batch"], [JAVA, OURS, KAFKA], replicas, node)
    assert taking_part == systems
    (scenario,) = scenarios
    assert scenario.name == "replicas-batch"
    assert {*systems} <= {run.system for run in scenario.runs.values()}


def test_every_scenario_with_replicas_is_that_without_with_bars_of_its_own_runs():
    assert len(REPLICA_SCENARIOS) > 10
    before = {scenario.name: scenario for scenario in SCENARIOS}
    stages = {stage.name for stage in STAGES}
    for name, scenario in REPLICA_SCENARIOS.items():
        assert scenario.stage in stages
        assert (scenario.size, scenario.figures) == (before[name].size, before[name].figures)
        assert scenario.runs[OURS_TWO].command == scenario.runs[OURS].command == before[name].runs[OURS].command
        for bar in scenario.bars:
            assert {bar.who, bar.of} - {None} <= {*scenario.runs}
    assert {*before}.isdisjoint(scenario.name for scenario in REPLICA_SCENARIOS.values())


MANY = [
    f"{kind}-{number}{flush}" for kind in ("partitions", "batch") for number in (1024, 10240) for flush in ("", "-sync")
]


@pytest.mark.parametrize("name", MANY)
def test_many_partitions_are_measured_beside_one_and_judged_by_batches(name):
    labels = REPLICA_SCENARIOS[name].runs
    assert labels["ours, one partition, 2 replicas"].command.split()[1] == "one"
    bars = ["ours, one partition, 2 replicas"] if name.startswith("batch") else []
    assert [bar.of for bar in REPLICA_SCENARIOS[name].bars] == bars


def test_latency_of_both_systems_is_measured_with_either_flush():
    for name in ("latency", "latency-sync"):
        scenario = REPLICA_SCENARIOS[name]
        assert {OURS_TWO, KAFKA_TWO, two_replicas(CONFLUENT)} <= {*scenario.runs}
        assert "p99.9_ms" in scenario.figures


def test_nodes_have_brokers_of_their_own_and_the_generators_of_their_systems():
    assert [BROKER_OF[name] for name in (OURS, OURS_SET_OF_ONE, OURS_TWO)] == ["ours", "ours-set", "ours-2"]
    assert {name: len(nodes) for name, nodes in NODES_OF.items()} == {"ours-2": 2, "ours-set": 1}
    assert BASE_OF[OURS_TWO] in PYTHON_CLIENTS


# --- what is started ------------------------------------------------------------------------------------------------


def test_every_node_of_ours_has_the_message_before_it_is_acknowledged():
    stage = next(each for each in STAGES if each.name == "one-sync")
    topics = {**stage.topics, "t": Topic(4)}
    promised = _promised(_sections(stage, topics), _flushed(stage, topics), 2)
    assert {name: (keys["ack"], keys["minInSync"]) for name, keys in promised.items()} == {
        "bench": ("disk", 2),
        "loose": ("in-sync", 2),
        "t": ("disk", 2),
    }


def test_kafkas_second_node_is_no_controller_and_every_topic_has_both():
    lines = kafka_properties(9001, 9002, Path("/data"), node=2, replicas=2).splitlines()
    assert {
        "process.roles=broker",
        "node.id=2",
        "controller.quorum.voters=1@127.0.0.1:9002",
        "listeners=PLAINTEXT://127.0.0.1:9001",
        "default.replication.factor=2",
        "min.insync.replicas=2",
    } <= {*lines}


# --- what is concluded ----------------------------------------------------------------------------------------------


def test_page_compares_with_two_nodes_of_ours_and_says_what_was_missed():
    runs = {OURS_TWO: [{"rate": 1200.0}], KAFKA_TWO: [{"rate": 1000.0}], OURS: [{"rate": 2400.0}]}
    results = Results({}, {"replicas-batch": Measured("replicas-batch", runs)})
    page = markdown(results, {})
    assert f"| {KAFKA_TWO} | 1,000 | 1,000–1,000 | 1.20 × | – | – |" in page
    assert "| ours | 2,400 | 2,400–2,400 | 0.50 × | – | – |" in page
    assert missed(results) == [f"replicas-batch: {OURS_TWO}: 1.20 × {KAFKA_TWO}, the bar is ≥ 1.3 × {KAFKA_TWO}"]


def test_a_set_of_one_is_what_others_are_compared_with_if_it_is_the_first_that_was_measured():
    runs = {OURS_SET_OF_ONE: [{"rate": 900.0}], OURS: [{"rate": 1000.0}]}
    page = markdown(Results({}, {"replicas-batch": Measured("replicas-batch", runs)}), {})
    assert "| ours | 1,000 | 1,000–1,000 | 0.90 × | – | – |" in page


def test_a_percentile_that_an_earlier_result_does_not_have_is_not_shown_as_zero():
    results = Results({}, {"latency": Measured("latency", {OURS: [{"p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0}]})})
    assert "| ours | 1.00 | 2.00 | – | 3.00 |" in markdown(results, {})


def history(**more: object) -> History:
    counts = {"200": 10, "201": 20, "300": 5}  # from 10 s on, buckets of 50 ms
    return History({"gaps": [[10.1, 14.9], [15.0, 15.2]], "counts": counts, "errors": [], **more})


def test_a_producers_history_has_rates_and_the_longest_gap_that_touches_a_time():
    assert history().acknowledged(10.0, 10.1) == 30
    assert history().rate(10.0, 10.1) == pytest.approx(300.0)
    assert history().acknowledged(10.1, 20.0) == 5
    assert history().longest_gap(14.0, 16.0) == Gap(10.1, 14.9)
    assert history().longest_gap(14.95, 16.0) == Gap(15.0, 15.2)
    assert history().longest_gap(16.0, 17.0).seconds == pytest.approx(0.01)
    assert history().gap_at(15.1) == Gap(15.0, 15.2)
    assert history().gap_at(15.3).seconds == pytest.approx(0.01)


def line(at: float, text: str) -> str:
    """As a node logs it at a monotonic time."""
    wall = datetime.fromtimestamp(at + time.time() - time.monotonic())
    return f"{wall:%Y-%m-%d %H:%M:%S},{wall.microsecond // 1000:03} INFO metaq.broker.sets.node: {text}"


def test_a_failovers_parts_come_from_the_successors_log():
    lines = [
        line(90.0, "stands for election after epoch 0"),
        line(100.5, "stands for election after epoch 1"),
        line(100.7, "leads epoch 2; in sync: b"),
        "Traceback (most recent call last):",
    ]
    parts = _parts(Gap(100.0, 101.0), 99.9, lines)
    assert parts == pytest.approx(
        {"gap": 1.0, "detection": 0.5, "election": 0.2, "first_acknowledgement": 0.3}, abs=0.01
    )
    assert _parts(Gap(100.6, 101.0), 99.9, lines)["detection"] == 0.0  # an acknowledgement came late
    assert _parts(Gap(100.8, 101.0), 99.9, lines) == pytest.approx({"gap": 0.2})  # nobody was elected in this gap
    assert _parts(Gap(100.6, 101.0), 100.6, lines) == pytest.approx({"gap": 0.4})  # nobody stood in this round
    assert logged_at(lines, "Traceback") is None


def test_a_round_has_the_longest_gap_that_around_its_election_and_the_logs_of_long_ones(capsys):
    logs = {"a": [line(15.0, "stopping")], "b": [line(15.05, "stands for election"), line(15.1, "leads epoch 2")]}
    done = [Round(10.0, 16.0, "b", 1.5)]
    found = _result("term", done, history(), logs, explain_above=250.0)
    assert found["around_election_ms"]["max"] == pytest.approx(200.0)
    assert (found["gap_ms"]["max"], found["load_average"]["max"]) == (pytest.approx(4800.0), 1.5)
    assert "round 1, load 1.5: gap 4800 ms" in capsys.readouterr().err
    _result("term", [Round(14.95, 16.0, "b", 1.5)], history(), logs, explain_above=150.0)
    told = capsys.readouterr().err.splitlines()
    assert [(each.split()[1], each.rpartition(": ")[2]) for each in told[1:]] == [
        ("a", "stopping"),
        ("b", "stands for election"),
        ("b", "leads epoch 2"),
    ]


def test_a_distribution_of_few_values_has_their_maximum_at_99_percent():
    assert distribution([0.3, 0.1, 0.2]) == pytest.approx({"p50": 200.0, "p99": 300.0, "max": 300.0})
    assert distribution([*[0.1] * 99, 5.0, *[0.1] * 99])["p99"] == pytest.approx(100.0)
    assert distribution([]) == {}


@pytest.mark.parametrize("command", [main, catch_up, failover])
def test_programs_say_what_they_take(command):
    said = CliRunner().invoke(command, ["--help"])
    assert said.exit_code == 0
    assert "--directory" in said.output

"""What the benchmark concludes from its figures."""

import configparser

import pytest

from bench.compare import Measured, Plan, measure_rates
from bench.report import markdown, results, unmet_bars
from bench.scenarios import SCENARIOS
from bench.server_ini import server_ini
from bench.systems import JAVA, MIXED, OURS, System


def measured(scenario: str, **rates: list[float]) -> Measured:
    """Runs with the given rates; systems by their short names."""
    names = {"java": JAVA, "ours": OURS, "mixed": MIXED}
    runs = {names[name]: [{"rate": rate} for rate in each] for name, each in rates.items()}
    return Measured(scenario, runs)


def latency(p50: float, p99: float) -> Measured:
    return Measured("latency", {OURS: [{"p50_ms": p50, "p99_ms": p99, "max_ms": 99.0}]})


def test_one_slow_round_does_not_move_the_median():
    assert measured("consume", ours=[900.0, 10.0, 1000.0]).median(OURS) == 900.0


def test_system_that_was_not_measured_has_no_median():
    assert measured("consume", ours=[1.0]).median(JAVA) is None


def test_ratio_is_taken_within_each_round():
    assert measured("consume", java=[100.0, 10.0, 50.0], ours=[150.0, 15.0, 100.0]).ratio(OURS, JAVA) == 1.5
    assert measured("consume", ours=[150.0]).ratio(OURS, JAVA) is None


@pytest.mark.parametrize(
    ("scenario", "ours", "missed"),
    [
        ("blocking-1", 60.0, False),
        ("blocking-1", 59.0, True),
        ("pipelined", 100.0, False),
        ("pipelined", 99.0, True),
        ("consume", 150.0, False),
        ("consume", 149.0, True),
        ("blocking-64", 1.0, False),  # has no bar of its own
    ],
)
def test_bar_is_the_least_ratio_to_java_that_passes(scenario: str, ours: float, missed: bool):
    assert bool(unmet_bars([measured(scenario, java=[100.0], ours=[ours])], None)) is missed


def test_batch_bar_is_four_times_javas_single_sends_of_the_same_rounds():
    assert unmet_bars([measured("batch", java=[100.0], ours=[400.0])], None) == []
    (line,) = unmet_bars([measured("batch", java=[100.0], ours=[399.0])], None)
    assert line.startswith("batch: ours reaches 3.99 of Java's rate")


class Generator:
    """Answers every command with a rate, and keeps the commands."""

    def __init__(self):
        self.commands = []

    def call(self, *words: str) -> dict[str, float]:
        self.commands.append(" ".join(words))
        return {"rate": 1000.0}


def test_java_has_its_own_command_where_it_cannot_do_the_same_and_our_broker_is_left_out_there():
    (batch,) = [scenario for scenario in SCENARIOS if scenario.name == "batch"]
    generators = {name: Generator() for name in (JAVA, OURS, MIXED)}
    systems = [System(name, "any", generator) for name, generator in generators.items()]  # type: ignore[arg-type]
    measure_rates([batch], systems, Plan(rounds=2, seconds=1.0), log=lambda line: None)
    assert len(generators[JAVA].commands) == len(generators[OURS].commands) == 4  # probe, warm-up, two rounds
    assert all(command.startswith("send_async bench 256") for command in generators[JAVA].commands)
    assert all(command.startswith("send_batch bench 500") for command in generators[OURS].commands)
    assert generators[MIXED].commands == []


def test_our_broker_under_the_java_client_has_its_own_bar():
    (line,) = unmet_bars([measured("blocking-64", java=[100.0], mixed=[89.0])], None)
    assert MIXED in line


def test_latency_bars_are_absolute():
    assert unmet_bars([], latency(p50=1.9, p99=9.9)) == []
    assert [line.split()[1] for line in unmet_bars([], latency(p50=2.0, p99=10.0))] == ["p50_ms", "p99_ms"]


def test_page_has_a_row_for_each_scenario_with_rate_and_ratio():
    rates = [measured(scenario.name, java=[1000.0], ours=[1500.0], mixed=[950.0]) for scenario in SCENARIOS]
    page = markdown(rates, latency(1.0, 2.0), rounds=3)
    for scenario in SCENARIOS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {scenario.title} |")]
        assert "1,500 (1.50×)" in row
        assert "950 (0.95×)" in row
    assert "| ours | 1.00 | 2.00 | 99.00 |" in page


def test_json_keeps_every_run():
    rates = [measured("consume", java=[1.0, 2.0])]
    assert results(rates, None)["runs"] == {"consume": {JAVA: [{"rate": 1.0}, {"rate": 2.0}]}}


def test_server_ini_has_one_section_a_topic_and_lets_the_caller_win():
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of server.ini are case-sensitive
    parser.read_string(server_ini(8123, "127.0.0.1:2181/a", {"t": 3}, {"unflushThreshold": 0, "brokerId": 7}))
    assert parser["topic=t"]["numPartitions"] == "3"
    assert parser["system"]["unflushThreshold"] == "0"
    assert parser["system"]["brokerId"] == "7"
    assert parser["zookeeper"]["zk.zkConnect"] == "127.0.0.1:2181/a"

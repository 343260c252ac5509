"""What the benchmark concludes from its figures, and how results of several sittings become one."""

import configparser
from pathlib import Path

import pytest

from bench.bars import MEMORY_PEAK_MB, MEMORY_REST_MB, Bar, judge, judge_memory
from bench.measured import Measured, OtherMachine, Results
from bench.names import CONFLUENT, JAVA, MIXED, OUR_BROKER, OURS
from bench.report import failed, markdown, missed
from bench.scenarios import SCENARIOS, STAGES
from bench.server_ini import server_ini
from bench.special import SPECIALS, figures

MACHINE = {"processor": "one", "kafka": "4.1.0"}


def measured(scenario: str, **rates: list[float]) -> Measured:
    """Runs with the given rates; systems by their short names."""
    names = {"java": JAVA, "ours": OURS, "mixed": MIXED, "confluent": CONFLUENT}
    runs = {names[name]: [{"rate": rate} for rate in each] for name, each in rates.items()}
    return Measured(scenario, runs)


def latency(p50: float, p99: float) -> Measured:
    return Measured("latency", {OURS: [{"p50_ms": p50, "p99_ms": p99, "max_ms": 99.0}]})


def results(*scenarios: Measured) -> Results:
    return Results(MACHINE, {each.scenario: each for each in scenarios})


# --- medians and ratios ---------------------------------------------------------------------------------------------


def test_one_slow_round_does_not_move_the_median_and_what_was_not_measured_has_none():
    slow = measured("consume", ours=[900.0, 10.0, 1000.0])
    assert (slow.median(OURS), slow.median(JAVA)) == (900.0, None)


def test_ratio_is_taken_within_each_round():
    assert measured("consume", java=[100.0, 10.0, 50.0], ours=[150.0, 15.0, 100.0]).ratio(OURS, JAVA) == 1.5
    assert measured("consume", ours=[150.0]).ratio(OURS, JAVA) is None


# --- bars -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "reaches", "misses"),
    [
        (Bar(OURS, least=0.9, of=JAVA), {"java": [100.0], "ours": [90.0]}, {"java": [100.0], "ours": [89.0]}),
        (Bar(OURS, least=53_000), {"ours": [53_000.0]}, {"ours": [52_999.0]}),
        (Bar(OURS, most=0.5, of=JAVA), {"java": [100.0], "ours": [50.0]}, {"java": [100.0], "ours": [51.0]}),
    ],
)
def test_a_bar_is_reached_by_the_figure_it_names(bar, reaches, misses):
    assert [each.met for each in judge(measured("consume", **reaches), (bar,))] == [True]
    assert [each.met for each in judge(measured("consume", **misses), (bar,))] == [False]


def test_a_bar_is_judged_by_the_median_of_the_rounds_ratios():
    bar = Bar(OURS, least=2.0, of=CONFLUENT)
    (verdict,) = judge(measured("batch", ours=[200.0, 20.0, 210.0], confluent=[100.0, 10.0, 300.0]), (bar,))
    assert verdict.met
    assert (verdict.bar, verdict.reached) == ("≥ 2 × confluent-kafka", "2.00 × confluent-kafka")


def test_latency_bars_name_their_percentile():
    bars = (Bar(OURS, most=1.0, figure="p50_ms"), Bar(OURS, most=4.0, figure="p99_ms"))
    verdicts = judge(latency(p50=1.0, p99=4.1), bars)
    assert [each.met for each in verdicts] == [True, False]
    assert [each.bar for each in verdicts] == ["p50 ≤ 1 ms", "p99 ≤ 4 ms"]


def test_a_bar_without_one_of_its_sides_is_not_judged_unless_that_side_failed():
    bar = Bar(OURS, least=2.0, of=JAVA)
    alone = measured("sync-256", ours=[100.0])
    assert judge(alone, (bar,)) == []
    alone.failures[JAVA] = "its broker does not start"
    (verdict,) = judge(alone, (bar,))
    assert verdict.met is None
    assert verdict.reached == "java failed"
    assert missed(results(alone)) == []
    ours_failed = measured("sync-256", java=[100.0])
    ours_failed.failures[OURS] = "no answer"
    assert [each.met for each in judge(ours_failed, (bar,))] == [False]


def test_a_figure_that_a_program_did_not_print_is_a_missed_bar():
    each = Measured("startup", {OURS: [{"other": 1.0}]})
    (verdict,) = judge(each, (Bar(OURS, most=5.0, figure="serving_seconds"),))
    assert not verdict.met
    assert (verdict.bar, verdict.reached) == ("serving_seconds ≤ 5 s", "no serving_seconds")


def test_memory_of_our_broker_stays_below_its_bars():
    each = Measured("batch", memory={OUR_BROKER: {"rest_mb": MEMORY_REST_MB - 1, "peak_mb": MEMORY_PEAK_MB}})
    assert [verdict.met for verdict in judge_memory(each, OUR_BROKER)] == [True, False]
    assert judge_memory(Measured("batch"), OUR_BROKER) == []


def test_every_bar_is_of_runs_of_its_scenario_and_every_scenario_has_a_stage():
    stages = {stage.name for stage in STAGES}
    for scenario in SCENARIOS:
        assert scenario.stage in stages
        for bar in scenario.bars:
            assert {bar.who, bar.of} - {None} <= {*scenario.runs}
            assert (bar.least is None) != (bar.most is None)
    assert len({scenario.name for scenario in SCENARIOS} | {*SPECIALS}) == len(SCENARIOS) + len(SPECIALS)


# --- the page -------------------------------------------------------------------------------------------------------


def test_page_has_a_section_for_each_scenario_with_medians_ratios_memory_and_plot():
    consume = measured("consume", java=[1000.0, 1000.0], ours=[1500.0, 1700.0], mixed=[950.0, 950.0])
    consume.memory = {"java": {"rest_mb": 80.0, "peak_mb": 310.0}, OUR_BROKER: {"rest_mb": 55.0, "peak_mb": 66.0}}
    consume.at = "2026-11-21 17:00"
    page = markdown(results(consume, latency(1.0, 2.0)), {"consume": "plots/consume.png"})
    assert "- kafka: 4.1.0" in page
    assert "| java | 1,000 | 1,000–1,000 | 1.60 × | 80 | 310 |" in page
    assert "| ours | 1,600 | 1,500–1,700 | – | 55 | 66 |" in page
    assert "2 rounds, 2026-11-21 17:00." in page
    assert "![consume](plots/consume.png)" in page
    assert "| ours | 1.00 | 2.00 | – | 99.00 | – | – | – |" in page


def test_page_begins_with_every_bar_and_says_what_was_missed_and_what_failed_on_lines_of_its_own():
    each = measured("consume", java=[100.0], mixed=[90.0])
    each.failures[CONFLUENT] = "no answer"
    assert missed(results(each)) == [f"consume: {MIXED}: 0.90 × java, the bar is ≥ 1.2 × java"]
    assert failed(results(each)) == ["consume: confluent-kafka: no answer"]
    page = markdown(results(each), {})
    assert "0 of 1 are reached." in page
    assert f"| consume | {MIXED} | ≥ 1.2 × java | 0.90 × java | **missed** |" in page
    assert "confluent-kafka failed: no answer" in page


def test_figures_of_a_special_scenario_are_the_numbers_its_program_prints():
    assert figures('{"a": 1, "b": {"c": 2.5, "d": "text"}, "e": true}') == {"a": 1.0, "b.c": 2.5}
    assert figures("\n") == {}


# --- several sittings -----------------------------------------------------------------------------------------------


def test_a_later_sitting_replaces_its_scenarios_and_keeps_the_others(tmp_path: Path):
    path = tmp_path / "results.json"
    first = measured("consume", ours=[1.0, 2.0])
    first.memory = {OUR_BROKER: {"rest_mb": 1.0, "peak_mb": 2.0}}
    results(first, measured("batch", ours=[3.0])).write(path)
    again = Results.read(path, MACHINE)
    again.put(measured("batch", ours=[4.0]))
    again.write(path)
    assert Results.read(path, MACHINE).scenarios == {"consume": first, "batch": measured("batch", ours=[4.0])}


def test_results_of_another_machine_or_version_are_not_mixed(tmp_path: Path):
    path = tmp_path / "results.json"
    results(measured("consume", ours=[1.0])).write(path)
    with pytest.raises(OtherMachine, match=r"kafka was '4\.1\.0' and is '4\.2\.0'"):
        Results.read(path, {**MACHINE, "kafka": "4.2.0"})
    assert Results.read(tmp_path / "none.json", MACHINE).scenarios == {}


def test_server_ini_has_one_section_a_topic_and_lets_the_caller_win():
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of server.ini are case-sensitive
    parser.read_string(server_ini(8123, "127.0.0.1:2181/a", {"t": 3}, {"unflushThreshold": 0, "brokerId": 7}))
    assert parser["topic=t"]["numPartitions"] == "3"
    assert parser["system"]["unflushThreshold"] == "0"
    assert parser["system"]["brokerId"] == "7"
    assert parser["zookeeper"]["zk.zkConnect"] == "127.0.0.1:2181/a"

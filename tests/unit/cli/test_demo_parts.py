"""The demo's parts: its input, its figures, its throttle, and that a wrong outcome fails."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from metaq.cli.demo.delivery import Delivery
from metaq.cli.demo.flights import CarrierDelay, delays_in, json_messages, mean_delays
from metaq.cli.demo.group import Rebalance, Throttle, history_of
from metaq.cli.demo.report import BySpark, DemoFigures, Report
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition

TABLE = pd.DataFrame(
    {
        "carrier": pd.array(["AA", "AA", "AA", "UA", "XX"], dtype="string"),
        "dep_delay": pd.array([1, 2, None, -3, None], dtype="Int64"),
    }
)
MEANS = {"AA": CarrierDelay(3, 1.5), "UA": CarrierDelay(1, -3.0), "XX": CarrierDelay(1, None)}

GOOD = DemoFigures(
    delivery=Delivery(10, 12, 2, 0, 0, 0, 0, []),
    rebalances=[Rebalance("c3 joins", 0.25, {"c1": ["0-0"], "c3": ["0-1"]})],
    send_rate=1000.0,
    receive_rate=500.0,
    lag={"0-0": 0, "0-1": 0},
    by_spark=BySpark(3.0, MEANS),
    by_pandas=MEANS,
    seconds=9.0,
)


def test_flights_are_numbered_and_missing_values_are_null():
    batches = list(json_messages(TABLE, 2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    rows = [json.loads(line) for batch in batches for line in batch]
    assert [row["sequence"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[2] == {"carrier": "AA", "dep_delay": None, "sequence": 2}


def test_means_are_of_the_flights_that_left():
    assert mean_delays(TABLE) == MEANS


def test_figures_in_messages_are_compared_by_carrier_and_nulls_may_be_left_out():
    messages = [
        b'{"carrier":"XX","flights":1}',
        b'{"carrier":"UA","flights":1,"mean_dep_delay":-3.0}',
        b'{"carrier":"AA","flights":3,"mean_dep_delay":1.5}',
        b'{"carrier":"AA","flights":3,"mean_dep_delay":1.5}',  # at least once
    ]
    assert delays_in(messages) == MEANS


def test_two_different_results_for_a_carrier_are_an_error():
    with pytest.raises(ValueError, match="AA has two results"):
        delays_in([b'{"carrier":"AA","flights":3}', b'{"carrier":"AA","flights":4}'])


def test_a_history_has_one_row_per_message():
    body = b'{"sequence":41}'
    (row,) = history_of([Message(TopicPartition("flights", 1, 3), 500, 7, 0, body)], time_ns=9)
    assert row.tolist() == (9, 41, 500, 1, 3)


def test_throttle_keeps_the_rate_and_does_not_save_up_idle_time():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        now[0] += seconds

    throttle = Throttle(100.0, clock=lambda: now[0], sleep=sleep)
    throttle.worked(50)
    throttle.worked(50)
    now[0] += 60.0
    throttle.worked(50)
    assert slept == [0.5, 0.5, 0.49]


def test_a_good_outcome_has_no_failures():
    assert GOOD.failures == []


@pytest.mark.parametrize(
    "changed",
    [
        {"delivery": Delivery(10, 9, 0, 0, 1, 0, 0, [3])},
        {"delivery": Delivery(10, 11, 0, 0, 0, 1, 0, [])},
        {"delivery": Delivery(10, 10, 0, 0, 0, 0, 1, [])},
        {"lag": {"0-0": 0, "0-1": 1}},
        {"lag": {"0-0": None}},
        {"by_spark": BySpark(3.0, {**MEANS, "AA": CarrierDelay(3, 1.6)})},
        {"by_spark": BySpark(3.0, {"AA": MEANS["AA"]})},
    ],
)
def test_anything_lost_left_or_different_is_a_failure(changed):
    assert replace(GOOD, **changed).failures


def printed(outcome, width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    report = Report(console)
    report.step("First")
    report.rebalance(outcome.rebalances[0], 2)
    report.carriers(outcome, {"AA": "American [Airlines]"})
    report.summary(outcome)
    return console.export_text()


def test_report_shows_every_figure_in_80_columns():
    shown = printed(GOOD)
    assert max(map(len, shown.splitlines())) <= 80
    for part in ("1  First", "c3 joins", "0.25 s", "American [Airlines]", "1.500000", "equal", "lost", "OK"):
        assert part in shown
    assert "FAILED" not in shown


def test_a_report_without_spark_does_not_say_that_its_figures_are_equal():
    shown = printed(replace(GOOD, by_spark=None))
    assert "left out" in shown
    assert "OK nothing lost" in shown
    assert "equal" not in shown


def test_report_of_a_failed_run_says_so():
    shown = printed(replace(GOOD, by_spark=BySpark(3.0, {"AA": CarrierDelay(4, 1.5)})))
    assert "FAILED" in shown
    assert "differs" in shown
    assert "missing" in shown
    assert "OK" not in shown

"""The Spark benchmarks' conclusions from what was measured."""

import pytest

from bench.measured import Measured
from bench.names import OURS
from bench.peers import peer_versions
from bench.spark_memory import grew, paragraph
from bench.spark_peer import PEER, SCENARIOS, markdown, missed


def measured(scenario: str, ours: list[float], peer: list[float]) -> Measured:
    return Measured(scenario, {OURS: [{"rate": each} for each in ours], PEER: [{"rate": each} for each in peer]})


def test_a_bar_is_missed_by_the_median_of_the_rounds_ratios():
    names = [each.name for each in SCENARIOS]
    assert names == ["spark-read-1", "spark-read-8", "spark-write"]
    found = missed(
        [
            measured("spark-read-1", [600.0, 100.0, 420.0], [300.0, 50.0, 200.0]),
            measured("spark-write", [150.0], [100.0]),
        ]
    )
    assert found == [f"spark-write: 1.50 of {PEER}'s rate, the bar is 2.0"]


def test_the_page_has_both_rates_the_ratio_and_the_versions(monkeypatch):
    monkeypatch.setattr("bench.spark_peer.environment", dict)  # asks the machine
    page = markdown([measured("spark-read-8", [700_000.0, 650_000.0], [350_000.0, 325_000.0])], 2)
    assert "| reading, eight partitions | 675,000 | 337,500 | 2.00× | ≥ 2.0× |" in page
    assert f"- {PEER} and its pyspark: {peer_versions(['spark'])['spark']}" in page


@pytest.mark.parametrize(
    ("samples", "growth"), [([], 1.0), ([5.0], 1.0), ([100.0, 120.0, 90.0, 120.0], 1.0), ([100.0, 80.0, 150.0], 1.5)]
)
def test_growth_compares_the_highest_values_of_both_halves(samples, growth):
    assert grew(samples) == growth


def test_the_page_tells_of_the_topic_larger_than_memory():
    second = {"rate": 640_000, "peak_mb": 1_512.4, "growth": 1.021}
    text = "\n".join(paragraph({"heap": "1g", "megabytes": 10_000, "first": {}, "second": second}))
    for figure in ("10,000 MB", "heap of 1g", "640,000 rows", "1,512 MB", "1.02 times"):
        assert figure in text

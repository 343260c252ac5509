"""The lag of a query: from Spark's progress and a broker's answers to messages, bytes and seconds."""

import json
import threading
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from metaq.client.questions.sources import Survey
from metaq.client.records.results import TopicPartition
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.protocol.errors import CoordinationUnavailable
from metaq.spark_connector.lag import LagListener, LagReport, PartitionLag, positions_of
from tests.waiting import DEADLINE

ZERO, ONE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
QUERY = UUID(int=7)


def test_positions_are_those_of_our_sources_only():
    kafka, rate = '{"events":{"0":23,"1":345}}', "17"
    ours = '{"t":{"0-0":40,"1-0":0}}'
    assert positions_of([kafka, ours, None, rate, "{]", '{"a":5}']) == {ZERO: 40, ONE: 0}


def test_totals_are_unknown_if_one_partition_is():
    counted, java = PartitionLag(ZERO, 0, 9, 9, 3, 2.0), PartitionLag(ONE, 0, 5, 5, None, None)
    report = LagReport("q", None, 1, (counted, counted._replace(seconds=4.0)))
    assert (report.bytes, report.messages, report.seconds) == (18, 6, 4.0)
    report = LagReport("q", None, 1, (counted, java))
    assert (report.bytes, report.messages, report.seconds) == (14, None, None)


@pytest.fixture
def reports(monkeypatch):
    """A listener whose cluster is set by hand, and what it reported."""
    seen: list[LagReport] = []
    came = threading.Semaphore(0)

    def take(report):
        seen.append(report)
        came.release()
        raise ValueError("a user's mistake ends nothing")

    listener = LagListener("h:1", take)
    view: Any = SimpleNamespace(brokers=lambda: {0: BrokerNodes(BrokerAddress(0, None, "h", 1))})
    connect: Any = lambda endpoint: endpoint  # noqa: E731
    asked = SimpleNamespace(view=view, survey=lambda: Survey(view, connect), close=lambda: None)
    monkeypatch.setattr(listener, "_cluster", asked)
    monkeypatch.setattr(
        "metaq.spark_connector.lag.partition_lag",
        lambda connection, partition, position, now: PartitionLag(partition, position, 50, 50 - position, 1, 1.0),
    )
    with listener:
        yield SimpleNamespace(listener=listener, seen=seen, came=came)


def progress(batch: int, *offsets: str) -> SimpleNamespace:
    sources = [SimpleNamespace(endOffset=each) for each in offsets]
    return SimpleNamespace(progress=SimpleNamespace(id=QUERY, name="n", batchId=batch, sources=sources))


def test_each_progress_is_reported_and_so_is_an_idle_query(reports):
    listener = reports.listener
    assert listener.report(str(QUERY)) is None
    listener.onQueryProgress(progress(3, json.dumps({"t": {"0-0": 20, "1-0": 5}})))
    assert reports.came.acquire(timeout=DEADLINE)
    (report,) = reports.seen
    assert (report.query_id, report.name, report.batch) == (str(QUERY), "n", 3)
    assert report.partitions == (PartitionLag(ZERO, 20, 50, 30, 1, 1.0),)
    assert "not registered" in report.failures[ONE]
    assert listener.report(SimpleNamespace(id=QUERY)) == report
    listener.onQueryIdle(SimpleNamespace(id=QUERY))
    assert reports.came.acquire(timeout=DEADLINE)


def test_what_is_no_query_of_ours_is_not_asked_for(reports):
    reports.listener.onQueryProgress(progress(1, "17"))
    reports.listener.onQueryIdle(SimpleNamespace(id=QUERY))
    reports.listener.onQueryProgress(progress(2, '{"t":{"0-0":0}}'))
    assert reports.came.acquire(timeout=DEADLINE)
    reports.listener.onQueryTerminated(SimpleNamespace(id=QUERY))
    assert [report.batch for report in reports.seen] == [2]


def test_a_cluster_that_does_not_answer_leaves_the_last_report(reports, caplog, monkeypatch):
    def brokers():
        reports.came.release()
        raise CoordinationUnavailable("gone")

    monkeypatch.setattr(reports.listener._cluster.view, "brokers", brokers)
    reports.listener.onQueryProgress(progress(1, '{"t":{"0-0":0}}'))
    assert reports.came.acquire(timeout=DEADLINE)
    reports.listener.close()
    assert reports.listener.report(str(QUERY)) is None
    assert "is not known: gone" in caplog.text

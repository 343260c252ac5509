"""A stream's reader when bytes are gone, partitions come and brokers go; the cluster's answers are set by hand."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.errors import BrokerUnavailable, RequestRefused
from metaq.spark_connector.offsets import DataLoss, Lost, PartitionState, followed, from_json, started_of, to_json
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.planning import FAILOVER_SECONDS
from metaq.spark_connector.stream import MetaqStreamReader
from tests.raising import raising

ZERO, ONE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
WHERE = Endpoint("host", 1)


def reader(held, monkeypatch, moves=(), **options):
    given = {"zookeeper": "h:1", "subscribe": "t"} | options
    made = MetaqStreamReader(ReadOptions.parse(given, "stream"))
    state = {each: PartitionState(each, WHERE, first, end) for each, (first, end) in held.items()}
    monkeypatch.setattr(
        made, "_look", lambda wanted, only=False: {e: h for e, h in state.items() if not only or e in wanted}
    )
    monkeypatch.setattr(made, "_open", lambda: None)
    monkeypatch.setattr(made, "_moves", lambda: moves)
    monkeypatch.setattr("metaq.spark_connector.stream.split", lambda _cluster, _options, ranges: ranges)
    monkeypatch.setattr("metaq.spark_connector.stream.for_tasks", lambda _cluster, _options, ranges: ranges)
    return made


def latest(made, offsets):
    return made.latestOffset(to_json(offsets), ReadAllAvailable())


def spans(made, start, end):
    return [(each.value.id, each.value.start, each.value.end) for each in made.partitions(start, end)]


def test_every_lost_range_is_named(monkeypatch):
    made = reader({ZERO: (500, 900), ONE: (70, 80)}, monkeypatch)
    with pytest.raises(
        DataLoss, match=r"2 ranges .*t 0-0: \[100, 500\); t 1-0: \[0, 70\).*failOnDataLoss=false"
    ) as refused:
        latest(made, {ZERO: 100})
    assert refused.value.lost == (Lost(ZERO, 100, 500), Lost(ONE, 0, 70))


def test_with_loss_accepted_the_ranges_are_logged_and_the_rest_is_read(monkeypatch, caplog):
    made = reader({ZERO: (500, 900)}, monkeypatch, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = latest(made, {ZERO: 100})
    assert "t 0-0: [100, 500)" in caplog.text
    assert end == to_json({ZERO: 900})
    assert spans(made, to_json({ZERO: 100}), end) == [(ZERO, 500, 900)]


def test_a_range_that_retention_took_between_planning_and_reading_is_named(monkeypatch):
    made = reader({ZERO: (500, 900)}, monkeypatch)
    with pytest.raises(DataLoss, match=r"t 0-0: \[100, 300\)"):
        made.partitions(to_json({ZERO: 100}), to_json({ZERO: 300}))


def test_a_topic_made_anew_is_data_loss_and_is_passed_over_if_accepted(monkeypatch):
    with pytest.raises(DataLoss, match=r"t 0-0: \[50, 100\)"):
        latest(reader({ZERO: (0, 50)}, monkeypatch), {ZERO: 100})
    made = reader({ZERO: (0, 50)}, monkeypatch, failOnDataLoss="false")
    assert latest(made, {ZERO: 100}) == to_json({ZERO: 50})
    assert spans(made, to_json({ZERO: 100}), to_json({ZERO: 50})) == []


MOVED = Move("t", 0, 0, 1, 1, 1, MoveState.DONE, 0, (60,))


def test_a_partition_that_has_moved_is_read_on_where_it_was(monkeypatch):
    made = reader({ONE: (0, 80)}, monkeypatch, [MOVED])
    start = to_json({ZERO: 50})
    end = latest(made, {ZERO: 50})
    assert end == to_json({ONE: 80})
    assert spans(made, start, end) == [(ONE, 50, 80)]
    # a batch that was planned before it moved
    assert spans(made, start, to_json({ZERO: 60})) == [(ONE, 50, 60)]


def test_a_partition_that_moves_while_a_batch_is_planned_is_not_read_twice(monkeypatch):
    made = reader({ZERO: (0, 60), ONE: (0, 80)}, monkeypatch)
    known = iter([[], [MOVED]])
    monkeypatch.setattr(made, "_moves", lambda: next(known))
    assert latest(made, {ZERO: 50}) == to_json({ONE: 80})


def test_a_position_follows_partitions_over_several_moves():
    onwards = Move("t", 1, 0, 1, 2, 1, MoveState.DONE, 5, (60,))
    back = Move("t", 2, 5, 1, 0, 1, MoveState.DONE, 0, (60,))
    assert followed({ZERO: 50}, [MOVED, onwards]) == {TopicPartition("t", 2, 5): 50}
    assert followed({ONE: 50}, [onwards, back]) == {ZERO: 50}
    assert followed({ZERO: 50}, [replace(MOVED, state=MoveState.HANDING_OVER)]) == {ZERO: 50}
    assert followed({ZERO: 50, ONE: 70}, [MOVED]) == {ONE: 70}


def test_a_new_partition_is_read_from_its_begin(monkeypatch):
    made = reader({ZERO: (0, 50), ONE: (0, 30)}, monkeypatch)
    start = to_json({ZERO: 50})
    end = latest(made, {ZERO: 50})
    assert spans(made, start, end) == [(ONE, 0, 30)]


def test_a_partition_without_a_broker_stays_where_it_is(monkeypatch):
    made = reader({ZERO: (0, 50)}, monkeypatch)
    assert latest(made, {ZERO: 20, ONE: 10}) == to_json({ZERO: 50, ONE: 10})


def going_away(monkeypatch, made, name, times):
    """The broker that this question is asked has gone, so many times; and a clock that sleeping moves."""
    now, failures, ask = [0.0], [0], getattr(made, name)

    def sleep(seconds):
        now[0] += seconds

    def asked(*given, **options):
        if failures[0] < times:
            failures[0] += 1
            raise BrokerUnavailable("host:1 closed the connection")
        return ask(*given, **options)

    monkeypatch.setattr("metaq.spark_connector.planning.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(made, name, asked)
    return now


def test_a_broker_that_goes_while_a_micro_batch_is_limited_does_not_end_the_query(monkeypatch):
    made = reader({ZERO: (0, 50)}, monkeypatch, maxOffsetsPerTrigger="10")
    monkeypatch.setattr(made, "_count", lambda held, partition, span: 5)
    now = going_away(monkeypatch, made, "_count", 3)
    assert made.latestOffset(to_json({ZERO: 0}), made.getDefaultReadLimit()) == to_json({ZERO: 50})
    assert 0 < now[0] < 3


def test_a_broker_that_goes_while_ranges_are_planned_is_waited_for_as_tasks_do(monkeypatch):
    made = reader({ZERO: (0, 50)}, monkeypatch)
    going_away(monkeypatch, made, "_look", 20)
    assert spans(made, to_json({ZERO: 0}), to_json({ZERO: 50})) == [(ZERO, 0, 50)]
    now = going_away(monkeypatch, made, "_look", 1000)
    with pytest.raises(BrokerUnavailable):
        made.partitions(to_json({ZERO: 0}), to_json({ZERO: 50}))
    assert FAILOVER_SECONDS - 1 < now[0] <= FAILOVER_SECONDS


STARTED_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({"startingOffsets": "latest"}, 40),  # nothing that was there before the query
        ({"startingOffsets": "earliest"}, 10),
        ({"startingOffsets": "committed", "group": "g"}, 25),
        ({"startingTimestamp": str(STARTED_MS - 5000)}, 20),
        ({"startingOffsets": '{"t": {"0-0": 3}}'}, 40),
        ({"startingOffsets": '{"t": {"0-0": 3, "1-0": 15}}'}, 15),
    ],
)
def test_a_partition_whose_broker_was_down_at_the_start_begins_where_the_start_says(monkeypatch, options, begin):
    made = reader({ZERO: (0, 50), ONE: (10, 60)}, monkeypatch, **options)
    at_time = {STARTED_MS: 40, STARTED_MS - 5000: 20}
    cluster = SimpleNamespace(
        ask_at=lambda endpoint, question: at_time[question.keywords["time_ms"]],
        committed_many=lambda group, partitions: [SimpleNamespace(offset=25)],
        commit=lambda group, offsets: None,
    )
    monkeypatch.setattr(made, "_open", lambda: cluster)
    start = to_json({ZERO: 50}, STARTED_MS)
    joined = made.latestOffset(start, ReadAllAvailable())
    assert joined == to_json({ZERO: 50, ONE: begin}, STARTED_MS)
    assert spans(made, start, joined) == []
    end = made.latestOffset(joined, ReadAllAvailable())
    assert end == to_json({ZERO: 50, ONE: 60}, STARTED_MS)
    assert spans(made, joined, end) == [(ONE, begin, 60)]


def test_a_new_partition_of_a_java_broker_is_read_from_its_begin(monkeypatch, caplog):
    made = reader({ZERO: (0, 50), ONE: (10, 60)}, monkeypatch, startingOffsets="latest")
    refused = raising(RequestRefused(1, "it has no index by time"))
    monkeypatch.setattr(made, "_open", lambda: SimpleNamespace(ask_at=refused))
    joined = made.latestOffset(to_json({ZERO: 50}, STARTED_MS), ReadAllAvailable())
    assert joined == to_json({ZERO: 50, ONE: 10}, STARTED_MS)
    assert "t 1-0 came after the query's start" in caplog.text


def test_a_query_notes_when_it_began(monkeypatch):
    made = reader({ZERO: (0, 50)}, monkeypatch, startingOffsets="latest")
    monkeypatch.setattr("metaq.spark_connector.stream.through_failover", lambda cluster, work: work())
    monkeypatch.setattr("metaq.spark_connector.stream.select", lambda *_: ([ZERO], []))
    monkeypatch.setattr("metaq.spark_connector.stream.look", lambda *_: [PartitionState(ZERO, WHERE, 0, 50)])
    monkeypatch.setattr("metaq.spark_connector.stream.now_ms", lambda: STARTED_MS)
    position = made.initialOffset()
    assert (started_of(position), from_json(position)) == (STARTED_MS, {ZERO: 50})
    assert started_of(to_json({ZERO: 50})) is None


def test_a_group_that_another_query_has_moved_on_is_not_set_back_in_silence(monkeypatch, caplog):
    made = reader({ZERO: (0, 50)}, monkeypatch, group="g")
    stored: dict[TopicPartition, int] = {}
    cluster = SimpleNamespace(
        committed_many=lambda group, partitions: [
            SimpleNamespace(offset=stored[each]) if each in stored else None for each in partitions
        ],
        commit=lambda group, offsets: stored.update(offsets),
    )
    monkeypatch.setattr(made, "_open", lambda: cluster)
    made.commit(to_json({ZERO: 20}))
    made.commit(to_json({ZERO: 30}))
    assert caplog.text == ""
    stored[ZERO] = 45
    made.commit(to_json({ZERO: 40}))
    assert "group g stood at byte 45 of t 0-0" in caplog.text
    assert stored == {ZERO: 40}

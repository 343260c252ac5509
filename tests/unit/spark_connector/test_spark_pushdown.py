"""What filters mean for fetching: never less than the rows that pass."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from metaq.client.records.results import TopicPartition
from metaq.spark_connector.pushdown import Pushed, push

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def test_places_are_the_intersection_of_all_filters():
    pushed = push([EqualTo(("broker",), 1), In(("partition",), (0, 3)), In(("partition",), (3, 4))])
    assert pushed.wants(TopicPartition("t", 1, 3))
    assert not pushed.wants(TopicPartition("t", 1, 0))
    assert not pushed.wants(TopicPartition("t", 0, 3))


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (GreaterThan(("timestamp",), NOON), (NOON_MS, None)),
        (GreaterThanOrEqual(("timestamp",), NOON + timedelta(microseconds=500)), (NOON_MS, None)),
        (LessThan(("timestamp",), NOON + timedelta(microseconds=500)), (None, NOON_MS + 1)),
        (LessThanOrEqual(("timestamp",), NOON), (None, NOON_MS + 1)),
        (EqualTo(("timestamp",), NOON), (NOON_MS, NOON_MS + 1)),
    ],
)
def test_times_keep_their_own_millisecond(each, expected):
    pushed = push([each])
    assert (pushed.min_time_ms, pushed.max_time_ms) == expected


def test_tags_are_sent_unless_a_pull_cannot_name_them():
    assert push([In(("tag",), ("sell", "buy"))]).sent_tags == ("buy", "sell")
    assert push([EqualTo(("tag",), "a||b")]).sent_tags == ()
    assert push([EqualTo(("tag",), "")]).sent_tags == ()
    assert push([In(("tag",), tuple(map(str, range(101))))]).sent_tags == ()
    assert push([EqualTo(("tag",), "a"), EqualTo(("tag",), "b")]).nothing


@pytest.mark.parametrize(
    "each",
    [
        *(Not(EqualTo(("tag",), "a")), IsNotNull(("tag",)), EqualTo(("tag",), None), EqualTo(("value",), b"x")),
        *(EqualTo(("headers", "key"), "x"), EqualTo(("partition",), True)),
        EqualTo(("timestamp",), datetime(2024, 5, 1)),  # without a zone
    ],
)
def test_other_filters_are_left_to_spark(each):
    assert push([each]) == Pushed()


COMPARISONS = {
    EqualTo: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}


@given(st.lists(st.tuples(st.sampled_from(list(COMPARISONS)), st.integers(0, 50))), st.integers(0, 50))
def test_offsets_that_pass_are_exactly_the_interval(filters, offset):
    pushed = push([kind(("offset",), value) for kind, value in filters])
    inside = (pushed.min_offset is None or offset >= pushed.min_offset) and (
        pushed.max_offset is None or offset < pushed.max_offset
    )
    assert inside == all(COMPARISONS[kind](offset, value) for kind, value in filters)

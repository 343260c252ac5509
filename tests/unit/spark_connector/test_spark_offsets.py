"""Planning: from options and the state of the partitions to the ranges that tasks read."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.protocol.errors import ConfigError, OffsetOutOfRange
from metaq.spark_connector.offsets import OffsetRange, PartitionState, cut, from_json, parts_of, plan_ranges, to_json
from metaq.spark_connector.options import At, Explicit, ReadOptions, Times


def state(partition=0, *, first=0, end=1000, committed=None, topic="trades", broker=0):
    return PartitionState(TopicPartition(topic, broker, partition), Endpoint("host", 8123), first, end, committed)


def options(**changes):
    return ReadOptions(zookeeper="h:1", topics=("trades",), **changes)


def spans(ranges):
    return [(str(each.id), each.start, each.end) for each in ranges]


def offset(number):
    return Explicit({"trades": {"0-0": number}})


COMMITTED = {"starting": "committed", "group": "g"}
LOSSY = {**COMMITTED, "fail_on_data_loss": False}


@pytest.mark.parametrize(
    ("given_options", "states", "planned"),
    [
        pytest.param(
            {},
            [state(2, first=50), state(0), state(10)],
            [("0-0", 0, 1000), ("0-2", 50, 1000), ("0-10", 0, 1000)],
            id="everything there is, in order of partitions",
        ),
        pytest.param({}, [state(end=0), state(1, first=70, end=70)], [], id="an empty range needs no task"),
        pytest.param(
            COMMITTED,
            [state(0, committed=400), state(1, first=10)],
            [("0-0", 400, 1000), ("0-1", 10, 1000)],
            id="the group's offset, and the begin where there is none",
        ),
        pytest.param(
            {"starting": offset(100), "ending": offset(300)}, [state()], [("0-0", 100, 300)], id="explicit offsets"
        ),
        pytest.param(
            {"starting": offset(-2), "ending": offset(-1)}, [state(first=7)], [("0-0", 7, 1000)], id="earliest, latest"
        ),
        pytest.param(LOSSY, [state(first=50, committed=3)], [("0-0", 50, 1000)], id="data loss is accepted"),
        pytest.param(LOSSY, [state(first=50, committed=2000)], [], id="data loss up to the end is accepted"),
    ],
)
def test_ranges_are_those_of_the_options(given_options, states, planned):
    assert spans(plan_ranges(options(**given_options), states)) == planned


@pytest.mark.parametrize("wanted", [49, 1001])
def test_offset_outside_the_readable_bytes_is_data_loss(wanted):
    where = state(first=50, committed=wanted)
    with pytest.raises(OffsetOutOfRange, match=rf"trades 0-0: offset {wanted} .*\[50, 1000\].*failOnDataLoss=false"):
        plan_ranges(options(starting="committed", group="g"), [where])


@pytest.mark.parametrize(
    ("given_offsets", "said"),
    [
        ({"trades": {"0-0": 0}}, "1 missing (trades 0-1)"),
        ({"trades": {"0-0": 0, "0-1": 0, "0-7": 0}}, "1 unknown (trades 0-7)"),
        ({"other": {"0-0": 0}}, "2 missing"),
    ],
)
def test_explicit_offsets_must_name_every_partition(given_offsets, said):
    with pytest.raises(ConfigError) as refused:
        plan_ranges(options(starting=Explicit(given_offsets)), [state(0), state(1)])
    assert said in str(refused.value)
    assert refused.value.option == "startingOffsets"


@pytest.mark.parametrize("names", [{"0-0": 5}, {"0-0": 5, "1-0": 7}])
def test_explicit_offsets_may_name_a_partition_whose_broker_is_away(names):
    query = options(starting=Explicit({"trades": names}), fail_on_data_loss=False)
    assert spans(plan_ranges(query, [state()], [TopicPartition("trades", 1, 0)])) == [("0-0", 5, 1000)]
    with pytest.raises(ConfigError, match=r"1 unknown \(trades 1-7\)"):
        plan_ranges(options(starting=Explicit({"trades": {"0-0": 5, "1-7": 7}})), [state()], [])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 99), st.integers(0, 99), st.integers(-5, 200)),
        unique_by=lambda row: row[:2],
    )
)
def test_every_range_is_readable_and_each_partition_has_at_most_one(rows):
    states = [
        state(partition, broker=broker, first=first, end=first + size, committed=committed)
        for broker, partition, first, size, committed in rows
    ]
    found = plan_ranges(options(starting="committed", group="g", fail_on_data_loss=False), states)
    bounds = {each.id: each for each in states}
    assert len({each.id for each in found}) == len(found)
    assert all(bounds[each.id].first <= each.start < each.end <= bounds[each.id].end for each in found)


@pytest.mark.parametrize(("sizes", "wanted", "parts"), [([100, 100], 4, [2, 2]), ([300, 10], 4, [4, 1]), ([5], 1, [1])])
def test_ranges_are_split_in_proportion_to_their_bytes(sizes, wanted, parts):
    ranges = [OffsetRange(TopicPartition("t", 0, 0), Endpoint("h", 1), 50, 50 + size) for size in sizes]
    assert parts_of(ranges, wanted) == parts


@given(st.lists(st.integers(0, 40)))
def test_the_parts_of_a_range_are_the_range(boundaries):
    parts = cut(OffsetRange(TopicPartition("t", 0, 0), Endpoint("h", 1), 10, 30), boundaries)
    assert (parts[0].start, parts[-1].end) == (10, 30)
    assert all(one.end == other.start and one.start < one.end for one, other in pairwise(parts))


def test_times_give_the_range_and_a_time_without_message_is_refused_or_the_end():
    at = options(starting=At(5), starting_option="startingTimestamp", ending=Times({"trades": {"0-0": 9}}))
    assert spans(plan_ranges(at, [replace(state(), starting_time=40, ending_time=90)])) == [("0-0", 40, 90)]
    unmatched = replace(state(), starting_time=1000, ending_time=1000)
    with pytest.raises(ConfigError, match=r"startingTimestamp=5: .*startingOffsetsByTimestampStrategy=latest"):
        plan_ranges(at, [unmatched])
    assert plan_ranges(replace(at, unmatched_time="latest"), [unmatched]) == []


def test_a_streams_position_is_json_by_topic_and_partition():
    offsets = {TopicPartition("b", 0, 10): 5, TopicPartition("a", 1, 0): 7, TopicPartition("b", 0, 2): 6}
    assert to_json(offsets) == {"a": {"1-0": 7}, "b": {"0-2": 6, "0-10": 5}}
    assert from_json(to_json(offsets)) == offsets


def test_every_lost_offset_is_named():
    wanted = Explicit({"trades": {"0-0": 10, "0-1": 60, "0-2": 2000}})
    states = [state(0, first=50), state(1, first=50), state(2)]
    with pytest.raises(OffsetOutOfRange) as caught:
        plan_ranges(options(starting=wanted), states)
    said = str(caught.value)
    assert "trades 0-0: offset 10 is outside the readable bytes [50, 1000]; trades 0-2: offset 2000" in said
    assert "0-1" not in said


def ends(start, end, **more):
    """Options for a range between two of: offsets of 0-0, times of 0-0, one time."""
    names = {Explicit: "Offsets", Times: "OffsetsByTimestamp", At: "Timestamp"}
    named = {"starting_option": f"starting{names[type(start)]}", "ending_option": f"ending{names[type(end)]}"}
    return options(starting=start, ending=end, **named, **more)


def time(number):
    return Times({"trades": {"0-0": number}})


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (offset(300), offset(100), 'endingOffsets={"trades":{"0-0":100}}: ends before startingOffsets starts: '),
        (offset(300), At(6), "endingTimestamp=6: ends before startingOffsets starts: trades 0-0 from 300 to 200"),
        (At(7), At(6), "endingTimestamp=6: ends before startingTimestamp starts: trades 0-0 from 7 to 6: choose"),
        (time(7), At(6), "endingTimestamp=6: ends before startingOffsetsByTimestamp starts: trades 0-0 from 7 to 6"),
        (At(7), time(6), "ends before startingTimestamp starts: trades 0-0 from 7 to 6"),
        (time(7), offset(100), "ends before startingOffsetsByTimestamp starts: trades 0-0 from 250 to 100"),
    ],
)
@pytest.mark.parametrize("lossy", [False, True])
def test_a_range_that_ends_before_it_starts_is_refused_with_both_ends(start, end, said, lossy):
    """Spark's source for Kafka fails, too. No rows, without a word, would look like an empty topic."""
    chosen = ends(start, end, fail_on_data_loss=not lossy, unmatched_time="latest")
    held = replace(state(), starting_time=250, ending_time=200)
    with pytest.raises(ConfigError) as refused:
        plan_ranges(chosen, [held])
    assert said in str(refused.value)
    assert "trades 0-0 from " in str(refused.value)


def test_a_range_without_messages_is_empty_where_its_ends_are_in_order():
    held = replace(state(), starting_time=1000, ending_time=1000, committed=700)
    assert plan_ranges(ends(offset(300), offset(300)), [held]) == []
    assert plan_ranges(ends(At(7), At(7), unmatched_time="latest"), [held]) == []
    assert plan_ranges(ends(offset(2000), offset(-1), fail_on_data_loss=False), [held]) == []
    assert plan_ranges(options(starting="committed", group="g", ending=offset(300)), [held]) == []  # all of it is read


def test_messages_that_come_while_times_are_asked_for_are_no_data_loss():
    """The end was asked for before: the time led to the end of a moment later."""
    held = replace(state(), starting_time=40, ending_time=1300)
    assert spans(plan_ranges(ends(At(5), At(9)), [held])) == [("0-0", 40, 1000)]
    later = ends(At(5), At(9), unmatched_time="latest")
    assert plan_ranges(later, [replace(held, starting_time=1300)]) == []

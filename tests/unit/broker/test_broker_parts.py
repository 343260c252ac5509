"""Message ids, counters, schedules, timers, partitions."""

import random
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from metaq.broker.partitions.counters import RESET_SECONDS, Metrics, format_number
from metaq.broker.partitions.message_ids import MessageIds
from metaq.broker.runtime.schedule import Schedule, parse_schedule
from metaq.broker.runtime.scheduled_calls import ScheduledCalls, repeat
from metaq.protocol.errors import ConfigError, PartitionClosed, StoreError, TopicNotAccepted, WrongPartition
from metaq.protocol.message_id import message_ids_from, store_time_ms
from tests.unit.broker.harness import Harness

# --- message ids ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-5000, 5000), st.integers(1, 9000)), min_size=1, max_size=30), st.integers(0, 1023)
)
def test_ids_only_grow_whatever_the_clock_does(steps, broker_id):
    time = 1_700_000_000.0
    ids = MessageIds(broker_id, lambda: time)
    last = 0
    for step_ms, count in steps:
        time += step_ms / 1000
        batch = message_ids_from(ids.next(count), count).tolist()
        assert batch == sorted(set(batch))
        assert batch[0] > last
        last = batch[-1]


def test_an_id_carries_the_wall_clock():
    assert store_time_ms(MessageIds(5, lambda: 1_700_000_000.123).next()) == 1_700_000_000_123


@pytest.mark.parametrize("broker_id", [-1, 1024])
def test_a_broker_id_that_does_not_fit_is_refused(broker_id):
    with pytest.raises(ValueError, match="1023"):
        MessageIds(broker_id)


# --- counters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (25 / 45, "0.56"), (5.578, "5.58"), (0.2, "0.2"), (100.0, "100"), (0.001, "0")]
)
def test_numbers_look_as_java_writes_them(value, text):
    assert format_number(value) == text


def test_counters_follow_the_recorded_forms():
    clock = Clock()
    metrics = Metrics(lambda topic: topic != "quiet", clock.seconds)
    assert metrics.realtime("put") == "null"
    metrics.put("t", 2, 10)
    metrics.put("quiet", 5, 10)
    assert metrics.realtime("put") == "Count=2,Value=2,Value/Count=1,Count/Duration=invalid,Duration=0"
    assert metrics.realtime("put", "other") == "Invalid keyTwo:other"
    clock.advance(4)
    assert metrics.realtime("message_size", "t") == "Count=2,Value=10,Value/Count=5,Count/Duration=0.5,Duration=4"
    assert metrics.cmd_put == 7
    metrics.reset()
    assert metrics.realtime("put", "t") == "Count=0,Value=0,Value/Count=invalid,Count/Duration=invalid,Duration=0"


def test_realtime_counters_start_again_every_half_hour_and_totals_do_not():
    clock = Clock()
    metrics = Metrics(lambda topic: True, clock.seconds)
    metrics.get("t")
    clock.advance(RESET_SECONDS)
    metrics.get("t")
    assert metrics.realtime("get").startswith("Count=1,")
    assert metrics.cmd_get == 2


# --- schedules --------------------------------------------------------------------------------------------------------

START = datetime(2024, 6, 5, 12, 0, 0)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("0 0 6,18 * * ?", datetime(2024, 6, 5, 18)),
        ("0/5 * * * * ?", datetime(2024, 6, 5, 12, 0, 5)),
        ("30 15 10 ? * *", datetime(2024, 6, 6, 10, 15, 30)),
        ("0 0 12 ? * 1", datetime(2024, 6, 9, 12)),
        ("0 0 12 ? * 2-6", datetime(2024, 6, 6, 12)),
        ("0 0 12 ? * MON-FRI", datetime(2024, 6, 6, 12)),
        ("0 0 12 ? * 6#3", datetime(2024, 6, 21, 12)),
        ("0 0 12 ? * 6L", datetime(2024, 6, 28, 12)),
        ("0 0 0 L * ?", datetime(2024, 6, 30)),
        ("0 0 0 1 1 ? *", datetime(2025, 1, 1)),
        ("0 0 0 1 1 ? 2030", datetime(2030, 1, 1)),
        ("0 0 13 ? * * 2024", datetime(2024, 6, 5, 13)),
        ("0 0 0 1 1 ? 2024-2040/5", datetime(2029, 1, 1)),
        ("0 0 0 29 2 ? 2025,2028,2032", datetime(2028, 2, 29)),
        ("0 0 0 1 1 ? 2024", None),
    ],
)
def test_quartz_expressions_come_due_when_quartz_says(text, following):
    assert parse_schedule(text).after(START) == following


NO_EXPRESSIONS = ["", "* * * * *", "0 0 0 ? * ?", "61 0 0 * * ?", "0 0 0 ? * 8", "a b c d e f"]
NO_YEARS = ["1930", "2030-2020", "x"]


@pytest.mark.parametrize("text", [*NO_EXPRESSIONS, *(f"0 0 0 1 1 ? {years}" for years in NO_YEARS)])
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ConfigError, match="as in 0 0 6,18"):
        parse_schedule(text)


def test_scheduled_calls_come_when_due_and_again_even_after_an_error():
    clock = Clock()
    now = [START]
    calls = []

    def call(schedule):
        calls.append((now[0], schedule.text))
        raise RuntimeError("once")

    def advance(seconds):
        for _ in range(int(seconds // 600)):
            now[0] += timedelta(seconds=600)
            clock.advance(600)

    hourly, daily = parse_schedule("0 30 * * * ?"), parse_schedule("0 0 18 * * ?")
    scheduled = ScheduledCalls([hourly, daily, hourly], call, clock, lambda: now[0])
    advance(6 * 3600 + 600)
    assert [(when.hour, when.minute) for when, text in calls if text == hourly.text] == [(h, 30) for h in range(12, 18)]
    assert [when.hour for when, text in calls if text == daily.text] == [18]
    scheduled.stop()
    assert clock.getDelayedCalls() == []


def test_other_schedules_are_followed_from_now_on_and_those_that_stay_keep_their_time():
    clock = Clock()
    seen: list[Schedule] = []
    hourly, daily, often = map(parse_schedule, ("0 0 * * * ?", "0 0 13 * * ?", "0 0/10 * * * ?"))
    calls = ScheduledCalls([hourly, daily], seen.append, clock, now=lambda: START + timedelta(seconds=clock.seconds()))
    clock.advance(600)
    calls.replace([hourly, often])
    clock.advance(600)
    assert seen == [often]
    clock.pump([600] * 4)
    assert sorted(each.text for each in seen) == sorted([hourly.text, *[often.text] * 5])
    calls.stop()
    assert clock.getDelayedCalls() == []


def test_a_repeated_call_goes_on_after_an_error(caplog):
    clock = Clock()
    calls = []

    def fail():
        calls.append(clock.seconds())
        raise RuntimeError("boom")

    call = repeat(0.25, fail, clock, "the timer")
    clock.pump([0.25] * 4)
    call.stop()
    assert len(calls) == 4
    assert "the timer failed" in caplog.text


def test_an_error_of_ours_in_a_repeated_call_is_one_line_until_it_is_another_one(caplog):
    clock = Clock()
    outcomes = iter(["a", "a", "b", None, "b"])

    def fail():
        if name := next(outcomes):
            raise StoreError(f"{name} is gone")

    call = repeat(0.25, fail, clock, "the cleaning")
    clock.pump([0.25] * 5)
    call.stop()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("scheduled_calls")]
    assert said == [f"the cleaning failed: {each} is gone" for each in ("a", "b", "b")]
    assert "Traceback" not in caplog.text


# --- partitions -------------------------------------------------------------------------------------------------------


def test_closed_partitions_take_neither_puts_nor_gets_until_opened(harness):
    partitions = harness.broker.partitions
    log = partitions.for_put("t", 0)
    partitions.close("t", 0, 1)
    for refused in (partitions.for_put, partitions.for_read):
        with pytest.raises(PartitionClosed):
            refused("t", 0)
    assert partitions.for_put("t", 0, chosen=True) is log
    with pytest.raises(PartitionClosed):
        partitions.for_put("t", 0)
    assert partitions.for_put("t", 2)
    partitions.open("t")
    assert partitions.for_put("t", 0) is log


def test_only_configured_topics_can_be_closed(harness):
    with pytest.raises(TopicNotAccepted):
        harness.broker.partitions.close("wildcat", 0, 0)


def test_a_node_of_a_set_serves_a_topic_that_has_data_though_its_file_does_not_name_it(tmp_path):
    """What another node has acknowledged is never out of reach because this one has an older server.ini."""
    partitions = Harness(tmp_path, topics="[replication]\nnode=b\n").broker.partitions
    partitions.for_replica("solo", 1, 0)
    assert partitions.for_put("solo", 1) is partitions.for_put("solo", 1)
    assert partitions.for_put("solo", 0)
    assert partitions.find("solo", 0)
    assert partitions.unnamed() == ["solo"]
    with pytest.raises(WrongPartition):
        partitions.for_put("solo", 2)
    with pytest.raises(TopicNotAccepted):
        partitions.for_put("another", 0)
    assert partitions.served_topics()["solo"].partitions == 2


def test_a_node_that_its_file_names_does_nothing_before_it_leads(tmp_path):
    """As one that --node names: it would deliver delayed messages beside the leader, into its own copy."""
    broker = Harness(tmp_path, topics="[replication]\nnode=b\n").broker
    parts = (broker.sequences, broker.delays, broker.halves, broker.shared)
    assert [each.enabled for each in parts] == [False] * 4


def test_a_broker_by_itself_takes_no_messages_for_a_topic_that_was_taken_out_of_its_file(harness):
    """As 1.x. What is there is read."""
    partitions = harness.broker.partitions
    log = partitions.for_replica("solo", 0, 0)
    assert partitions.for_read("solo", 0) is log
    with pytest.raises(TopicNotAccepted):
        partitions.for_put("solo", 0)


def test_any_partition_is_chosen_evenly(harness):
    harness.broker.partitions._rng = random.Random(7)
    chosen = [harness.broker.partitions.choose("t") for _ in range(3000)]
    assert all(900 < chosen.count(partition) < 1100 for partition in range(3))


def test_topics_of_our_own_are_taken_without_a_section_and_have_one_partition(harness):
    """Whatever numPartitions of [system] is: a group's failed messages need no more."""
    partitions, appeared = harness.broker.partitions, []
    partitions._on_topic = lambda name, topic: appeared.append((name, topic.partitions))
    for name in ("%RETRY%audit", "%DEAD%audit", "%REPLY%"):
        assert partitions.for_put(name, 0).topic == name
        with pytest.raises(WrongPartition):
            partitions.for_put(name, 1)
    assert appeared == [("%RETRY%audit", 1), ("%DEAD%audit", 1), ("%REPLY%", 1)]
    assert partitions.settings("%DEAD%audit").partitions == 1


@pytest.mark.parametrize("name", ["%RETRY%", "%RETRY%a%b", "%RETRY%a/b", "%DEAD%" + "g" * 240, "%REPLY%x", "%OTHER%a"])
def test_other_names_of_that_kind_are_not_taken(harness, name):
    with pytest.raises(TopicNotAccepted):
        harness.broker.partitions.for_put(name, 0)


def test_a_store_may_be_closed_twice(harness):
    for _ in range(2):
        harness.store.close()
        assert harness.threads.run() == 0

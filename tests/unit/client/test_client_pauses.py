"""What is paused: the last call for a partition counts, and a paused partition gives and asks nothing."""

import pytest

from metaq import ConsumerConfig, TopicPartition
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask
from metaq.client.fetching.pauses import Pauses, places_given
from metaq.protocol.errors import ConfigError
from tests.unit.client.chunks import chunk_of, payloads, record

FIRST, SECOND, OTHER = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("u", 0, 0)


@pytest.mark.parametrize(
    ("calls", "held"),
    [
        ([(["t"], True)], {FIRST, SECOND}),
        ([(["t"], True), ([FIRST], False)], {SECOND}),
        ([(["t"], True), ([FIRST], False), ([FIRST], True)], {FIRST, SECOND}),
        ([([FIRST], True), (["t"], True), (["t"], False)], set()),
        ([([FIRST, OTHER], True), (["t"], False)], {OTHER}),
        ([(["t"], True), ([FIRST], False), (["t"], True)], {FIRST, SECOND}),
    ],
)
def test_the_last_call_for_a_partition_counts(calls, held):
    pauses = Pauses()
    for places, paused in calls:
        pauses = pauses.changed(places, paused)
    assert {each for each in (FIRST, SECOND, OTHER) if pauses.holds(each)} == held


def test_one_place_is_taken_as_one():
    assert places_given("t", ["t"]) == ["t"]
    assert places_given(FIRST, ["t"]) == [FIRST]
    assert places_given((FIRST, "u"), ["t", "u"]) == [FIRST, "u"]


@pytest.mark.parametrize("given", ["x", [OTHER], 7, [7]])
def test_a_place_that_the_consumer_does_not_read_is_refused(given):
    with pytest.raises(ConfigError, match="places"):
        places_given(given, ["t"])


def test_a_paused_partition_delivers_nothing_asks_nothing_and_keeps_what_it_has():
    core = ConsumerCore("g", ConsumerConfig())
    first, second = core.claim([FIRST, SECOND], [0, 0], announced=True)
    for cursor, payload in ((first, b"a"), (second, b"b")):
        request = cursor.next_request(0.0)
        assert request is not None
        cursor.arrived(request, chunk_of(record(payload), offset=0))
        cursor.answered(request, 0.0)
        core.make_ready(cursor)
    core.pause(Pauses().changed([FIRST], True))
    assert payloads(core.take(9)) == [b"b"]
    assert (first.next_request(0.0), second.next_request(0.0) is not None) == (None, True)
    core.pause(Pauses())
    assert core.next_wanting() in (first, second)
    assert payloads(core.take(9)) == [b"a"]
    assert first.next_request(0.0) is not None


def test_a_partition_that_comes_later_is_paused_with_its_topic_but_its_beginning_is_committed():
    core = ConsumerCore("g", ConsumerConfig())
    core.pause(Pauses(frozenset("t")))
    (cursor,) = core.claim([FIRST], [0], recorded=[False])
    assert cursor.paused
    request = cursor.next_request(0.0)
    assert request is not None
    assert request.ask is Ask.RECORD
    core.recorded([request])
    assert cursor.next_request(0.0) is None

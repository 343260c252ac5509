"""Which partition a message goes to, also of topics that every broker of ours takes; and how payloads are cut up."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import TopicPartition
from metaq.client.producer import RoundRobinSelector, partition_for_key
from metaq.client.records.batches import split_batches
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import with_own_partitions
from metaq.protocol.errors import InvalidName
from metaq.protocol.own_topics import dead_topic, is_own_topic, retry_topic

PARTITIONS = tuple(TopicPartition("t", broker, number) for broker in (0, 10) for number in range(3))


def test_every_partition_is_taken_in_turn():
    selector = RoundRobinSelector(lambda: 0.0)
    assert [selector.select("t", PARTITIONS, b"") for _ in range(12)] == [*PARTITIONS, *PARTITIONS]


def test_each_topic_of_each_producer_begins_somewhere_else():
    begins = iter([0.0, 0.5, 0.99])
    selector = RoundRobinSelector(lambda: next(begins))
    found = [selector.select(topic, PARTITIONS, b"") for topic in "abcab"]
    assert found == [PARTITIONS[number] for number in (0, 3, 5, 1, 4)]
    firsts = {RoundRobinSelector().select("t", PARTITIONS, b"") for _ in range(400)}
    assert firsts == set(PARTITIONS)


def test_two_topics_used_alternately_both_reach_every_partition():
    """1.x counts all topics together and then hits every second partition only."""
    selector = RoundRobinSelector()
    seen = Counter((topic, selector.select(topic, PARTITIONS, b"")) for topic in "ab" * 6)
    assert (set(seen.values()), len(seen)) == ({1}, 12)


def test_the_partition_of_a_key_is_its_crc_modulo_the_number_of_partitions():
    # CRC-32 of "123456789" is 0xCBF43926 = 3421780262
    assert partition_for_key("123456789", PARTITIONS) == PARTITIONS[3421780262 % 6]
    assert partition_for_key(b"123456789", PARTITIONS) == partition_for_key("123456789", PARTITIONS)


@given(st.text(), st.integers(1, 6))
def test_a_key_always_goes_to_the_same_partition(key, count):
    assert partition_for_key(key, PARTITIONS[:count]) == partition_for_key(key, PARTITIONS[:count])
    assert partition_for_key(key, PARTITIONS[:count]) in PARTITIONS[:count]


# --- topics of our own ------------------------------------------------------------------------------------------------

ENDPOINTS = {1: Endpoint("one", 1), 2: Endpoint("two", 2)}


def test_a_groups_topics_are_named_after_it():
    assert (retry_topic("audit"), dead_topic("audit")) == ("%RETRY%audit", "%DEAD%audit")
    assert all(map(is_own_topic, ("%RETRY%audit", "%DEAD%audit", "%REPLY%")))
    assert not any(map(is_own_topic, ("audit", "%RETRY%", "%DEAD%a/b", "%REPLY%a", "%", "%OTHER%a", "")))


def test_a_group_whose_name_leaves_no_room_for_theirs_is_refused():
    with pytest.raises(InvalidName, match="longer than"):
        retry_topic("g" * 234)
    assert retry_topic("g" * 233)
    with pytest.raises(InvalidName, match="'%'"):
        retry_topic("%")


def test_brokers_that_have_not_registered_a_topic_of_our_own_are_sent_to_as_well():
    registered = [TopicPartition("%RETRY%g", 1, number) for number in range(2)]
    found = with_own_partitions("%RETRY%g", registered, ENDPOINTS)
    assert found == (*registered, TopicPartition("%RETRY%g", 2, 0))
    assert with_own_partitions("%RETRY%g", found, {2: ENDPOINTS[2]}) == (TopicPartition("%RETRY%g", 2, 0),)
    assert with_own_partitions("t", PARTITIONS[:1], ENDPOINTS) == PARTITIONS[:1]  # other topics: what is registered


# --- batches ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=10)), st.integers(1, 5), st.integers(1, 20))
def test_a_batch_ends_before_it_would_pass_a_limit_and_not_earlier_and_a_payload_above_it_goes_alone(
    payloads, records, size
):
    batches = list(split_batches(payloads, records, size))
    assert [payload for batch in batches for payload in batch] == payloads
    assert all(1 <= len(batch) <= records for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= size for batch in batches)
    for batch, (first, *_) in pairwise(batches):
        assert len(batch) == records or sum(map(len, [*batch, first])) > size

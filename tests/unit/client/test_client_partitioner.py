"""Which partition a message goes to."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metaq.client.producer import RoundRobinSelector, partition_for_key
from metaq.client.values import TopicPartition

PARTITIONS = tuple(TopicPartition("t", broker, number) for broker in (0, 10) for number in range(3))


def test_every_partition_is_taken_in_turn():
    selector = RoundRobinSelector(lambda: 0.0)
    chosen = [selector.select("t", PARTITIONS, b"") for _ in range(12)]
    assert chosen == [*PARTITIONS, *PARTITIONS]


def test_each_topic_of_each_producer_begins_somewhere_else():
    begins = iter([0.0, 0.5, 0.99])
    selector = RoundRobinSelector(lambda: next(begins))
    assert [selector.select(topic, PARTITIONS, b"") for topic in "abcab"] == [
        PARTITIONS[number] for number in (0, 3, 5, 1, 4)
    ]
    firsts = {RoundRobinSelector().select("t", PARTITIONS, b"") for _ in range(400)}
    assert firsts == set(PARTITIONS)


def test_two_topics_used_alternately_both_reach_every_partition():
    """1.x counts all topics together and then hits every second partition only."""
    selector = RoundRobinSelector()
    seen: Counter[tuple[str, TopicPartition]] = Counter()
    for _ in range(6):
        seen["a", selector.select("a", PARTITIONS, b"")] += 1
        seen["b", selector.select("b", PARTITIONS, b"")] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == 12


def test_the_partition_of_a_key_is_its_crc_modulo_the_number_of_partitions():
    # CRC-32 of "123456789" is 0xCBF43926 = 3421780262
    assert partition_for_key("123456789", PARTITIONS) == PARTITIONS[3421780262 % 6]
    assert partition_for_key(b"123456789", PARTITIONS) == partition_for_key("123456789", PARTITIONS)


@given(st.text(), st.integers(1, 6))
def test_a_key_always_goes_to_the_same_partition(key, count):
    assert partition_for_key(key, PARTITIONS[:count]) == partition_for_key(key, PARTITIONS[:count])
    assert partition_for_key(key, PARTITIONS[:count]) in PARTITIONS[:count]

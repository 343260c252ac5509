"""Topics that every broker of ours takes: their names, and where a producer sends their messages."""

import pytest

from metaq.client.connection import Endpoint
from metaq.client.metadata import with_own_partitions
from metaq.client.values import TopicPartition
from metaq.protocol.errors import InvalidName
from metaq.protocol.own_topics import dead_topic, is_own_topic, retry_topic

ENDPOINTS = {1: Endpoint("one", 1), 2: Endpoint("two", 2)}


def test_a_groups_topics_are_named_after_it():
    assert (retry_topic("audit"), dead_topic("audit")) == ("%RETRY%audit", "%DEAD%audit")
    assert is_own_topic("%RETRY%audit")
    assert is_own_topic("%DEAD%audit")
    assert is_own_topic("%REPLY%")
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


def test_other_topics_have_the_partitions_that_are_registered():
    registered = [TopicPartition("t", 1, 0)]
    assert with_own_partitions("t", registered, ENDPOINTS) == tuple(registered)

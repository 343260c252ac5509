"""Which brokers keep failed messages: what is asked, and what is believed."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.keeping_brokers import Keeping, KeepingBrokers
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes, TopicReplica
from metaq.protocol.errors import BrokerUnavailable


class Cluster:
    """Brokers by id: whether each keeps messages; None: it does not answer. topics: the ids that offer each.
    without_master: ids of which only a slave is there."""

    def __init__(self, keeps, topics, without_master=()):
        self.keeps, self.topics, self.asked = keeps, topics, []
        self.nodes = {
            each: BrokerNodes(None if each in without_master else BrokerAddress(each, None, "host", 8000 + each))
            for each in keeps
        }

    def brokers(self):
        return self.nodes

    def replicas_many(self, topics, publish):
        assert not publish
        return [[TopicReplica(broker_id, None, 1) for broker_id in self.topics[topic]] for topic in topics]

    def connect(self, endpoint):
        broker_id = endpoint.port - 8000
        self.asked.append(broker_id)
        if self.keeps[broker_id] is None:
            raise BrokerUnavailable("away")
        return SimpleNamespace(takes_delays=self.keeps[broker_id])


def asking(cluster):
    view: Any = cluster
    return KeepingBrokers(view, cluster.connect)


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [
        ({}, Keeping(None, 0)),
        ({0: None, 1: None}, Keeping(None, 0)),
        ({0: True, 1: True}, Keeping(None, 2)),
        ({0: None, 1: True}, Keeping(None, 1)),
        ({0: True, 1: False}, Keeping("broker 1 at meta://host:8001", 1)),
        ({0: None, 1: False}, Keeping("broker 1 at meta://host:8001", 0)),
    ],
)
def test_one_that_keeps_none_is_named_and_one_that_does_not_answer_says_nothing(keeps, expected):
    cluster = Cluster(keeps, {"t": list(keeps)})
    assert asking(cluster).look(["t"]) == expected


def test_only_masters_of_the_topics_are_asked_each_once():
    cluster = Cluster({0: True, 1: True, 2: False, 3: True}, {"a": [0, 1], "b": [1, 3, 9]}, without_master=[3])
    assert asking(cluster).look(["a", "b"]) == Keeping(None, 2)
    assert cluster.asked == [0, 1]


def test_a_broker_keeps_messages_if_it_says_so_now():
    brokers = asking(Cluster({0: True, 1: False, 2: None, 3: True}, {}, without_master=[3]))
    assert [brokers.keeps(each) for each in range(5)] == [True, False, False, False, False]

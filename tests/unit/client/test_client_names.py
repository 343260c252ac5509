"""What ZooKeeper does not take in a path is refused before anything is sent or connected."""

from functools import partial

import pytest

from metaq import Consumer, DeadLetters, Producer, ProducerConfig, SharedConsumer
from metaq.client.producer.building import build_message
from metaq.client.producer.routing import Router
from metaq.client.questions.zookeeper_metadata import ZooKeeperMetadata
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import DirectMetadata, TopicView
from metaq.client.transport.pool import ConnectionPool
from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import InvalidName, NoPartition

NOWHERE = "localhost:1"
REFUSED = ["a\x85", "a\ue000", "a\uffff", "a\U0001f600", "a\x00", "a\ud800"]


class Registered(DirectMetadata):
    """One broker's topics in ZooKeeper."""

    def __init__(self, *topics: str) -> None:
        super().__init__(Endpoint("127.0.0.1", 1), 0, dict.fromkeys(topics, 1))

    def view(self, topic: str) -> TopicView:
        return self._views.get(topic) or TopicView((), self._endpoints)


@pytest.fixture
def direct():
    with Producer.direct("127.0.0.1:1") as producer:
        yield producer


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_zookeeper_does_not_take_is_refused(name, direct):
    session = ZkSession(NOWHERE, "/meta", 1.0)
    for group, topic in ((name, "t"), ("g", name)):
        for take in (
            partial(GroupMembership, session, group, None, [topic], lambda: None),
            *(partial(kind, NOWHERE, group=group, topics=[topic]) for kind in (Consumer, SharedConsumer)),
            partial(direct.check_transactions, lambda message: None, [topic], group=group),
        ):
            with pytest.raises(InvalidName):
                take()
    for call in (
        lambda: ZooKeeperMetadata(NOWHERE, "/meta", 1.0, session=session).view(name),
        lambda: session.paths.topic_pub(name),
        lambda: session.paths.group_ids(name),
        lambda: ProducerConfig(producer_group=name),
        lambda: ProducerConfig(reply_topic=name),
        lambda: DeadLetters(NOWHERE, group=name),
        lambda: direct.xa(["t", name]),
        lambda: direct.send_in_transaction("t", b"", execute=lambda message: None, group=name),
    ):
        with pytest.raises(InvalidName):
            call()


@pytest.mark.parametrize("name", ["a\x00", "a\ud800", "a b", "a/b"])
def test_a_direct_producer_refuses_what_no_broker_can_have(name, direct):
    """But neither an emoji nor a comma: the broker may have such a topic, and ZooKeeper is not asked."""
    with pytest.raises(InvalidName):
        direct.send(name, b"")
    for stored in ("a\U0001f600", "a,b"):
        assert direct.partitions(stored)


def test_a_consumer_does_not_subscribe_to_a_topic_with_a_comma():
    with pytest.raises(InvalidName, match="separates the topics"):
        Consumer(NOWHERE, group="g", topics=["a,b"])


def test_a_send_makes_no_topic_with_a_comma():
    """Neither with the error that tells to add it to a server.ini, nor under the partitions of the default topic."""
    made, stored = (build_message(topic, b"", 0.0, {}, None) for topic in ("c,d", "a,b"))
    for default_topic in (None, "t"):
        pool = ConnectionPool(ConnectionConfig())
        router = Router(Registered("t", "a,b"), pool, None, default_topic, lambda: 0.0)
        assert router.route(stored).topic == "a,b"
        with pytest.raises(InvalidName, match="separates the topics"):
            router.route(made) if default_topic else router.explained(made, NoPartition(""))

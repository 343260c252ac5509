"""A shared consumer of a broker in memory, which leases nothing."""

import pytest

from metaq import SharedConsumer, SharedMessage, TopicPartition
from metaq.errors import ClientError
from metaq.testing import FakeBroker, FakeCluster

T = TopicPartition("t", 0, 0)


def test_what_is_said_of_messages_behind_the_end_is_refused(broker: FakeBroker) -> None:
    """Nobody would tell the broker."""
    message = SharedMessage(T, 0, 1, 0, b"x")
    message.leased_from, message.leased_at, message.token, message.lease_until = T, 0, 1, 30.0
    with SharedConsumer(group="g", topics=["t"], metadata=FakeCluster([broker])) as consumer:
        pass
    for say in (consumer.ack, consumer.release, consumer.extend):
        with pytest.raises(ClientError, match="closed"):
            say(message)
    assert not message.is_settled

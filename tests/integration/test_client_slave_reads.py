"""A consumer whose master is gone reads from the slave and goes back, as ZooKeeper tells it; brokers in memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from metaq import Consumer, ConsumerConfig
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.session.zk_session import ZkSession
from metaq.testing import FakeBroker
from tests.integration.client_cluster import SESSION_SECONDS, read
from tests.speaking import speaking
from tests.waiting import eventually

CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1, error_max_seconds=0.2)


@contextmanager
def registered(connect: str, broker: FakeBroker, slave_id: int | None = None) -> Iterator[None]:
    """The broker, as it shows itself in ZooKeeper."""
    with ZkSession(connect) as session:
        address = BrokerAddress(0, slave_id, broker.endpoint.host, broker.endpoint.port)
        registration = BrokerRegistration(session, address)
        registration.register([TopicRegistration("t", 1, publish=slave_id is None)])
        yield
        registration.unregister()


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_while_the_master_is_gone_its_slave_is_read_and_never_moves_the_position_back(
    chroot: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        slave = stack.enter_context(FakeBroker({"t": 1}))
        stack.enter_context(registered(chroot, slave, 1))
        with FakeBroker({"t": 1}) as master, registered(chroot, master):
            port = master.endpoint.port
            consumer = stack.enter_context(Consumer(chroot, group="g", topics=["t"], config=speaking(protocol, CONFIG)))
            master.append("t", 0, b"1", b"2")
            slave.append("t", 0, b"1")  # it lags
            assert [message.payload for message in read(consumer, 2)] == [b"1", b"2"]
            assert slave.pulls == 0
        eventually(lambda: consumer.poll(timeout=0.05) == [] and slave.pulls > 2, 20, "reading from the slave")
        slave.append("t", 0, b"2", b"3")  # replicated after all, and what only the slave tells
        assert [message.payload for message in read(consumer, 1)] == [b"3"]
        with FakeBroker({"t": 1}, port=port) as again, registered(chroot, again):
            again.append("t", 0, b"1", b"2", b"3")
            eventually(lambda: consumer.poll(timeout=0.05) == [] and again.pulls, 20, "going back to the master")
            again.append("t", 0, b"4")
            assert [message.payload for message in read(consumer, 1)] == [b"4"]
            assert consumer.assignment() != []
            consumer.close()

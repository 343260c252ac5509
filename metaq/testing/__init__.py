"""Replacements for real brokers in the tests of programs that use metaq: a broker in memory, and a cluster of such
brokers without ZooKeeper.

with FakeBroker({"trades": 1}) as broker, Producer(metadata=FakeCluster([broker])) as producer:
    producer.send("trades", b"hello")
    assert broker.bodies("trades", 0) == [b"hello"]
"""

from .fake_broker import FakeBroker, FakeCluster
from .handling import dead_letters, handle_all

__all__ = ["FakeBroker", "FakeCluster", "dead_letters", "handle_all"]

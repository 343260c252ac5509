"""A cluster without ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metaq.client.metadata import TopicView

from .broker import FakeBroker

__all__ = ["FakeCluster"]


class FakeCluster:
    """Which brokers are registered, without ZooKeeper: a producer's `metadata`. Any thread."""

    def __init__(self, brokers: Iterable[FakeBroker] = ()) -> None:
        self._brokers = {broker.broker_id: broker for broker in brokers}
        self._listeners: list[Callable[[str], None]] = []

    def register(self, broker: FakeBroker) -> None:
        """The broker (or its new incarnation) appears."""
        self._brokers[broker.broker_id] = broker
        self._changed(broker)

    def unregister(self, broker: FakeBroker) -> None:
        """The broker's session has ended."""
        del self._brokers[broker.broker_id]
        self._changed(broker)

    def _changed(self, broker: FakeBroker) -> None:
        for listener in self._listeners:
            for topic in broker.topics:
                listener(topic)

    def view(self, topic: str) -> TopicView:
        brokers = [self._brokers[number] for number in sorted(self._brokers)]
        partitions = (each for broker in brokers for each in broker.partitions if each.topic == topic)
        return TopicView(tuple(sorted(partitions)), {broker.broker_id: broker.endpoint for broker in brokers})

    def on_change(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def close(self, timeout: float = 10.0) -> None:
        """Nothing is held open."""

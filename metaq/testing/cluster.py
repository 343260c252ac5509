"""A cluster for tests: real brokers and a ZooKeeper inside the test's process."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metaq.broker.in_process.broker import BrokerSettings, InProcessBroker
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.client.browsing.browser import TopicBrowser
from metaq.client.consumer.consumer import Consumer
from metaq.client.consumer.retry import Retry
from metaq.client.producer import Producer
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import check_number
from metaq.client.shared import SharedConsumer
from metaq.protocol.errors import ConfigError, NoPartition, RequestTimedOut

from .expectations import Expected
from .handling import DEFAULT_RETRY, dead_letters, handle_all

__all__ = ["RealCluster", "Topics"]

Topics = Mapping[str, int | BrokerSettings] | Iterable[str]
"""The topics of a cluster: their names, or for each name the number of partitions on each broker or keys of the topic's
section in server.ini.
"""

_MEMORY = "/dev/shm"
_DELIVERY_SECONDS = 30.0
_POLL_SECONDS = 0.005
_names = itertools.count(1)


class RealCluster:
    """`metaq.testing.Cluster`: real brokers, on real sockets, inside this process, for the time of a `with` block or
    from `start` to `stop`. Use a cluster on one thread.

    The brokers' files are in a temporary directory in memory (/dev/shm), or on the disk if there is no /dev/shm; they
    are written but not synced.
    """

    def __init__(
        self,
        topics: Topics = (),
        *,
        brokers: int = 1,
        settings: BrokerSettings | None = None,
        zookeeper: InProcessZooKeeper | None = None,
    ) -> None:
        """topics: the topics that every broker serves from the start; `create_topic` adds others. brokers: the number
        of brokers; their ids are 0, 1, …. settings: keys of server.ini's section [system], for all brokers.

        zookeeper: a running ZooKeeper that other clusters use, too; this cluster has a directory (chroot) of its own
        there. None means a ZooKeeper of its own. Raises ConfigError.
        """
        check_number("brokers", brokers)
        self._count = brokers
        self._settings = dict(settings or {})
        self._topics = {name: _section(keys) for name, keys in _named(topics)}
        self._own_zookeeper = zookeeper is None
        self._server = InProcessZooKeeper() if zookeeper is None else zookeeper
        self._chroot = f"/cluster-{next(_names)}"
        self._opened = ExitStack()
        self._browsers: dict[str, TopicBrowser] = {}
        self.brokers: list[InProcessBroker] = []
        """The running and stopped brokers, by their ids."""
        self.handled: dict[tuple[str, TopicPartition], int] = {}
        """For each group and partition, the offset before which `handle_all` has handled all messages."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start ZooKeeper and all brokers. Raises MetaqError."""
        with ExitStack() as opened:
            if self._own_zookeeper:
                self._server.start()
                opened.callback(self._server.stop)
            directory = Path(
                tempfile.mkdtemp(prefix="metaq-test-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
            )
            opened.callback(shutil.rmtree, directory)
            for number in range(self._count):
                broker = InProcessBroker(
                    directory / f"broker-{number}",
                    self.zookeeper,
                    number,
                    settings=self._settings,
                    topics=self._topics,
                )
                self.brokers.append(broker)
                opened.callback(broker.close)
                broker.begin()
            for broker in self.brokers:
                broker.await_serving()
            self._opened = opened.pop_all()

    def stop(self) -> None:
        """Close the clients that this cluster has made, stop all brokers, and delete their files. Do nothing if the
        cluster does not run.
        """
        opened, self._opened = self._opened, ExitStack()
        opened.close()
        self.brokers.clear()
        self._browsers.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string. Any client can use it, also one in another process."""
        return self._server.connect_string + self._chroot

    @property
    def broker(self) -> InProcessBroker:
        """The first broker."""
        if not self.brokers:
            raise ConfigError("broker", "none", "the cluster does not run: use it in a `with` block or call start()")
        return self.brokers[0]

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Let every broker serve a topic. Returns when clients can find it in ZooKeeper. partitions: their number on
        each broker. settings: further keys of the topic's section in server.ini. Raises ConfigError, CoordinationError.
        """
        keys = {"numPartitions": partitions, **settings}
        self._topics[name] = keys
        for broker in self.brokers:
            broker.add_topic(name, keys)

    # --- time and faults ----------------------------------------------------------------------------------------------

    def advance(
        self,
        ahead: timedelta = timedelta(),
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Move the clocks of all brokers into the future, and let the brokers do what is due then: deliver delayed
        messages and retries, end leases, delete old segments, ask for the outcomes of half messages. The brokers may
        need a moment for this after the call. The clocks of clients and of ZooKeeper do not move. Raises ConfigError if
        the time is not above 0.
        """
        ahead += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if ahead <= timedelta():
            raise ConfigError("advance", ahead, "choose a time above 0: a broker's clock never goes back")
        for broker in self.brokers:
            broker.advance(ahead)

    def deliver_delayed(self) -> bool:
        """Move the clocks of all brokers to the time when the next delayed message is due, and wait until it is
        delivered. Return False if no delayed message waits. Raises RequestTimedOut if it is not delivered, for example
        because its partition is closed.
        """
        waits = [wait for broker in self.brokers if (wait := broker.next_delayed) is not None]
        if not waits:
            return False
        before = self._waiting()
        self.advance(min(waits) + timedelta(milliseconds=1))
        deadline = time.monotonic() + _DELIVERY_SECONDS
        while self._waiting() >= before:
            if time.monotonic() >= deadline:
                raise RequestTimedOut(f"a delayed message that is due was not delivered in {_DELIVERY_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        return True

    def _waiting(self) -> int:
        return sum(broker.waiting_delayed for broker in self.brokers)

    def drop_connections(self) -> None:
        """Reset all connections of clients to all running brokers."""
        for broker in self.brokers:
            if broker.running:
                broker.drop_connections()

    # --- clients ------------------------------------------------------------------------------------------------------

    def producer(self, **options: Any) -> Producer:
        """Return a Producer, which `stop` closes. options: arguments of Producer."""
        return self._opened.enter_context(Producer(self.zookeeper, **options))

    def consumer(self, *, group: str, topics: Iterable[str], **options: Any) -> Consumer:
        """Return a Consumer, which `stop` closes. options: further arguments of Consumer."""
        return self._opened.enter_context(Consumer(self.zookeeper, group=group, topics=topics, **options))

    def shared(self, *, group: str, topics: Iterable[str], **options: Any) -> SharedConsumer:
        """Return a SharedConsumer, which `stop` closes. options: further arguments of SharedConsumer."""
        return self._opened.enter_context(SharedConsumer(self.zookeeper, group=group, topics=topics, **options))

    # --- what was sent ------------------------------------------------------------------------------------------------

    def sent(self, topic: str) -> list[Message]:
        """Return all messages that consumers of a topic can read now, by broker, partition and offset. Raises
        NoPartition if no broker serves the topic.
        """
        return list(self._browser(topic))

    def _browser(self, topic: str) -> TopicBrowser:
        browser = self._browsers.get(topic)
        if browser is None:
            browser = self._browsers[topic] = self._opened.enter_context(TopicBrowser(self.zookeeper, topic))
        return browser

    def assert_sent(
        self,
        topic: str,
        payload: bytes | str | None = None,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, object] | None = None,
        where: Callable[[Message], bool] | None = None,
        count: int | None = None,
        timeout: float = 2.0,
    ) -> list[Message]:
        """Check that a topic has messages with everything that is given, and return them. properties: the message has
        these properties, and perhaps others. where: returns whether a message is meant. count: how many such messages
        there are; by default at least one. Wait up to `timeout` seconds for messages that are still on their way.
        Raises AssertionError, which shows the messages that the topic has.
        """
        expected = Expected(payload, key, tag, properties, where, count)
        deadline = time.monotonic() + timeout
        while True:
            stored = self.sent(topic)
            found = [message for message in stored if expected.is_met_by(message)]
            if expected.has_enough(found):
                return found
            if time.monotonic() >= deadline or expected.has_too_many(found):
                raise AssertionError(expected.failure(topic, found, stored))
            time.sleep(_POLL_SECONDS)

    # --- handlers -----------------------------------------------------------------------------------------------------

    def handle_all(
        self, handler: Callable[[Message], object], *, group: str, topics: Iterable[str], retry: Retry = DEFAULT_RETRY
    ) -> int:
        """See metaq.testing.handle_all."""
        return handle_all(self, handler, group=group, topics=topics, retry=retry)

    def dead_letters(self, group: str) -> list[Message]:
        """See metaq.testing.dead_letters."""
        return dead_letters(self, group)

    def stored(self, topic: str) -> list[Message]:
        """Like `sent`, but return no message if no broker serves the topic yet."""
        with suppress(NoPartition):
            return self.sent(topic)
        return []

    def sender(self) -> Producer:
        """Return a Producer for `handle_all`, which closes it."""
        return Producer(self.zookeeper)


def _named(topics: Topics) -> Iterable[tuple[str, int | BrokerSettings]]:
    if isinstance(topics, str):
        raise ConfigError("topics", topics, "use a list of names, or a mapping of names to numbers of partitions")
    return topics.items() if isinstance(topics, Mapping) else ((name, 1) for name in topics)


def _section(keys: int | BrokerSettings) -> dict[str, object]:
    return {"numPartitions": keys} if isinstance(keys, int) else dict(keys)

"""The broker in ZooKeeper: it registers after the port listens, adds topics as they come, and unregisters before the
port closes.

kazoo's calls wait for the network, so none is made on the reactor thread. The threads are daemons: a broker that stops
while ZooKeeper is away does not wait for it. Its nodes then end with its session.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import CoordinationError, CoordinationUnavailable, InvalidName, SessionLost
from metaq.protocol.limits import check_znode

from ..configuration.server_ini import BrokerConfig, TopicConfig
from ..runtime.reactor import Reactor
from ..runtime.threads import fire, in_own_thread

__all__ = ["Registration"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STOP_SECONDS = 5.0


def _described(topics: Mapping[str, TopicConfig]) -> list[TopicRegistration]:
    return [_registration(name, topic) for name, topic in topics.items() if _can_be_registered(name)]


def _can_be_registered(topic: str) -> bool:
    """Whether ZooKeeper takes the name. Earlier brokers stored topics with other names; they stay served."""
    try:
        check_znode("topic", topic)
    except InvalidName as error:
        _log.warning("this topic is not registered, so only clients without ZooKeeper find it: %s", error)
        return False
    return True


def _registration(name: str, topic: TopicConfig) -> TopicRegistration:
    return TopicRegistration(
        name, topic.partitions, topic.accept_publish, topic.accept_subscribe, topic.readable_partitions
    )


class Registration:
    """One broker's znodes (zookeeper.md §3). Called on the reactor thread; every Deferred fires there."""

    def __init__(
        self,
        config: BrokerConfig,
        reactor: Reactor,
        slave_id: int | None = None,
        *,
        elected_on: ZkSession | None = None,
    ) -> None:
        """slave_id: None for a master. elected_on: the session on which the broker was elected as its set's leader; its
        owner starts and closes it. See BrokerRegistration."""
        self._config = config
        self._reactor = reactor
        self._slave_id = slave_id
        self._checksum = config.checksum  # of the last loaded server.ini
        zookeeper = config.zookeeper
        self._elected = elected_on is not None
        self._session = elected_on or ZkSession(zookeeper.connect, zookeeper.root, zookeeper.session_timeout_ms / 1000)
        self._connect_seconds = zookeeper.connection_timeout_ms / 1000
        self._registration: BrokerRegistration | None = None
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, name="registration", daemon=True).start()

    @property
    def session(self) -> ZkSession:
        """The session, for the broker's other reads of ZooKeeper in worker threads."""
        return self._session

    @property
    def registered(self) -> bool:
        """Whether clients find the broker in ZooKeeper, as far as is known here."""
        return self._registration is not None and self._registration.registered

    def connect(self) -> Deferred[None]:
        """Begin the session, before `start`. Fails with CoordinationError, CoordinationUnavailable."""
        start = partial(self._session.start, self._connect_seconds, wait_for_servers=True, create_chroot=True)
        return self._queue(start)

    def start(self, port: int, topics: Mapping[str, TopicConfig]) -> Deferred[None]:
        """Register the broker with `topics`. Fails with CoordinationError, CoordinationUnavailable."""
        return self._queue(self._new_registration(port, topics))

    def withdraw(self) -> Deferred[None]:
        """Remove the znodes for a while. Fires when that is done, or when the session's end will do it."""
        registration, self._registration = self._registration, None
        return succeed(None) if registration is None else self._queue(registration.unregister)

    def come_back(self, port: int, topics: Mapping[str, TopicConfig]) -> Deferred[None]:
        """Register again after `withdraw`. Fails as `start`."""
        return self._queue(self._new_registration(port, topics))

    def _new_registration(self, port: int, topics: Mapping[str, TopicConfig]) -> Callable[[], None]:
        config = self._config
        registration = BrokerRegistration(
            self._session,
            BrokerAddress(config.broker_id, self._slave_id, config.host, port),
            self._checksum,
            zone=config.zone,
            elected=self._elected,
        )
        self._registration = registration
        return partial(self._register, partial(registration.register, _described(topics)))

    def _register(self, register: Callable[[], None]) -> None:
        """Register, and wait for ZooKeeper once more if it has gone since the first connection, as in an election."""
        give_up = time.monotonic() + self._connect_seconds
        pauses = Backoff()
        while True:
            try:
                register()
                return
            except (CoordinationUnavailable, SessionLost) as error:
                if self._session.closed or time.monotonic() >= give_up:
                    raise
                _log.warning("not registered in ZooKeeper yet, trying again: %s", error)
            time.sleep(pauses.next())

    def _queue(self, function: Callable[[], T]) -> Deferred[T]:
        deferred: Deferred[T] = Deferred()
        self._tasks.put(partial(fire, self._reactor, deferred, function))
        return deferred

    def add_topic(self, name: str, topic: TopicConfig) -> None:
        """Register a topic that came with its first put. Failures are logged; the next session makes up for them."""
        registration = self._registration
        if registration is None or not _can_be_registered(name):
            return

        def add() -> None:
            try:
                registration.add_topic(
                    name, topic.partitions, topic.accept_publish, topic.accept_subscribe, topic.readable_partitions
                )
            except CoordinationError as error:
                _log.error("topic %s will be registered in ZooKeeper with the next session: %s", name, error)

        self._tasks.put(add)

    def offer(self, name: str, topic: TopicConfig) -> Deferred[None]:
        """Register a topic as it is now. Fails with CoordinationError, also if the broker is not registered, and with
        InvalidName."""
        registration = self._registration

        def offer() -> None:
            if registration is None:
                raise CoordinationError("this broker is not registered in ZooKeeper now")
            check_znode("topic", name)
            registration.offer(_registration(name, topic))

        return self._queue(offer)

    def update(self, checksum: int, topics: Mapping[str, TopicConfig]) -> Deferred[list[str]]:
        """Publish a new checksum of server.ini, then register `topics` anew. Fires with warnings.

        If ZooKeeper cannot be told now, it is told in the background, or by `come_back` after `withdraw`.
        """
        self._checksum = checksum
        registration = self._registration
        if registration is None:
            return succeed([])
        described = _described(topics)

        def update() -> list[str]:
            try:
                registration.update(checksum, described)
            except CoordinationError as error:
                return [f"ZooKeeper will be updated later: {error}"]
            return []

        return self._queue(update)

    def stop_serving(self) -> Deferred[None]:
        """Remove the znodes; fires after at most 5 s, even without an answer of ZooKeeper."""
        registration = self._registration
        return self._in_own_thread((lambda: None) if registration is None else registration.unregister)

    def close(self) -> Deferred[None]:
        """End the session, unless another object owns it; fires after at most 5 s."""
        if self._elected:
            return succeed(None)
        return self._in_own_thread(self._session.close)

    def _in_own_thread(self, function: Callable[[], None]) -> Deferred[None]:
        # not in the queue: a registration that waits for a stale node must not hold up the stop
        deferred = in_own_thread(self._reactor, "registration-stop", function)
        return deferred.addTimeout(_STOP_SECONDS, cast(Any, self._reactor)).addErrback(self._log_stop)

    def _work(self) -> None:
        while True:
            self._tasks.get()()

    @staticmethod
    def _log_stop(failure: Failure) -> None:
        _log.warning("the broker could not unregister from ZooKeeper: %s", failure.getErrorMessage() or failure.type)

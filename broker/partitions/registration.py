"""The broker's registration in ZooKeeper. The broker registers as soon as it listens on its port, registers a further
topic when the topic gets its first message, and unregisters before it closes the port.

Calls of kazoo (the library for ZooKeeper) wait for the network, so they are never made on the reactor thread. They are
made in daemon threads, so that the broker's process can end even if a call still waits because ZooKeeper cannot be
reached. In this case ZooKeeper removes the broker's znodes when their session expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.records.payloads import ListenerAddress
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
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
    """Return whether the topic's name can be the name of a znode. Earlier versions of the broker accepted topics with
    other names, too; the broker serves such a topic without registering it.
    """
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
    """The znodes of one broker (zookeeper.md §3). Its methods are called on the reactor thread, and every Deferred
    fires there.
    """

    def __init__(
        self,
        config: BrokerConfig,
        reactor: Reactor,
        slave_id: int | None = None,
        *,
        elected_on: ZkSession | None = None,
        tls: CertificateFiles | None = None,
        listeners: Sequence[ListenerAddress] = (),
        login: ZooKeeperLogin | None = None,
    ) -> None:
        """slave_id: the id of an asynchronous slave, or None for a master. elected_on: for the leader of a broker set,
        the ZooKeeper session on which the leader was elected. This object uses this session, but another object starts
        and closes it. tls: the files for TLS with ZooKeeper, for a session that this object creates; None means without
        TLS. listeners: where clients find the broker's listeners. login: by which this session identifies itself. See
        BrokerRegistration.
        """
        self._config = config
        self._listeners = listeners
        self._reactor = reactor
        self._slave_id = slave_id
        self._checksum = config.checksum  # of the last loaded server.ini
        zookeeper = config.zookeeper
        self._elected = elected_on is not None
        self._session = elected_on or ZkSession(
            zookeeper.connect, zookeeper.root, zookeeper.session_timeout_ms / 1000, tls=tls, login=login
        )
        self._connect_seconds = zookeeper.connection_timeout_ms / 1000
        self._registration: BrokerRegistration | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="registration", daemon=True).start()

    @property
    def session(self) -> ZkSession:
        """The ZooKeeper session. The dashboard and the moves of partitions use it, too; they call it in worker
        threads.
        """
        return self._session

    @property
    def registered(self) -> bool:
        """Whether the broker's znodes exist, so that clients find it. The value can be out of date: it stays True until
        this process learns that ZooKeeper has removed the znodes.
        """
        return self._registration is not None and self._registration.registered

    def connect(self) -> Deferred[None]:
        """Start the ZooKeeper session. `connect` must be called before `start`. Fails with CoordinationError,
        CoordinationUnavailable.
        """
        start = partial(self._session.start, self._connect_seconds, wait_for_servers=True, create_chroot=True)
        return self._queue(start)

    def start(self, port: int, topics: Mapping[str, TopicConfig]) -> Deferred[None]:
        """Register the broker and `topics` in ZooKeeper. Fails with CoordinationError, CoordinationUnavailable."""
        return self._queue(self._new_registration(port, topics))

    def withdraw(self) -> Deferred[None]:
        """Remove the broker's znodes; `come_back` creates them again. The Deferred fires when the znodes are removed,
        or when it is certain that ZooKeeper will remove them at the end of the session.
        """
        registration, self._registration = self._registration, None
        return succeed(None) if registration is None else self._queue(registration.unregister)

    def come_back(self, port: int, topics: Mapping[str, TopicConfig]) -> Deferred[None]:
        """Register the broker again after `withdraw`. Fails with the errors of `start`."""
        return self._queue(self._new_registration(port, topics))

    def _new_registration(self, port: int, topics: Mapping[str, TopicConfig]) -> Callable[[], None]:
        config = self._config
        registration = BrokerRegistration(
            self._session,
            BrokerAddress(config.broker_id, self._slave_id, config.host, port),
            self._checksum,
            zone=config.zone,
            listeners=self._listeners,
            elected=self._elected,
        )
        self._registration = registration
        return partial(self._register, partial(registration.register, _described(topics)))

    def _register(self, register: Callable[[], None]) -> None:
        """Register the broker in ZooKeeper. If ZooKeeper is unavailable now (for example because its servers are
        electing a leader), try again until the connection timeout has passed.
        """
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
        """Register a topic that has got its first message. If this fails, a line is logged, and the topic is registered
        when the next ZooKeeper session begins.
        """
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
        """Register a topic with these settings. Fails with CoordinationError (also if the broker is not registered) or
        InvalidName.
        """
        registration = self._registration

        def offer() -> None:
            if registration is None:
                raise CoordinationError("this broker is not registered in ZooKeeper now")
            check_znode("topic", name)
            registration.offer(_registration(name, topic))

        return self._queue(offer)

    def update(self, checksum: int, topics: Mapping[str, TopicConfig]) -> Deferred[list[str]]:
        """Publish a new checksum of server.ini, then register `topics` again. The Deferred fires with a list of
        warnings.

        If ZooKeeper cannot be updated now, one of the warnings says so, and the update is made later in the background.
        If the broker was withdrawn, nothing is published until `come_back` registers the broker again.
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
        """Remove the broker's znodes, because the broker stops. The Deferred fires after at most 5 s, even if ZooKeeper
        does not answer.
        """
        registration = self._registration
        return self._in_own_thread((lambda: None) if registration is None else registration.unregister)

    def close(self) -> Deferred[None]:
        """Close the ZooKeeper session, unless another object owns it. The Deferred fires after at most 5 s."""
        if self._elected:
            return succeed(None)
        return self._in_own_thread(self.end)

    def end(self) -> None:
        """Close the ZooKeeper session on this thread, which must not be the reactor's, and end the thread of this
        object.
        """
        self._tasks.put(None)
        self._session.close()

    def _in_own_thread(self, function: Callable[[], None]) -> Deferred[None]:
        # not in the queue, because a registration that waits for a stale znode must not delay the stop
        deferred = in_own_thread(self._reactor, "registration-stop", function)
        return deferred.addTimeout(_STOP_SECONDS, cast(Any, self._reactor)).addErrback(self._log_stop)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    @staticmethod
    def _log_stop(failure: Failure) -> None:
        _log.warning("the broker could not unregister from ZooKeeper: %s", failure.getErrorMessage() or failure.type)

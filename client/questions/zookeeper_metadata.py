"""Keep a producer's view of the cluster up to date by ZooKeeper watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.interrupts import Aside
from metaq.coordination.runtime.logs import get_log
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ClientError, CoordinationError, SessionLost
from metaq.protocol.limits import check_zookeeper_topic

from ..records.results import TopicPartition
from ..settings.config import ConnectionConfig
from ..transport.absences import LEADERLESS_SECONDS, Absences
from ..transport.connection import Endpoint
from ..transport.metadata import TopicView, with_own_partitions
from ..transport.zookeeper import zk_session
from .steady import SteadyView

__all__ = ["ZooKeeperMetadata"]

log = get_log(__name__)

_RETRY_MIN_SECONDS = 0.5
_RETRY_MAX_SECONDS = 10.0
"""Longest pause in seconds between two attempts to set the ZooKeeper watch of a topic."""


class ZooKeeperMetadata:
    """The metadata of a producer, read through one ZooKeeper session. The object creates the session, or the caller
    passes one; `close` does not end a session that the caller has passed. The first call of `view` for a topic reads
    this topic; from then on, the object watches the topic for changes.

    The class implements metadata.Metadata. The session's event thread replaces the views of topics in `_views`; any
    thread reads them without a lock.
    """

    def __init__(
        self,
        connect: str,
        root: str,
        session_timeout: float,
        *,
        config: ConnectionConfig | None = None,
        session: ZkSession | None = None,
    ) -> None:
        """config: its `zookeeper_tls` says whether and how to use TLS for a new session. session: the caller's session;
        if it is None, the object creates a session.
        """
        self._session = session or zk_session(connect, root, session_timeout, config=config)
        self._is_lent = session is not None
        self._cluster = ClusterView(self._session)
        self._steady = SteadyView(self._session, LEADERLESS_SECONDS)
        self._absences = Absences()
        self._views: dict[str, TopicView] = {}
        self._first_read = threading.Lock()
        self._aside = Aside("metaq-topic", drops=True)
        self._listeners: list[Callable[[str], None]] = []

    def start(self, timeout: float) -> None:
        """Connect to ZooKeeper. Raises CoordinationUnavailable if no server answers within `timeout` seconds."""
        self._session.start(timeout)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ZooKeeper now."""
        return self._session.connected

    def view(self, topic: str) -> TopicView:
        found = self._views.get(topic)
        if found is not None:
            return found
        try:
            return self._aside.do(self._watch, check_zookeeper_topic(topic))
        except SessionLost:
            if self._session.closed:
                raise ClientError("this producer is closed") from None
            raise

    def topics(self) -> Collection[str]:
        return self._aside.do(self._cluster.live_topics)

    def is_set(self, broker_id: int) -> bool:
        return broker_id in self._aside.do(self._cluster.set_ids)

    def on_change(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def close(self, timeout: float = 10.0) -> None:
        if not self._is_lent:
            self._session.close(timeout)

    def _watch(self, topic: str) -> TopicView:
        with self._first_read:
            found = self._views.get(topic)
            if found is None:
                if not self._views:
                    self._cluster.watch_brokers(self._brokers_changed)
                found = self._read(topic, self._cluster)
                # A broker set may be changing its leader, so read again and wait for it. Absences handles this case for
                # later changes.
                if not found.partitions:
                    found = self._read(topic, self._steady)
                self._use(topic, found)
                self._follow(topic, Backoff(_RETRY_MIN_SECONDS, _RETRY_MAX_SECONDS))
        return found

    def _follow(self, topic: str, backoff: Backoff) -> None:
        """Begin to watch the topic. If the watch cannot be set, try again later on the event thread; until then
        producers use the last view of the topic. Once the watch is set, the topic is read again, because it may have
        changed before the watch was set, without a notification.
        """
        try:
            self._cluster.watch_topic(topic, self._changed)
        except CoordinationError as error:
            if self._session.closed:
                return
            pause = backoff.next()
            log.warning("changes of topic %s are not seen yet, next try in %.1f s: %s", topic, pause, error)
            self._session.events.post_later(pause, partial(self._follow, topic, backoff))

    def _read(self, topic: str, cluster: ClusterView) -> TopicView:
        """Read the topic's view from ZooKeeper, and return it. This method blocks for a few round trips to
        ZooKeeper.
        """
        endpoints = _endpoints(cluster)
        partitions = (
            TopicPartition(topic, broker, number)
            for broker, number in cluster.topic_partitions(topic)
            if broker in endpoints
        )
        return TopicView(with_own_partitions(topic, partitions, endpoints), endpoints)

    # --- the session's event thread ---------------------------------------------------------------------------------

    def _changed(self, topic: str) -> None:
        view = self._read(topic, self._cluster)
        former = self._views.get(topic)
        if former is not None:
            missing = self._absences.missing(former.partitions, view.partitions)
            kept = self._absences.kept(missing, self._cluster.set_ids(), time.monotonic()) if missing else []
            if self._absences.ends_in is not None:
                view = view._replace(partitions=tuple(sorted((*view.partitions, *kept))))
                self._session.events.post_later(self._absences.ends_in, partial(self._changed, topic))
        self._use(topic, view)

    def _brokers_changed(self) -> None:
        self._session.events.post_once(self._look_at_brokers)

    def _look_at_brokers(self) -> None:
        """Update the broker addresses in the views of all topics after a change of the brokers. This is necessary
        because addresses can change without a change of the watched topics: for example, if a broker set has a new
        leader that has not registered its topics yet.
        """
        try:
            endpoints = _endpoints(self._cluster)
        except CoordinationError as error:
            if not self._session.closed:
                log.warning("where brokers are is not known: %s", error)
                self._session.events.post_later(_RETRY_MIN_SECONDS, self._brokers_changed)
            return
        for topic, view in list(self._views.items()):
            self._use(topic, TopicView(with_own_partitions(topic, view.partitions, endpoints), endpoints))

    def _use(self, topic: str, view: TopicView) -> None:
        """Replace the topic's view, and tell the listeners if the view has changed. Any thread may call this."""
        if view == self._views.get(topic):
            return
        self._views[topic] = view
        log.info("topic %s has %d partitions on %d brokers", topic, len(view.partitions), len(view.endpoints))
        for listener in self._listeners:
            listener(topic)


def _endpoints(cluster: ClusterView) -> dict[int, Endpoint]:
    return {
        broker_id: Endpoint(nodes.master.host, nodes.master.port)
        for broker_id, nodes in cluster.brokers().items()
        if nodes.master is not None  # a slave accepts no messages
    }

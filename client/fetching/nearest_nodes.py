"""Choose the node of a broker set from which a consumer reads: a live in-sync node in the consumer's zone or, if there
is none, the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from metaq.coordination.session.watches import DataWatcher
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import SetView, watch_set
from metaq.protocol.errors import ConfigError

from ..records.results import TopicPartition
from ..transport.connection import Endpoint
from ..transport.metadata import parse_address

__all__ = ["Nearby", "NearestNodes"]

AVOIDED_SECONDS = 2.0
"""If a node refuses a pull or cannot be reached, it gets no requests for this many seconds. In this time, requests go
to other nodes in the consumer's zone, or to the leader.
"""


class NearestNodes:
    """Chooses the node that each partition is read from; does no I/O. Any thread may call the methods, because each
    change is a single assignment. now: the present time in monotonic seconds.
    """

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._near: dict[int, tuple[Endpoint, ...]] = {}
        self._avoided: dict[Endpoint, float] = {}

    def seen(self, broker_id: int, view: SetView) -> bool:
        """Store the current state of a broker set. Return whether `choose` may now return another node than before."""
        names = sorted(name for name in view.in_sync_present if view.nodes[name].zone == self._zone)
        found = [_endpoint(view.nodes[name].url) for name in names if self._zone]
        near = tuple(each for each in found if each is not None)
        former, self._near[broker_id] = self._near.get(broker_id, ()), near
        return former != near

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """Record that the node at `endpoint` did not return the requested data, so that it is avoided for a while."""
        self._avoided[endpoint] = now + AVOIDED_SECONDS

    def choose(
        self, partition: TopicPartition, leader: Endpoint | None, down: Collection[Endpoint], now: float
    ) -> Endpoint | None:
        """Return the node from which to read a partition, or None if neither a near node nor a leader is known. leader:
        the leader according to ZooKeeper. down: endpoints of nodes that cannot be reached.
        """
        near = self._near.get(partition.broker, ())
        if not near or leader in near:
            return leader
        usable = [each for each in near if each not in down and self._avoided.get(each, now) <= now]
        return usable[partition.partition % len(usable)] if usable else leader


class Nearby:
    """Watches the broker sets in ZooKeeper to keep a consumer's NearestNodes up to date. look() must be called on one
    thread only; any thread may call close().
    """

    def __init__(self, session: ZkSession, zone: str, on_change: Callable[[int], None]) -> None:
        """on_change: called with the id of a broker set when its nodes in the consumer's zone have changed. The call
        comes on the session's event thread.
        """
        self.nodes = NearestNodes(zone)
        self._session = session
        self._on_change = on_change
        self._watchers: dict[int, DataWatcher] = {}

    def look(self, broker_ids: Collection[int]) -> None:
        """Find the broker sets among these brokers, and watch them."""
        for each in broker_ids:
            if each not in self._watchers:
                self._watchers[each] = watch_set(self._session, each, self._seen)

    def _seen(self, broker_id: int, view: SetView) -> None:
        if self.nodes.seen(broker_id, view):
            self._on_change(broker_id)

    def close(self) -> None:
        """Stop watching."""
        for each in list(self._watchers.values()):
            each.close()


def _endpoint(url: str) -> Endpoint | None:
    try:
        return parse_address(url)
    except ConfigError:
        return None

"""An asynchronous slave (metaslave) finds its master in ZooKeeper, and copies every partition of the master
(semantics.md §5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, ensureDeferred

from metaq.coordination.groups.master_watch import MasterView, MasterWatch
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import MetaqError

from .config_copy import ConfigCopy
from .host import ReplicationHost
from .master_source import MasterSource, source_of
from .partition_copy import PartitionCopy
from .peer import KeptPeer, Peer
from .plugins import MetaslavePlugin
from .status import CopyState, ReplicationStatus

__all__ = ["AsyncSlave"]

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.2, 5.0)
"""The pauses in seconds after failed attempts to connect: the first pause, and the longest one."""

OnTopics = Callable[[Mapping[str, int]], None]
"""on_topics(topics): called with the master's topics; `topics` has the number of partitions for each topic."""


class AsyncSlave:
    """Copies the partitions of an asynchronous slave's master. Used only on the reactor thread. `start` must be called
    after the broker has connected to ZooKeeper.
    """

    def __init__(
        self,
        broker: ReplicationHost,
        plugin: MetaslavePlugin,
        *,
        on_topics: OnTopics,
        config_copy: ConfigCopy | None = None,
    ) -> None:
        """config_copy: copies the master's topics into the slave's server.ini. It is None if the option
        autoSyncMasterConfig is not set. on_topics: called whenever the master's topics have changed.
        """
        self._broker = broker
        self._plugin = plugin
        self._on_topics = on_topics
        self._config_copy = config_copy
        self._copies: dict[tuple[str, int], PartitionCopy] = {}
        self._view = MasterView(None, {})
        self._seen = False  # whether anything was read from ZooKeeper yet
        self._watch: MasterWatch | None = None
        self._changed: Deferred[None] | None = None
        self._connecting_to = self._view.address
        self._link = KeptPeer(broker, Backoff(*_BACKOFF_SECONDS), "nothing is copied now: %s; trying again")
        self._source: MasterSource | None = None
        self._running: list[Deferred[None]] = []
        self._checksum: str | None = None

    def start(self, session: ZkSession) -> None:
        """Begin to watch for the master in ZooKeeper, and to copy from it as soon as it is registered there."""
        reactor: Any = self._broker.reactor

        def seen(view: MasterView) -> None:
            reactor.callFromThread(self.follow, view)

        self._watch = MasterWatch(session, self._broker.config.broker_id, self._plugin.group, seen)
        self._watch.start()
        ensureDeferred(self._link.keep(self._where, self._copy_from, lambda: None))

    def stop(self) -> Deferred[None]:
        """Stop copying, and stop watching ZooKeeper."""
        self._link.stop()
        self._wake()
        return self._broker.in_thread(self._watch.close if self._watch else lambda: None)

    def restart(self) -> None:
        """Make a new connection to the master. For every partition, including those whose copying had stopped, compare
        the copy with the master's partition again, and continue to copy.
        """
        self._halt("restarted by an operator")
        if self._watch is not None:
            self._watch.again()
        self._wake()

    def status(self) -> ReplicationStatus:
        """Return the status of replication for operators, with all partitions, sorted by topic and number."""
        partitions = [self._copies[key].status for key in sorted(self._copies)]
        address, peer = self._view.address, self._link.peer
        stopped = sum(each.state is CopyState.STOPPED for each in partitions)
        return ReplicationStatus(
            "slave",
            peer.name if peer else f"meta://{address.host}:{address.port}" if address else "",
            peer is not None,
            self._link.error,
            self._link.since_ms,
            {
                "slaveId": self._plugin.slave_id,
                "masterVersion": peer.version if peer else "",
                "partitionsStopped": stopped,
                "lagBytes": sum(each.lag_bytes or 0 for each in partitions),
            },
            partitions,
        )

    # --- what ZooKeeper shows -----------------------------------------------------------------------------------------

    def follow(self, view: MasterView) -> None:
        """Handle a change of the master's address or topics in ZooKeeper."""
        before, self._view = self._view, view
        self._seen = True
        if view.topics and view.topics != before.topics:
            self._on_topics(view.topics)
        for topic, count in view.topics.items():
            for partition in range(count):
                self._add(topic, partition)
        if view.address is not None and before.address is not None and view.address != before.address:
            self._halt("the master has moved")
        elif self._source is not None and view.checksum != self._checksum:
            self._running.append(ensureDeferred(self._copy_config(self._source)))
        self._wake()

    def _add(self, topic: str, partition: int) -> None:
        key = topic, partition
        if key not in self._copies:
            self._copies[key] = PartitionCopy(self._broker, topic, partition, self._plugin.max_delay_ms / 1000)
            if self._source is not None:
                self._run(self._copies[key], self._source)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _where(self) -> tuple[str, int] | None:
        """Return the master's address. If no master is registered in ZooKeeper, return None, but only after the entries
        about the master in ZooKeeper have changed.
        """
        address = self._connecting_to = self._view.address
        if address is not None:
            return address.host, address.port
        if self._seen:
            self._link.trouble("there is no master in ZooKeeper")
        self._changed = Deferred()
        await self._changed
        return None

    async def _copy_from(self, peer: Peer, lost: Deferred[None]) -> None:
        """Copy all partitions until the connection is lost."""
        if self._connecting_to != self._view.address:
            peer.close()
            return
        self._source = source_of(peer, self._plugin.group)
        _log.info("copying %d partitions from %s (version %s)", len(self._copies), peer.name, peer.version)
        await self._copy_config(self._source)
        for copy in list(self._copies.values()):
            self._run(copy, self._source)
        await lost
        self._source = None
        for copy in self._copies.values():
            copy.active = False
        running, self._running = self._running, []
        await DeferredList(running)

    def _run(self, copy: PartitionCopy, source: MasterSource) -> None:
        copy.active = True
        running = ensureDeferred(copy.run(source))
        self._running.append(running)

    async def _copy_config(self, source: MasterSource) -> None:
        """With autoSyncMasterConfig, copy the master's topics into server.ini if they differ."""
        self._checksum = self._view.checksum
        if self._config_copy is None:
            return
        try:
            await self._config_copy.update(await source.server_ini())
        except MetaqError as error:
            _log.error("the master's topics could not be copied into server.ini: %s", error)

    def _halt(self, why: str) -> None:
        if self._link.peer is not None:
            _log.info("closing the connection to %s: %s", self._link.peer.name, why)
            self._link.restart()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.callback(None)

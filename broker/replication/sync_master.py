"""The synchronous master (plugin samsa). It also sends each of its messages to its slave, and answers the producer when
both brokers have the message (semantics.md §5).

The master writes a message to its own log, and immediately sends the message to its slave. It sends the message before
its own log is synced, so the message becomes safe on both brokers at about the same time. A message that the master
cannot write is never sent to the slave. All requests to the slave are sent on one connection without waiting for
answers, so the slave gets the messages of each partition in order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError, PeerLost, ReplicationError, SlaveDisconnected, SyncFailed
from metaq.protocol.limits import SLAVE_STATUS_TOPIC
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum, iter_headers
from metaq.protocol.statuses import Status
from metaq.protocol.text import Result, encode_sync_line

from ..store.partition_log import PartitionLog
from ..writing.writing import CopiesDone
from .host import ReplicationHost
from .peer import CONNECT_SECONDS, KeptPeer, Peer
from .plugins import SamsaPlugin
from .status import ReplicationStatus

__all__ = ["SyncMaster"]

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 2.0)
"""The pauses in seconds after failed attempts to connect: the first pause, and the longest one."""
HEARTBEAT_SECONDS = 10.0
"""The slave would close a connection that is idle for 300 s. So that the connection is not idle, the master sends a
request at intervals of this many seconds.
"""
_PROBE = b"test"


class SyncMaster:
    """Sends the messages of a synchronous master to its slave. Used only on the reactor thread."""

    def __init__(
        self,
        broker: ReplicationHost,
        plugin: SamsaPlugin,
        *,
        unregister: Callable[[], Awaitable[None]],
        register: Callable[[], Awaitable[None]],
    ) -> None:
        """unregister: removes the broker from ZooKeeper when its slave fails. register: registers the broker again when
        the slave works again.
        """
        self._broker = broker
        self._plugin = plugin
        self._unregister = unregister
        self._register = register
        host = f"[{plugin.host}]" if ":" in plugin.host else plugin.host
        self._url = f"meta://{host}:{plugin.port}"
        complaint = f"no connection to the synchronous slave {self._url}: %s; trying again"
        self._link = KeptPeer(broker, Backoff(*_BACKOFF_SECONDS), complaint, frames=False)
        self._first: Deferred[None] = Deferred()
        self._failures = 0  # number of consecutive bad answers and timeouts
        self._healing = False
        self._sent = self._failed = 0

    def start(self) -> Deferred[None]:
        """Open a connection to the slave, and open it again whenever it is lost. The Deferred fires when the first
        attempt to connect has ended. The broker waits for this before it registers in ZooKeeper: it refuses messages
        while it has no connection to its slave, and would otherwise refuse its first messages although the slave is
        available.
        """
        address = self._plugin.host, self._plugin.port
        ensureDeferred(self._link.keep(lambda: succeed(address), self._serve, lambda: _fire(self._first)))
        return self._first

    def stop(self) -> None:
        """Close the connection to the slave, and open no new one."""
        self._link.stop()

    def restart(self) -> None:
        """Close the connection to the slave, so that a new one is opened."""
        self._link.restart()

    def status(self) -> ReplicationStatus:
        """Return the status of replication for operators. The status does not list partitions, because messages have
        other offsets at the slave, and the master does not know these offsets.
        """
        return ReplicationStatus(
            "sync-master",
            self._url,
            self._link.peer is not None,
            self._link.error,
            self._link.since_ms,
            {
                "registered": not self._healing,
                "failuresInARow": self._failures,
                "messagesSent": self._sent,
                "messagesFailed": self._failed,
                "messagesUnderWay": self._link.peer.waiting if self._link.peer else 0,
            },
        )

    # --- messages -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise SlaveDisconnected if there is no connection to the slave. The broker calls this before it stores a
        message: as in 1.x, it stores no message while this connection is missing.
        """
        if self._link.peer is None:
            raise SlaveDisconnected

    def replicate(self, log: PartitionLog, records: Buffer, done: CopiesDone) -> None:
        """Send records that were appended to `log`, with their ids, to the slave. `done` is called once, as soon as
        each record has an outcome: an answer of the slave, or a failure because the time limit for the answer has
        passed.
        """
        topic, partition = log.topic, log.partition
        data = memoryview(records)
        headers = list(iter_headers(data))
        errors: list[MetaqError | None] = [None] * len(headers)
        missing = len(headers)

        def answered(index: int, reply: Reply | None, error: Exception | None) -> None:
            nonlocal missing
            if not self._is_good(reply, error):
                self._failed += 1
                errors[index] = SyncFailed("slave", self._url, topic, partition)
            missing -= 1
            if not missing:
                done(errors)

        self._sent += len(headers)
        for index, header in enumerate(headers):
            put = header.flag, header.checksum, data[header.start + HEADER_BYTES : header.end]
            self._send(topic, partition, put, header.id, lambda *found, index=index: answered(index, *found))

    def _send(
        self,
        topic: str,
        partition: int,
        put: tuple[int, int, Buffer],
        message_id: int,
        done: Callable[[Reply | None, Exception | None], None],
    ) -> None:
        flag, crc, body = put
        peer = self._link.peer
        if peer is None:
            done(None, PeerLost(f"there is no connection to {self._url}"))
            return

        def build(opaque: int) -> Sequence[Buffer]:
            return encode_sync_line(topic, partition, len(body), flag, message_id, crc, opaque), body

        peer.send(build, done, self._plugin.send_timeout_ms / 1000)

    def _is_good(self, reply: Reply | None, error: Exception | None) -> bool:
        if isinstance(reply, Result) and reply.code == Status.SUCCESS:
            self._failures = 0
            return True
        if isinstance(error, PeerLost):
            return False  # not counted, as in 1.x
        self._failures += 1
        self._link.error = str(error) if error is not None else str(getattr(reply, "text", reply))
        if self._failures >= self._plugin.failure_threshold:
            self._failures = 0
            if not self._healing and not self._link.stopped:
                self._healing = True
                ensureDeferred(self._heal()).addErrback(lambda failure: _log.error("%s", failure.getTraceback()))
        return False

    # --- a slave that fails -------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Called when the slave has failed several times: unregister the broker from ZooKeeper, send probe messages to
        the slave, and register the broker again when the slave has stored one of them.
        """
        _log.error(
            "the slave %s has failed %d times in a row (%s): leaving ZooKeeper until it stores messages again",
            self._url,
            self._plugin.failure_threshold,
            self._link.error,
        )
        await self._unregister()
        while not (self._link.stopped or await self._probe()):
            await self._sleep(self._plugin.check_interval_ms / 1000)
        if not self._link.stopped:
            _log.warning("the slave %s stores messages again: back to ZooKeeper", self._url)
            self._failures, self._link.error = 0, ""
            await self._register()
        self._healing = False

    async def _probe(self) -> bool:
        deferred: Deferred[bool] = Deferred()

        def done(reply: Reply | None, error: Exception | None) -> None:
            deferred.callback(isinstance(reply, Result) and reply.code == Status.SUCCESS)

        self._send(SLAVE_STATUS_TOPIC, 0, (0, checksum(_PROBE), _PROBE), self._broker.message_ids.next(), done)
        return await deferred

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _serve(self, peer: Peer, lost: Deferred[None]) -> None:
        _log.info("connected to the synchronous slave %s (version %s)", self._url, peer.version)
        _fire(self._first)
        ensureDeferred(self._heartbeat(peer))
        await lost

    async def _heartbeat(self, peer: Peer) -> None:
        while peer.lost is None:
            await self._sleep(HEARTBEAT_SECONDS)
            try:
                await peer.heartbeat(CONNECT_SECONDS)
            except ReplicationError:
                peer.close()
                return

    def _sleep(self, seconds: float) -> Deferred[Any]:
        reactor: Any = self._broker.reactor
        return deferLater(reactor, seconds)


def _fire(deferred: Deferred[None]) -> None:
    if not deferred.called:
        deferred.callback(None)

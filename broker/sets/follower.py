"""The work of a follower in a broker set. A follower connects to its leader and removes from its own logs the data that
the leader does not have. Then the follower receives a copy of the data that it lacks, and after that each new block of
the leader.

The code runs on the reactor thread, but worker threads cut and sync the files. A Follower object serves one connection;
its owner creates a new object for the next connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from twisted.internet import defer, error
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from metaq.protocol.errors import (
    DiskFull,
    LogReadOnly,
    MetaqError,
    PeerLost,
    PeerRefused,
    RemoteProtocolError,
    ReplicaDiverged,
    StoreError,
    TlsFailed,
)
from metaq.protocol.frames import encode_frame
from metaq.protocol.replication_stream import (
    COPY,
    Ack,
    Hello,
    Kind,
    Lane,
    StreamBlock,
    StreamEntry,
    StreamMessage,
    encode_ack,
    encode_hello,
    encode_json,
    parse_block,
    parse_committed,
    parse_json,
    parse_ping,
)
from metaq.protocol.statuses import RequestCode

from ..runtime.dialing import meta_url
from ..runtime.scheduled_calls import repeat
from ..store.cutting import CutsDone
from ..store.internal_logs import is_internal
from ..store.partition_log import PartitionLog
from ..store.store import Append
from ..store.topic_config import GROUP_COMMIT
from . import tuning
from .connections import StreamProtocol
from .history import Epoch, EpochHistory, NodeFile
from .host import SetHost
from .leading import Mark
from .losses import contents
from .rules import accepts, cut_end, may_cut, visible_end
from .safe_blocks import SafeBlocks
from .transaction_mirror import TransactionMirror

__all__ = ["Follower", "LeaderGone"]

_log = logging.getLogger(__name__)


class LeaderGone(PeerLost):
    """Raised if nothing listens on the leader's port, which means that the leader's process has ended."""


class Follower:
    """Handles one connection to a leader, from the first attempt to connect until the connection ends. Call `run`
    once.
    """

    def __init__(
        self,
        broker: SetHost,
        me: str,
        file: NodeFile,
        ready_mirror: Callable[[], Awaitable[TransactionMirror]],
        *,
        grants: Callable[[int], bool],
        on_hand_over: Callable[[Mapping[str, Any]], None],
        on_caught_up: Callable[[], None],
    ) -> None:
        """ready_mirror: waits until nothing else uses this node's transaction log, and then returns the
        TransactionMirror that writes the leader's transactions to this log. grants(`epoch`): returns whether this node
        now answers a ping of the leader of `epoch` with a grant. A grant is the promise not to stand for election for
        some time; `grants` records the promise before it returns True.
        """
        self.connection: StreamProtocol | None = None
        self.live = False
        """Whether this node has stored all data that the leader had when it began to send its new blocks to this
        node.
        """
        self.failure: MetaqError | None = None
        """Why this node's disk accepts no more writes, or None if it accepts them. A DiskFull error is removed when the
        disk has free space again; any other error stays until this node's next start.
        """
        self.epoch = 0
        """The leader's epoch, as soon as this node has written the leader's list of epochs into its own file
        `history.json`. It is 0 until then.
        """
        self._broker = broker
        self._store = broker.store
        self._reactor: Any = broker.reactor
        self._me = me
        self._file = file
        self._ready_mirror = ready_mirror
        self._mirror: TransactionMirror | None = None
        self._grants = grants
        self._on_hand_over = on_hand_over
        self._on_caught_up = on_caught_up
        self._connecting: Deferred[StreamProtocol] | None = None
        self._stopped = False
        self._received = -1
        self._safe = SafeBlocks(broker.store, self._grown, self._failed)
        self._live_from = 0
        self._told = (0, 0)  # the last blocks that the leader has reported as committed
        self._ping = 0
        self._ack_due = False
        self._held: list[StreamMessage] | None = None  # set while the store is being cut
        self._heard_at = self._reactor.seconds()
        self._welcome: Deferred[Mapping[str, Any]] | None = None
        self._marks: tuple[deque[tuple[int, list[Mark]]], ...] = (deque(), deque())
        self._firsts: dict[str, int] = {}  # the leader's first offsets, while ours are lower
        self._logs: dict[bytes, PartitionLog] = {}
        self._foreign: set[str] = set()  # topics without a section in this node's server.ini
        self._forced: dict[PartitionLog, None] = {}  # synced because of the leader's settings, not of ours

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, host: str, port: int, epoch: int, chosen: int = 0) -> None:
        """Follow the leader of `epoch` until the connection is lost, then raise the error that ended it. If the error
        is ReplicaDiverged, an operator must decide which node's data are right. chosen: the highest epoch that was
        known when an operator last chose a leader by hand (`SetState.chosen`), or 0 if no operator has ever chosen one.
        """
        connection = await self._connect(host, port)
        self.connection = connection
        if self._stopped or connection.lost is not None:
            connection.close()
            raise PeerLost(f"the connection to {connection.name} was given up")
        lost: Deferred[None] = Deferred()
        connection.on_lost = lambda why: self._lost(lost, why)
        watch = repeat(tuning.SILENT_SECONDS / 4, self._look, self._reactor, "the wait for a leader's pings")
        try:
            await self._join(connection, epoch, chosen)
            await lost
            raise connection.lost or PeerLost(f"the connection to {connection.name} was lost")
        finally:
            watch.stop()
            connection.close()
            if self._forced:
                self._store.reconfigure()

    def _lost(self, lost: Deferred[None], why: MetaqError) -> None:
        welcome, self._welcome = self._welcome, None
        if welcome is not None:
            welcome.errback(why)
        lost.callback(None)

    def _look(self) -> None:
        self._drop(dict(self._firsts))  # retries what could not be dropped before
        if self.connection is not None and self._reactor.seconds() - self._heard_at > tuning.SILENT_SECONDS:
            silent = f"{self.connection.name} has been silent for {tuning.SILENT_SECONDS:g} s"
            self.connection.close(PeerLost(silent))

    def stop(self) -> None:
        """Close the connection, or cancel the attempt to connect."""
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.close(PeerLost("the node follows no longer"))

    def leave(self, why: str) -> None:
        """Ask the leader to remove this node from the in-sync set, so that producers no longer wait until this node has
        their messages. why: the reason, for the leader's log.
        """
        if self.connection is not None:
            self.connection.send([encode_json(Kind.LEAVE, {"why": why})])

    async def _connect(self, host: str, port: int) -> StreamProtocol:
        name = meta_url(host, port)
        try:
            self._connecting = self._broker.dial(
                host, port, tuning.CONNECT_SECONDS, lambda: StreamProtocol(name, self._messages)
            )
            return await self._connecting
        except error.ConnectionRefusedError as refused:
            raise LeaderGone(f"no process of {name} listens there") from refused
        except TlsFailed as failed:
            raise PeerLost(str(failed)) from failed
        except Exception as failed:
            raise PeerLost(f"no connection to {name}: {failed}") from failed

    # --- joining ------------------------------------------------------------------------------------------------------

    async def _join(self, connection: StreamProtocol, epoch: int, chosen: int) -> None:
        file, store = self._file, self._store
        ends = {name: end for name, (_, end, _) in store.ends().items()}
        body = encode_hello(
            Hello(self._broker.config.broker_id, self._me, file.instance, file.epoch, file.history.epochs)
        )
        welcome: Deferred[Mapping[str, Any]] = Deferred()
        self._welcome = welcome
        connection.send([encode_frame(RequestCode.FOLLOW, 1, {}, len(body)), body])
        try:
            told = await welcome.addTimeout(tuning.CONNECT_SECONDS, self._reactor)
        except defer.TimeoutError as late:
            raise PeerLost(f"{connection.name} does not answer within {tuning.CONNECT_SECONDS:g} s") from late
        self._heard_at = self._reactor.seconds()
        leads = int(told["epoch"])
        if not accepts(max(file.epoch, epoch), leads):
            raise PeerLost(f"{connection.name} leads epoch {leads}, which is over: epoch {file.epoch} has begun")
        history = EpochHistory.from_json(told["history"])
        common = None if told["common"] is None else (int(told["common"][0]), str(told["common"][1]))
        if common is not None:
            history = file.history.up_to(common).followed_by(history)
        leader = f"{connection.name} ({told['bytes']} bytes)"
        await self._cut(file.history, common, told["ends"], ends, leader, chosen)
        try:
            kept = contents(store, self._broker.transactions.directory)
            await self._broker.in_thread(partial(file.write, leads, history, kept))
        except DiskFull as full:
            self._failed(full)
            raise
        self.epoch = leads
        mirror = await self._ready_mirror()
        transactions = await self._broker.in_thread(mirror.describe)
        if connection.lost is not None:
            raise connection.lost
        self._mirror = mirror
        partitions = {name: [first, end] for name, (first, end, _) in store.ends().items()}
        await deferLater(cast(Any, self._reactor), 0)  # with 10,000 partitions the lines around take 20 ms each
        if connection.lost is not None:
            raise connection.lost
        connection.send([encode_json(Kind.READY, {"partitions": partitions, "transactions": transactions})])

    async def _cut(
        self,
        ours: EpochHistory,
        common: Epoch | None,
        their_ends: Mapping[str, int],
        our_ends: Mapping[str, int],
        leader: str,
        chosen: int,
    ) -> None:
        """Remove from the end of each of this node's partitions the data that the leader does not have. ours: this
        node's epochs. common: the last epoch that both this node and the leader have in their histories, or None if
        there is none. their_ends: where the leader's partitions ended at the end of the epoch `common`. our_ends: where
        this node's partitions end now. Raises ReplicaDiverged.
        """
        broker_id = self._broker.config.broker_id
        if common is None:
            if any(our_ends.values()):
                own = f"{self._me} ({sum(our_ends.values())} bytes)"
                raise ReplicaDiverged(
                    f"the data of {own} have nothing in common with those of the leader {leader}, and only one can be "
                    f"kept. Those of {self._me}: stop the others, then `metaq brokers elect {broker_id} --unclean "
                    f"--node {self._me}`. The leader's: move the data directories of {self._me} away, and it copies all"
                )
            return
        known = ours.ends_of(common, our_ends)
        cuts = {}
        acknowledged = []  # partitions that must not be cut
        for name, end in our_ends.items():
            kept = cut_end(known[name], their_ends.get(name, 0))
            if kept < end:
                log = self._store.find_named(name)
                assert log is not None
                cuts[log] = kept
                if not may_cut(kept, log.told_end, ours.last, chosen):
                    acknowledged.append(name)
        if acknowledged:
            acknowledged.sort(key=is_internal)  # names that an operator knows come first
            named = ", ".join(acknowledged[: tuning.NAMED_LOSSES])
            more = " and others" if acknowledged[tuning.NAMED_LOSSES :] else ""
            raise ReplicaDiverged(
                f"the leader {leader} lacks acknowledged messages that {self._me} has, in {named}{more}: ZooKeeper was "
                f"set back before it was elected. To keep those of {self._me}: stop the others, then `metaq brokers "
                f"elect {broker_id} --unclean --node {self._me}`. To give them up: start {self._me} again, which keeps "
                "them in .damaged- files"
            )
        if cuts:
            _log.warning("cuts %d partitions: %s does not have all of them", len(cuts), leader)
            left = {**self._file.ends, **our_ends, **{log.journal_name.decode(): end for log, end in cuts.items()}}
            await self._broker.in_thread(partial(self._file.remember, left))  # otherwise a start would report a loss
            await self._done(partial(self._store.cut, cuts))

    async def _done(self, change: Callable[[CutsDone], None]) -> None:
        """Call `change`, which starts to change logs of the store (for example to cut them), and wait until the store
        has finished the change. Raises StoreError.
        """
        changed: Deferred[StoreError | None] = Deferred()
        change(lambda kept, error: changed.callback(error))
        error = await changed
        if error is not None:
            raise error

    def _welcomed(self, kind: Kind, words: Mapping[str, Any]) -> None:
        welcome, self._welcome = self._welcome, None
        if welcome is None:
            raise RemoteProtocolError("a second answer to FOLLOW")
        if kind is Kind.WELCOME:
            welcome.callback(words)
        else:
            welcome.errback(PeerRefused(str(words.get("why"))))

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _messages(self, messages: Sequence[StreamMessage]) -> None:
        """Handle the messages that became complete with one read from the connection. Raises RemoteProtocolError,
        StoreError or LogReadOnly, which end the connection.
        """
        if self._stopped:
            return
        self._heard_at = self._reactor.seconds()
        for number, (kind, payload) in enumerate(messages):
            if self._held is not None:
                self._held += messages[number:]
                return
            if kind is Kind.BLOCK:
                self._block(parse_block(payload))
            elif kind is Kind.PING:
                ping = parse_ping(payload)
                self._ping = ping.number if self._grants(self.epoch) else self._ping
                self._committed(ping.committed)
                self._ack_due = True
            elif kind is Kind.COMMITTED:
                self._committed(parse_committed(payload))
            elif kind in (Kind.WELCOME, Kind.REFUSED):
                self._welcomed(kind, parse_json(payload))
            elif kind is Kind.LIVE:
                self._go_live(parse_json(payload))
            elif kind is Kind.BEGIN:
                self._begin(parse_json(payload))
            elif kind is Kind.DROP:
                self._drop(parse_json(payload))
            elif kind is Kind.CAUGHT_UP:
                self._on_caught_up()
            elif kind is Kind.HAND_OVER:
                self._on_hand_over(parse_json(payload))
        self._acknowledge()

    def _block(self, block: StreamBlock) -> None:
        if block.number == COPY:
            self._copied(block.entries)
            return
        if block.number != self._received + 1:
            raise RemoteProtocolError(f"block {block.number} follows block {self._received}")
        appends = []
        ends: dict[PartitionLog, int] = {}
        mirrored: int | None = None  # the highest lane of the transaction log's entries
        for entry in block.entries:
            if entry.segment < 0:  # transaction log: records precede their messages
                self._take_mirrored(entry)
                mirrored = max(entry.lane, mirrored or Lane.MEMORY)
                continue
            log = self._log(entry.name, entry.base)
            if entry.base != ends.get(log, log.end_offset):
                raise RemoteProtocolError(
                    f"{log.directory} ends at {log.end_offset}, its leader's part at {entry.base}"
                )
            if entry.lane and not log.has_group_commit:
                self._force(log)
            ends[log] = entry.base + sum(map(len, entry.data))
            appends.append(Append(log, entry.data, entry.units, entry.segment))
        for taken in self._store.append_many(appends):
            if taken.error is not None:
                if isinstance(taken.error, LogReadOnly | DiskFull):
                    self._failed(taken.error)
                raise taken.error
        self._received = block.number
        lanes: tuple[dict[PartitionLog, Mark], dict[PartitionLog, Mark]] = ({}, {})
        entries = block.entries if mirrored is None else [each for each in block.entries if each.segment >= 0]
        for append, entry in zip(appends, entries, strict=True):
            log = append.log
            lanes[entry.lane][log] = Mark(log, append.end, log.durability.count)
        for marks, found in zip(self._marks, lanes, strict=True):
            if found:
                marks.append((block.number, list(found.values())))
        on_disk = [(mark.log, mark.end) for mark in lanes[Lane.DISK].values()]
        mirror = self._mirror if mirrored == Lane.DISK else None
        self._safe.add(block.number, on_disk, None if mirror is None else mirror.when_safe)
        self._committed(block.committed)
        self._ack_due = True

    def _copied(self, entries: Sequence[StreamEntry]) -> None:
        """Append a received part of the leader's copy to this node's logs. The part is not written to the journal,
        because all files are synced when the copy is complete.
        """
        for entry in entries:
            if entry.segment < 0:
                self._take_mirrored(entry)
                continue
            log = self._log(entry.name, entry.base)
            if entry.base != log.end_offset:
                raise RemoteProtocolError(
                    f"{log.directory} ends at {log.end_offset}, its leader's part at {entry.base}"
                )
            try:
                if entry.units:
                    log.append(entry.data, entry.units, entry.segment, journaled=False)
                else:
                    log.append_damaged(entry.data, entry.segment)
            except (LogReadOnly, DiskFull) as error:
                self._failed(error)
                raise

    def _take_mirrored(self, entry: StreamEntry) -> None:
        """Write an entry of the leader's transaction log to this node's transaction log. Raises the errors of
        `TransactionMirror.take`. A DiskFull error is also stored in `failure`, so that this node does not follow until
        its disk has free space.
        """
        assert self._mirror is not None
        try:
            self._mirror.take(entry)
        except DiskFull as full:
            self._failed(full)
            raise

    def _log(self, name: bytes, base: int) -> PartitionLog:
        log = self._logs.get(name)
        if log is None:
            topic, _, number = name.decode().rpartition("-")
            if is_internal(topic):
                log = self._store.numbered_internal_log(topic, int(number), base)
            else:
                log = self._broker.partitions.for_replica(topic, int(number), base)
                log.limit_visibility()
                if self._broker.config.topic(topic) is None and topic not in self._foreign:
                    self._foreign.add(topic)
                    _log.warning(
                        "topic %s is copied from %s, and this node's server.ini has no section for it: when this node "
                        "leads, the topic has the settings of [system]; give all nodes the same topics",
                        topic,
                        self.connection and self.connection.name,
                    )
            self._logs[name] = log
        return log

    def _grown(self) -> None:
        self._ack_due = True
        self._acknowledge()

    def _failed(self, failure: MetaqError) -> None:
        self.failure = self.failure or failure
        self.leave(str(failure))
        if self.connection is not None:
            self.connection.close(failure)

    def _acknowledge(self) -> None:
        if self._ack_due and self.connection is not None:
            self._ack_due = False
            received, safe = (self._received, self._safe.number) if self.live else (0, 0)
            self.connection.send([encode_ack(Ack(received, safe, self._ping))])

    def _committed(self, committed: tuple[int, int]) -> None:
        self._told = committed
        for marks, told in zip(self._marks, committed, strict=True):
            visible = visible_end(self._received, told)
            while marks and marks[0][0] <= visible:
                for log, end, count in marks.popleft()[1]:
                    log.raise_bound(end, count)

    @property
    def shows_all(self) -> bool:
        """Whether readers of this node see all data that the leader had when it began to send its new blocks to this
        node.
        """
        return self.live and min(self._told) >= self._live_from

    def _force(self, log: PartitionLog) -> None:
        """From now on, sync this log's new data before acknowledging them to the leader. Called if this node's own
        settings do not demand syncs, but the leader has promised the topic's producers that a message is synced on each
        in-sync node.
        """
        if log.topic not in {each.topic for each in self._forced}:
            _log.warning(
                "topic %s has ack=disk at %s and asynchronous flush here: it is synced as long as this node follows; "
                "give all nodes the same settings",
                log.topic,
                self.connection and self.connection.name,
            )
        self._forced[log] = None
        log.use_policy(GROUP_COMMIT)

    def reconfigured(self) -> None:
        """Switch all logs that `_force` has changed to group commit again. Called after a reload has applied this
        node's own topic settings to its logs, because this has undone the effect of `_force`.
        """
        for log in self._forced:
            log.use_policy(GROUP_COMMIT)

    def _when_synced(self, ends: Sequence[tuple[PartitionLog, int]], done: Callable[[MetaqError | None], None]) -> None:
        """Call `done` when each of these logs is synced up to the end offset given with it. The method checks the logs
        again and again. It cannot use a callback: if data were appended before a log had group commit, no callback
        reports when they are synced.
        """

        def look() -> None:
            failed = next((LogReadOnly(log.directory, log.read_only) for log, _ in ends if log.read_only), None)
            if self._stopped or failed is not None or all(log.synced_end >= end for log, end in ends):
                looking.stop()
                if not self._stopped:
                    done(failed)

        looking = repeat(tuning.LOOK_SECONDS, look, self._reactor, "the wait for a copy's sync")

    def _go_live(self, words: Mapping[str, Any]) -> None:
        number = int(words["number"])
        self._received = self._live_from = number
        logs = list(self._store.all_logs())
        on_disk = set(words["disk"])
        lanes: tuple[list[Mark], list[Mark]] = ([], [])
        forced = []
        for log in logs:
            self._logs[log.journal_name] = log
            lane = Lane.DISK if log.journal_name.decode() in on_disk else Lane.MEMORY
            lanes[lane].append(Mark(log, log.end_offset, log.durability.count))
            if lane and not log.has_group_commit:
                self._force(log)
                if log.synced_end < log.end_offset:
                    forced.append((log, log.end_offset))
                    log.flush()
        for marks, found in zip(self._marks, lanes, strict=True):
            marks.append((number, found))
        waiting = [log for log in logs if log.has_group_commit]
        for log in waiting:
            if log.durability.safe_end < log.end_offset:
                log.flush()
        when_synced = partial(self._when_synced, forced) if forced else None
        self._safe.add(number, [(log, log.end_offset) for log in waiting], when_synced)
        assert self._mirror is not None
        self._mirror.when_safe(self._now_live)

    def _now_live(self, error: MetaqError | None) -> None:
        """Called when the copy of the transaction log is on the disk. error: why the copy could not be made safe there,
        or None if it is on the disk. With an error, close the connection. Without one, acknowledge from now on the
        blocks that this node receives.
        """
        if self.connection is None or self._stopped or self.connection.lost is not None:
            return
        if error is not None:
            self.connection.close(error)
            return
        self.live = True
        self._ack_due = True
        self._acknowledge()
        _log.info("follows the stream of %s, epoch %d", self.connection.name, self.epoch)

    def _begin(self, words: Mapping[str, Any]) -> None:
        """Remove all data of the partitions that the leader names, and let each of them continue as an empty partition
        at the first offset that the leader gives for it. A partition that already ends at this offset is not changed.
        This node handles later messages of the leader only when this is done. words: a dict from partition name to
        first offset.
        """
        anew = {}
        for name, first in words.items():
            log = self._store.find_named(name)
            if log is None:
                self._log(name.encode(), first)
            elif log.end_offset != first:
                anew[log] = first
        if anew:
            self._hold()
            ensureDeferred(self._done(partial(self._store.begin_anew, anew))).addCallbacks(self._go_on, self._broken)

    def _hold(self) -> None:
        self._held = []
        cast(Any, self.connection).transport.pauseProducing()

    def _go_on(self, _: object) -> None:
        connection, held = self.connection, self._held
        self._held = None
        assert connection is not None
        if connection.lost is None:
            cast(Any, connection.transport).resumeProducing()
            connection.handle(held or ())

    def _broken(self, failure: Failure) -> None:
        assert self.connection is not None
        self.connection.close(cast(MetaqError, failure.value))

    def _drop(self, words: Mapping[str, Any]) -> None:
        self._firsts.update(words)
        for name, first in words.items():
            log = self._store.find_named(name)
            if log is None or log.first_offset >= first:
                del self._firsts[name]
            elif is_internal(log.topic):
                self._store.drop_internal_before(log, first)
            else:
                self._store.drop_before(log, first)

"""The work of a broker set's leader. A leader combines the data that are appended to its logs into blocks, sends the
blocks to its followers, and finds out which blocks are committed. The code runs on the reactor thread.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall

from metaq.protocol.errors import MetaqError, NotEnoughReplicas, NotLeader, PeerLost, RemoteProtocolError
from metaq.protocol.record import Buffer
from metaq.protocol.replication_stream import (
    Ack,
    Kind,
    Lane,
    Ping,
    StreamEntry,
    StreamMessage,
    encode_block,
    encode_committed,
    encode_json,
    encode_ping,
    parse_ack,
    parse_json,
)

from ..configuration.settings import Promise
from ..runtime.scheduled_calls import repeat
from ..runtime.slices import SlicedWork
from ..store.internal_logs import is_internal
from ..store.partition_log import PartitionLog
from ..writing.write import Write
from . import tuning
from .catching_up import Copying, copy_pace
from .connections import StreamProtocol
from .host import SetHost
from .leading import Leading, Mark, OnCommitted
from .rules import counted_until, is_caught_up
from .safe_blocks import SafeBlocks

__all__ = ["FollowerStatus", "Leader"]

_log = logging.getLogger(__name__)

_EPOCH_START = 1
"""The number of the block that stands for all data that this node had at its election."""

ChangeInSync = Callable[[frozenset[str]], Deferred[bool]]
"""change(nodes): writes `nodes` as the in-sync set into the znode of the broker set. The Deferred fires when the
outcome of the write is known: with True if `nodes` was written, else with False.
"""


class FollowerStatus(NamedTuple):
    """The state of a follower, for reports to operators. lag_bytes: the size of the blocks that the follower has not
    acknowledged. lag_seconds: the age of the oldest of them. Both are None while the follower does not receive new
    blocks yet.
    """

    name: str
    in_sync: bool
    connected: bool
    live: bool
    lag_bytes: int | None
    lag_seconds: float | None
    error: str


class _Link:
    """The connection of one follower."""

    def __init__(self, name: str, protocol: StreamProtocol, heard_at: float) -> None:
        self.name = name
        self.protocol = protocol
        self.held: list[list[Buffer]] | None = []  # blocks held during the copy; None once it is live
        self.counting = False  # whether blocks are held or sent
        self.unacknowledged: deque[tuple[int, int]] = deque()  # (block, bytes)
        self.backlog = 0
        self.copy: Copying | None = None
        self.heard_at = heard_at
        self.caught_up = False  # True once the follower was told so
        self.pings: deque[tuple[int, float]] = deque(maxlen=tuning.KEPT_PINGS)
        self._drains = 0
        self._read_at = heard_at

    def is_stuck(self, now: float) -> bool:
        """Return whether the connection's send buffer has been full for STUCK_SECONDS, because the follower reads
        nothing. To be called about once a second.
        """
        if not self.protocol.full or self.protocol.drains != self._drains:
            self._read_at, self._drains = now, self.protocol.drains
        return now - self._read_at > tuning.STUCK_SECONDS


class Leader:
    """The work of a leader from its election until it stops leading."""

    def __init__(
        self,
        broker: SetHost,
        core: Leading,
        change_in_sync: ChangeInSync,
        *,
        on_established: Callable[[], None],
        on_failure: Callable[[MetaqError], None],
    ) -> None:
        """on_established: called once, when all data that this node had at its election are committed. Until then it is
        unknown which of these data may be shown to readers. on_failure: called when this node's disk has failed.
        """
        self.core = core
        self._on_established: Callable[[], None] | None = on_established
        self.draining = False
        """Whether a hand-over to another node is under way. The leader does not acknowledge messages of producers
        during a hand-over.
        """
        self._broker = broker
        self._store = broker.store
        self._reactor: Any = broker.reactor
        self._change_in_sync = change_in_sync
        self._links: dict[str, _Link] = {}
        self._own = SafeBlocks(self._store, self._advance, on_failure)
        self._on_failure = on_failure
        self._gathered: dict[PartitionLog, list[StreamEntry]] = {}
        self._gathered_marks: dict[PartitionLog, Mark] = {}
        self._others: list[StreamEntry] = []  # of the transaction log; they precede the block's messages
        self._flush_due = False
        self._lost_at: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._sent: deque[tuple[int, float]] = deque()  # (block, when), one per tick, for _lag_seconds
        self._ping = self._ticks = 0
        self._told = (0, 0)  # the committed blocks that followers were told of
        self._told_at = -math.inf
        self._tell_due = False
        self._writing = False
        self._leaving: set[str] = set()  # followers that have announced that they stop
        self._retry_at = 0.0
        self._ended = False
        self._settled: list[Callable[[], None]] = []  # drains that wait until a follower has all data
        self._timer: LoopingCall | None = None
        self._internal_from: dict[PartitionLog, int] = {}
        self._promises: dict[PartitionLog, tuple[Lane, Promise, int]] = {}
        self._pace = copy_pace(broker)
        self._showing = SlicedWork(broker.reactor)  # one acknowledgement may commit 10,000 partitions

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to lead. All data that this node's store has now count as block 1, which is committed when every
        in-sync node has these data.
        """
        for log in self._store.all_logs():
            self._note(log)
        self._store.on_append = self._appended
        self._timer = repeat(tuning.PING_SECONDS, self._tick, self._reactor, "the pings of a leader")
        self._make_block()

    def stop(self, error: MetaqError) -> None:
        """Stop leading. Call every callback that waits for the commit of a block with `error`, because it is unknown
        whether the block will be committed.
        """
        if self._ended:
            return
        self._ended = True
        self._store.on_append = None
        if self._timer is not None:
            self._timer.stop()
        for link in list(self._links.values()):
            link.protocol.close(error)
        for answered in self.core.take_all():
            answered(error)

    # --- what producers ask -------------------------------------------------------------------------------------------

    @property
    def refusal(self) -> NotLeader | None:
        """The error with which appends are refused after this node has stopped leading, or None while this node
        leads.
        """
        return NotLeader(self._broker.config.broker_id) if self._ended else None

    def check(self, log: PartitionLog) -> None:
        """Raise NotLeader or NotEnoughReplicas if the leader could not acknowledge a message that was appended to this
        log now.
        """
        if self._ended or self.draining:
            raise NotLeader(self._broker.config.broker_id)
        least = self._promise(log)[2]
        if len(self.core.in_sync) < least:
            raise NotEnoughReplicas(log.topic, len(self.core.in_sync), least)

    def when_copied(self, writes: Sequence[Write], done: Callable[[], None]) -> None:
        """Call `done` when these writes are stored on as many nodes, and as safely, as the `ack` settings of their
        topics demand. The writes must have been appended in the present iteration of the reactor's loop, so that they
        belong to the next block. If it is not certain that a write is stored as its topic demands, its `error` is set
        before `done` is called.
        """
        missing = 1

        def copied(lane: Lane, number: int, group: Sequence[Write], error: MetaqError | None) -> None:
            replicas = 0 if error is not None else self.core.holders(lane, number)
            for write in group:
                write.error = write.error or error or self._too_few(write)
                write.replicas = replicas
            arrived()

        def arrived() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done()

        if self._ended:
            for write in writes:
                write.error = write.error or NotLeader(self._broker.config.broker_id)
            arrived()
            return
        lanes: tuple[list[Write], list[Write]] = ([], [])
        for write in writes:
            lane, promise, _ = self._promise(write.target)
            if promise is not Promise.LEADER or self._backlog > tuning.HELD_BACKLOG_BYTES or not self._may_answer():
                lanes[lane].append(write)
            else:
                write.replicas = 1
        for lane, group in zip(Lane, lanes, strict=True):
            if group:
                missing += 1
                number = self.core.number + bool(self._gathered_marks)  # the block that is being gathered
                self._when_shown(lane, number, partial(copied, lane, number, group))
        arrived()

    def _too_few(self, write: Write) -> MetaqError | None:
        log = write.target
        least = self._promise(log)[2]
        count = len(self.core.in_sync)
        return NotEnoughReplicas(log.topic, count, least, stored=True) if count < least else None

    @property
    def leads_now(self) -> bool:
        """Whether this node leads, and it is certain that no other node has been elected leader by now."""
        return not self._ended and self.core.may_acknowledge(self._reactor.seconds())

    def _may_answer(self) -> bool:
        return not self.draining and self.core.may_acknowledge(self._reactor.seconds())

    @property
    def copies(self) -> int:
        """On how many nodes all committed data are: the number of nodes in the in-sync set, including this node."""
        return len(self.core.in_sync)

    @property
    def _backlog(self) -> int:
        return max((link.backlog for link in self._links.values()), default=0)

    def _promise(self, log: PartitionLog) -> tuple[Lane, Promise, int]:
        found = self._promises.get(log)
        if found is None:
            topic = self._broker.config.topic(log.topic) or self._broker.config.system
            on_disk = log.has_group_commit if is_internal(log.topic) else topic.promise is Promise.DISK
            lane = Lane.DISK if on_disk else Lane.MEMORY
            found = self._promises[log] = lane, topic.promise, topic.min_in_sync
            if not is_internal(log.topic):
                log.limit_visibility()  # the log may be new
        return found

    def reconfigured(self) -> None:
        """Read the topics' `ack` settings again when they are needed next. Called after a change of the
        configuration.
        """
        self._promises.clear()

    def replicate(self, entries: Sequence[StreamEntry], lane: Lane, done: Callable[[MetaqError | None], None]) -> None:
        """Add entries to the next block, in front of its messages. The entries are changes of the transaction log, so
        they belong to no partition. `done` is called with None when the block is committed, or with an error if it is
        unknown whether the block will be committed. If `entries` is empty, `done` is called when all earlier blocks are
        committed. lane: whether followers must have the entries on the disk (Lane.DISK) or only in memory (Lane.MEMORY)
        for the commit.
        """
        if self._ended:
            done(NotLeader(self._broker.config.broker_id))
            return
        self._others += entries
        if entries and not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)
        gathering = bool(self._gathered_marks or self._others)
        self._when_shown(lane, self.core.number + gathering, done)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _appended(
        self, log: PartitionLog, base: int, end: int, count: int, data: Sequence[Buffer], units: Buffer, segment: int
    ) -> None:
        entry = StreamEntry(log.journal_name, base, segment, self._promise(log)[0], units, data)
        self._gathered.setdefault(log, []).append(entry)
        self._gathered_marks[log] = Mark(log, end, count)
        if not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)

    def _note(self, log: PartitionLog) -> None:
        """Add the present end of a log to the next block, so that readers see all present data of the log when this
        block is committed.
        """
        self._gathered_marks[log] = Mark(log, log.end_offset, log.durability.count)

    def _flush(self) -> None:
        self._flush_due = False
        if (self._gathered_marks or self._others) and not self._ended:
            self._make_block()

    def _make_block(self) -> None:
        gathered, self._gathered = self._gathered, {}
        marks, self._gathered_marks = self._gathered_marks, {}
        others, self._others = self._others, []
        lanes: tuple[list[Mark], list[Mark]] = ([], [])
        for log, mark in marks.items():
            lanes[self._promise(log)[0]].append(mark)
        number = self.core.next_block(*lanes)
        self._own.add(number, [(mark.log, mark.end) for mark in lanes[Lane.DISK]])
        links = [link for link in self._links.values() if link.counting]
        if links:
            entries = others + [entry for each in gathered.values() for entry in _joined(each)]
            block = encode_block(number, self.core.committed, entries)
            size = sum(map(len, block))
            self._told = self.core.committed
            for link in links:
                self._send_block(link, number, block, size)
        self._advance()

    def _send_block(self, link: _Link, number: int, block: list[Buffer], size: int) -> None:
        link.unacknowledged.append((number, size))
        link.backlog += size
        if link.held is not None:
            link.held.append(block)
        else:
            link.protocol.send(block)
        if link.backlog > tuning.MAX_BACKLOG_BYTES:
            link.protocol.close(PeerLost(f"{link.name} is more than {tuning.MAX_BACKLOG_BYTES} bytes behind"))

    def _advance(self) -> None:
        core = self.core
        core.own_safe = self._own.number
        core.advance(self._reactor.seconds())
        marks, answers = core.take_committed(), core.take_answers()
        if marks and not self._tell_due:
            self._tell_due = True
            wait = self._told_at + tuning.TELL_SECONDS - self._reactor.seconds()
            self._reactor.callLater(max(0.0, wait), self._tell)
        established: Callable[[], None] | None = None
        if self._on_established is not None and min(core.committed) >= 1:
            established, self._on_established = self._on_established, None
        if marks or answers or established is not None:
            self._showing.add(self._show(marks, answers, established))

    def _show(
        self, marks: Iterable[Mark], answers: Iterable[OnCommitted], established: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Make the data up to `marks` visible to readers, because they are committed. Then call the callbacks `answers`
        without an error, and at last `established`. The generator yields when it has worked so long that the reactor
        should do other work.
        """
        for log, end, count in {mark.log: mark for mark in marks}.values():
            if self._ended:  # the next leader decides what readers see; those who wait may be answered
                break
            log.raise_bound(end, count)
            if self._showing.is_over:
                yield
        for answered in answers:
            answered(None)
            if self._showing.is_over:
                yield
        if established is not None and not self._ended:
            established()

    def _when_shown(self, lane: Lane, number: int, answered: OnCommitted) -> None:
        """Call `answered` when block `number` is visible to readers and committed in this lane: nodes have it on the
        disk (disk lane) or at least in memory (memory lane).
        """
        if self.core.wait(lane, number, answered):
            return
        if self._showing:
            self._showing.add(self._show((), (answered,)))
        else:
            answered(None)

    def _tell(self) -> None:
        """Send the number of the last committed block to the followers. Do nothing if a new block has been sent to them
        since the commit, because each block contains this number, too.
        """
        self._tell_due = False
        if self._told != self.core.committed and not self._ended:
            self._told, self._told_at = self.core.committed, self._reactor.seconds()
            told = encode_committed(self._told)
            for link in self._links.values():
                if link.held is None:
                    link.protocol.send([told])

    # --- followers ----------------------------------------------------------------------------------------------------

    def serve(self, name: str, protocol: StreamProtocol) -> None:
        """Serve a follower that has just connected. This node has already told the follower its epoch and where the
        follower must cut its logs. The next message of the follower is READY.
        """
        before = self._links.get(name)
        if before is not None:
            before.protocol.close(PeerLost(f"{name} has connected anew"))
        self._links[name] = link = _Link(name, protocol, self._reactor.seconds())
        self._leaving.discard(name)
        self._errors.pop(name, None)
        self.core.connected(name)
        protocol.on_lost = lambda error: self._lost(link, error)

    def received(self, name: str, connection: StreamProtocol, messages: Sequence[StreamMessage]) -> None:
        """Handle messages that the follower `name` has sent. Raises RemoteProtocolError."""
        link = self._links.get(name)
        if link is None or link.protocol is not connection or self._ended:
            return
        ack: Ack | None = None
        for kind, payload in messages:
            if kind is Kind.ACK:
                ack = parse_ack(payload)
            elif kind is Kind.READY:
                if link.copy is not None:
                    raise RemoteProtocolError("a second READY")
                self._copy_to(link, parse_json(payload))
            elif kind is Kind.LEAVE:
                self._leaves(link, parse_json(payload))
        if ack is not None:
            self._acknowledged(link, ack)

    def _acknowledged(self, link: _Link, ack: Ack) -> None:
        link.heard_at = self._reactor.seconds()
        while link.pings and link.pings[0][0] <= ack.ping:
            number, sent_at = link.pings.popleft()
            if number == ack.ping:
                self.core.granted(link.name, counted_until(sent_at))
        if link.held is None:
            self.core.acknowledged(link.name, ack)
            while link.unacknowledged and link.unacknowledged[0][0] <= ack.safe:
                link.backlog -= link.unacknowledged.popleft()[1]
        self._advance()
        if not link.caught_up and self.core.followers[link.name].live and self._has_everything(link.name):
            link.caught_up = True
            link.protocol.send([encode_json(Kind.CAUGHT_UP, {})])
        if self.core.changing_to is not None:
            self._consider()
        for settled in list(self._settled):
            settled()

    def _lost(self, link: _Link, error: MetaqError) -> None:
        if self._links.get(link.name) is not link:
            return
        del self._links[link.name]
        if link.copy is not None:
            link.copy.stop()
        self.core.lost(link.name)
        self._lost_at[link.name] = self._reactor.seconds()
        if link.name not in self._leaving:  # else it has said why
            self._errors[link.name] = str(error)
        if not self._ended:
            _log.warning("the follower %s is gone: %s", link.name, error)
            self._reactor.callLater(tuning.LOST_SECONDS, self._consider)

    def _leaves(self, link: _Link, words: Mapping[str, Any]) -> None:
        """Handle a follower's message that it will stop: begin to remove the follower from the in-sync set, so that
        producers no longer wait until this follower has their messages.
        """
        self._leaving.add(link.name)
        self._errors[link.name] = str(words.get("why", "it stops"))
        self._consider()

    # --- copying ------------------------------------------------------------------------------------------------------

    def _copy_to(self, link: _Link, words: Mapping[str, Any]) -> None:
        copy = link.copy = Copying(self._broker, link.protocol, words, self._pace, lambda: self._go_live(link))
        ensureDeferred(copy.run()).addErrback(lambda failure: link.protocol.close(PeerLost(failure.getErrorMessage())))

    def _go_live(self, link: _Link) -> Callable[[], None]:
        """From now on, keep new blocks for this follower in memory instead of sending them. The caller copies the data
        that exist now to the follower, and then calls the returned function. This function sends the kept blocks, and
        after its call each new block is sent to the follower at once.
        """
        self._flush()
        link.counting = True
        number = self.core.number
        committed = self.core.committed

        def done() -> None:
            held, link.held = link.held, None
            on_disk = [log.journal_name.decode() for log in self._store.all_logs() if self._promise(log)[0]]
            words = {"number": number, "committed": list(committed), "epoch": self.core.epoch, "disk": on_disk}
            link.protocol.send([encode_json(Kind.LIVE, words)])
            for block in held or ():
                link.protocol.send(block)
            self.core.went_live(link.name)
            self._lost_at.pop(link.name, None)
            self._send_pings([link])  # nothing is acknowledged before its grant
            _log.info("the follower %s has copied everything and follows the stream", link.name)

        return done

    # --- by the clock -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._reactor.seconds()
        self._ticks += 1
        self._sent.append((self.core.number, now))
        while self._sent and now - self._sent[0][1] > 2 * tuning.LAG_SECONDS:
            self._sent.popleft()
        self._send_pings(self._links.values())
        self._advance()
        self._consider()
        self._drop_internal()
        if self._ticks % tuning.PINGS_PER_LOOK == 0:
            self._look_at_disk()
            self._cut_stuck(now)

    def _send_pings(self, links: Iterable[_Link]) -> None:
        """Send each of these followers a ping, which asks for a grant. All pings of one call have the same new
        number.
        """
        self._ping += 1
        now = self._reactor.seconds()
        ping = encode_ping(Ping(self._ping, self.core.committed))
        for link in links:
            link.pings.append((self._ping, now))
            link.protocol.send([ping])

    def _cut_stuck(self, now: float) -> None:
        for link in [link for link in self._links.values() if link.is_stuck(now)]:
            link.protocol.close(PeerLost(f"{link.name} has read nothing for {tuning.STUCK_SECONDS:g} s"))

    def _look_at_disk(self) -> None:
        """Check whether this node can store data. It cannot if one of its logs has failed, or if its disk is full and
        even the reserve is used up. If it cannot, and another node is in sync, stop leading. The check is needed
        because a background sync can fail while no request waits for it, so that no request reports the failure.
        """
        if len(self.core.in_sync) > 1:
            failure = self._store.first_failure() or self._store.space.empty(tuning.FULL_BYTES)
            if failure is not None:
                self._on_failure(failure)

    def _drop_internal(self) -> None:
        """Tell followers to drop the beginnings of those internal logs whose beginnings were removed on this node by
        compaction.
        """
        for log in self._store.all_internal_logs():
            if self._internal_from.get(log, log.first_offset) != log.first_offset:
                self._send_firsts([log])
            self._internal_from[log] = log.first_offset

    def _lag_seconds(self, name: str, now: float) -> float:
        """Return the age, in seconds, of the oldest block that the follower does not have on its disk, as far as this
        node knows, or 0.0 if it has all blocks.
        """
        safe = self.core.followers[name].safe
        if safe >= self.core.number:
            return 0.0
        return next((now - when for number, when in self._sent if number > safe), 0.0)

    # --- the in-sync set ----------------------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Begin to change the in-sync set if a follower should join or leave it. If a follower should join, each block
        from now on is committed only after this follower, too, has acknowledged it. Once the follower has all committed
        data, the new set is written to ZooKeeper. If a follower should leave, blocks need its acknowledgement until
        ZooKeeper has the set without it.
        """
        core, now = self.core, self._reactor.seconds()
        if self._writing or self._ended or self.draining or now < self._retry_at:
            return
        wanted = self._wanted(now)
        core.changing_to = None if wanted == core.in_sync else wanted
        if core.changing_to is not None and all(map(self._has_everything, wanted - core.in_sync)):
            self._write(wanted)

    def _wanted(self, now: float) -> frozenset[str]:
        core = self.core
        wanted = {core.me}
        for name, state in core.followers.items():
            silent = now - link.heard_at if (link := self._links.get(name)) else math.inf
            if state.live and silent < tuning.DROP_SECONDS and self._lag_seconds(name, now) < tuning.LAG_SECONDS:
                near = name in core.in_sync or self._lag_seconds(name, now) <= tuning.JOIN_LAG_SECONDS
                if near and name not in self._leaving:
                    wanted.add(name)
        for name in core.in_sync - wanted - self._leaving:
            live = (found := core.followers.get(name)) is not None and found.live
            lost_at = float("-inf") if live else self._lost_at.setdefault(name, now)
            if now - lost_at < tuning.LOST_SECONDS:
                wanted.add(name)
        return frozenset(wanted)

    def _has_everything(self, name: str) -> bool:
        return is_caught_up(self.core.followers[name].safe, max(self.core.committed), _EPOCH_START)

    def _write(self, wanted: frozenset[str]) -> None:
        core = self.core
        self._writing = True

        def written(done: bool) -> None:
            self._writing = False
            core.changing_to = None
            if done:
                joined, left = sorted(wanted - core.in_sync), sorted(core.in_sync - wanted)
                core.in_sync = wanted
                for name in left:
                    _log.warning("%s is no longer in sync: %s", name, self._errors.get(name, "it is too far behind"))
                for name in joined:
                    _log.info("%s is in sync", name)
            else:
                self._retry_at = self._reactor.seconds() + tuning.CHANGE_PAUSE_SECONDS
            self._advance()
            self._consider()

        self._change_in_sync(wanted).addCallback(written)

    # --- hand-over ----------------------------------------------------------------------------------------------------

    def drain_to(self, name: str) -> Deferred[bool]:
        """Prepare a hand-over to the follower `name`: from now on, acknowledge no messages of producers. Return a
        Deferred that fires with True when the follower has all data of this node and they are committed, or with False
        if the follower's connection is lost.
        """
        self.draining = True
        self._flush()
        deferred: Deferred[bool] = Deferred()
        number = self.core.number

        def look() -> None:
            follower = self.core.followers.get(name)
            gone = name not in self._links or follower is None or not follower.live
            if gone or (follower is not None and follower.safe >= number and min(self.core.committed) >= number):
                self._settled.remove(look)
                deferred.callback(not gone)

        self._settled.append(look)
        look()
        return deferred

    def hand_over_to(self, name: str, *, leaving: bool) -> None:
        """Tell the follower to stand for election at once. From then on, this leader no longer relies on the follower's
        grants. leaving: True if this node's process is about to stop. The follower is told this, so that it does not
        wait for this node when it leads.
        """
        link = self._links.get(name)
        if link is not None:
            self.core.revoke(name)
            link.pings.clear()
            link.protocol.send([encode_json(Kind.HAND_OVER, {"leaving": leaving})])

    def dropped(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Tell the followers to drop, too, the segments of these partitions that retention has removed on this node."""
        self._send_firsts([self._store.get(*each) for each in partitions])

    def _send_firsts(self, logs: Sequence[PartitionLog]) -> None:
        words = {log.journal_name.decode(): log.first_offset for log in logs}
        if not words:
            return
        for link in self._links.values():
            if link.held is None:
                link.protocol.send([encode_json(Kind.DROP, words)])

    # --- for operators ------------------------------------------------------------------------------------------------

    def status(self) -> list[FollowerStatus]:
        """Return the status of every follower that is in sync or has connected."""
        now = self._reactor.seconds()
        found = []
        for name in sorted(self.core.in_sync.union(self.core.followers) - {self.core.me}):
            link, state = self._links.get(name), self.core.followers.get(name)
            live = state is not None and state.live
            found.append(
                FollowerStatus(
                    name,
                    name in self.core.in_sync,
                    link is not None,
                    live,
                    link.backlog if live and link is not None else None,
                    self._lag_seconds(name, now) if live else None,
                    self._errors.get(name, ""),
                )
            )
        return found


def _joined(entries: list[StreamEntry]) -> Iterator[StreamEntry]:
    """Join the appends (`entries`) that one iteration of the reactor has made to one log. Yield one entry for each
    segment, with its appends in their order.
    """
    if len(entries) == 1:
        yield entries[0]
        return
    for _, same in groupby(entries, key=lambda entry: entry.segment):
        first, *others = same
        units = b"".join((first.units, *(each.units for each in others)))
        yield first._replace(units=units, data=[*first.data, *(part for each in others for part in each.data)])

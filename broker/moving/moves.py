"""What a broker does for moves of partitions: it offers clients only the partitions that it may serve, answers MOVE
requests, and drives the moves whose target it is.

The code runs on the reactor thread; requests to ZooKeeper are made in other threads. The states of moves are stored
only in ZooKeeper. A broker reads the states of all moves before it serves clients, and reads the state of one move
again whenever a MOVE request names this move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater

from metaq.coordination.moves.move_nodes import FoundMove, Moves
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import SessionEvent, ZkSession
from metaq.protocol.errors import CoordinationError, NotLeader
from metaq.protocol.remoting import MoveRequest

from ..partitions.move_table import MoveTable
from ..partitions.registration import Registration
from ..runtime.threads import in_own_thread
from .host import MovingHost
from .move_driver import MoveDriver

__all__ = ["BrokerMoves", "MoveFigures"]

_log = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Identifies a move: its topic, and its name."""


class MoveFigures(NamedTuple):
    """Numbers about an active move, for metrics. state_seconds: seconds since the move's state last changed: the
    present time of this broker's clock minus the time at which ZooKeeper has stored the change. The other numbers are
    known only to the broker that drives the move; on other brokers they are None. idle_seconds: seconds since the move
    last made progress. copied: number of bytes copied. left: number of bytes left to copy.
    """

    move: Move
    state_seconds: float
    idle_seconds: float | None = None
    copied: int | None = None
    left: int | None = None


class BrokerMoves:
    """The moves of a broker that registers in ZooKeeper. Before `read` is called, the broker serves no partition.
    Between `start` and `stop` the broker drives moves.
    """

    def __init__(self, broker: MovingHost, session: ZkSession, registration: Registration) -> None:
        self.broker = broker
        self.session = session
        self.moves = Moves(session)
        self._reactor: Any = broker.reactor
        self._registration = registration
        self._found: dict[_Key, FoundMove] = {}
        self._drivers: dict[_Key, MoveDriver] = {}
        self._driving = False
        self._set_backs = 0  # the session's set-backs that were made good
        broker.partitions.use_moves(MoveTable(broker.config.broker_id, known=False))

    # --- knowing ------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read all moves from ZooKeeper. This method must be called before any partition is served. Try again and again
        while ZooKeeper does not answer or the entry of a move is damaged: without the states of all moves it is unknown
        which partitions the broker may serve.
        """
        pauses = Backoff(0.05, 2.0)
        told = ""
        while True:
            try:
                await self.look_at_all()
                break
            except CoordinationError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("serves nothing until the moves of partitions are known: %s", error)
                await deferLater(self._reactor, pauses.next())
        for found in list(self._found.values()):
            await self.clean_up(found)

    async def look_at_all(self) -> None:
        """Read all moves from ZooKeeper. Raises CoordinationError."""
        found = await self._all()
        known, self._found = self._found, found
        for key, each in known.items():
            if key in self._found and each.zxid > self._found[key].zxid:
                self._found[key] = each  # a newer state was read meanwhile
        self._use()

    async def clean_up(self, found: FoundMove) -> None:
        """If `found` is a cancelled move to this broker, and this broker no longer has copies of the move's partitions
        (an operator has deleted them), delete the move from ZooKeeper.
        """
        move = found.move
        if move.state is not MoveState.CANCELLED or move.target != self.broker.config.broker_id:
            return
        driver = self._drivers.get((move.topic, move.name))
        copies = range(move.target_first, move.target_first + move.count)
        if move.target_first < 0 or (driver is not None and driver.active):
            return
        if any(self.broker.partitions.stored(move.topic, each) for each in copies):
            return
        try:
            if await self.in_thread(lambda: self.moves.forget(found)):
                self.unlearn(found)
        except CoordinationError as error:
            _log.warning("the cancelled move of %s is not forgotten now: %s", move, error)

    def learn(self, found: FoundMove) -> None:
        """Remember the state `found` of a move, and serve partitions as this state requires, unless this broker already
        knows a newer state of the move.
        """
        key = found.move.topic, found.move.name
        known = self._found.get(key)
        if known is None or found.zxid >= known.zxid:
            self._found[key] = found
            self._use()

    def unlearn(self, found: FoundMove) -> None:
        """Forget a move that was deleted from ZooKeeper."""
        if self._found.pop((found.move.topic, found.move.name), None) is not None:
            self._use()

    def _use(self) -> None:
        moves = [each.move for each in self._found.values()]
        self.broker.partitions.use_moves(MoveTable(self.broker.config.broker_id, moves))

    def others(self, move: Move) -> list[FoundMove]:
        """Return all other moves of the move's topic."""
        return [each for each in self._found.values() if each.move.topic == move.topic and each.move.name != move.name]

    async def offer(self, topic: str) -> None:
        """Register in ZooKeeper the partitions of a topic that this broker serves now, so that clients find them.
        Raises CoordinationError.
        """
        served = self.broker.partitions.served_topics()
        if topic in served:
            await self._registration.offer(topic, served[topic])

    @property
    def leads_now(self) -> bool:
        """Whether this node leads its broker set and it is certain that no other node has been elected as the leader in
        the meantime; always True for a single broker.
        """
        member = self.broker.member
        return member is None or (member.leader is not None and member.leader.leads_now)

    # --- ZooKeeper comes back with less than it had -----------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        """Handle an event of the ZooKeeper session. Called on the thread that delivers these events."""
        if event is SessionEvent.CONNECTED:
            self._reactor.callFromThread(self._connected_anew)

    def _connected_anew(self) -> None:
        ensureDeferred(self._make_good()).addErrback(
            lambda failure: _log.error("the moves cannot be followed: %s", failure.getTraceback())
        )

    async def _make_good(self) -> None:
        pauses = Backoff(0.05, 2.0)
        while self._driving:
            try:
                await self.write_again()
                return
            except CoordinationError as error:
                _log.warning("the moves are followed again: %s", error)
            await deferLater(self._reactor, pauses.next())

    async def write_again(self) -> None:
        """ZooKeeper may have lost data, for example if it was restored from a backup. If ZooKeeper has lost moves of
        this broker, or has older states of these moves than this broker knows, write into ZooKeeper again the states
        that this broker knows. For all other moves, use the state that ZooKeeper has. Raises CoordinationError if
        ZooKeeper does not answer; the caller then calls the method again.

        It is safe that the target writes a move again: from the state `copying` on only the target changes the move, so
        it knows the newest state. It is safe that the source writes a finished move again, because a finished move
        never changes.
        """
        set_backs, known = self.session.set_backs, dict(self._found)
        now = await self._all()
        older = {key for key, each in known.items() if key in now and now[key].zxid < each.zxid}
        missing = known.keys() - now.keys() if set_backs != self._set_backs else set()
        mine = self.broker.config.broker_id
        lost = [
            key
            for key in sorted(older | missing)
            if (move := known[key].move).target == mine or (move.source == mine and move.state is MoveState.DONE)
        ]
        for key in lost:
            move = known[key].move
            write = partial(self.moves.change, now[key]) if key in now else self.moves.begin
            await self.in_thread(partial(write, move))
            _log.warning("ZooKeeper was set back: wrote the move of %s (%s) again", move, move.state.value)
        if older | missing:
            self._found = await self._all()
            for key, driver in self._drivers.items():
                driver.found = self._found.get(key, driver.found)
            self._use()
        self._set_backs = set_backs

    async def _all(self) -> dict[_Key, FoundMove]:
        found: list[FoundMove] = await self.in_thread(self.moves.read_all)
        return {(each.move.topic, each.move.name): each for each in found}

    # --- driving ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to drive the moves whose target is this broker. Called as soon as the broker serves clients."""
        self._driving = True
        self._set_backs = self.session.set_backs
        self.session.on_session(self._session_changed)
        for found in list(self._found.values()):
            self._drive(found)

    def stop(self) -> None:
        """Stop driving moves. Called when the broker no longer serves clients or no longer leads its set."""
        self._driving = False
        self.session.off_session(self._session_changed)
        for driver in self._drivers.values():
            driver.stop()
        self._drivers.clear()

    def _drive(self, found: FoundMove) -> MoveDriver | None:
        move = found.move
        key = move.topic, move.name
        driver = self._drivers.get(key)
        if driver is not None and driver.active:
            driver.take(found)
            return driver
        if not (self._driving and move.active and move.target == self.broker.config.broker_id):
            return None
        driver = self._drivers[key] = MoveDriver(self, found)
        driver.start()
        return driver

    def figures(self) -> list[MoveFigures]:
        """Return the MoveFigures of two groups of moves: the moves that this broker drives, and the moves from this
        broker whose partitions it has closed for messages.
        """
        if not self._driving:
            return []
        found = []
        for key, each in self._found.items():
            seconds = max(0.0, (self.broker.now_ms() - each.changed_ms) / 1000)
            driver = self._drivers.get(key)
            if driver is not None and driver.active:
                found.append(MoveFigures(each.move, seconds, driver.idle_seconds, driver.copied, driver.left))
            elif each.move.source == self.broker.config.broker_id and each.move.state is MoveState.CLOSING:
                found.append(MoveFigures(each.move, seconds))
        return found

    # --- MOVE ---------------------------------------------------------------------------------------------------------

    async def asked(self, request: MoveRequest) -> dict[str, Any]:
        """Answer a MOVE request: read the move's state from ZooKeeper, do what the state requires of this broker as the
        move's source or target, and return the move's progress. Raises CoordinationError, NotLeader.
        """
        key = request.topic, f"{request.broker}-{request.partition}"
        found: FoundMove | None = await self.in_thread(lambda: self.moves.read(*key))
        if found is None:
            if key in self._found:
                self.unlearn(self._found[key])
            raise CoordinationError(f"there is no move of {request.topic} {key[1]}")
        if not self._driving:
            raise NotLeader(self.broker.config.broker_id)
        self.learn(found)
        move, mine = self._found[key].move, self.broker.config.broker_id
        if move.target == mine:
            driver = self._drive(found)
            return {"state": move.state.value, "waitsFor": move.note} if driver is None else driver.status()
        if move.source == mine:
            return await self._as_source(move)
        return {"state": move.state.value}

    async def _as_source(self, move: Move) -> dict[str, Any]:
        answer: dict[str, Any] = {"state": move.state.value}
        if move.state is MoveState.CLOSING:
            return answer | self._ends(move)
        if move.state is MoveState.COPYING:
            numbers = range(move.first, move.first + move.count)
            reasons = (each.left_behind(move.topic, numbers) for each in self.broker.memories)
            why = next(filter(None, reasons), None)
            return answer if why is None else answer | {"waitsFor": why}
        await self.offer(move.topic)
        return answer

    def _ends(self, move: Move) -> dict[str, Any]:
        """As the source of a move, return the final end offsets of the move's partitions, or the reason why these
        offsets are not known yet.

        Before this method is called, the broker has read the move's state and has begun to act on it. So this node
        accepts no more messages for these partitions. In a broker set, no other node can have accepted messages since
        this node has read the state, because this node has led all the time. A later leader reads the states of the
        moves after its election.
        """
        if not self.leads_now:
            return {"waitsFor": "the source's node does not know whether it leads its set"}
        ends = []
        for partition in range(move.first, move.first + move.count):
            log = self.broker.partitions.stored(move.topic, partition)
            if log is None:
                ends.append(0)
                continue
            if holding := self.broker.transactions.holding(log):
                return {
                    "waitsFor": f"transactions that have messages of {move.topic}-{partition}: {', '.join(holding)}"
                }
            if log.visible_end != log.end_offset:
                return {"waitsFor": f"the end of {move.topic}-{partition} to be committed"}
            ends.append(log.end_offset)
        return {"ends": ends}

    # --- threads ------------------------------------------------------------------------------------------------------

    def in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        """Run a function, which sends requests to ZooKeeper, in a new thread of its own. The threads of the pool are
        not used, because ZooKeeper can answer slowly, and the pool's threads must be free for reads and syncs of files.
        """
        return in_own_thread(self._reactor, "moves", function)

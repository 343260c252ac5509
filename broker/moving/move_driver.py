"""Drive one move of partitions. The target broker drives the move: it does what the move's state requires, and then
sets the next state in ZooKeeper; it repeats this until the move is done. The code runs on the reactor thread.

Every step can be repeated. So if another node of the target's broker set becomes the leader, the new leader can
continue the move from the state that it finds in ZooKeeper.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import simplejson
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.moves.move_nodes import FoundMove, Moves
from metaq.coordination.moves.moved_offsets import OffsetHandOver
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import (
    CoordinationError,
    MetaqError,
    PeerRefused,
    ReplicationError,
    TopicNotAccepted,
)
from metaq.protocol.remoting import MoveRequest
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..replication.peer import CONNECT_SECONDS, Peer, connect
from .host import MovingHost
from .move_copy import MoveCopy

__all__ = ["MoveDriver", "MovesHere"]

_log = logging.getLogger(__name__)

_LITTLE_BYTES = 1 << 20
_LITTLE_SECONDS = 0.5
"""The move copies the source's partitions in passes. The source continues to accept messages meanwhile. When a pass has
copied only few bytes, the source closes the partitions, so that the last bytes can be copied. "Few" means at most
_LITTLE_BYTES, but not more than the move's rate allows in _LITTLE_SECONDS.
"""

_LOOK_SECONDS = 0.1
_PAUSE_SECONDS = 1.0
_ASK_SECONDS = 20.0

_STALE_SECONDS = 1.0
"""At the end of a move this broker creates, for each consumer group, the owner znodes of the partitions under their old
names. A member that does not know of the move yet could otherwise become the owner of a partition under its old name.
This broker keeps the znodes for this many seconds after the move is done.
"""

_PATIENCE_SECONDS = 10.0
"""If members of consumer groups still own moved partitions after this many seconds, a log line names these members.
status() names them from the beginning.
"""


class MovesHere(Protocol):
    """Describes the part of the class BrokerMoves (moves.py) that a MoveDriver uses."""

    broker: MovingHost
    session: ZkSession
    moves: Moves

    @property
    def leads_now(self) -> bool: ...
    def others(self, move: Move) -> list[FoundMove]: ...
    def learn(self, found: FoundMove) -> None: ...
    def unlearn(self, found: FoundMove) -> None: ...
    async def clean_up(self, found: FoundMove) -> None: ...
    async def offer(self, topic: str) -> None: ...
    async def look_at_all(self) -> None: ...
    def in_thread(self, function: Callable[[], Any]) -> Awaitable[Any]: ...


class MoveDriver:
    """Drives one move whose target is this broker."""

    def __init__(self, here: MovesHere, found: FoundMove) -> None:
        self.found = found
        self.active = True
        self.waits_for = ""
        """The reason why the move makes no progress now, or "" if there is no such reason."""
        self._here = here
        self._broker = here.broker
        self._reactor: Any = here.broker.reactor
        self._copy: MoveCopy | None = None
        self._peer: Peer | None = None
        self._went_on_at: float = self._reactor.seconds()

    @property
    def move(self) -> Move:
        return self.found.move

    @property
    def left(self) -> int | None:
        """The number of bytes left to copy, or None if unknown."""
        return None if self._copy is None else self._copy.left

    @property
    def copied(self) -> int:
        """The number of bytes that this driver has copied."""
        return 0 if self._copy is None else self._copy.copied

    @property
    def idle_seconds(self) -> float:
        """The seconds since bytes last arrived or the move's state last changed; if neither has happened, the seconds
        since this object was created.
        """
        progressed = self._went_on_at if self._copy is None else max(self._went_on_at, self._copy.progressed_at)
        seconds: float = self._reactor.seconds() - progressed
        return seconds

    def start(self) -> None:
        ensureDeferred(self._run()).addErrback(
            lambda failure: _log.error("the move of %s has ended: %s", self.move, failure.getTraceback())
        )

    def stop(self) -> None:
        """Stop driving the move. Another node can continue the move from the state in ZooKeeper."""
        self.active = False
        self._hang_up()

    def status(self) -> dict[str, Any]:
        """Return the content of the answer to a MOVE request for this move."""
        copy = self._copy
        return {
            "state": self.move.state.value,
            "left": self.left,
            "copied": self.copied,
            "bytesPerSecond": 0 if copy is None else int(copy.per_second),
            "waitsFor": self.waits_for or self.move.note,
        }

    # --- going on -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        steps: dict[MoveState, Callable[[], Awaitable[None]]] = {
            MoveState.ASKED: self._accept,
            MoveState.COPYING: self._copy_most,
            MoveState.CLOSING: self._copy_rest,
            MoveState.PUBLISHING: self._publish,
            MoveState.HANDING_OVER: self._hand_over,
        }
        try:
            while self.active and self.move.active:
                try:
                    await steps[self.move.state]()
                except MetaqError as error:
                    self._tell(str(error))
                    self._hang_up()
                    if self.active:
                        await deferLater(self._reactor, _PAUSE_SECONDS)
                        await self._look()
            if self.active:
                await self._end()
        finally:
            self.active = False
            self._hang_up()

    def _tell(self, text: str) -> None:
        if text != self.waits_for:
            _log.warning("moving %s (%s) waits: %s", self.move, self.move.state.value, text)
            self.waits_for = text

    async def _look(self) -> None:
        """Read the move's present state from ZooKeeper. If ZooKeeper does not answer, continue with the state that was
        last read.
        """
        try:
            found = await self._here.in_thread(partial(self._here.moves.read, self.move.topic, self.move.name))
        except CoordinationError as error:
            self._tell(str(error))
            return
        if found is None or found.move.target != self.move.target:
            self.active = False
            if found is None:
                self._here.unlearn(self.found)
        else:
            self.take(found)

    def take(self, found: FoundMove) -> None:
        """Continue the move from the state `found`, unless this object knows a newer state."""
        if found.zxid > self.found.zxid:
            self._went_on_at = self._reactor.seconds()
            self.found = found
            self._here.learn(found)

    async def _change(self, **fields: Any) -> None:
        """Change these fields of the move in ZooKeeper, then read the move from ZooKeeper again and continue from the
        state that was read. Raises CoordinationError if the outcome is unknown.
        """
        before, new = self.found, replace(self.move, **fields)
        await self._here.in_thread(partial(self._here.moves.change, before, new))
        await self._look()
        if self.move.state is not before.move.state:
            self.waits_for = ""
            _log.info("moving %s: %s", self.move, self.move.state.value)

    # --- asked --------------------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        """Choose the numbers that the partitions get on this broker, and set the move's state to `copying`. If this
        broker cannot take the partitions, cancel the move, and store the reason in ZooKeeper.
        """
        await self._here.look_at_all()
        self._copy = None  # it may belong to an earlier move of the same name, with another rate
        move = self.move
        view = ClusterView(self._here.session)
        replicas, brokers = await self._here.in_thread(
            lambda: ([*view.replicas(move.topic), *view.replicas(move.topic, publish=False)], view.brokers())
        )
        counts = [each.partitions for each in replicas if each.broker_id == move.source and each.slave_id is None]
        partitions = self._broker.partitions
        for each in self._here.others(move):
            await self._here.clean_up(each)
        others = self._here.others(move)
        try:
            first = partitions.topic(move.topic).partitions if partitions.serves(move.topic) else 0
        except TopicNotAccepted:
            first = -1
        source = brokers.get(move.source)
        obsolete = [
            each
            for each in others
            if each.move.source == move.target and each.move.first >= first and not each.move.active
        ]
        gone = [each for each in others if each.move.target == move.target and each.move.target_first >= first]
        busy = [
            each.move
            for each in others
            if each.move.active and {move.source, move.target} & {each.move.source, each.move.target}
        ]
        why = ""
        if first < 0:
            why = f"broker {move.target} does not take the topic: add [topic={move.topic}] to its server.ini"
        elif move.source == move.target:
            why = "it is there already"
        elif busy:
            why = f"another move of the topic is under way: {busy[0]}"
        elif not counts:
            why = f"broker {move.source} does not offer the topic now"
        elif max(counts) != move.first + move.count:
            why = f"only the last partitions of a broker can leave it, and broker {move.source} has {max(counts)}"
        elif not self._broker.writing.takes_all_kinds or not partitions.takes_puts:
            why = f"broker {move.target} takes part in 1.x's replication"
        elif any(each is not None and each.slaves for each in (source, brokers.get(move.target))):
            why = "slaves of 1.x follow one of the brokers: stop them before the move, and let them copy anew after it"
        elif partitions.stored_count(move.topic) > first and move.target_first != first:
            last = partitions.stored_count(move.topic) - 1
            why = (
                f"broker {move.target} still has directories of {move.topic}-{first} … {move.topic}-{last}, which are "
                "hidden: stop it, delete them with `metaq partitions delete`, and start it"
            )
        elif gone and move.target_first != first:
            why = f"partitions from {move.target}-{first} on belong to an earlier move: {gone[0].move}"
        if why:
            await self._change(state=MoveState.CANCELLED, note=why)
            return
        new = replace(move, state=MoveState.COPYING, target_first=first)
        self._here.learn(self.found._replace(move=new))  # meanwhile no other partition may get its number
        await self._here.in_thread(partial(self._here.moves.change, self.found, new, obsolete))
        for each in obsolete:
            self._here.unlearn(each)
        await self._look()

    # --- copying ------------------------------------------------------------------------------------------------------

    def _copying(self) -> MoveCopy:
        if self._copy is None:
            self._copy = MoveCopy(self._broker, self.move)
        return self._copy

    async def _copy_most(self) -> None:
        await self._ask_until(MoveState.COPYING)  # so that the source adds no partition after these
        copy, peer = self._copying(), await self._source()
        little = min(_LITTLE_BYTES, int(self.move.rate * _LITTLE_SECONDS))
        while self._is_copying():
            before = copy.copied
            await copy.go_through(peer, self._is_copying)
            if self._is_copying() and copy.copied - before <= little:
                await self._change(state=MoveState.CLOSING)

    def _is_copying(self) -> bool:
        return self.active and self.move.state is MoveState.COPYING

    def _is_closing(self) -> bool:
        return self.active and self.move.state is MoveState.CLOSING

    async def _copy_rest(self) -> None:
        copy = self._copying()
        while self._is_closing():
            peer = await self._source()
            answer = await self._ask(peer)
            ends = answer.get("ends")
            if isinstance(ends, list) and len(ends) == self.move.count:
                await copy.finish(peer, ends, self._is_closing)
                if not self._here.leads_now:
                    raise MetaqError("this node does not know whether it leads its set")
                await self._change(state=MoveState.PUBLISHING, ends=tuple(map(int, ends)))
                return
            self._tell(str(answer.get("waitsFor") or "the source"))
            await deferLater(self._reactor, _LOOK_SECONDS)
            await self._look()

    # --- going over ---------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        await self._here.offer(self.move.topic)
        await self._ask_until(MoveState.PUBLISHING)
        await self._change(state=MoveState.HANDING_OVER)

    async def _hand_over(self) -> None:
        await self._ask_until(MoveState.HANDING_OVER)
        groups = OffsetHandOver(self._here.session, self.move)
        begun = self._reactor.seconds()
        try:
            while self.active:
                waiting: list[str] = await self._here.in_thread(groups.step)
                if not waiting:
                    break
                if self._reactor.seconds() - begun > _PATIENCE_SECONDS:
                    self._tell("; ".join(waiting))
                self.waits_for = "; ".join(waiting)
                await deferLater(self._reactor, _LOOK_SECONDS)
            if self.active:
                await self._change(state=MoveState.DONE)
                await self._here.offer(self.move.topic)
                await deferLater(self._reactor, _STALE_SECONDS)
        finally:
            await self._give_up(groups)

    async def _give_up(self, groups: OffsetHandOver) -> None:
        try:
            await self._here.in_thread(groups.finish)
        except CoordinationError as error:  # its owner znodes disappear with the session
            _log.warning("the claims of %s end later: %s", self.move, error)

    async def _end(self) -> None:
        """Log the move's final state, and tell the source broker about it."""
        if self.move.state is MoveState.DONE:
            _log.warning("moved %s", self.move)
            await self._here.offer(self.move.topic)
        else:
            _log.warning("the move of %s is cancelled: %s", self.move, self.move.note)
        try:
            await self._ask(await self._source())
        except MetaqError as error:  # the source will read the state when it starts
            _log.warning("the source of %s was not told that it has ended: %s", self.move, error)

    # --- the source ---------------------------------------------------------------------------------------------------

    async def _source(self) -> Peer:
        """Return a connection to the source broker; if the source is a broker set, to its leader. Raises MetaqError."""
        if self._peer is not None and self._peer.lost is None:
            return self._peer
        view = ClusterView(self._here.session)
        brokers = await self._here.in_thread(view.brokers)
        nodes = brokers.get(self.move.source)
        if nodes is None or nodes.master is None:
            raise CoordinationError(f"broker {self.move.source} is not registered in ZooKeeper now: start it")
        self._hang_up()
        peer: Peer = await connect(self._here.broker, nodes.master.host, nodes.master.port, CONNECT_SECONDS)
        if not peer.speaks_frames:
            peer.close()
            raise ReplicationError(f"broker {self.move.source} is a Java broker: its partitions cannot be moved")
        self._peer = peer
        return peer

    def _hang_up(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    async def _ask(self, peer: Peer) -> dict[str, Any]:
        """Send a MOVE request to the source broker, which then reads the move's state from ZooKeeper and acts on it.
        Return the source's answer. Raises MetaqError.
        """
        request = MoveRequest(self.move.topic, self.move.source, self.move.first)
        frame = await peer.frame(RequestCode.MOVE, request.to_ext(), _ASK_SECONDS)
        if frame.code != ResponseCode.SUCCESS:
            raise PeerRefused(f"broker {self.move.source}: {frame.remark or f'response code {frame.code}'}")
        answer: dict[str, Any] = simplejson.loads(bytes(frame.body))
        return answer

    async def _ask_until(self, state: MoveState) -> None:
        """Send a MOVE request to the source broker, so that the source reads the move's state `state` and does what
        this state requires. Raises MetaqError if the source has not seen this state yet or waits for something; the
        caller then tries again.
        """
        answer = await self._ask(await self._source())
        if waits_for := answer.get("waitsFor"):
            raise MetaqError(str(waits_for))
        if answer.get("state") != state.value:
            raise MetaqError(f"broker {self.move.source} sees the state {answer.get('state')!r}")

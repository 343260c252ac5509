"""Begin, observe and cancel moves of partitions between brokers. The command-line tools use this module.

The moves are stored in ZooKeeper, and the leader of the target broker executes them (docs/moving.md). All functions
block, and may be called on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.moves.move_nodes import CANCELLABLE, FoundMove, Moves
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, CoordinationError, MetaqError
from metaq.protocol.limits import INT64_MAX

from ..settings.config import ConnectionConfig
from ..transport.connection import Endpoint, open_connection
from .admin import look_at_move

__all__ = ["MoveProgress", "MovesOfCluster", "PlannedMove"]

_TRIES = 5
"""Number of attempts to change a move's znode. An attempt reads the znode and then writes it; it fails if a broker or
another caller changes the znode in between.
"""


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of a move. left: number of bytes that are still to be copied; it is None if this number is unknown.
    per_second: average number of bytes copied per second. waits_for: the reason why the move does not continue now, or
    why it was cancelled, as a text for users; "" if nothing blocks the move.
    """

    move: Move
    left: int | None = None
    per_second: int = 0
    waits_for: str = ""


class PlannedMove(NamedTuple):
    """The requested move, which `begin` can begin or which is in progress already. former: the earlier, ended move that
    the move's znode contains now and that `begin` will replace. It is None if there is no such move.
    """

    move: Move
    former: FoundMove | None = None
    is_under_way: bool = False


class MovesOfCluster:
    """Plans, begins, observes and cancels the moves of partitions between the brokers of a cluster. Every method may
    raise CoordinationError.
    """

    def __init__(self, session: ZkSession) -> None:
        """session: a ZooKeeper session that was started. The caller must close the session."""
        self._moves = Moves(session)
        self._view = ClusterView(session)

    def all(self) -> list[Move]:
        """Return the moves that are in progress, and earlier moves with their outcomes."""
        return [each.move for each in self._moves.read_all()]

    def plan(
        self, topic: str, source: int, target: int, rate: int, first: int | None = None, last: int | None = None
    ) -> PlannedMove:
        """Check whether partitions of `topic` can be moved from the broker `source` to the broker `target`, and return
        the planned move, which the caller can pass to `begin`. If a move of `topic` from `source` to `target` with the
        same first partition is in progress already, return this move.
        first, last: the range of partitions to move, by default all partitions.

        rate: copying speed in bytes per second, from 1 to INT64_MAX. Raises ConfigError if the rate is out of range, if
        the partitions cannot leave the source broker, if another move of this topic and source broker is in progress,
        if the target broker is the source or is not registered, or if a cancelled move has left copies of the
        partitions elsewhere.
        """
        if not 0 < rate <= INT64_MAX:
            raise ConfigError("--rate", rate, "choose a number of bytes per second from 1 on")
        known = [each for each in self._moves.read_all() if each.move.topic == topic and each.move.source == source]
        running = next((each.move for each in known if each.move.active), None)
        if running is not None:
            asked = first if first is not None else running.first, target
            if asked == (running.first, running.target):
                return PlannedMove(running, is_under_way=True)
            raise ConfigError("--topic", topic, f"is being moved already: {running}; wait for it, or cancel it")
        count = self._count(topic, source)
        if target == source:
            raise ConfigError("--to", target, "has the partitions already: choose another broker")
        there = self._view.brokers().get(target)
        if there is None or there.master is None:
            raise ConfigError("--to", target, "is not registered in ZooKeeper now: start it, or choose another broker")
        begin, end = 0 if first is None else first, count - 1 if last is None else last
        if end != count - 1 or begin > end:
            raise ConfigError(
                "--partitions",
                f"{begin}-{end}",
                "a broker has its partitions numbered from 0 without a gap, so only its last ones can leave it: choose "
                f"a range that ends with {count - 1}",
            )
        move = Move(topic, source, begin, end - begin + 1, target, rate)
        former = next((each for each in known if each.move.name == move.name), None)
        if former is not None and former.move.state is MoveState.CANCELLED and former.move.target_first >= 0:
            if (former.move.target, former.move.count) != (move.target, move.count):
                raise ConfigError(
                    "--to",
                    target,
                    f"a cancelled move of {former.move} has left copies: stop broker {former.move.target}, delete them "
                    "with `metaq partitions delete`, start it, and try again",
                )
            move = replace(move, target_first=former.move.target_first)
        return PlannedMove(move, former)

    def begin(self, planned: PlannedMove) -> Move:
        """Begin the move, unless it is in progress already. Raises CoordinationError if another caller has begun a move
        of these partitions meanwhile.
        """
        move = planned.move
        if not planned.is_under_way and not self._moves.begin(move, planned.former):
            raise CoordinationError(f"somebody else has just begun to move {move.topic} {move.name}: try again")
        return move

    def _count(self, topic: str, broker: int) -> int:
        replicas = [*self._view.replicas(topic), *self._view.replicas(topic, publish=False)]
        count = max(
            (each.partitions for each in replicas if (each.broker_id, each.slave_id) == (broker, None)), default=0
        )
        if not count:
            raise ConfigError("--from", broker, f"does not offer topic {topic} now")
        return count

    def topics_of(self, broker: int) -> list[str]:
        """Return, sorted, the names of the topics that the broker offers now."""
        names = self._view.topics()
        offers = [self._view.replicas_many(names), self._view.replicas_many(names, publish=False)]
        return sorted(
            {
                name
                for replicas in offers
                for name, each in zip(names, replicas, strict=True)
                if any((one.broker_id, one.slave_id) == (broker, None) and one.partitions for one in each)
            }
        )

    def partitions_by_broker(self) -> dict[int, int]:
        """Return the number of partitions that each live broker offers, by broker id."""
        counts = {broker: 0 for broker, nodes in self._view.brokers().items() if nodes.master is not None}
        for replicas in self._view.replicas_many(self._view.topics()):
            for each in replicas:
                if each.slave_id is None and each.broker_id in counts:
                    counts[each.broker_id] += each.partitions
        return counts

    def look(self, move: Move) -> MoveProgress:
        """Ask the target broker for the progress of a move, and return the progress. The request also makes the target
        broker go on with the move at once. Raises ConfigError if the move does not exist any more.
        """
        found = self._found(move)
        progress = self._ask(found.move, found.move.target)
        found = self._found(move)
        if isinstance(progress, MetaqError):
            return MoveProgress(found.move, waits_for=found.move.note or str(progress))
        left = progress.get("left")
        return MoveProgress(
            found.move,
            None if left is None else int(left),
            int(progress.get("bytesPerSecond") or 0),
            str(progress.get("waitsFor") or found.move.note),
        )

    def cancel(self, move: Move) -> Move:
        """Cancel a move and tell both brokers. If the move was already cancelled, the brokers are told again.

        Raises ConfigError if the target already has all data, because then the move can only be completed. Raises
        CoordinationError if the move is cancelled, but the source broker could not be told. After this error, call this
        method again.
        """
        for _ in range(_TRIES):
            found = self._found(move)
            if found.move.state is MoveState.CANCELLED:
                return self._told(found.move)
            if found.move.state not in CANCELLABLE:
                raise ConfigError(
                    "--topic", move.topic, f"its move cannot be cancelled now: it is {found.move.state.value}"
                )
            cancelled = replace(found.move, state=MoveState.CANCELLED, note="cancelled by an operator")
            if self._moves.change(found, cancelled):
                return self._told(cancelled)
        raise CoordinationError(f"the move of {move.topic} {move.name} changes all the time: try again")

    def _told(self, cancelled: Move) -> Move:
        self._ask(cancelled, cancelled.target)  # no answer needed: the target also looks at ZooKeeper itself
        answer = self._ask(cancelled, cancelled.source)
        if isinstance(answer, MetaqError):
            raise CoordinationError(
                f"cancelled, but broker {cancelled.source} was not told, and may still refuse messages: {answer}; "
                "cancel again"
            )
        return cancelled

    def _found(self, move: Move) -> FoundMove:
        found = self._moves.read(move.topic, move.name)
        if found is None:
            raise ConfigError("--topic", move.topic, f"there is no move of {move.name}")
        return found

    def _ask(self, move: Move, broker: int) -> dict[str, Any] | MetaqError:
        try:
            nodes = self._view.brokers().get(broker)
            if nodes is None or nodes.master is None:
                return CoordinationError(f"broker {broker} is not registered in ZooKeeper now")
            connection = open_connection(Endpoint(nodes.master.host, nodes.master.port), ConnectionConfig())
            try:
                return look_at_move(connection, move.topic, move.source, move.first)
            finally:
                connection.close()
        except MetaqError as error:
            return error

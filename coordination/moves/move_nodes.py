"""Read, create and change the znodes that describe moves of partitions between brokers. A znode is changed only if it
still has the version that was read (compare-and-set).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from metaq.protocol.errors import CoordinationError

from ..records.move_payloads import Move, MoveState, format_move, parse_move
from ..session.zk_session import ZkSession
from ..session.znodes import FencedWrite, create_persistent, delete, set_data

__all__ = ["FoundMove", "Moves"]

_FASTER = (BadVersionError, NodeExistsError, NoNodeError)

CANCELLABLE = (MoveState.ASKED, MoveState.COPYING, MoveState.CLOSING)


class FoundMove(NamedTuple):
    """A move as it was read from its znode. version: version of the znode's data. zxid: ZooKeeper's transaction number
    of the znode's last change; the number increases even if the znode was deleted and created again. changed_ms: time
    of the last change by ZooKeeper's clock, in milliseconds since 1970.
    """

    move: Move
    version: int
    zxid: int
    changed_ms: int = 0


class Moves:
    """Reads and changes the moves of partitions between the brokers of a cluster. Any thread except kazoo's may call
    the methods. Each call makes requests to ZooKeeper.

    The methods may raise CoordinationUnavailable and SessionLost. After one of these errors it is unknown whether a
    requested change was made; a later read() shows it.
    """

    def __init__(self, session: ZkSession) -> None:
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths

    def read_all(self) -> list[FoundMove]:
        """Return all moves, sorted by topic, source and partition. The result includes all writes that were made before
        the call.

        Raises CoordinationError if the znode of any move is damaged. A damaged move is not simply left out, because
        callers compute from the moves which partitions a broker has. Without the damaged move the result would be
        wrong.
        """
        self._nodes.sync(self._paths.moves())
        topics = sorted(self._nodes.children(self._paths.moves()))
        children = self._nodes.children_many([self._paths.topic_moves(topic) for topic in topics])
        places = [(topic, name) for topic, names in zip(topics, children, strict=True) for name in names]
        found = self._read(places)
        return sorted(found, key=lambda each: (each.move.topic, each.move.source, each.move.first))

    def read(self, topic: str, name: str) -> FoundMove | None:
        """Return the move whose znode has this name. The result includes all writes that were made before the call.
        Raises the errors of read_all().
        """
        self._nodes.sync(self._paths.moves())
        return next(iter(self._read([(topic, name)])), None)

    def _read(self, places: Sequence[tuple[str, str]]) -> list[FoundMove]:
        paths = [self._paths.move(*place) for place in places]
        nodes = self._nodes.get_with_stats(paths)
        found = []
        for path, place, node in zip(paths, places, nodes, strict=True):
            if node is not None and (move := parse_move(path, *place, node[0])) is not None:
                found.append(FoundMove(move, node[1].version, node[1].mzxid, node[1].mtime))
        return found

    def begin(self, move: Move, instead_of: FoundMove | None = None) -> bool:
        """Write a new move to its znode. instead_of: the former move with the same name, which is replaced; None if
        there was none. Return False, and write nothing, if somebody else has changed the znode meanwhile.
        """
        path = self._paths.move(move.topic, move.name)
        self._session.ensure_chroot()
        self._nodes.ensure([self._paths.topic_moves(move.topic)])
        data = format_move(move)
        write = create_persistent(path, data) if instead_of is None else set_data(path, data, instead_of.version)
        return self._write(path, [write])

    def change(self, found: FoundMove, move: Move, obsolete: Sequence[FoundMove] = ()) -> bool:
        """In one ZooKeeper transaction, replace the move `found` by `move`, and delete the moves in `obsolete`.

        Return False, and change nothing, if one of these moves has changed since it was read.
        """
        path = self._paths.move(move.topic, move.name)
        gone = [delete(self._paths.move(each.move.topic, each.move.name), each.version) for each in obsolete]
        return self._write(path, [*gone, set_data(path, format_move(move), found.version)])

    def forget(self, found: FoundMove) -> bool:
        """Delete a move's znode. Return False, and do nothing, if the znode has changed since it was read."""
        path = self._paths.move(found.move.topic, found.move.name)
        return self._write(path, [delete(path, found.version)])

    def _write(self, path: str, writes: Sequence[FencedWrite]) -> bool:
        failure = self._nodes.write_atomically(self._session.session_id, writes)
        if failure is None:
            return True
        if isinstance(failure, _FASTER):
            return False
        raise CoordinationError(f"cannot change {path}: {type(failure).__name__} {failure}") from failure

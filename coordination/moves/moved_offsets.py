"""Hand over the offsets of consumer groups when partitions move from a source broker to a target broker. The offset of
a source's partition becomes the offset of the corresponding partition of the target.

During the hand-over no member of the group may own the source's partition, and a member that does not know of the move
yet must not be able to claim the partition. So the process that hands over the offsets first claims the partition
itself, that is, it creates the partition's owner znode in this group; only then does it read the group's offset.
"""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from metaq.protocol.errors import CoordinationError

from ..brokers.cluster_view import ClusterView, read_entry
from ..records.move_payloads import Move
from ..records.paths import partition_name
from ..records.payloads import Offset, format_consumer_id, format_offset, parse_consumer_id, parse_offset
from ..session.zk_session import ZkSession
from ..session.znodes import create_ephemeral, create_persistent, delete, set_data

__all__ = ["OffsetHandOver"]

_FASTER = (BadVersionError, NodeExistsError, NoNodeError)


class OffsetHandOver:
    """Hands over the offsets of all groups for one move. The methods block on ZooKeeper. Any thread except kazoo's may
    call them, but only one thread at a time. Every method may raise CoordinationError.

    It does no harm if another process repeats the hand-over. A single transaction both writes the offset for the target
    and deletes the offset of the source, so no offset is handed over twice.
    """

    def __init__(self, session: ZkSession, move: Move) -> None:
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths
        self._view = ClusterView(session)
        self._move = move
        self._claimed: set[str] = set()

    def step(self) -> list[str]:
        """Hand over all offsets that can be handed over now. Return a list of texts: for each offset that cannot be
        handed over yet, the reason. The list is empty when the offsets of all groups have been handed over.
        """
        waiting = []
        for group in self._view.groups():
            for partition in self._partitions(group):
                if (obstacle := self._hand_over(group, partition)) is not None:
                    waiting.append(obstacle)
        return waiting

    def finish(self) -> None:
        """Delete the owner znodes that this object has created to claim partitions."""
        self._nodes.delete_owned(self._session.session_id, sorted(self._claimed))
        self._claimed.clear()

    def _partitions(self, group: str) -> Iterator[int]:
        """Yield the numbers (at the source) of the partitions of the move that the group uses. If a live consumer of
        the group reads the topic, these are all partitions of the move, otherwise those that have an offset or an owner
        in the group.
        """
        move = self._move
        mine = {partition_name(move.source, each): each for each in range(move.first, move.first + move.count)}
        if any(move.topic in topics for topics in self._view.consumers(group).values()):
            yield from mine.values()
            return
        offsets, owners = self._nodes.children_many(
            [self._paths.offsets(group, move.topic), self._paths.owners(group, move.topic)]
        )
        yield from sorted(mine[name] for name in mine.keys() & {*offsets, *owners})

    def _hand_over(self, group: str, partition: int) -> str | None:
        """Claim one of the source's partitions in the group, and hand over the group's offset. Return None if the
        offset has been handed over or there is no offset. Otherwise return a text that tells why the hand-over is not
        possible now, for example because a member owns the partition.
        """
        move, session_id = self._move, self._session.session_id
        name = partition_name(move.source, partition)
        owner = self._paths.owner(group, move.topic, name)
        if owner not in self._claimed or (node := self._nodes.get(owner)) is None or node.owner != session_id:
            self._nodes.ensure([self._paths.owners(group, move.topic)])
            payload = format_consumer_id(f"metaq-move-to-{move.target}")
            if self._nodes.write(session_id, [create_ephemeral(owner, payload)], NodeExistsError) != [None]:
                node = self._nodes.get(owner)
                if node is None or node.owner != session_id:
                    holder = None if node is None else read_entry(parse_consumer_id, owner, node.data)
                    return f"group {group}: {holder or 'a member'} still owns {move.topic} {name}"
            self._claimed.add(owner)
        return self._move_offset(group, partition, owner)

    def _move_offset(self, group: str, partition: int, owner: str) -> str | None:
        move = self._move
        old = self._paths.offset(group, move.topic, partition_name(move.source, partition))
        new = self._paths.offset(group, move.topic, partition_name(move.target, move.of_target(partition)))
        found, there = self._nodes.get_with_stats([old, new])
        if found is None:
            return None
        offset = parse_offset(old, found[0])
        if offset is None:
            return None
        if offset.offset > (end := move.ends[partition - move.first]):
            offset = Offset(offset.message_id, end)  # in Java, a larger offset means "from the end on"
        data = format_offset(offset)
        write = create_persistent(new, data) if there is None else set_data(new, data, there[1].version)
        mine = set_data(owner, format_consumer_id(f"metaq-move-to-{move.target}"))
        failure = self._nodes.write_atomically(self._session.session_id, [mine, delete(old, found[1].version), write])
        if failure is None:
            return None
        if isinstance(failure, _FASTER):
            return f"group {group}: its offset of {move.topic} {move.source}-{partition} has just been changed"
        raise CoordinationError(f"cannot hand over {old}: {type(failure).__name__} {failure}") from failure

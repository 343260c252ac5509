"""Store marks in ZooKeeper. A mark is a znode that tells which message of a partition a member of a group has begun to
process. If the member dies, the next owner of its partitions reads the marks (decision 108).

Only members whose run() method sends failed messages back to the broker write marks. Each partition that such a member
owns, or owned when it died, has one persistent znode with the mark. When a living member gives up the partition, for
example at a rebalance, it removes the znode. The znode is always in ZooKeeper, below the znode of the group, even if
the group keeps its offsets outside of ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kazoo.exceptions import NodeExistsError, NoNodeError

from ..records.payloads import Begun, format_begun, parse_begun
from ..session.zk_session import ZkSession
from ..session.znodes import create_persistent, delete, set_data
from .offset_store import TopicPartitionName

__all__ = ["BegunMarks"]


class BegunMarks:
    """Reads and writes the marks of one group. Any thread except kazoo's may call the methods. A `fence` is the id of
    the ZooKeeper session that holds the owner znodes, as in OffsetStore.commit.

    The methods raise SessionLost, CoordinationUnavailable, and CoordinationError for damaged data.
    """

    def __init__(self, session: ZkSession, group: str) -> None:
        self._nodes = session.nodes
        self._paths = session.paths
        self._group = group

    def load(self, partitions: Sequence[TopicPartitionName]) -> list[Begun | None]:
        """Return the mark of each partition, in order. The result is None for a partition whose last owner wrote no
        marks, or removed the mark when it gave up the partition.
        """
        paths = [self._path(each) for each in partitions]
        nodes = self._nodes.get_many(paths)
        return [node and parse_begun(path, node.data) for path, node in zip(paths, nodes, strict=True)]

    def make(self, partitions: Iterable[TopicPartitionName], fence: int) -> None:
        """Create a mark for each of these partitions. The mark will name the message that the partition's owner
        processes; at first it names none. A mark that exists already stays unchanged.
        """
        partitions = list(partitions)
        self._nodes.ensure({self._paths.begun_of_topic(self._group, topic) for topic, _ in partitions})
        data = format_begun(Begun())
        self._nodes.write(fence, [create_persistent(self._path(each), data) for each in partitions], NodeExistsError)

    def write(self, partition: TopicPartitionName, begun: Begun, fence: int) -> None:
        """Record in the partition's mark that `begun` is the message that the owner processes next."""
        path, data = self._path(partition), format_begun(begun)
        (failure,) = self._nodes.write(fence, [set_data(path, data)], NoNodeError)
        if failure is not None:  # somebody has deleted it
            self._nodes.ensure([self._paths.begun_of_topic(self._group, partition[0])])
            self._nodes.write(fence, [create_persistent(path, data)])

    def remove(self, partitions: Mapping[TopicPartitionName, int]) -> None:
        """Remove the marks of partitions that their living owner gives up. partitions: the fence of each partition, by
        partition.
        """
        for fence in set(partitions.values()):
            given = [each for each, of in partitions.items() if of == fence]
            self._nodes.write(fence, [delete(self._path(each)) for each in given], NoNodeError)

    def _path(self, partition: TopicPartitionName) -> str:
        return self._paths.begun(self._group, *partition)

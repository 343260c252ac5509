"""Find consumer groups that have read messages which were then lost by an unclean election, and set the committed
offsets of these groups back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from metaq.client.questions.asking import Asked
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.divergence import common_offset
from metaq.client.questions.partition_bounds import Bounds, bounds_behind, read_stats
from metaq.client.records.results import TopicPartition
from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.errors import PartitionClosed, PartitionNotFound, TopicNotAccepted
from metaq.protocol.message_id import UNKNOWN_ID

__all__ = ["Ahead", "ahead_of", "commanded", "diverged_groups", "readable_ends", "set_back"]


class Ahead(NamedTuple):
    """A group's committed offset that must be set back. committed: the offset that the group has committed in the
    partition. back: the offset from which the group must read, so that it misses no message.

    owner: the member of the group that reads the partition now, or None if no member reads it. While a member reads the
    partition, the offset cannot be set back, because the member would overwrite it by its next commit.
    """

    group: str
    partition: TopicPartition
    committed: int
    back: int
    owner: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "group": self.group,
            "topic": self.partition.topic,
            "partition": str(self.partition),
            "committed": self.committed,
            "back": self.back,
            "owner": self.owner,
        }


def readable_ends(connection: Asked, broker_id: int) -> dict[TopicPartition, int]:
    """Ask the node at the other end of `connection`, and return for each of its partitions the offset at which its
    readable messages end. The node need not lead its broker set.
    """
    found = {}
    for line in read_stats(connection, "offsets"):
        words = line.split(" ")
        if len(words) == 7 and words[1] == "part":
            found[TopicPartition(words[0], broker_id, int(words[2]))] = int(words[6])
    return found


def ahead_of(cluster: Cluster, broker_id: int, ends: Mapping[TopicPartition, int]) -> list[Ahead]:
    """Find the committed offsets of all groups in the broker's partitions, and return the offsets that are after the
    end of their partition. ends: the end offset of each partition of the broker. No request is sent to a broker.
    """
    return [
        Ahead(group, partition, offset.offset, ends.get(partition, 0), owner)
        for group, partition, offset, owner in _committed(cluster, broker_id)
        if offset.offset > ends.get(partition, 0)
    ]


def diverged_groups(cluster: Cluster, broker_id: int, ends: Mapping[TopicPartition, int]) -> list[Ahead]:
    """Find the committed offsets of all groups in this broker's partitions, and return the offsets that must be set
    back. An offset must be set back if it is after the partition's end, or if the partition does not have the message
    that the group read directly before this offset.

    ends: for each partition, the offset at which the partition ended before the first new message was appended in place
    of a lost one. A group's offset must be set back to this end offset or to an earlier offset. Raises the errors of
    Cluster.ask.
    """
    found = []
    for group, partition, offset, owner in _committed(cluster, broker_id):
        back = cluster.ask(partition, partial(_back, partition=partition, offset=offset, ends=ends))
        if back is not None:
            found.append(Ahead(group, partition, offset.offset, back, owner))
    return found


def _back(
    connection: Asked, partition: TopicPartition, offset: Offset, ends: Mapping[TopicPartition, int]
) -> int | None:
    try:
        bounds, _, other = bounds_behind(connection, partition, offset.offset, offset.message_id)
        back = None if other == UNKNOWN_ID else common_offset(connection, partition, bounds.first, offset.message_id)
    except PartitionClosed:
        return None
    except (PartitionNotFound, TopicNotAccepted):
        bounds, back = Bounds(0, 0, 0), None
    if back is None and offset.offset > bounds.end:
        back = bounds.end
    if back is None:
        return None
    back = max(bounds.first, min(back, ends.get(partition, back)))
    return back if back < offset.offset else None


def set_back(cluster: Cluster, found: Sequence[Ahead]) -> list[Ahead]:
    """Set the committed offset of each entry of `found` back to the entry's offset `back`. If a member of the group
    reads the partition now, the offset is not set back. Return the entries that were not set back.
    """
    by_group: dict[str, dict[TopicPartition, int | Offset]] = {}
    for each in found:
        if each.owner is None:
            by_group.setdefault(each.group, {})[each.partition] = each.back
    for group, offsets in by_group.items():
        cluster.commit(group, offsets)
    return [each for each in found if each.owner is not None]


def commanded(group: str, partition: TopicPartition, back: int) -> str:
    """Return the command line that sets the group's offset in the partition to `back`. The user must stop the group's
    members before running it.
    """
    return f"metaq groups seek {group} --topic {partition.topic} --partition {partition} --to {back}"


def _committed(cluster: Cluster, broker_id: int) -> Iterator[tuple[str, TopicPartition, Offset, str | None]]:
    """Yield each group's committed offset in each partition of the broker, with the group's member that owns the
    partition, or None.
    """
    view = cluster.view
    for group in view.groups():
        for topic in view.committed_topics(group):
            named = [TopicPartition.parse(topic, name) for name in view.committed_partitions(group, topic)]
            partitions = [each for each in named if each.broker == broker_id]
            if not partitions:
                continue
            owners = cluster.owners(group, topic)
            for partition, offset in zip(partitions, cluster.committed_many(group, partitions), strict=True):
                if offset is not None:
                    yield group, partition, offset, owners.get(str(partition))

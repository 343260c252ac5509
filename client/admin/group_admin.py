"""List and describe consumer groups, move their offsets, and delete groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError, CoordinationError, MetaqError
from metaq.protocol.limits import check_zookeeper_group, check_zookeeper_topic
from metaq.protocol.own_topics import RETRY_PREFIX

from ..browsing.dead_letters import count_dead_letters
from ..questions.cluster import Cluster
from ..questions.delayed import list_delayed
from ..questions.partition_bounds import partition_bounds
from ..questions.places import OffsetIn, Position, check_begins_message, offset_in
from ..records.results import TopicPartition
from ..runtime.nearest import did_you_mean
from ..transport.connection import Connection
from .completeness import Unanswered, absent_brokers
from .group_lag import GroupPartition, group_partitions
from .known import shared_partitions

__all__ = [
    "DeletedGroup",
    "GroupAdmin",
    "GroupDescription",
    "GroupSummary",
    "MovedOffset",
    "MovedOffsets",
    "PartitionsGiven",
    "check_groups",
    "left_out",
    "named_partitions",
]

PartitionsGiven = Iterable[TopicPartition | str]
"""Partitions of one topic that a user names: each is a TopicPartition, or its name such as "0-3"."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group: its number of live members, and the topics that it reads, sorted."""

    group: str
    members: int
    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Where a group stands.

    members: the ids of its live consumers. partitions: its position and lag in each partition that it reads.
    waiting_retries: number of failed messages that wait for their next attempt. dead_letters: number of its open dead
    letters. Each of these two numbers is None if a broker does not report it. member_zones: the zone of each consumer,
    by consumer id; it is empty if the members do not assign partitions by zones. broker_zones: the zone of each broker,
    by broker id. unanswered: which data is missing.
    """

    group: str
    members: Sequence[str]
    partitions: Sequence[GroupPartition]
    waiting_retries: int | None
    dead_letters: int | None
    member_zones: Mapping[str, str]
    broker_zones: Mapping[int, str]
    unanswered: Unanswered

    def check_complete(self) -> None:
        """Raise BrokerUnavailable if the lag in a partition is unknown because its broker did not answer."""
        self.unanswered.check([row.partition for row in self.partitions])


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """A committed offset that was moved. before: the earlier committed offset, or None if there was none."""

    partition: TopicPartition
    before: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class MovedOffsets:
    """Offsets that were moved, or that would be moved if `dry_run` is true. left_out: names of the partitions whose
    offsets stay as they are, because their brokers are not registered.
    """

    group: str
    topic: str
    dry_run: bool
    partitions: Sequence[MovedOffset]
    left_out: Sequence[str]

    def check_complete(self) -> None:
        """Raise BrokerUnavailable if there are partitions in `left_out`."""
        if self.left_out:
            brokers = ", ".join(sorted({name.partition("-")[0] for name in self.left_out}, key=int))
            raise BrokerUnavailable(
                f"broker {brokers} is not registered in ZooKeeper: the offsets of {self.group!r} in {self.topic} "
                f"{', '.join(self.left_out)} stay as they are: start that broker and do it again"
            )


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """A group that was deleted, or that would be deleted. offsets: by topic, the names of the partitions in which the
    group had committed offsets.
    """

    group: str
    offsets: Mapping[str, Sequence[str]]


class GroupAdmin:
    """The calls about consumer groups. Only one thread may use this object at a time. All calls raise
    CoordinationUnavailable if ZooKeeper does not answer, and ClientError for an unknown group; the error's text then
    names the most similar group.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> Sequence[GroupSummary]:
        """Return all groups that ever had a member or an offset, sorted by name."""
        cluster = self._cluster
        return [
            GroupSummary(group, len(cluster.members(group)), cluster.group_topics(group))
            for group in cluster.view.groups()
        ]

    def describe(self, group: str) -> GroupDescription:
        """Return the owner, the committed offset and the lag of each partition that a group reads.

        If a broker does not answer, the lag in its partitions is None; `check_complete` of the result raises an error
        then.
        """
        cluster = self._cluster
        cluster.look_again()
        (topics,) = check_groups(cluster, [check_zookeeper_group(group)])
        survey = cluster.survey()
        rows = [row for topic in topics for row in group_partitions(cluster, survey, group, topic)]
        return GroupDescription(
            group,
            cluster.members(group),
            rows,
            _waiting_retries(cluster, group, topics),
            _dead_letters(cluster, group),
            cluster.view.consumer_zones(group),
            cluster.view.broker_zones(),
            Unanswered.of(survey, absent_brokers(cluster)),
        )

    def seek(
        self,
        group: str,
        topic: str,
        to: Position,
        *,
        partitions: PartitionsGiven = (),
        new: bool = False,
        dry_run: bool = False,
    ) -> MovedOffsets:
        """Move the committed offsets of a group without live members in a topic, and return the new offsets.

        to: "earliest", "latest", a byte offset, a datetime with a time zone, Last(messages), AtMessage(id) or
        AtKey(key). A byte offset must be the beginning of a message or the end of the partition. partitions: the
        partitions to change; by default all that live brokers serve. new: whether the group may be one that has no
        members and no offsets of the topic yet. dry_run: change nothing.

        If `partitions` is empty, the offsets in partitions of absent brokers stay as they are; `check_complete` of the
        result raises an error then. Raises ClientError if the group has live members, because they would overwrite the
        offsets. Raises NoPartition, BrokerUnavailable, and for a message that is not found MessageNotFound.
        """
        cluster = self._cluster
        cluster.look_again()
        only = named_partitions(check_zookeeper_topic(topic), partitions)
        read: Sequence[str] = ()
        if not new:
            (read,) = check_groups(cluster, [check_zookeeper_group(group)], f"; {_NEW} a new group its offsets")
        if members := cluster.members(check_zookeeper_group(group)):
            raise _live(group, members)
        chosen = cluster.choose_partitions(topic, only)
        if not new and topic not in read:
            raise ClientError(
                f"group {group!r} has no offsets of topic {topic!r}, it reads {', '.join(read)}: {_NEW} it some"
            )
        left = [] if only else left_out(cluster, group, topic, chosen)
        offset_of = offset_in(to, topic, cluster.finder())
        offsets = {each: _target(cluster, each, offset_of, isinstance(to, int)) for each in chosen}
        before = cluster.committed_many(group, chosen)
        if not dry_run:
            cluster.commit(group, offsets)
        moved = [
            MovedOffset(each, None if old is None else old.offset, offsets[each])
            for each, old in zip(chosen, before, strict=True)
        ]
        return MovedOffsets(group, topic, dry_run, moved, left)

    def delete(self, group: str, *, dry_run: bool = False) -> DeletedGroup:
        """Remove a group without live members, with all its offsets. If a consumer joins the group later, the group
        begins anew. dry_run: remove nothing. Raises ClientError if the group has live members.
        """
        cluster = self._cluster
        self._check_exists(group)
        if members := cluster.members(group):
            raise _live(group, members)
        offsets = {topic: cluster.view.committed_partitions(group, topic) for topic in cluster.group_topics(group)}
        if not dry_run:
            cluster.delete_group(group)
        return DeletedGroup(group, offsets)

    def delete_offsets(self, group: str, broker: int, *, dry_run: bool = False) -> Sequence[TopicPartition]:
        """Remove the group's offsets in the partitions of a broker that was removed permanently, and return these
        partitions. The group stays. dry_run: remove nothing.

        Clients look for the partitions of the broker as long as ZooKeeper has offsets for them. Raises ClientError if
        the broker is registered, or if the group has no offsets of it.
        """
        cluster = self._cluster
        self._check_exists(group)
        if broker in cluster.view.brokers():
            raise ClientError(
                f"broker {broker} is registered: `metaq groups seek {group}` moves the offsets that it serves"
            )
        gone = cluster.begun_partitions(group, broker)
        if not gone:
            raise ClientError(f"group {group!r} has no offsets of broker {broker}")
        if not dry_run:
            cluster.delete_offsets(group, gone)
        return gone

    def _check_exists(self, group: str) -> None:
        if check_zookeeper_group(group) not in (known := self._cluster.view.groups()):
            near = did_you_mean(group, known, "`metaq groups list` shows all")
            raise ClientError(f"there is no group {group!r}: {near}")


_NEW = "new=True or --new gives"
"""Part of error texts: which option a user of `seek` or of `metaq groups seek` needs for a new group."""


def named_partitions(topic: str, given: PartitionsGiven) -> list[TopicPartition]:
    """Return the partitions of `topic` that a user has named. Raises InvalidName for a text that is no name of a
    partition, and ConfigError for a partition of another topic.
    """
    found = []
    for each in given:
        if isinstance(each, TopicPartition) and each.topic != topic:
            raise ConfigError("partitions", f"{each.topic} {each}", f"name partitions of the topic {topic!r}")
        found.append(TopicPartition.parse(topic, str(each)))
    return found


def check_groups(cluster: Cluster, groups: Sequence[str], otherwise: str = "") -> list[list[str]]:
    """Return for each group the topics that it reads.

    Raises ClientError for a group that has neither a member nor an offset. The error text names the most similar known
    group, and ends with the text `otherwise`. If the group is a shared group, the error text names the command for
    shared groups instead.
    """
    known = cluster.view.groups()
    topics = [cluster.group_topics(group) if group in known else [] for group in groups]
    for group, read in zip(groups, topics, strict=True):
        if not read:
            shared, _ = shared_partitions(cluster, group)
            if shared:
                raise ClientError(f"group {group!r} is a shared group: see `metaq shared describe {group}`")
            near = did_you_mean(group, known, "`metaq groups list` shows those that have")
            raise ClientError(f"group {group!r} has no members and no offsets: {near}{otherwise}")
    return topics


def left_out(cluster: Cluster, group: str, topic: str, chosen: Sequence[TopicPartition]) -> list[str]:
    """Return the names of the partitions of `topic` in which the group has committed offsets and which no registered
    broker serves. chosen: all partitions of `topic` that registered brokers serve.
    """
    served = set(map(str, chosen))
    return [name for name in cluster.view.committed_partitions(group, topic) if name not in served]


def _waiting_retries(cluster: Cluster, group: str, topics: Sequence[str]) -> int | None:
    """Return the number of failed messages of a group that still wait for another attempt, or None if a broker does not
    report this number. The result is 0 if `topics`, the topics that the group reads, do not contain the group's topic
    of failed messages.
    """
    topic = RETRY_PREFIX + group
    if topic not in topics:
        return 0
    count = 0
    for broker_id in {each.broker for each in cluster.readable(topic)}:
        try:
            count += cluster.ask(
                TopicPartition(topic, broker_id, 0), lambda connection: list_delayed(connection, topic, limit=0).total
            )
        except CoordinationError:
            raise
        except MetaqError:
            return None
    return count


def _dead_letters(cluster: Cluster, group: str) -> int | None:
    """Return the number of dead letters of a group, or None if a broker that has some of them does not answer."""
    try:
        return count_dead_letters(cluster, group)
    except CoordinationError:
        raise
    except MetaqError:
        return None


def _live(group: str, members: Sequence[str]) -> ClientError:
    what = f"{len(members):,} live member{'' if len(members) == 1 else 's'}"
    return ClientError(f"group {group!r} has {what} ({', '.join(members)}): stop them first")


def _target(cluster: Cluster, partition: TopicPartition, offset_of: OffsetIn, is_byte: bool) -> int:
    def target(connection: Connection) -> int:
        bounds = partition_bounds(connection, partition)
        offset = offset_of(connection, partition, bounds)
        if is_byte and bounds.first < offset < bounds.end:
            check_begins_message(connection, partition, offset)
        return offset

    return cluster.ask(partition, target)

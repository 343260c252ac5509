"""Load and commit a group's offsets. A partition's offset is committed only if it has changed since the last commit,
and only up to the last consumed message. The offsets of all partitions are written together, with one pipelined round
trip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.offsets.offset_store import (
    LocalOffsetStore,
    Offset,
    OffsetStore,
    OwnerCheckedStore,
    ZooKeeperOffsetStore,
)
from metaq.coordination.runtime.logs import get_log
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, MetaqError

from ..fetching.core import ConsumerCore, changes
from ..fetching.cursor import UNKNOWN_MESSAGE_ID, PartitionCursor, Reached, Request
from ..questions.finding import MessageFinder
from ..questions.partition_bounds import max_offset
from ..questions.places import Locate, Position, locate
from ..records.results import TopicPartition
from ..runtime.timers import Timers
from ..settings.consumer_config import ConsumerConfig

__all__ = ["OffsetCommitter", "StartPosition", "committer_for", "znode_name"]

log = get_log(__name__)


def znode_name(partition: TopicPartition) -> tuple[str, str]:
    """Return the topic and the partition's name (`<broker>-<number>`), which are the last two parts of the paths of a
    partition's znodes.
    """
    return partition.topic, str(partition)


def committer_for(config: ConsumerConfig, session: ZkSession, membership: GroupMembership) -> OffsetCommitter:
    """Return the committer of a group member. The committer writes offsets to the offset store that `config` names, or
    to ZooKeeper if `config` names no store. Raises ConfigError.
    """
    own, file = config.offset_store, config.offsets_file
    if file is not None and (own is not None or not config.broadcast):
        raise ConfigError("offsets_file", file, "it is for broadcast=True without offset_store; see LocalOffsetStore")
    if own is None and not config.broadcast:
        return OffsetCommitter(ZooKeeperOffsetStore(session), membership.group, lambda: membership.connection)
    return OffsetCommitter(OwnerCheckedStore(own or LocalOffsetStore(file), membership), membership.group)


class StartPosition(NamedTuple):
    """The position where reading of a newly owned partition begins. If `resume` is true and an offset is committed,
    reading begins at the committed offset. In all other cases it begins at `offset`. `offset` may also be a function
    that finds the position.
    """

    offset: int | Locate
    resume: bool = True

    @classmethod
    def of(cls, start: Position, topics: Sequence[str], finder: MessageFinder) -> StartPosition:
        """Return the start position for a consumer's argument `start`. Raises the same errors as places.locate."""
        if start == "earliest":
            return cls(0)  # the broker moves offset 0 to the first existing message
        if start == "always_latest":
            return cls(max_offset, resume=False)
        return cls(locate(start, topics, finder, "start"))

    def begins(self, stored: Iterable[Reached | None]) -> list[int | Locate]:
        """Return for each partition the position where reading begins. stored: the committed offsets of the
        partitions.
        """
        return [each[0] if self.resume and each is not None else self.offset for each in stored]


class OffsetCommitter:
    """Commits the offsets of one member's partitions. Any thread may call the methods; only one commit runs at a time.

    Writes are fenced: each write is sent on the ZooKeeper session on which this member has claimed the partition; if
    this session is over, nothing is written. A partition counts as committed only after its write has succeeded, so a
    failed write is repeated by the next commit. The first commit on a new connection reads the stored offsets before it
    overwrites them. It counts how many stored offsets are lower than the offsets that this member committed before,
    because lower offsets may be the only sign that ZooKeeper was set back to an older state (see `restore`).
    """

    def __init__(self, store: OffsetStore, group: str, connection: Callable[[], int | None] = lambda: 0) -> None:
        """connection: returns the number of the ZooKeeper connection that a read of the store would use, or None if
        there is no connection now. The default, always 0, is for an offset store outside ZooKeeper: it is not set back
        when ZooKeeper is set back.
        """
        self._store = store
        self._group = group
        self._connection = connection
        self._lock = threading.Lock()
        self._seen_on = 0  # number of the connection of the last check
        self._overwritten = 0  # number of partitions whose stored offset was lower than the committed one

    def load(self, partitions: Sequence[tuple[str, str]]) -> list[Reached | None]:
        """Return the committed offset of each pair (topic, partition), or None for a pair that has none. Raises
        CoordinationError, OSError.
        """
        found = self._store.load_many(self._group, partitions)
        return [None if each is None else (each.offset, each.message_id) for each in found]

    def changed_since(self, partitions: Sequence[tuple[str, str]], zxid: int) -> list[bool]:
        """Return for each partition whether its committed offset was written after the change `zxid`
        (OffsetStore.changed_since). Raises the same errors as load.
        """
        return self._store.changed_since(self._group, partitions, zxid)

    def restore(self, cursors: Sequence[PartitionCursor]) -> int:
        """Write the committed offsets of owned partitions again where the store now has no offset or a lower one. This
        happens if ZooKeeper's data were replaced by an older copy but this member's session is in the copy, too.

        Return the number of partitions whose stored offset was missing or lower. Partitions for which a commit has
        overwritten such an offset since the last call of `restore` are included. Raises the same errors as commit.
        """
        with self._lock:
            lost: dict[int, dict[tuple[str, str], Offset]] = {}
            for cursor, known in self._with_less(cursors):
                lost.setdefault(cursor.fence, {})[znode_name(cursor.partition)] = Offset(known[1], known[0])
            for fence, offsets in lost.items():
                self._store.commit(self._group, offsets, fence)
            overwritten, self._overwritten = self._overwritten, 0
            return sum(map(len, lost.values())) + overwritten

    def _look(self, cursors: Sequence[PartitionCursor]) -> None:
        """Called before a commit. If the commit is the first one on its ZooKeeper connection, count the partitions
        whose stored offset is missing or lower than the offset that this member committed before, because the commit
        will overwrite these stored offsets. If there is no connection, wait for the next one; the commit then uses the
        same connection.
        """
        while cursors and (connection := self._connection()) != self._seen_on:
            less = len(self._with_less(cursors))
            if connection is not None and connection == self._connection():
                self._overwritten += less
                self._seen_on = connection

    def _with_less(self, cursors: Sequence[PartitionCursor]) -> list[tuple[PartitionCursor, Reached]]:
        """Return the cursors whose stored offset is missing, or lower than the offset that this member has committed.
        Each cursor comes with the position that this member has committed.
        """
        stored = self.load([znode_name(each.partition) for each in cursors])
        return [
            (cursor, known)
            for cursor, found in zip(cursors, stored, strict=True)
            if (known := cursor.committed) is not None and (found is None or found[0] < known[0])
        ]

    def publish(self, places: Mapping[tuple[str, str], Reached]) -> None:
        """Write the offsets of partitions that this member does not own, on its current ZooKeeper session. Raises the
        same errors as commit.
        """
        self._store.commit(
            self._group, {name: Offset(message_id, offset) for name, (offset, message_id) in places.items()}, None
        )

    def commit(self, cursors: Iterable[PartitionCursor]) -> int:
        """Write the offsets that have changed since the last commit, and return the number of these offsets. Raises
        CoordinationError, SessionLost, OSError.
        """
        with self._lock:
            changed = changes(cursors)
            self._look([cursor for reached in changed.values() for cursor, _ in reached])
            for fence, reached in changed.items():
                offsets = {
                    znode_name(cursor.partition): Offset(message_id, offset) for cursor, (offset, message_id) in reached
                }
                self._store.commit(self._group, offsets, fence)
                for cursor, written in reached:
                    cursor.committed_to(written)
            return sum(map(len, changed.values()))

    def record(self, requests: Iterable[Request]) -> Sequence[Request]:
        """For each of these RECORD requests, commit the offset where the group begins to read the request's partition.
        Return the requests whose offsets were written. A request's offset is not written if this member has lost the
        partition or will hand it over, or if the user has moved the partition's position since the request was made.
        Raises the same errors as commit, and exceptions of a user's store.
        """
        with self._lock:  # a thread that hands a partition over commits after this, and only then releases it
            wanted = [each for each in requests if each.cursor.may_record(each)]
            by_fence: dict[int, dict[tuple[str, str], Offset]] = {}
            for each in wanted:
                offsets = by_fence.setdefault(each.cursor.fence, {})
                offsets[znode_name(each.cursor.partition)] = Offset(UNKNOWN_MESSAGE_ID, each.offset)
            for fence, offsets in by_fence.items():
                self._store.commit(self._group, offsets, fence)
            return wanted

    def commit_owned(self, core: ConsumerCore) -> int:
        """Commit the changed offsets of all partitions that this member owns now. Return their number."""
        return self.commit(core.owned.values())

    def commit_regularly(self, timers: Timers, seconds: float, core: ConsumerCore) -> None:
        """Commit every `seconds` on the timer thread, until the timers are closed."""

        complaint = ""

        def run() -> None:
            nonlocal complaint
            try:
                self.commit_owned(core)
                complaint = ""
            except (MetaqError, OSError) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.warning("offsets of group %s wait to be committed, every %g s: %s", self._group, seconds, error)
            finally:
                timers.call_later(seconds, run)

        timers.call_later(seconds, run)

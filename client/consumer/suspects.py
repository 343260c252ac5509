"""Take special care with messages that may have killed the process of a partition's former owner.

A member whose run() sends failed messages back to the broker writes a mark in ZooKeeper for each partition that it
owns. The member removes the mark when it gives the partition up. So a member that claims a partition and finds a mark
knows that the last owner died, or lost its session. But the new owner does not know which message after the committed
offset was being handled. So before each of the first SUSPECT_MESSAGES messages, the new owner commits its offset and
records in the mark which message is next. After these messages it commits at intervals that double each time. If the
new owner dies too, the next owner begins closer to the cause. If the first message after the commit is the cause, the
mark names this message. If a process dies while it handles only the message that the mark names, the death counts as a
failed attempt of this message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metaq.coordination.offsets.begun_marks import BegunMarks
from metaq.coordination.offsets.offset_store import TopicPartitionName
from metaq.coordination.records.payloads import Begun
from metaq.coordination.runtime.logs import get_log

from ..fetching.core import ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..fetching.tuning import CAREFUL_MESSAGES, SUSPECT_MESSAGES
from .offset_commit import OffsetCommitter

__all__ = ["Care", "Suspects", "WorkerDied"]

log = get_log(__name__)


class WorkerDied(Exception):
    """The cause of a failed attempt if a process ended, or lost its ZooKeeper session, while it handled this message
    and no other.
    """


@dataclass(slots=True, eq=False)
class Care:
    """The state of the careful phase after this member has claimed a partition whose last owner died. begun: the
    content of the mark. The object is used by the partition's worker thread only.
    """

    begun: Begun
    singly: int = SUSPECT_MESSAGES
    """Number of messages that are still to be recorded one by one."""
    size: int = SUSPECT_MESSAGES
    """Number of messages between two commits, after the messages that are recorded one by one."""
    left: int = 0
    """Number of messages until the next commit."""
    marked: int = -1
    """Offset of the message that the mark names; the handler may get this message. -1: none."""
    waits: bool = False
    """Whether the partition waits until no other message is handled in this process."""

    def is_named(self, offset: int) -> bool:
        """Return whether the last owner died while it handled the message at this offset."""
        return self.begun.offset == offset

    @property
    def is_over(self) -> bool:
        return not self.singly and self.size > CAREFUL_MESSAGES


class Suspects:
    """Reads and writes the marks of one consumer: one mark in ZooKeeper for each partition that it owns. Any thread may
    call the methods. After the careful phase nothing is written for single messages. If several partitions were
    claimed, their marks are read and written in one step.
    """

    def __init__(self, marks: BegunMarks, committer: OffsetCommitter, core: ConsumerCore) -> None:
        self._marks = marks
        self._committer = committer
        self._core = core
        self._lock = threading.Lock()
        self._known: Mapping[PartitionCursor, Care | None] = {}

    def look(self, cursor: PartitionCursor) -> Care | None:
        """Look for the mark of a claimed partition, before its first message is handled. Return the state of the
        careful phase; None if the last owner did not die. Raises the same errors as BegunMarks.
        """
        if cursor not in self._known:
            with self._lock:
                if cursor not in self._known:
                    self._look_at_all()
        return self._known.get(cursor)

    def _look_at_all(self) -> None:
        owned = list(self._core.owned.values())
        fresh = [each for each in owned if each not in self._known and each.active]
        found = self._marks.load([_name(each) for each in fresh])
        unmarked = [each for each, begun in zip(fresh, found, strict=True) if begun is None]
        for fence in {each.fence for each in unmarked}:
            self._marks.make([_name(each) for each in unmarked if each.fence == fence], fence)
        dead = [each for each, begun in zip(fresh, found, strict=True) if begun is not None]
        if dead:
            log.warning(
                "the last owner of %s%s died, or lost its session: what it may have begun is handled with care",
                *(dead[0], f" and {len(dead) - 1} more" if len(dead) > 1 else ""),
            )
        cares = {each: None if begun is None else Care(begun) for each, begun in zip(fresh, found, strict=True)}
        self._known = {each: self._known[each] for each in owned if each in self._known} | cares

    def step(self, cursor: PartitionCursor, care: Care, offset: int, alone: bool) -> None:
        """Commit the offset and update the mark if necessary, before the message at `offset` is handled. alone: whether
        no other message is handled in this process at the same time. Raises the same errors as OffsetCommitter.commit.
        """
        if care.marked == offset:
            return
        if care.singly:
            self._committer.commit([cursor])
            deaths = care.begun.alone if care.is_named(offset) else 0
            with self._lock:
                if cursor.active:  # otherwise another owner has made a mark by now
                    self._marks.write(_name(cursor), Begun(offset, deaths + alone), cursor.fence)
            care.singly -= 1
        elif care.left <= 0:
            self._committer.commit([cursor])
            care.size = care.left = 2 * care.size
        care.marked = offset

    def over(self, cursor: PartitionCursor) -> None:
        """End the careful phase of this claimed partition."""
        with self._lock:
            self._known = {**self._known, cursor: None}

    def left(self, cursors: Iterable[PartitionCursor]) -> None:
        """Remove the marks of partitions that this member has given up after their offsets were committed. Raises the
        same errors as BegunMarks. If a mark cannot be removed, the next owner handles messages with special care
        although this is not necessary.
        """
        with self._lock:
            given = [each for each in cursors if each in self._known]
            self._known = {each: care for each, care in self._known.items() if each not in given}
            if given:
                self._marks.remove({_name(each): each.fence for each in given})


def _name(cursor: PartitionCursor) -> TopicPartitionName:
    return cursor.partition.topic, str(cursor.partition)

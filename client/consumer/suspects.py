"""Handle, with special care, messages that may have ended a former owner's process.

A member whose run() sends failed messages back leaves a mark in ZooKeeper for each partition that it owns. A member
that claims a partition and finds a mark knows that the last owner died, or lost its session. It does not know which
message after the committed offset was being handled. So before each of the first SUSPECT_MESSAGES messages, the new
owner commits and records which message is next. After these it commits at intervals that double each time. If the new
owner dies too, the next one begins closer to the message. If the first message after the commit is the cause, the mark
names it, and a death while only that message was handled counts as a failed attempt.
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
    """The cause of a failure if a process ended, or lost its ZooKeeper session, while it handled one message and
    nothing else."""


@dataclass(slots=True, eq=False)
class Care:
    """State of one claim's careful phase after the death of the last owner. begun: the content of the mark. One thread
    at a time: the partition's worker.
    """

    begun: Begun
    singly: int = SUSPECT_MESSAGES
    """Number of messages that are still to be recorded one by one."""
    size: int = SUSPECT_MESSAGES
    """Number of messages between the last two commits, after that phase."""
    left: int = 0
    """Number of messages until the next commit."""
    marked: int = -1
    """Offset of the message that the handler may get."""
    waits: bool = False
    """Whether the partition waits until no other message is handled in this process."""

    def is_named(self, offset: int) -> bool:
        """Whether the last owner died at this message."""
        return self.begun.offset == offset

    @property
    def is_over(self) -> bool:
        return not self.singly and self.size > CAREFUL_MESSAGES


class Suspects:
    """The marks of one consumer. Any thread. After the careful phase nothing is written per message. The marks of all
    partitions claimed meanwhile are read and written in one step."""

    def __init__(self, marks: BegunMarks, committer: OffsetCommitter, core: ConsumerCore) -> None:
        self._marks = marks
        self._committer = committer
        self._core = core
        self._lock = threading.Lock()
        self._known: Mapping[PartitionCursor, Care | None] = {}

    def look(self, cursor: PartitionCursor) -> Care | None:
        """Return the state of the careful phase for a claim, before its first message; None if the last owner did not
        die. Raises the same errors as BegunMarks.
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
        """Note that the message at `offset` is about to be handled, alone in this process or together with others.
        Raises the same errors as OffsetCommitter.commit.
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
        """End the careful phase of this claim."""
        with self._lock:
            self._known = {**self._known, cursor: None}

    def left(self, cursors: Iterable[PartitionCursor]) -> None:
        """Remove the marks of partitions that were given up and committed, and that the core has dropped. Raises the
        same errors as BegunMarks: then the next owner handles messages with special care although it need not.
        """
        with self._lock:
            given = [each for each in cursors if each in self._known]
            self._known = {each: care for each, care in self._known.items() if each not in given}
            if given:
                self._marks.remove({_name(each): each.fence for each in given})


def _name(cursor: PartitionCursor) -> TopicPartitionName:
    return cursor.partition.topic, str(cursor.partition)

"""Find the message that has killed the process of a partition's former owner. For this purpose, the messages that may
have killed it are handled with special care.

A member whose run() sends failed messages back to the broker writes a mark in ZooKeeper for each partition that it
owns. The member removes the mark when it gives the partition up. So if a member claims a partition and finds a mark,
the last owner has died or lost its session. But the last owner may have been handling any message after the committed
offset when it died, and the new owner does not know which one. So before each of the first SUSPECT_MESSAGES messages,
the new owner commits its offset and records in the mark which message is next. After these messages, the new owner
commits its offset after 2, 4, 8 … times SUSPECT_MESSAGES further messages. If the new owner dies, too, the next owner
begins at a later offset, closer to the message that kills. Sooner or later this message is the first one after a
commit, and then the mark names it. If a process dies while it handles only the message that the mark names, the death
counts as a failed attempt of this message.
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
    """This error is recorded as the cause of a message's failed attempt if a process ended, or lost its ZooKeeper
    session, while it handled only this message.
    """


@dataclass(slots=True, eq=False)
class Care:
    """The state of the careful phase of one partition. The phase begins when this member has claimed a partition whose
    last owner died. It ends when this member no longer records single messages in the mark and no longer makes the
    additional commits that the module's text describes. begun: the content of the mark that the last owner left. Only
    the worker thread that has the partition uses the object.
    """

    begun: Begun
    singly: int = SUSPECT_MESSAGES
    """Number of next messages that will each be recorded in the mark before they are handled."""
    size: int = SUSPECT_MESSAGES
    """Number of messages that are handled between two commits, once the messages are no longer recorded one by one."""
    left: int = 0
    """Number of messages that may be handled before the next commit; used after the messages that are recorded one by
    one.
    """
    marked: int = -1
    """Offset of the last message for which `step` has done its work, so that the handler may get this message. It is -1
    if there is no such message.
    """
    waits: bool = False
    """Whether the partition's next message must wait until all other handlers in this process have returned.
    """

    def is_named(self, offset: int) -> bool:
        """Return whether the last owner's mark names the message at this offset, so that the last owner may have died
        while it handled this message.
        """
        return self.begun.offset == offset

    @property
    def is_over(self) -> bool:
        return not self.singly and self.size > CAREFUL_MESSAGES


class Suspects:
    """Reads and writes the marks of one consumer: one mark in ZooKeeper for each partition that it owns. Any thread may
    call the methods. A partition whose last owner did not die, or whose careful phase is over, causes no further
    writes. If several partitions were claimed, their marks are read and written together.
    """

    def __init__(self, marks: BegunMarks, committer: OffsetCommitter, core: ConsumerCore) -> None:
        self._marks = marks
        self._committer = committer
        self._core = core
        self._lock = threading.Lock()
        self._known: Mapping[PartitionCursor, Care | None] = {}

    def look(self, cursor: PartitionCursor) -> Care | None:
        """Find out, before the first message of a claimed partition is handled, whether the last owner has left a mark.
        If it has not, create this member's mark. Return the state of the careful phase, or None if the last owner did
        not die. Raises the same errors as BegunMarks.
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
        """Called in the careful phase before the message at `offset` is handled. For each of the first messages, commit
        the partition's offset and name the message in the mark. For later messages, commit the offset only when
        `care.left` is 0, and name no message. alone: whether no other message is handled in this process at the same
        time. Raises the same errors as OffsetCommitter.commit.
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
        """Remove the marks of partitions that this member has given up. Their offsets were committed before. Raises the
        same errors as BegunMarks. If a mark cannot be removed, the next owner of the partition treats the marked
        message as one that may kill its process, although this is not necessary.
        """
        with self._lock:
            given = [each for each in cursors if each in self._known]
            self._known = {each: care for each, care in self._known.items() if each not in given}
            if given:
                self._marks.remove({_name(each): each.fence for each in given})


def _name(cursor: PartitionCursor) -> TopicPartitionName:
    return cursor.partition.topic, str(cursor.partition)

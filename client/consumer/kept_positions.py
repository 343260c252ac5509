"""Remember the positions of partitions that this member owned until recently, in case ZooKeeper has lost the committed
offsets.

When a member's ZooKeeper session ends, the nodes that name the member as the owner of partitions disappear. Another
member may then read these partitions from the committed offsets on. From this time on, the committed offsets are right;
the positions that this member remembers are not. But if ZooKeeper was restarted with no data or with an older copy of
its data, commits are lost, and only the former owners know up to where the group has read. So a member remembers its
positions until it has joined the group again. After it has joined, the member writes the offsets that ZooKeeper has
lost. If ZooKeeper has lost changes, the member then reads, for a limited time, only partitions that it owned before. It
leaves the other partitions to their former owners, who know their positions.

This code does no I/O: GroupMember reads and writes the committed offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..fetching.cursor import PartitionCursor, Reached
from ..fetching.tuning import RETURN_SECONDS
from ..records.results import TopicPartition

__all__ = ["KeptPosition", "KeptPositions"]


class KeptPosition(NamedTuple):
    """A partition that this member has owned, and the position where its next owner should begin."""

    cursor: PartitionCursor
    place: Reached


class KeptPositions:
    """The remembered positions of one member. Only the rebalance thread uses this object.

    by_commits: whether the user calls commit. If so, the position of the last commit is remembered, and messages that
    were delivered after this commit are delivered again. Otherwise, the position after the consumed messages is
    remembered.
    """

    def __init__(self, clock: Callable[[], float], *, by_commits: bool) -> None:
        self._clock = clock
        self._by_commits = by_commits
        self._kept: dict[TopicPartition, PartitionCursor] = {}
        self._others_until = float("-inf")
        self._given_up: dict[TopicPartition, tuple[PartitionCursor, float]] = {}  # the cursor, and until when it counts

    def gave_up(self, cursors: Iterable[PartitionCursor], session_timeout: float) -> None:
        """Remember the positions of partitions that this member gave up on the current session. Until other members own
        these partitions, only this member knows their positions. session_timeout: the timeout of the ZooKeeper session
        in seconds.
        """
        now = self._clock()
        # one session timeout for the session to end, one more in reserve
        until = now + 2 * session_timeout + RETURN_SECONDS
        self._given_up = {each: kept for each, kept in self._given_up.items() if kept[1] > now}
        self._given_up |= {each.partition: (each, until) for each in cursors}

    def given_up(self, owned: Collection[TopicPartition]) -> dict[TopicPartition, PartitionCursor]:
        """Return the partitions that this member gave up recently, with their cursors, except those in `owned`."""
        now = self._clock()
        return {each: cursor for each, (cursor, until) in self._given_up.items() if until > now and each not in owned}

    def keep(self, cursors: Iterable[PartitionCursor]) -> None:
        """Remember the positions of partitions that this member has lost together with its session."""
        self._kept |= {each.partition: each for each in cursors}

    def forget(self) -> None:
        """Forget the positions of lost partitions, because the member has joined its group again, or leaves it. While
        the member must leave partitions to former owners (`ends_in`), nothing is forgotten.
        """
        if self.ends_in is None:
            self._kept.clear()

    # --- ZooKeeper was set back -------------------------------------------------------------------------------------

    @property
    def ends_in(self) -> float | None:
        """Seconds for which this member must still leave partitions to their former owners, because the former owners
        may know later positions. It is None if this member may read all partitions now.
        """
        pause = self._others_until - self._clock()
        return pause if pause > 0 else None

    def wait_for_others(self, session_timeout: float) -> None:
        """From now on, for a limited time, read only partitions that this member owned before. Call this if ZooKeeper
        was set back to an older state. session_timeout: the timeout of the ZooKeeper session in seconds.
        """
        self._others_until = self._clock() + session_timeout + RETURN_SECONDS

    def waits_for_others(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of `partitions` that this member must not read yet, because it leaves them to their former
        owners.
        """
        return set() if self.ends_in is None else set(partitions) - self._kept.keys()

    def positions(self) -> dict[TopicPartition, KeptPosition]:
        """Return the remembered positions of the partitions that this member has lost or recently given up."""
        cursors = self.given_up(self._kept) | self._kept
        return {each: KeptPosition(cursor, place) for each, cursor in cursors.items() if (place := self._place(cursor))}

    @staticmethod
    def behind(
        kept: Mapping[TopicPartition, KeptPosition],
        stored: Sequence[Reached | None],
        newer: Sequence[bool],
        last_session_id: int,
    ) -> dict[TopicPartition, Reached | None]:
        """Return the partitions whose committed offset is missing or lower than the position that this member
        remembers, each with its committed offset (None if it is missing).

        If this member lost a partition before its last session ended, another member may have owned the partition
        since, so any committed offset overrules the remembered position. A partition is also returned in another case:
        this member has claimed the partition, and after that the former owner, which did not know of the claim, has
        written its own lower offset again.

        kept: the result of `positions`. stored: the committed offsets, in the order of `kept`. newer: for each
        committed offset, whether it overrules the remembered position because it was written later.
        """
        return {
            each: found
            for (each, (cursor, place)), found, is_newer in zip(kept.items(), stored, newer, strict=True)
            if not (is_newer and found != cursor.claimed_at)
            and (found is None or (found[0] < place[0] and cursor.fence == last_session_id))
        }

    @staticmethod
    def shows_loss(
        kept: Mapping[TopicPartition, KeptPosition], behind: Mapping[TopicPartition, Reached | None]
    ) -> bool:
        """Return whether ZooKeeper has lost a commit of this member: a committed offset is missing, or lower than the
        offset that this member committed. behind: the result of `behind`.
        """
        for each, found in behind.items():
            committed = kept[each].cursor.committed
            if committed is not None and (found is None or found[0] < committed[0]):
                return True
        return False

    def knows_any(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether this member has lost any of these partitions together with its session."""
        return not self._kept.keys().isdisjoint(partitions)

    def resume(
        self, partitions: Sequence[TopicPartition], stored: Sequence[Reached | None], newer: Sequence[bool]
    ) -> list[Reached | None]:
        """Return for each claimed partition the position from which this member must read: the remembered position if
        no other member has read and committed more, otherwise None. None means the committed offset. stored,
        newer: as in `behind`.
        """
        found: list[Reached | None] = []
        for partition, committed, is_newer in zip(partitions, stored, newer, strict=True):
            cursor = self._kept.get(partition)
            place = None if cursor is None else self._place(cursor)
            goes_on = place is not None and (committed is None or (not is_newer and committed[0] <= place[0]))
            found.append(place if goes_on else None)
        return found

    def _place(self, cursor: PartitionCursor) -> Reached | None:
        return cursor.place(by_commits=self._by_commits)

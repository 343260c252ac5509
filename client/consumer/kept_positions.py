"""Keep positions of partitions that the member owned until recently, in case ZooKeeper has lost them.

When a session ends, its owner nodes disappear, and another member may continue from the committed offsets; from then on
the committed offsets count. But if ZooKeeper came back empty or from an older copy, commits are gone, and only the
former owners know the group's positions. So a member keeps its positions until it has a place in the group again. Then
it writes the offsets that ZooKeeper has lost. For a while it also does not begin partitions that it did not own, and
leaves them to their former owners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.runtime.logs import get_log

from ..fetching.cursor import PartitionCursor, Reached
from ..fetching.tuning import RETURN_SECONDS
from ..records.results import TopicPartition
from .offset_commit import OffsetCommitter, znode_name

__all__ = ["KeptPositions"]

log = get_log(__name__)

_NEVER = (1 << 63) - 1
"""A zxid greater than all others."""


class KeptPositions:
    """The kept positions of one member. One thread, the rebalance thread.

    by_commits: whether the user commits; then messages that were delivered since the last commit are delivered again.
    """

    def __init__(
        self, membership: GroupMembership, committer: OffsetCommitter, clock: Callable[[], float], *, by_commits: bool
    ) -> None:
        self._membership = membership
        self._committer = committer
        self._clock = clock
        self._by_commits = by_commits
        self._kept: dict[TopicPartition, PartitionCursor] = {}
        self._published_on = 0  # the session
        self._set_backs = 0  # number of set-backs of ZooKeeper known so far
        self._others_until = float("-inf")
        self._given_up: dict[TopicPartition, tuple[PartitionCursor, float]] = {}  # the cursor, and until when it counts

    def gave_up(self, cursors: Iterable[PartitionCursor]) -> None:
        """Note partitions that were given up on the current session. Until other members own them, only this member
        knows their positions.
        """
        now = self._clock()
        # one session timeout for the session to end, one more in reserve
        until = now + 2 * self._membership.session_timeout + RETURN_SECONDS
        self._given_up = {each: kept for each, kept in self._given_up.items() if kept[1] > now}
        self._given_up |= {each.partition: (each, until) for each in cursors}

    def given_up(self, owned: Collection[TopicPartition]) -> dict[TopicPartition, PartitionCursor]:
        """Return recently given up partitions that are not owned again."""
        now = self._clock()
        return {each: cursor for each, (cursor, until) in self._given_up.items() if until > now and each not in owned}

    def keep(self, cursors: Iterable[PartitionCursor]) -> None:
        """Keep positions whose owner nodes are gone with the session."""
        self._kept |= {each.partition: each for each in cursors}

    def forget(self) -> None:
        """Forget the positions, because the member has a place in its group again, or leaves it."""
        if self.ends_in is None:
            self._kept.clear()

    @property
    def ends_in(self) -> float | None:
        """Seconds until this member may begin partitions whose former owners may know later positions. None: it may
        begin them now.
        """
        pause = self._others_until - self._clock()
        return pause if pause > 0 else None

    def wait_for_others(self) -> None:
        """For a while, begin only partitions that this member owned before, because ZooKeeper was set back to an older
        state.
        """
        self._others_until = self._clock() + self._membership.session_timeout + RETURN_SECONDS

    def waits_for_others(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return which of `partitions` this member must not begin yet."""
        return set() if self.ends_in is None else set(partitions) - self._kept.keys()

    def publish(self) -> None:
        """On a new session, find out whether ZooKeeper has lost commits, and write them again. Raises the errors of
        OffsetCommitter.commit; then the call may be repeated.
        """
        session_id = self._membership.session_id
        if session_id == self._published_on:
            return
        known = self.given_up(self._kept) | self._kept
        places = {each: place for each, cursor in known.items() if (place := self._place(cursor)) is not None}
        names = {each: znode_name(each) for each in places}
        stored = self._committer.load(list(names.values())) if names else []
        set_backs = self._membership.set_backs
        is_known = set_backs != self._set_backs
        behind = self._behind(known, places, stored, names, in_any_case=is_known)
        if is_known or any(_is_lost(known[each], found) for each, found in behind.items()):
            # offsets that were written later come from another member, which may have known less
            behind = self._behind(known, places, stored, names, in_any_case=True)
            self.wait_for_others()
            if behind:
                self._committer.publish({names[each]: places[each] for each in behind})
            log.warning(
                "group %s: ZooKeeper was set back: wrote again where the group stands in %d partitions, and waits "
                "up to %.0f s for the members that owned others",
                *(self._membership.group, len(behind), self._others_until - self._clock()),
            )
        self._set_backs, self._published_on = set_backs, session_id

    def resume(self, partitions: Sequence[TopicPartition], stored: Sequence[Reached | None]) -> list[Reached | None]:
        """For each claimed partition, return this member's own position if no other member has got further. None means
        that the member continues at the committed offset, as for a new partition. stored: the committed offsets.
        """
        names = [znode_name(each) for each in partitions]
        is_set_back = self.ends_in is not None
        changed = self._changed(names, is_set_back) if self._kept.keys() & set(partitions) else [True] * len(names)
        found: list[Reached | None] = []
        for partition, committed, is_newer in zip(partitions, stored, changed, strict=True):
            cursor = self._kept.get(partition)
            place = None if cursor is None else self._place(cursor)
            goes_on = place is not None and (committed is None or (not is_newer and committed[0] <= place[0]))
            found.append(place if goes_on else None)
        return found

    def _behind(
        self,
        known: Mapping[TopicPartition, PartitionCursor],
        places: Mapping[TopicPartition, Reached],
        stored: Sequence[Reached | None],
        names: Mapping[TopicPartition, tuple[str, str]],
        *,
        in_any_case: bool,
    ) -> dict[TopicPartition, Reached | None]:
        """Return the partitions whose committed offset is lower than the position that this member knows, with the
        committed offset.

        If a partition was lost before the last session ended, other members may know more than this one, so any
        committed offset wins. If this member has claimed a partition, and the former owner has written its offset again
        without knowing of the claim, the partition is returned, too.
        """
        last = self._membership.last_session_id
        changed = self._changed(list(names.values()), in_any_case) if names else []
        return {
            each: found
            for each, found, is_newer in zip(places, stored, changed, strict=True)
            if not (is_newer and found != known[each].claimed_at)
            and (found is None or (found[0] < places[each][0] and known[each].fence == last))
        }

    def _changed(self, names: Sequence[tuple[str, str]], in_any_case: bool) -> list[bool]:
        """Return for each offset whether it was written later than this member knows, and so overrules the position
        here. in_any_case: ZooKeeper was set back, so no offset overrules a position."""
        return self._committer.changed_since(names, _NEVER if in_any_case else self._membership.seen_zxid)

    def _place(self, cursor: PartitionCursor) -> Reached | None:
        return cursor.place(by_commits=self._by_commits)


def _is_lost(cursor: PartitionCursor, found: Reached | None) -> bool:
    """Whether the committed offset is missing, or lower than the one that this member committed."""
    return cursor.committed is not None and (found is None or found[0] < cursor.committed[0])

"""Remember the positions of partitions that this member owned until recently, in case ZooKeeper has lost the committed
offsets.

When a ZooKeeper session ends, its owner nodes disappear. Another member may then continue from the committed offsets,
and from then on the committed offsets count. But if ZooKeeper came back empty or with an older copy of its data,
commits are lost, and only the former owners know the group's positions. So a member remembers its positions until it
has joined the group again. After it has joined, the member writes the offsets that ZooKeeper has lost. For a while it
also reads no partitions that it did not own before, and leaves them to their former owners.
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
"""A ZooKeeper transaction id (zxid) that is greater than all real ones."""


class KeptPositions:
    """The remembered positions of one member. The object is used by the rebalance thread only. by_commits: whether the
user calls commit; if so, messages that were delivered after the last commit are delivered again.
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
        """Remember the positions of partitions that this member gave up on the current session. Until other members own
        these partitions, only this member knows their positions.
        """
        now = self._clock()
        # one session timeout for the session to end, one more in reserve
        until = now + 2 * self._membership.session_timeout + RETURN_SECONDS
        self._given_up = {each: kept for each, kept in self._given_up.items() if kept[1] > now}
        self._given_up |= {each.partition: (each, until) for each in cursors}

    def given_up(self, owned: Collection[TopicPartition]) -> dict[TopicPartition, PartitionCursor]:
        """Return the recently given up partitions, with their cursors. Partitions that this member owns again are left
        out.
        """
        now = self._clock()
        return {each: cursor for each, (cursor, until) in self._given_up.items() if until > now and each not in owned}

    def keep(self, cursors: Iterable[PartitionCursor]) -> None:
        """Remember the positions of partitions that this member has lost together with its session."""
        self._kept |= {each.partition: each for each in cursors}

    def forget(self) -> None:
        """Forget the positions, because the member has joined its group again, or leaves it."""
        if self.ends_in is None:
            self._kept.clear()

    @property
    def ends_in(self) -> float | None:
        """Seconds for which this member must still leave partitions to their former owners, because the former owners
        may know later positions. None: this member may read all partitions now.
        """
        pause = self._others_until - self._clock()
        return pause if pause > 0 else None

    def wait_for_others(self) -> None:
        """From now on read only partitions that this member owned before, for a limited time. Called if ZooKeeper was
        set back to an older state.
        """
        self._others_until = self._clock() + self._membership.session_timeout + RETURN_SECONDS

    def waits_for_others(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the subset of `partitions` that this member must not read yet, because it leaves them to their former
        owners.
        """
        return set() if self.ends_in is None else set(partitions) - self._kept.keys()

    def publish(self) -> None:
        """On a new session, find out whether ZooKeeper has lost commits of this member, and write these offsets again.
        Raises the errors of OffsetCommitter.commit; after an error the call may be repeated.
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
        """Return for each claimed partition the position that this member remembers, if no other member has got
        further. None means that the member continues at the committed offset, as with any other partition. stored: the
        committed offsets.
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
        """Return the partitions whose committed offset is lower than the position that this member remembers. Each
        comes with its committed offset.

        If this member lost a partition before its last session ended, other members may know a later position, so any
        committed offset overrules the remembered position. A partition is also returned if this member has claimed it
        and the former owner, without knowing of the claim, has then written its own offset again.
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
        """Return for each committed offset whether it was written after the last change in ZooKeeper that this member
        has seen (`seen_zxid`), so that it overrules the remembered position. in_any_case: whether ZooKeeper was set
        back to an earlier state. If it was, the remembered positions count in any case, and every result is False.
        """
        return self._committer.changed_since(names, _NEVER if in_any_case else self._membership.seen_zxid)

    def _place(self, cursor: PartitionCursor) -> Reached | None:
        return cursor.place(by_commits=self._by_commits)


def _is_lost(cursor: PartitionCursor, found: Reached | None) -> bool:
    """Return whether the committed offset that was found is missing, or lower than the offset that this member
    committed.
    """
    return cursor.committed is not None and (found is None or found[0] < cursor.committed[0])

"""Hold the state of one group member: its registration, its claimed partitions, and the owner znodes that it watches.
The code in this module does no I/O and reads no clock.

membership.py reads and writes ZooKeeper. membership.py informs membership_state.py before each write and after the
answer. membership_state.py decides which partitions may belong to the member, whether the member must register again,
and on which owner znodes a watch must still be set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["MembershipState", "Partition"]

Partition = tuple[str, str]
"""A partition as a pair of texts: the topic's name and `<broker>-<partition>`."""


class MembershipState:
    """The state of one group member. Each method call is one atomic step. Any thread may call the methods.

    topics: all topics of the member. session_id: id of the session that has created the member's znodes; None if no
    session has created them. is_registered: whether the member's own znodes exist, as far as the member knows. is_out:
    whether the member has stepped out of the group, and stays outside until it rejoins.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = tuple(topics)
        self.session_id: int | None = None
        self.is_registered = False
        self.is_out = False
        self._lock = threading.Lock()
        self._unfollowed: set[str] = set()
        self._held: set[Partition] = set()
        self._awaited: set[str] = set()

    # --- membership -------------------------------------------------------------------------------------------------

    def must_register(self, session_id: int) -> bool:
        """Return whether the member must create its own znodes. session_id: id of the current session if this session
        has created the member's znodes, otherwise 0.
        """
        return not self.is_out and not (self.is_registered and session_id)

    def registered(self, session_id: int, topics: tuple[str, ...]) -> bool:
        """Record that the session `session_id` has created the member's znodes, with these topics. Return True if the
        member has other topics by now; the caller must then create the member's znode again.
        """
        with self._lock:
            self.is_registered = True
            if self.session_id != session_id:
                self.session_id, self._held = session_id, set()
            return topics != self.topics

    def session_lost(self, session_id: int) -> None:
        """Record that a session has ended. If it is the session that created the member's znodes, the member owns no
        partitions any more, so `held` becomes empty.
        """
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held = None, set()

    def step_out(self) -> tuple[int | None, frozenset[Partition]]:
        """Record that the member stays outside of the group until it rejoins. Return the id of the session whose znodes
        the caller must remove, and the claimed partitions.
        """
        self.is_out = True
        with self._lock:
            return self.session_id, frozenset(self._held)

    def stepped_out(self, session_id: int | None) -> None:
        """Record that the znodes of this session were removed. If the member has registered on a newer session
        meanwhile, do not change the state of the newer registration.
        """
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held, self.is_registered = None, set(), False

    def leave(self) -> tuple[int | None, frozenset[Partition]]:
        """Forget the member's session and claimed partitions, and return the session's id and the partitions, so that
        the caller can remove their znodes.
        """
        with self._lock:
            session_id, self.session_id = self.session_id, None
            held, self._held = self._held, set()
            return session_id, frozenset(held)

    # --- topics -----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str) -> tuple[bool, int | None]:
        """Add a topic to the member's topics. Return two values. The first value is True if the caller must now
        register the topic and watch it, and False if the caller has already done this and reported it by `followed`.
        The second value is the id of the session on which the caller must delete the member's znode and create it again
        with the new topic. The second value is None if the member is not registered now: its next registration will
        contain the topic. If that registration has already begun with the former topics, `registered` will return True,
        so that the caller creates the znode again.
        """
        with self._lock:
            if topic not in self.topics:
                self.topics = (*self.topics, topic)
                self._unfollowed.add(topic)
            return topic in self._unfollowed, self.session_id if self.is_registered else None

    def followed(self, topic: str) -> None:
        """Record that the caller has registered the new topic and watches it, so that `subscribe` returns False for
        this topic from now on.
        """
        with self._lock:
            self._unfollowed.discard(topic)

    # --- claims -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions whose owner znode may belong to the member, because the member's claim has succeeded, or
        because the answer to the claim did not come.
        """
        with self._lock:
            return frozenset(self._held)

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Record that the member owns these partitions, or is about to claim them. The caller records partitions before
        it claims them: if the answer to a claim is lost, the member perhaps owns the partition.
        """
        with self._lock:
            self._held |= set(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Record that the member does not own these partitions, because ZooKeeper has shown this."""
        with self._lock:
            self._held -= set(partitions)

    def await_end(self, paths: Iterable[str]) -> set[str]:
        """Record that the member waits for the deletion of these owner znodes of other members. Return the paths
        without a watch, on which the caller must set one.
        """
        with self._lock:
            added = set(paths) - self._awaited
            self._awaited |= added
            return added

    def no_longer_awaited(self, path: str) -> None:
        """Record that an owner znode is not watched any more, because the znode was deleted or the watch has ended."""
        with self._lock:
            self._awaited.discard(path)

"""The state of one group member: what it has registered and claimed, and which znodes it watches. This core has no I/O
and no clock.

membership.py reads and writes ZooKeeper. It informs this core before each write and after the answer. The core decides
which partitions the member may own, whether the member must register again, and which znodes must still be watched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["MembershipState", "Partition"]

Partition = tuple[str, str]
"""(topic, `<broker>-<partition>`)."""


class MembershipState:
    """The state of one member. Each call is one atomic step, and any thread may make it.

    topics: all topics of the member. session_id: the session that has the member's znodes; None if no session has them.
    is_registered: whether the member's own znodes exist, as far as the member knows. is_out: whether the member stays
    outside the group until it rejoins.
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
        """Return whether the member must register. session_id: the current session if it has the member's znodes,
        otherwise 0.
        """
        return not self.is_out and not (self.is_registered and session_id)

    def registered(self, session_id: int, topics: tuple[str, ...]) -> bool:
        """Note that the member's znodes exist on a session, and that they were made with these topics. Return whether
        the topics have changed since then, so that the znode must be made anew.
        """
        with self._lock:
            self.is_registered = True
            if self.session_id != session_id:
                self.session_id, self._held = session_id, set()
            return topics != self.topics

    def session_lost(self, session_id: int) -> None:
        """Note the end of a session. If the claims were made on this session, they end, too."""
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held = None, set()

    def step_out(self) -> tuple[int | None, frozenset[Partition]]:
        """Keep the member outside of the group from now on. Return the session whose znodes must be removed, and the
        claimed partitions.
        """
        self.is_out = True
        with self._lock:
            return self.session_id, frozenset(self._held)

    def stepped_out(self, session_id: int | None) -> None:
        """Note that the znodes of this session were removed. If the member has registered on a newer session meanwhile,
        its new state stays.
        """
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held, self.is_registered = None, set(), False

    def leave(self) -> tuple[int | None, frozenset[Partition]]:
        """Forget the session and the claimed partitions, and return both."""
        with self._lock:
            session_id, self.session_id = self.session_id, None
            held, self._held = self._held, set()
            return session_id, frozenset(held)

    # --- topics -----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str) -> tuple[bool, int | None]:
        """Add a topic. Return whether something is left to do for the topic, and the session on which the member's
        znode must be made anew. The session is None if the znode need not be made anew now: the next registration
        contains the topic, or `registered` will ask for a new znode.
        """
        with self._lock:
            if topic not in self.topics:
                self.topics = (*self.topics, topic)
                self._unfollowed.add(topic)
            return topic in self._unfollowed, self.session_id if self.is_registered else None

    def followed(self, topic: str) -> None:
        """Note that nothing is left to do for a new topic."""
        with self._lock:
            self._unfollowed.discard(topic)

    # --- claims -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions whose owner znode may belong to the member: the claim succeeded, or its answer did not
        come.
        """
        with self._lock:
            return frozenset(self._held)

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Note that the member owns these partitions, or will claim them next. They are noted before the claim, because
        the member may own them even if the answer is lost.
        """
        with self._lock:
            self._held |= set(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Note that the member does not own these partitions, according to ZooKeeper."""
        with self._lock:
            self._held -= set(partitions)

    def await_end(self, paths: Iterable[str]) -> set[str]:
        """Note that the member waits for the deletion of these owner znodes of other members. Return the paths that are
        not watched yet.
        """
        with self._lock:
            added = set(paths) - self._awaited
            self._awaited |= added
            return added

    def no_longer_awaited(self, path: str) -> None:
        """Note that an owner znode is not watched any more, because the znode was deleted or the watch has ended."""
        with self._lock:
            self._awaited.discard(path)

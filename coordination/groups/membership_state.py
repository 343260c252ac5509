"""What one member of a group has registered, claims and awaits: a core without I/O and without a clock.

membership.py reads and writes ZooKeeper. It tells this core before it writes and after the answer; the core decides
which partitions may be the member's, whether it must register again, and which nodes are still to be watched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["MembershipState", "Partition"]

Partition = tuple[str, str]
"""(topic, `<broker>-<partition>`)."""


class MembershipState:
    """The state of one member. Each call is one step, which any thread may take.

    topics: all topics of the member. session_id: the session that has its nodes; None: none has. is_registered: the
    member's own nodes exist, as far as it knows. is_out: the member stays outside the group until it rejoins.
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
        """Whether the member must register. session_id: the current session if it has the member's nodes, else 0."""
        return not self.is_out and not (self.is_registered and session_id)

    def registered(self, session_id: int, topics: tuple[str, ...]) -> bool:
        """Note that the member's nodes exist on a session, made with these topics. Return whether the topics have
        changed since, so that the node must be made anew."""
        with self._lock:
            self.is_registered = True
            if self.session_id != session_id:
                self.session_id, self._held = session_id, set()
            return topics != self.topics

    def session_lost(self, session_id: int) -> None:
        """Note the end of a session. It ends the claims if they were made on this session."""
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held = None, set()

    def step_out(self) -> tuple[int | None, frozenset[Partition]]:
        """Stay outside from now on. Return the session whose nodes must be removed, and the claims among them."""
        self.is_out = True
        with self._lock:
            return self.session_id, frozenset(self._held)

    def stepped_out(self, session_id: int | None) -> None:
        """Note that the nodes of this session are removed. If the member has registered on a newer session meanwhile,
        its new state stays."""
        with self._lock:
            if self.session_id == session_id:
                self.session_id, self._held, self.is_registered = None, set(), False

    def leave(self) -> tuple[int | None, frozenset[Partition]]:
        """Forget the session and the claims, and return them."""
        with self._lock:
            session_id, self.session_id = self.session_id, None
            held, self._held = self._held, set()
            return session_id, frozenset(held)

    # --- topics -----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str) -> tuple[bool, int | None]:
        """Add a topic. Return whether something is left to do for it, and the session on which the member's node must
        be made anew; None: `registered` will ask for that, or the next registration has the topic."""
        with self._lock:
            if topic not in self.topics:
                self.topics = (*self.topics, topic)
                self._unfollowed.add(topic)
            return topic in self._unfollowed, self.session_id if self.is_registered else None

    def followed(self, topic: str) -> None:
        """Note that everything is done for a new topic."""
        with self._lock:
            self._unfollowed.discard(topic)

    # --- claims -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions whose owner node may be the member's: claimed, or claimed without an answer."""
        with self._lock:
            return frozenset(self._held)

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Note that the member is about to claim these partitions, or owns them: if the answer is lost, it may own
        them without knowing."""
        with self._lock:
            self._held |= set(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are not the member's: ZooKeeper has said so."""
        with self._lock:
            self._held -= set(partitions)

    def await_end(self, paths: Iterable[str]) -> set[str]:
        """Await the end of other members' owner nodes. Return those that are not watched yet."""
        with self._lock:
            added = set(paths) - self._awaited
            self._awaited |= added
            return added

    def no_longer_awaited(self, path: str) -> None:
        """Note that an owner node is not watched any more: it has ended, or the watch has."""
        with self._lock:
            self._awaited.discard(path)

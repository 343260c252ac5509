"""Count how many messages each member of one group has leased from all partitions of a broker, and choose the member
that gets the next suspect. A suspect is a message whose lease has expired before the member acknowledged or released
the message (state.py). The code does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

__all__ = ["Crew", "Suspicion"]


class Suspicion(IntEnum):
    """How a record was leased last. NONE means that it was not leased as a suspect. SUSPECT and ALONE are two ways to
    lease a suspect.
    """

    NONE = 0
    SUSPECT = 1
    """The suspect is the only record of its lease, but the member has also leased other messages of the group, in other
    leases.
    """
    ALONE = 2
    """The suspect is the only record of its lease, and the member has leased no other message of the group. If such a
    lease expires before the member has settled the record, the lease counts as an attempt.
    """


class Crew:
    """Counts the messages and suspects that each member of one group has leased from all partitions of a broker. Used
    on the reactor thread.
    """

    def __init__(self) -> None:
        self.chosen = ""
        """The name of the chosen member, or "" if no member is chosen. If a suspect must be leased alone, the broker
        chooses one member to get it. The chosen member gets no other messages until it has settled all that it has, and
        then gets the suspect. The other members get messages as usual.
        """
        self.chosen_for: object = None
        """The SharedState of the partition that has the suspect for the chosen member, or None if no member is
        chosen.
        """
        self._is_wanted: Callable[[], bool] = lambda: False
        self._leased: dict[str, int] = {}
        self._suspects: dict[str, int] = {}
        self._alone: dict[str, int] = {}

    def has_any(self, member: str) -> bool:
        """Whether the member has leased messages."""
        return member in self._leased

    def has_suspect(self, member: str) -> bool:
        """Whether the member has leased a suspect."""
        return member in self._suspects

    def has_one_alone(self, member: str) -> bool:
        """Whether the member has leased a suspect that must be its only message. If so, it must not get another message
        now.
        """
        return member in self._alone

    def take(self, member: str, suspicion: Suspicion, count: int = 1) -> None:
        """Record that the member has leased `count` messages in the way `suspicion`."""
        self._leased[member] = self._leased.get(member, 0) + count
        if suspicion:
            self._suspects[member] = self._suspects.get(member, 0) + count
            if suspicion is Suspicion.ALONE:
                self._alone[member] = self._alone.get(member, 0) + count

    def let_go(self, member: str, suspicion: Suspicion) -> None:
        """Record that the member's lease of one message, which was leased in the way `suspicion`, has ended."""
        leased = self._leased  # inlines _count_down: this runs for each message
        if (left := leased[member] - 1) > 0:
            leased[member] = left
        else:
            del leased[member]
        if suspicion:
            _count_down(self._suspects, member)
            if suspicion is Suspicion.ALONE:
                _count_down(self._alone, member)

    # --- a suspect for a member that has nothing else -----------------------------------------------------------------

    def choose(self, member: str, chosen_for: object, is_wanted: Callable[[], bool]) -> bool:
        """Choose this member for a suspect: it gets no other messages until it has settled all that it has, and then
        gets the suspect. Do nothing if another member was chosen before, has not settled its messages yet, and its
        suspect is still waiting. Return whether this member is the chosen one after the call. chosen_for: see the
        attribute. is_wanted: returns whether the suspect is still waiting.
        """
        if self.chosen and self.chosen in self._leased and self._is_wanted():
            return self.chosen == member
        self.chosen, self.chosen_for, self._is_wanted = member, chosen_for, is_wanted
        return True

    def still_wanted(self) -> bool:
        """Return whether the suspect for the chosen member is still waiting to be leased. If not, cancel the choice."""
        if self._is_wanted():
            return True
        self.unchoose()
        return False

    def unchoose(self) -> None:
        """Cancel the choice of a member, because the suspect was leased or is no longer waiting."""
        self.chosen, self.chosen_for, self._is_wanted = "", None, lambda: False


def _count_down(counts: dict[str, int], member: str) -> None:
    left = counts[member] - 1
    if left:
        counts[member] = left
    else:
        del counts[member]

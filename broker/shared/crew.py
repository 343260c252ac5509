"""Keep track of the messages that the members of one group have leased from all partitions of a broker, and choose the
member that gets the next suspect. A suspect is a message whose lease has expired before the member acknowledged or
released the message (state.py). The code does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

__all__ = ["Crew", "Suspicion"]


class Suspicion(IntEnum):
    """How a record is leased now, or was leased the last time."""

    NONE = 0
    SUSPECT = 1
    """The record is the only one in its lease, but the member has other leases of the group, too."""
    ALONE = 2
    """The member has no other message of the group. If such a lease expires before the member has settled the record,
    it counts as an attempt.
    """


class Crew:
    """The leases of one group's members on all partitions of a broker. Used on the reactor thread."""

    def __init__(self) -> None:
        self.chosen = ""
        """The member that gets no new messages until it has settled all messages that it has. Reason: a suspect waits
        for a member without other messages, and will be leased to this member. The other members still get messages. ""
        if no member is chosen.
        """
        self.chosen_for: object = None
        """The SharedState of the partition with the suspect that waits for the chosen member."""
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
        """Whether the member has leased a suspect that must be its only message, so that it may lease no other message
        now.
        """
        return member in self._alone

    def take(self, member: str, suspicion: Suspicion, count: int = 1) -> None:
        """Record that the member leases `count` messages."""
        self._leased[member] = self._leased.get(member, 0) + count
        if suspicion:
            self._suspects[member] = self._suspects.get(member, 0) + count
            if suspicion is Suspicion.ALONE:
                self._alone[member] = self._alone.get(member, 0) + count

    def let_go(self, member: str, suspicion: Suspicion) -> None:
        """Record that the member's lease of one message has ended."""
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
        """Choose this member as the member that has to settle all its messages before it gets a suspect. Do nothing if
        another member is chosen already, still has messages, and the suspect for that member still waits. Return
        whether this member is chosen. is_wanted: returns whether the suspect still waits.
        """
        if self.chosen and self.chosen in self._leased and self._is_wanted():
            return self.chosen == member
        self.chosen, self.chosen_for, self._is_wanted = member, chosen_for, is_wanted
        return True

    def still_wanted(self) -> bool:
        """Return whether the suspect for the chosen member still waits. If not, no member is chosen any more."""
        if self._is_wanted():
            return True
        self.unchoose()
        return False

    def unchoose(self) -> None:
        """Choose no member, because the suspect was leased or no longer waits."""
        self.chosen, self.chosen_for, self._is_wanted = "", None, lambda: False


def _count_down(counts: dict[str, int], member: str) -> None:
    left = counts[member] - 1
    if left:
        counts[member] = left
    else:
        del counts[member]

"""What the members of one group have leased of all partitions of a broker, and who is to have a suspect. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

__all__ = ["Crew", "Suspicion"]


class Suspicion(IntEnum):
    """How a record is leased, or was last."""

    NONE = 0
    SUSPECT = 1
    """In a lease of its own, beside other messages that the member has."""
    ALONE = 2
    """The member has no other message of the group: if the lease ends without a word, that was an attempt."""


class Crew:
    """Reactor thread."""

    def __init__(self) -> None:
        self.chosen = ""
        """The member that gets nothing more until it has settled all, because a suspect waits for one that has nothing.
        The others go on."""
        self.chosen_for: object = None
        """Who has that suspect."""
        self._is_wanted: Callable[[], bool] = lambda: False
        self._leased: dict[str, int] = {}
        self._suspects: dict[str, int] = {}
        self._alone: dict[str, int] = {}

    def has_any(self, member: str) -> bool:
        """Whether it has leased messages."""
        return member in self._leased

    def has_suspect(self, member: str) -> bool:
        """Whether one of them is a suspect."""
        return member in self._suspects

    def has_one_alone(self, member: str) -> bool:
        """Whether it is to have no other one beside what it has."""
        return member in self._alone

    def take(self, member: str, suspicion: Suspicion, count: int = 1) -> None:
        """It leases so many."""
        self._leased[member] = self._leased.get(member, 0) + count
        if suspicion:
            self._suspects[member] = self._suspects.get(member, 0) + count
            if suspicion is Suspicion.ALONE:
                self._alone[member] = self._alone.get(member, 0) + count

    def let_go(self, member: str, suspicion: Suspicion) -> None:
        """It has leased one less."""
        leased = self._leased  # not by _count_down: this is for each message
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
        """Have the member settle all, unless another one does so already; whether it has to. is_wanted: whether the
        suspect still waits."""
        if self.chosen and self.chosen in self._leased and self._is_wanted():
            return self.chosen == member
        self.chosen, self.chosen_for, self._is_wanted = member, chosen_for, is_wanted
        return True

    def still_wanted(self) -> bool:
        """Whether the suspect of the chosen one still waits; else there is no chosen one any more."""
        if self._is_wanted():
            return True
        self.unchoose()
        return False

    def unchoose(self) -> None:
        """The suspect was leased, or waits no more."""
        self.chosen, self.chosen_for, self._is_wanted = "", None, lambda: False


def _count_down(counts: dict[str, int], member: str) -> None:
    left = counts[member] - 1
    if left:
        counts[member] = left
    else:
        del counts[member]

"""One partition over time: who owned it, and what its group had committed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .history import Claim, Commit, Delivery

__all__ = ["Ownerships", "Positions"]


class Ownerships:
    """The claims of one partition."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.begin)
        self._begins = [claim.begin for claim in self._claims]

    def of(self, delivery: Delivery) -> Claim | None:
        """The last claim of the delivery's consumer before it; None if none was seen."""
        for claim in reversed(self._claims[: bisect_right(self._begins, delivery.time)]):
            if claim.consumer == delivery.consumer:
                return claim
        return None

    def certain_owner(self, time: float) -> str | None:
        """Who owned the partition without doubt."""
        index = bisect_right(self._begins, time) - 1
        if index >= 0 and time <= self._claims[index].end:
            return self._claims[index].consumer
        return None


class Positions:
    """The committed positions of one partition over time."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._times = [commit.time for commit in commits]
        self._offsets = [commit.offset for commit in commits]

    def lowest(self, begin: float, end: float) -> int:
        """The lowest position in force from begin to end; 0 before the first commit."""
        first, last = bisect_right(self._times, begin), bisect_right(self._times, end)
        return min([self._offsets[first - 1] if first else 0, *self._offsets[first:last]])

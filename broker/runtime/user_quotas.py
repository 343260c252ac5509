"""Count how much each user has of what quotas limit, and enforce the quotas. The code runs on the reactor thread, and
does no I/O.

What the broker had already when it started counts for no user, because nobody knows who made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import nlargest
from typing import Any

from metaq.protocol.access import NO_USER, OPEN, Permissions, Quota
from metaq.protocol.errors import QuotaExceeded

__all__ = ["UserQuotas", "user_of"]

_MOST_REPORTED = 1_000
"""Largest number of users that a report names."""


def user_of(caller: object) -> str:
    """Return the user for whose quotas what `caller` asks for counts, or NO_USER."""
    user: str = getattr(caller, "user", NO_USER)
    return user


class UserQuotas:
    """How much each user has on this broker, and how much he may have. NO_USER is never counted nor refused."""

    def __init__(self) -> None:
        self.permissions: Permissions = OPEN
        """The users, and with them their quotas, that the broker has read last. A change counts from the next check
        on; it takes nothing away that a user has already.
        """
        self.refused: Counter[Quota] = Counter()
        """How often each quota has led to a refusal since the broker's start."""
        self.on_refused: Callable[[str, Quota, str], None] = lambda user, quota, why: None
        """Called with the user, the quota and the reason each time a quota has led to a refusal."""
        self._used: dict[str, Counter[Quota]] = {}  # by user; only what is above 0

    def used(self, user: str, quota: Quota) -> int:
        """Return how much the user has now."""
        mine = self._used.get(user)
        return 0 if mine is None else mine[quota]

    def why_not(self, user: str, quota: Quota, amount: int = 1) -> str | None:
        """If the user may not have `amount` more, count a refusal and return the reason; otherwise return None."""
        if user == NO_USER or (limit := self.permissions.quota(user, quota)) is None:
            return None
        used = self.used(user, quota)
        if used + amount <= limit:
            return None
        self.refused[quota] += 1
        why = (
            f"the user {user} has {used} of at most {limit} {quota} on this broker: an operator can raise the quota "
            f"with metaq users quota {user} {quota}=NUMBER"
        )
        self.on_refused(user, quota, why)
        return why

    def check(self, user: str, quota: Quota, amount: int = 1) -> None:
        """Raise QuotaExceeded if the user may not have `amount` more."""
        if (why := self.why_not(user, quota, amount)) is not None:
            raise QuotaExceeded(why)

    def take(self, user: str, quota: Quota, amount: int = 1) -> None:
        """Count `amount` more for the user. If he may not have it, count nothing and raise QuotaExceeded."""
        self.check(user, quota, amount)
        self.add(user, quota, amount)

    def add(self, user: str, quota: Quota, amount: int = 1) -> None:
        """Count `amount` more for the user, without a check; a negative amount is given back."""
        if user == NO_USER or not amount:
            return
        mine = self._used.setdefault(user, Counter())
        mine[quota] += amount
        if not mine[quota]:
            del mine[quota]
            if not mine:
                del self._used[user]

    def report(self) -> dict[str, Any]:
        """Return the part `quotas` of `stats access`: what the users with the most of anything have, with their quotas,
        and how often each quota has led to a refusal.
        """
        most = nlargest(_MOST_REPORTED, self._used.items(), lambda item: max(item[1].values()))
        users = {
            name: {
                str(quota): {"used": mine[quota], "quota": self.permissions.quota(name, quota)}
                for quota in Quota
                if quota in mine
            }
            for name, mine in most
        }
        return {"users": users, "refused": {str(quota): self.refused[quota] for quota in Quota if not quota.is_rate}}

"""Limit how much each user sends and reads in a second on this broker. A user who exceeds such a quota, a *rate*, is
not refused: for some time the broker reads and serves nothing more of the user's connections. Used only on the reactor
thread.

For each rate of a user, the module has one number: the time until which the user's past requests use up the quota. Each
use moves this time forward by amount / quota seconds. While the time is in the future, the user is in debt, and his
connections wait. The time is never more than BURST_SECONDS in the past, so a user who was idle can use at once as much
as the quota allows in BURST_SECONDS. The time is never more than MAX_DEBT_SECONDS in the future, so a huge request
delays the user's next requests by at most this time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from heapq import nlargest
from math import inf
from typing import Any

from metaq.protocol.access import NO_USER, OPEN, Permissions, Quota

from ..store.worker_turns import call_safely
from .reactor import ReactorTime, Timer

__all__ = ["BURST_SECONDS", "MAX_DEBT_SECONDS", "RATES", "UserRates"]

RATES = tuple(quota for quota in Quota if quota.is_rate)

BURST_SECONDS = 1.0
"""How many seconds of a quota a user who was idle can use at once."""

MAX_DEBT_SECONDS = 30.0
"""The longest time for which a use of a quota can delay what follows, in seconds."""

_SLIGHT_SECONDS = 0.001
"""A debt of at most this time delays nothing: to stop reading and to begin again would cost more."""

_MOST_RESUMED = 64
"""Largest number of a user's connections that continue in the same iteration of the reactor."""

_MOST_REPORTED = 1_000
"""Largest number of users that a report names."""

_FEW_USERS = 1_000
"""As long as no more users than this are known, idle users are not forgotten."""


class _User:
    """What one user with rates has used. limits: his rates. used_until: for each rate the time until which it is used
    up, in seconds of the reactor's clock. dearest: the largest debt, in seconds, that a single use has added since the
    connections were resumed last. waiting: the connections that wait, in the order in which they are resumed, with the
    functions that resume them. counted: the time until which the delay is counted. cause: the rate to which the present
    delay is due.
    """

    __slots__ = ("cause", "counted", "dearest", "limits", "timer", "used_until", "waiting")

    def __init__(self, limits: dict[Quota, int]) -> None:
        self.limits = limits
        self.used_until: dict[Quota, float] = {}
        self.dearest = 0.0
        self.waiting: dict[Hashable, Callable[[], None]] = {}
        self.timer: Timer | None = None
        self.counted = 0.0
        self.cause: Quota | None = None

    @property
    def free_at(self) -> float:
        """The time when the user is no longer in debt."""
        return max(self.used_until.values(), default=-inf)


class UserRates:
    """The rates of all users, and what the users have used of them. All connections of a user share his rates. Brokers
    and clients that are no users (NO_USER) have none.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self.limited = False
        """Whether anybody has a rate. If nobody has one, nothing needs to be counted."""
        self.delayed_seconds = dict.fromkeys(RATES, 0.0)
        """For each rate, for how many seconds in total users were delayed because of it since the broker's start. A
        second in which several connections of one user wait counts once.
        """
        self._reactor = reactor
        self._permissions = OPEN
        self._users: dict[str, _User] = {}
        self._sweep_at = _FEW_USERS

    @property
    def waiting(self) -> int:
        """The number of connections that wait because of a rate."""
        return sum(len(user.waiting) for user in self._users.values())

    def see(self, permissions: Permissions) -> None:
        """Apply the rates in `permissions` from now on. A user whose rates have changed is out of debt, and his waiting
        connections continue.
        """
        self._permissions = permissions
        own = (quota for user in permissions.users.values() for quota in user.quotas)
        self.limited = any(quota.is_rate for quota in permissions.quotas) or any(quota.is_rate for quota in own)
        for name, user in list(self._users.items()):
            limits = self._limits(name)
            if limits == user.limits:
                continue
            user.limits = limits
            user.used_until.clear()
            if user.timer is not None:
                user.timer.cancel()
                self._sleep(name, user)
            elif not limits:
                del self._users[name]

    def spend(self, name: str, quota: Quota, amount: int) -> bool:
        """Count what the user has used of a rate. Return whether he is in debt now, by any of his rates; then the
        connection that has used it must wait (`wait`).
        """
        user = self._users.get(name) or self._add(name)
        if user is None:
            return False
        now = self._reactor.seconds()
        if amount and (limit := user.limits.get(quota)) is not None:
            begin = max(user.used_until.get(quota, -inf), now - BURST_SECONDS)
            added = amount / limit
            user.dearest = max(user.dearest, added)
            user.used_until[quota] = min(begin + added, now + MAX_DEBT_SECONDS)
        return user.free_at > now + _SLIGHT_SECONDS

    def wait(self, name: str, who: Hashable, resume: Callable[[], None]) -> None:
        """Let the connection `who` wait until the user is out of debt, then call `resume` once. To be called after
        `spend` has returned True. `resume` is never called before `wait` has returned.
        """
        user = self._users[name]
        user.waiting[who] = resume
        if user.timer is None:
            user.counted = self._reactor.seconds()
            self._sleep(name, user)

    def drop(self, name: str, who: Hashable) -> None:
        """Cancel the `wait` of the connection `who`, if it waits: never call its `resume`."""
        user = self._users.get(name)
        if user is not None:
            user.waiting.pop(who, None)

    def report(self) -> dict[str, Any]:
        """Return the part `rates` of `stats access`: the rates of the users with the largest debts, the seconds until
        they are out of debt, and how many of their connections wait; and `delayed_seconds`.
        """
        now = self._reactor.seconds()
        users = {
            name: {
                "quotas": {str(quota): limit for quota, limit in user.limits.items()},
                "debt_seconds": round(max(0.0, user.free_at - now), 3),
                "waiting_connections": len(user.waiting),
            }
            for name, user in nlargest(_MOST_REPORTED, self._users.items(), lambda item: item[1].free_at)
        }
        return {"users": users, "delayed_seconds": {str(quota): self.delayed_seconds[quota] for quota in RATES}}

    def _limits(self, name: str) -> dict[Quota, int]:
        known = self._permissions
        return {quota: limit for quota in RATES if (limit := known.quota(name, quota)) is not None}

    def _add(self, name: str) -> _User | None:
        """Begin to count for a user. Return None if he has no rates."""
        if name == NO_USER or not (limits := self._limits(name)):
            return None
        if len(self._users) >= self._sweep_at:
            idle_since = self._reactor.seconds() - BURST_SECONDS
            for other, user in list(self._users.items()):
                if user.timer is None and user.free_at <= idle_since:  # nothing is lost: a new one is the same
                    del self._users[other]
            self._sweep_at = max(_FEW_USERS, 2 * len(self._users))
        user = self._users[name] = _User(limits)
        return user

    def _sleep(self, name: str, user: _User) -> None:
        """Set the timer that resumes connections to the time when the user is out of debt."""
        user.cause = max(user.used_until, key=user.used_until.__getitem__, default=None)
        seconds = max(0.0, user.free_at - self._reactor.seconds())
        user.timer = self._reactor.callLater(seconds, partial(self._wake, name, user))

    def _wake(self, name: str, user: _User) -> None:
        """Resume the first waiting connections, if the user is out of debt. Each may use the quotas before the next
        ones are resumed in a later iteration of the reactor. So only as many are resumed together as the user can
        afford if each uses as much as the dearest one did lately; otherwise a user with many connections would use as
        many times his quota. But at least one is resumed, and a user who can afford more gets more, so that a busy
        broker with long iterations does not keep users below their quotas.
        """
        now = self._reactor.seconds()
        if user.cause is not None and user.waiting:
            self.delayed_seconds[user.cause] += now - user.counted
        user.counted = now
        unused = now - max(user.free_at, now - BURST_SECONDS)
        left = max(1, int(min(_MOST_RESUMED, unused / user.dearest))) if user.dearest else _MOST_RESUMED
        user.dearest = 0.0
        while user.waiting and left and user.free_at <= now + _SLIGHT_SECONDS:
            left -= 1
            who = next(iter(user.waiting))
            call_safely(user.waiting.pop(who))
        if user.waiting:
            self._sleep(name, user)
            return
        user.timer = None
        if not user.limits:
            self._users.pop(name, None)

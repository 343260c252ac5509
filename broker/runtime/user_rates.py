"""Limit how much each user sends and reads in a second on this broker. A user who exceeds such a quota, a *rate*, is
not refused: for some time the broker reads and serves nothing more of the user's connections. Used only on the reactor
thread.

Each user has a bucket for each rate. A use takes its amount out of the bucket. Only when a bucket is empty, the module
looks at the clock, and adds what the rate permits for the time since it looked last. If the bucket is still empty then,
the user is in debt: his connections wait until the time has paid the debt.

A bucket holds what the rate permits in half of BURST_SECONDS. It can be filled again as soon as it is empty, so a user
who was idle can use at once what the rate permits in BURST_SECONDS. A single use takes at most as much as the rate
permits in MAX_USE_SECONDS, so a huge request delays the user's next requests by at most this time. All uses together
take a user into debt by at most MAX_DEBT_SECONDS.
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

__all__ = ["BURST_SECONDS", "MAX_DEBT_SECONDS", "MAX_USE_SECONDS", "RATES", "READ", "REQUESTED", "SENT", "UserRates"]

RATES = (Quota.SEND_BYTES, Quota.READ_BYTES, Quota.REQUESTS)
"""The quotas that are rates. In what follows a rate is named by its index here: SENT, READ or REQUESTED."""

SENT, READ, REQUESTED = range(len(RATES))  # a Quota as a key would cost a call of Enum.__hash__ for each use

BURST_SECONDS = 1.0
"""How many seconds of a rate a user who was idle can use at once."""

MAX_USE_SECONDS = 30.0
"""The longest time for which a single use can delay what follows, in seconds."""

MAX_DEBT_SECONDS = 120.0
"""The longest time for which all uses of a user together can delay what follows, in seconds. Connections that are idle
while the user is out of debt can all send at once, and each brings a use. If the bound was as small as that of a single
use, most of these uses would be forgiven, and a user with many connections would use many times what his rate permits.
"""

_BUCKET_SECONDS = BURST_SECONDS / 2

_SLIGHT_SECONDS = 0.001
"""A debt of at most this time delays nothing: to stop reading and to begin again would cost more."""

_MOST_RESUMED = 64
"""Largest number of a user's connections that continue in the same iteration of the reactor."""

_MOST_REPORTED = 1_000
"""Largest number of users that a report names."""

_FEW_USERS = 1_000
"""As long as no more users than this are known, idle users are not forgotten."""


class _User:
    """The buckets of one user. limits: the user's rates; `inf` where the user has no rate. left: how much is in the
    bucket of each rate. filled_at: when the buckets were filled last, in seconds of the reactor's clock. in_debt:
    whether the user was in debt then, and free_at until when. cause: the index of the rate with the largest debt.
    waiting: the connections that wait, in the order in which they are resumed, with the functions that resume them.
    timer: resumes connections. counted: until when the delay of the user is counted. batch: how many connections are
    resumed together next.
    """

    __slots__ = (
        *("batch", "cause", "counted", "filled_at", "free_at", "in_debt", "left", "limits"),
        *("timer", "waiting"),
    )

    def __init__(self, limits: tuple[float, ...], now: float) -> None:
        self.waiting: dict[Hashable, Callable[[], None]] = {}
        self.timer: Timer | None = None
        self.counted = now
        self.start(limits, now)

    def start(self, limits: tuple[float, ...], now: float) -> None:
        """Begin with these limits and full buckets."""
        self.limits = limits
        self.left = [limit * _BUCKET_SECONDS for limit in limits]
        self.filled_at = self.free_at = now
        self.in_debt = False
        self.cause = SENT
        self.batch = 1

    def fill(self, now: float) -> None:
        """Add to the buckets what the rates permit for the time since the last call, and find out whether the user is
        in debt.
        """
        passed, self.filled_at = now - self.filled_at, now
        debt = 0.0
        for rate, limit in enumerate(self.limits):
            if limit != inf:
                left = min(self.left[rate] + passed * limit, limit * _BUCKET_SECONDS)
                self.left[rate] = left = max(left, -limit * MAX_DEBT_SECONDS)
                if -left / limit > debt:
                    debt, self.cause = -left / limit, rate
        self.in_debt = debt > _SLIGHT_SECONDS
        self.free_at = now + debt if self.in_debt else now


class UserRates:
    """The rates of all users, and what the users have used of them. All connections of a user share his rates. Brokers
    and clients that are no users (NO_USER) have none.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self.limited = False
        """Whether anybody has a rate. If nobody has one, nothing needs to be counted."""
        self._delayed_seconds = [0.0] * len(RATES)
        self._reactor = reactor
        self._permissions = OPEN
        self._users: dict[str, _User] = {}
        self._sweep_at = _FEW_USERS

    @property
    def delayed_seconds(self) -> dict[Quota, float]:
        """For each rate, for how many seconds in total users were delayed because of it since the broker's start. A
        second in which several connections of one user wait counts once.
        """
        return dict(zip(RATES, self._delayed_seconds, strict=True))

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
        now = self._reactor.seconds()
        for name, user in list(self._users.items()):
            limits = self._limits(name)
            if limits == user.limits:
                continue
            if user.timer is None:
                del self._users[name]
                continue
            self._count(user, now)
            user.start(limits, now)
            user.timer.cancel()
            self._sleep(name, user)

    def spend(self, name: str, rate: int, amount: int) -> bool:
        """Count what the user has used of a rate. Return whether he is in debt, by any of his rates; then the
        connection that has used it must wait (`wait`). rate: SENT, READ or REQUESTED.
        """
        user = self._users.get(name) or self._add(name)
        if user is None:
            return False
        user.left[rate] -= amount
        if user.left[rate] >= 0 and not user.in_debt:
            return False
        limit = user.limits[rate]
        if amount > limit * MAX_USE_SECONDS:
            user.left[rate] += amount - limit * MAX_USE_SECONDS
        user.fill(self._reactor.seconds())
        return user.in_debt

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
        limited = ((name, user) for name, user in self._users.items() if min(user.limits) < inf)
        users = {
            name: {
                "quotas": {str(quota): limit for quota, limit in zip(RATES, user.limits, strict=True) if limit < inf},
                "debt_seconds": round(max(0.0, user.free_at - now), 3),
                "waiting_connections": len(user.waiting),
            }
            for name, user in nlargest(_MOST_REPORTED, limited, lambda item: item[1].free_at)
        }
        delayed = {str(quota): round(seconds, 3) for quota, seconds in self.delayed_seconds.items()}
        return {"users": users, "delayed_seconds": delayed}

    def _limits(self, name: str) -> tuple[float, ...]:
        found = (self._permissions.quota(name, quota) for quota in RATES)
        return tuple(inf if limit is None else limit for limit in found)

    def _add(self, name: str) -> _User | None:
        """Begin to count for a user, also if he has no rates, so that this is found out only once."""
        if name == NO_USER:
            return None
        now = self._reactor.seconds()
        if len(self._users) >= self._sweep_at:
            for other, user in list(self._users.items()):
                if user.timer is None and user.free_at <= now - _BUCKET_SECONDS:  # its buckets are full again
                    del self._users[other]
            self._sweep_at = max(_FEW_USERS, 2 * len(self._users))
        user = self._users[name] = _User(self._limits(name), now)
        return user

    def _sleep(self, name: str, user: _User) -> None:
        """Set the timer that resumes connections to the time when the user is out of debt."""
        seconds = max(0.0, user.free_at - self._reactor.seconds())
        user.timer = self._reactor.callLater(seconds, partial(self._wake, name, user))

    def _wake(self, name: str, user: _User) -> None:
        """Resume the first waiting connections, if the user is out of debt. Each may use the rates before the next ones
        are resumed in a later iteration of the reactor. After a debt one connection is resumed, and then, as long as
        the user stays out of debt, twice as many in each iteration. If all were resumed together, a user with many
        connections would often use as many times what he may. If always one was, a busy broker with long iterations
        would keep users below their rates.
        """
        now = self._reactor.seconds()
        self._count(user, now)
        user.fill(now)
        left = user.batch
        while user.waiting and left and not user.in_debt:
            left -= 1
            call_safely(user.waiting.pop(next(iter(user.waiting))))
        user.batch = 1 if user.in_debt else min(_MOST_RESUMED, 2 * user.batch)
        if user.waiting:
            self._sleep(name, user)
        else:
            user.timer = None
            user.batch = 1

    def _count(self, user: _User, now: float) -> None:
        if user.waiting:
            self._delayed_seconds[user.cause] += now - user.counted
        user.counted = now

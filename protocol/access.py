"""Who may do what. Users, their grants, and the decision whether a request is permitted; without I/O.

A *grant* is one line of a user's permissions, as users write it in commands and as ZooKeeper stores it:

    send:orders                 send messages to the topic orders
    consume:orders@billing      consume the topic orders in the group billing, with the group's failed messages
    consume:orders              read the topic orders without a group, as Spark and `metaq consume` do
    see:orders                  see what the topic has (its partitions, offsets and counts), but no messages
    transact                    list, commit and roll back prepared XA transactions
    admin                       everything, also the requests of operators
    deny send:secret-*          never send to such a topic, whatever other grants say

A name that ends with `*` stands for all names that begin with the characters before the `*`. A `@` inside a name is
written twice. `send` and `consume` of a topic include `see` of this topic. docs/security.md describes grants for users.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, NamedTuple

from .errors import InvalidName
from .limits import check_group, check_topic
from .own_topics import OWN_MARK, REPLY_TOPIC, owner_of

__all__ = [
    "ANYBODY",
    "MAX_GRANTS",
    "MAX_QUOTA",
    "NO_USER",
    "OPEN",
    "Access",
    "AccessGrant",
    "AccessMode",
    "AccessOperation",
    "Need",
    "Permissions",
    "Principal",
    "Quota",
    "User",
    "check_user",
    "is_user",
]

MAX_GRANTS = 256
"""Largest number of grants of one user. A decision about all topics goes through all of them."""
MAX_QUOTA = 1_000_000_000_000
"""Largest value of a quota."""
NO_USER = ""
"""In place of a user's name: clients that are no user, and brokers. They have no quotas."""
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ALL = "*"
_HIDDEN = "\0"  # stands for @@ while a grant is parsed; no name contains it


class AccessOperation(StrEnum):
    """What a request does, as far as permissions are concerned. The values are the first words of grants."""

    SEND = "send"
    CONSUME = "consume"
    SEE = "see"
    TRANSACT = "transact"
    ADMIN = "admin"
    REPLIES = "replies"
    """Read the replies of one inbox in the topic of replies. No grant contains this operation: whoever may send to some
    topic may do it, because he can also ask. Nobody else knows the name of his inbox.
    """
    REPLICATE = "replicate"
    """What only brokers do among themselves. No grant contains this operation."""
    COOPERATE = "cooperate"
    """What brokers ask of each other and operators ask of brokers. No grant but `admin` contains this operation."""
    KNOWN = "known"
    """What every user may do, whatever his grants are."""
    NOTHING = "nothing"
    """What everybody may do, also without a user: log in, keep a connection open, ask which protocol is spoken."""


_WITH_TOPIC = (AccessOperation.SEND, AccessOperation.CONSUME, AccessOperation.SEE)
_WITHOUT = (AccessOperation.TRANSACT, AccessOperation.ADMIN)


_OF_REPLIES = {
    AccessOperation.SEND: (AccessOperation.REPLIES, AccessOperation.SEE),
    AccessOperation.CONSUME: (AccessOperation.SEND, AccessOperation.SEE),
}
"""What a grant for another topic permits with the topic of replies: whoever may send requests may read the replies to
them, and whoever may consume requests may send replies.
"""


class Need(NamedTuple):
    """What a request needs: an operation, and the topic and the group that the request names.

    topic: None if the request names none, because it concerns the whole broker or a group in all topics. group: "" if
    the request names no group.
    """

    operation: AccessOperation
    topic: str | None = None
    group: str = ""

    def __str__(self) -> str:
        """The smallest grant that permits what needs this, as users write it."""
        operation, topic, group = self
        if operation is AccessOperation.COOPERATE:
            return str(AccessOperation.ADMIN)
        if operation is AccessOperation.REPLIES or (topic is None and operation is AccessOperation.SEND):
            return f"{AccessOperation.SEND}:TOPIC"
        if operation not in _WITH_TOPIC or (topic is None and operation is not AccessOperation.SEE):
            return str(operation)
        if topic is None:
            return f"{AccessOperation.CONSUME}:{_ALL}@{_written(group)}" if group else f"{operation}:{_ALL}"
        if (owner := owner_of(topic)) is not None:
            return f"{AccessOperation.CONSUME}:TOPIC@{_written(owner)}"
        return f"{operation}:{_written(topic) or _ALL}" + (f"@{_written(group)}" if group else "")


class Principal(NamedTuple):
    """Who has opened a connection."""

    kind: Literal["anonymous", "address", "user", "broker", "local"]
    """`address`: a user whom only the client's address names, because a client of 1.x cannot log in. `local`: a user of
    the broker's machine, who has connected to a Unix socket of the broker and is an operator.
    """
    name: str = ""
    """The user's name; for a broker one of the hosts that its certificate names; for `local` the name of the user of
    the machine.
    """
    stamp: str = ""
    """User.stamp of a user who has logged in with a password."""

    def __str__(self) -> str:
        if self.kind == "address":
            return f"user {self.name} (by address)"
        return self.kind if self.kind == "anonymous" else f"{self.kind} {self.name}"

    @property
    def user(self) -> str:
        """The name of the user whose quotas count; NO_USER for brokers and anonymous clients."""
        return self.name if self.kind in ("user", "address") else NO_USER


ANYBODY = Principal("anonymous")
"""The principal of a connection that has neither logged in nor shown a certificate."""


def is_user(name: str) -> bool:
    """Return whether a user can have this name."""
    return _USER.fullmatch(name) is not None


def check_user(name: str) -> str:
    """Return the name of a user if it is valid. Raises InvalidName."""
    if not is_user(name):
        raise InvalidName(
            f"user {name[:80]!r}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -, and begin with a letter or a digit"
        )
    return name


class AccessGrant(NamedTuple):
    """One permission, or with `deny` one prohibition."""

    operation: AccessOperation
    topic: str = ""
    """The name of a topic, or with `*` at its end the beginning of names; "" if the grant names no topic."""
    group: str | None = None
    """The same for a group; None if the grant names no group."""
    deny: bool = False

    @classmethod
    def parse(cls, text: str) -> AccessGrant:
        """Return the grant that a text describes. Raises InvalidName; its text says what to write instead."""
        words = text.split()
        deny = words[:1] == ["deny"]
        if len(words) != 1 + deny:
            raise _wrong(text, "write for example send:orders, consume:orders@billing or 'deny send:secret-*'")
        word, colon, rest = words[-1].partition(":")
        if word not in (*_WITH_TOPIC, *_WITHOUT):
            raise _wrong(text, f"begin it with one of: {', '.join((*_WITH_TOPIC, *_WITHOUT))}")
        operation = AccessOperation(word)
        if operation in _WITHOUT:
            if colon:
                raise _wrong(text, f"{operation} names no topic: write only {operation}")
            return cls(operation, deny=deny)
        topic, at, group = (part.replace(_HIDDEN, "@") for part in rest.replace("@@", _HIDDEN).partition("@"))
        if not topic:
            raise _wrong(text, f"name the topic: {operation}:TOPIC, or {operation}:* for all topics")
        if rest.replace("@@", "").count("@") > 1:
            raise _wrong(text, "write a @ inside a name twice")
        if at and operation is not AccessOperation.CONSUME:
            raise _wrong(text, "only consume names a group")
        _check_pattern(topic, check_topic)
        if at:
            _check_pattern(group, check_group)
        return cls(operation, topic, group if at else None, deny)

    def __str__(self) -> str:
        text = f"{self.operation}:{_written(self.topic)}" if self.topic else str(self.operation)
        return ("deny " if self.deny else "") + text + ("" if self.group is None else f"@{_written(self.group)}")

    def covers(self, need: Need) -> bool:
        """Return whether this grant permits `need`, or with `deny` forbids it."""
        return self._forbids(need) if self.deny else self._permits(need)

    def _permits(self, need: Need) -> bool:
        operation, topic, group = need
        if self.operation is AccessOperation.ADMIN:
            return operation is not AccessOperation.REPLICATE
        if topic is None and group:
            return self._names_group(group) or (self.operation is AccessOperation.SEE and self.topic == _ALL)
        if topic is None and operation is AccessOperation.SEND:
            return self.operation is operation  # to some topic
        if topic is None:
            return self.operation is operation and self.topic in ("", _ALL)
        if self._keeps(topic):
            return True
        if not _matches(self.topic, topic):
            return topic == REPLY_TOPIC and operation in _OF_REPLIES.get(self.operation, ())
        if operation is AccessOperation.SEE:
            return self.operation in _WITH_TOPIC
        if operation is AccessOperation.REPLIES:
            return self.operation in (AccessOperation.SEND, AccessOperation.CONSUME)
        return self.operation is operation and (not group or self._names_group(group))

    def _names_group(self, group: str) -> bool:
        return self.group is not None and _matches(self.group, group)

    def _keeps(self, topic: str) -> bool:
        """Whether the topic holds the failed messages or the dead letters of a group that this grant names."""
        owner = owner_of(topic)
        return owner is not None and self._names_group(owner)

    def _forbids(self, need: Need) -> bool:
        operation, topic, group = need
        if operation is AccessOperation.REPLIES:
            operation = AccessOperation.CONSUME
        if self.operation is not operation:
            return False
        if not topic:  # it concerns all topics, also those that this grant names; but a sender needs only some topic
            return operation is not AccessOperation.SEND or topic is not None
        # a member of the group could leave the group out
        return _matches(self.topic, topic) and (self.group is None or not group or self._names_group(group))


def _written(name: str) -> str:
    return name.replace("@", "@@")


def _wrong(text: str, remedy: str) -> InvalidName:
    return InvalidName(f"grant {text[:80]!r}: {remedy}")


def _check_pattern(pattern: str, check: Callable[[str], str]) -> None:
    if pattern != _ALL:
        check(pattern.removesuffix(_ALL))


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith(_ALL) else pattern == name


class Access:
    """What the grants of one user permit. A prohibition counts more than any permission; what no grant permits is
    forbidden. Used by one thread at a time.
    """

    def __init__(self, grants: Iterable[AccessGrant]) -> None:
        self.grants = tuple(grants)
        self._by_name: dict[str, list[AccessGrant]] = {}  # by the name of the topic, or by the beginning of names
        self._lengths: set[int] = set()  # of beginnings of names
        self._of_groups: list[AccessGrant] = []
        for grant in self.grants:
            self._by_name.setdefault(grant.topic, []).append(grant)
            if grant.topic.endswith(_ALL):
                self._lengths.add(len(grant.topic) - 1)
            if grant.group is not None:
                self._of_groups.append(grant)

    def permits(self, need: Need) -> bool:
        """Return whether the user may do what needs `need`. Usually this takes a look-up of the topic's name, and one
        for each length that the beginnings of names in the grants have.
        """
        covering = [grant.deny for grant in self._candidates(need.topic) if grant.covers(need)]
        return bool(covering) and not any(covering)

    def _candidates(self, topic: str | None) -> Iterable[AccessGrant]:
        """Return all grants that can cover a need with this topic, and perhaps others."""
        if not topic or topic == REPLY_TOPIC:
            return self.grants
        found = [*self._by_name.get(topic, ()), *self._by_name.get("", ())]
        for length in self._lengths:
            found += self._by_name.get(topic[:length] + _ALL, ())
        return found if topic[:1] != OWN_MARK else [*found, *self._of_groups]


class Quota(StrEnum):
    """What a user may have or do only to a limited extent on a broker. The values are its names in commands and
    znodes.
    """

    CONNECTIONS = "connections"
    """Connections of the broker's own port on which the user has sent requests."""
    WAITING_PULLS = "waiting-pulls"
    """Requests for messages that wait for new messages or for the disk."""
    OPEN_TRANSACTIONS = "open-transactions"
    SHARED_GROUPS = "shared-groups"
    """Shared groups that the user's requests have made; a group counts once for each partition that it uses."""
    OWN_TOPICS = "own-topics"
    """Topics of failed messages, dead letters and replies that the user's requests have made."""
    DELAYED_BYTES = "delayed-bytes"
    """Bytes of the waiting delayed messages that the user has sent."""
    HALF_BYTES = "half-bytes"
    """Bytes of the half messages that the user has sent and that wait for their outcome."""
    SEND_BYTES = "send-bytes"
    """A rate: bytes of requests that the broker receives from the user in a second."""
    READ_BYTES = "read-bytes"
    """A rate: bytes of answers that the broker sends to the user in a second."""
    REQUESTS = "requests"
    """A rate: requests of the user in a second."""

    @property
    def is_rate(self) -> bool:
        """Whether the quota limits what the user does in a second, not what he has. Beyond a rate the broker delays
        the user; beyond another quota it refuses his requests.
        """
        return self in _RATES

    @property
    def least(self) -> int:
        """The least value of the quota. A rate of 0 is not possible: with it, the broker would delay requests
        forever.
        """
        return 1 if self.is_rate else 0


_RATES = frozenset((Quota.SEND_BYTES, Quota.READ_BYTES, Quota.REQUESTS))


class User(NamedTuple):
    """A user of a cluster."""

    name: str
    access: Access
    expires_ms: int | None = None
    """When the user stops to exist, milliseconds of the Unix epoch; None: never."""
    verifiers: Mapping[str, str] = MappingProxyType({})
    """For each SCRAM mechanism the text with which a broker verifies the password; empty for a user who has no
    password, because his certificate names him.
    """
    quotas: Mapping[Quota, int] = MappingProxyType({})
    """The quotas that the user has of his own; for the others, those of all users count."""

    def has_expired(self, now_ms: float) -> bool:
        """Return whether the user has stopped to exist. now_ms: the time in milliseconds of the Unix epoch."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def stamp(self) -> str:
        """A text that changes with the password; it tells nothing about the password."""
        joined = "\n".join(self.verifiers[name] for name in sorted(self.verifiers))
        return hashlib.sha256(joined.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """The user without the verifiers, so that no log contains them."""
        return f"User({self.name!r})"


class AccessMode(StrEnum):
    """What a cluster does with the grants of its users."""

    OPEN = "open"
    """Everybody may do everything."""
    OBSERVE = "observe"
    """Everybody may do everything, but the brokers count what they would refuse."""
    ENFORCE = "enforce"
    """The brokers refuse what no grant permits."""


class Permissions(NamedTuple):
    """All that a cluster knows about permissions at one time."""

    mode: AccessMode = AccessMode.OPEN
    users: Mapping[str, User] = MappingProxyType({})
    quotas: Mapping[Quota, int] = MappingProxyType({})
    """The quotas of each user who has none of his own."""

    def quota(self, name: str, quota: Quota) -> int | None:
        """Return how much the user with this name may have; None if there is no limit."""
        user = self.users.get(name)
        own = None if user is None else user.quotas.get(quota)
        return self.quotas.get(quota) if own is None and name != NO_USER else own

    def expires(self, principal: Principal) -> bool:
        """Return whether time alone can change what this principal may do."""
        user = self.users.get(principal.name)
        return user is not None and user.expires_ms is not None and principal.kind in ("user", "address")

    def refusal(self, principal: Principal, need: Need, now_ms: float) -> str | None:
        """Return why a principal may not do what needs `need`; None if it may. now_ms: the time in milliseconds of the
        Unix epoch. `mode` does not matter here.
        """
        if need.operation is AccessOperation.NOTHING:
            return None
        if principal.kind == "broker":
            if need.operation is AccessOperation.ADMIN:
                return f"{principal} is no operator: log in as a user with the grant admin"
            return None
        if need.operation is AccessOperation.REPLICATE:
            return f"only a broker may send this request, with a broker's certificate, and {principal} is none"
        if principal.kind == "local":
            return None
        if principal.kind == "anonymous":
            grant = "" if need.operation is AccessOperation.KNOWN else f" with the grant {need}"
            return f"log in as a user{grant}: nobody has logged in on this connection"
        user = self.users.get(principal.name)
        if user is None:
            return f"the user {principal.name} does not exist, or not any more"
        if principal.stamp and principal.stamp != user.stamp:
            return f"the password of the user {principal.name} has changed since this login: log in again"
        if user.has_expired(now_ms):
            return f"the user {principal.name} has expired: metaq users expire {principal.name} 30d prolongs it"
        if principal.kind == "address":
            if need.operation in (AccessOperation.ADMIN, AccessOperation.COOPERATE):
                return f"user {principal.name} is known only by its address, so it is no operator: log in"
            if user.expires_ms is None:
                return (
                    f"user {principal.name} is known only by its address, so it must expire: "
                    f"metaq users expire {principal.name} 90d"
                )
        if need.operation is not AccessOperation.KNOWN and not user.access.permits(need):
            return f"user {principal.name} lacks the grant: metaq acl grant {principal.name} {need}"
        return None


OPEN = Permissions()
"""The permissions of a cluster that has never had any users."""

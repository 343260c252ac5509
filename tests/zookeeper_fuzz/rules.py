"""What is not compared, and where the two servers differ on purpose: each rule with its reason, and no others anywhere.

Not compared:

- Zxids by value: the servers have had different lives. Compared is their order: the next new zxid of one server stands
  where that of the other does, among all that both have shown, and equal ones stay equal (`ZxidOrder`).
- Session ids, passwords: chosen by chance. A session is known by the order of its creation, its password by whether it
  is the one that the server gave at first.
- Times: clocks. But ctime and mtime must be those of the transactions czxid and mzxid.
- How characters behind U+FFFF are written: Apache writes two surrogates of three bytes each, which is not UTF-8. Its
  paths cannot have any; they come back in events of paths that nobody created, and in ACLs.
- How many replacement characters (U+FFFD) stand for bytes that are not UTF-8.
- What follows an error code: nobody reads it. Apache has half of a multiRead's results there.
- The order of children, of an ACL, of whoAmI's identities, and of getEphemerals' paths: a HashSet's, also
  where "auth" stands for all identities.
- The order of events of one session's end: Apache deletes the ephemeral nodes in the order of a HashSet. Events with
  the zxid of such an end are sorted (`events_sorted`); where an end cannot be told from a transaction that somebody
  asked for, they are compared as they stand.

Never drawn: deleteContainer and createSession, which no client may send here and any client may at Apache's; bytes in
front of a session that are four-letter words; and no run waits until a container or a node with a time to live is
removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from .answers import Item
from .jute import OpCode, encode
from .operations import Operation

__all__ = ["LISTED", "Listed", "ZxidOrder", "difference", "events_sorted"]


_TTL_FLAGS = (5, 6)
_MAX_TTL = (1 << 40) - 1
"""ms"""


class Clients(Protocol):
    """What a listed difference may depend on."""

    def is_connected(self, session: int) -> bool: ...


class Listed(NamedTuple):
    """A difference on purpose: operations that meet it are given to neither server."""

    name: str
    reason: str
    meets: Callable[[Operation, Clients], bool]


def _steals_with_a_wrong_password(operation: Operation, clients: Clients) -> bool:
    if operation.opcode != OpCode.CONNECT or operation.mutations:
        return False
    parts = dict(operation.parts)
    session = parts.get("session")
    return session is not None and "password" not in parts and clients.is_connected(session)


def _sets_watches_that_are_null(operation: Operation, _: Clients) -> bool:
    if operation.opcode not in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
        return False
    vectors = [value for kind, value in operation.parts if kind == "paths"]
    return bool(operation.mutations) or any(paths is None or None in paths for paths in vectors)


def _watches_the_null_path(operation: Operation, _: Clients) -> bool:
    if operation.opcode not in (OpCode.ADD_WATCH, OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES):
        return False
    return operation.damaged(encode(operation.parts, "/"))[:4] == b"\xff\xff\xff\xff"


def _ends_apache(operation: Operation, _: Clients) -> bool:
    if operation.opcode != OpCode.CREATE_TTL:
        return False
    flags, ttl_ms = (value for _kind, value in operation.parts[-2:])
    return bool(operation.mutations) or (flags not in _TTL_FLAGS and not 0 < ttl_ms <= _MAX_TTL)


LISTED = (
    Listed(
        "a wrong password",
        "Apache closes the connection of a session when somebody presents its id with a wrong password; the id can be "
        "read from ephemeral nodes. The standalone server leaves that connection alone.",
        _steals_with_a_wrong_password,
    ),
    Listed(
        "half of a setWatches",
        "Apache sets the watches in front of a null, sends their events, and answers MarshallingError then. The "
        "standalone server reads a request whole before it does any of it.",
        _sets_watches_that_are_null,
    ),
    Listed(
        "a watch of no path",
        "Apache keeps watches of the null path, which nothing fires. The standalone server answers MarshallingError.",
        _watches_the_null_path,
    ),
    Listed(
        "a createTTL that ends the server",
        "Apache's server ends itself when a createTTL has the flags of a node without a time to live and a time that "
        "is none; it has logged that, and does not start again. The standalone server refuses it.",
        _ends_apache,
    ),
)


class ZxidOrder:
    """The zxids that both servers have shown, by their order."""

    def __init__(self) -> None:
        self.first: list[int] = []
        self.second: list[int] = []

    def same(self, first: int, second: int) -> bool:
        """Whether they may be the same transaction's; new ones are remembered as such. Below 1: compared by value."""
        if first <= 0 or second <= 0:
            return first == second
        one, two = bisect_left(self.first, first), bisect_left(self.second, second)
        known = one < len(self.first) and self.first[one] == first
        if known != (two < len(self.second) and self.second[two] == second) or one != two:
            return False
        if not known:
            self.first.insert(one, first)
            self.second.insert(two, second)
        return True

    def places(self, first: int, second: int) -> str:
        """Where they stand, in words."""
        return " and ".join(
            f"{zxid} ({'known' if zxid in seen else 'new'}, behind {bisect_left(seen, zxid)} others)"
            for zxid, seen in ((first, self.first), (second, self.second))
        )


def difference(one: Sequence[Item], two: Sequence[Item], order: ZxidOrder) -> str | None:
    """What is not the same; None if nothing."""
    if len(one) != len(two):
        return f"{len(one)} items and {len(two)}"
    for number, (first, second) in enumerate(zip(one, two, strict=True)):
        if first.plain != second.plain:
            return f"item {number}"
        if len(first.zxids) != len(second.zxids):
            return f"zxids of item {number}"
        for place, (a, b) in enumerate(zip(first.zxids, second.zxids, strict=True)):
            if not order.same(a, b):
                return f"zxid {place} of item {number}: {order.places(a, b)}"
    return None


def events_sorted(items: Sequence[Item], asked: Collection[int]) -> list[Item]:
    """Runs of events that have the same zxid, which is that of no answered transaction of `asked`, are sorted."""
    ordered: list[Item] = []
    run: list[Item] = []
    for item in items:
        if run and (item.plain[0] != "event" or item.zxids != run[0].zxids):
            ordered += sorted(run, key=repr)
            run = []
        if item.plain[0] == "event" and item.zxids and item.zxids[0] > 0 and item.zxids[0] not in asked:
            run.append(item)
        else:
            ordered.append(item)
    return ordered + sorted(run, key=repr)

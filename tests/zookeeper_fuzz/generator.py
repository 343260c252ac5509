"""Draws operations from a seed, over a small tree, so that they meet each other.

It looks at the first server's answers, to draw names and versions that there are.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from collections.abc import Callable, Mapping, Sequence

from .answers import Item
from .jute import OpCode, Part
from .operations import OPEN, USERS, Mutation, Operation, attaching, connecting, logging_in

__all__ = ["Generator"]

SLOTS = 5
_MIN_INT, _MAX_INT = -(1 << 31), (1 << 31) - 1
_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1

_NAMES = ("a", "b", "c", "d-")
_ODD_NAMES = ("ü", "a b", "…", "a\U0001f600", ".a", "a..", "zookeeper", "x" * 300)
_BAD_PATHS = (
    None, "", "a", "a/b", "//", "/a/", "/a//b", "/./a", "/a/.", "/a/..", "/a/../b", "/a\0b", "/\0", "/a\x01", "/a\x7f",
    "/a\u0085b", "/a\ue000", "/a\ufff0", "/a\uffff", "/\ud7ff", "/a/ ", "/a ", " /a", "/ü/", "a\0",
)  # fmt: skip
_SPECIAL = ("", "zookeeper", "zookeeper/quota", "zookeeper/config")
_ABSENT = ("zookeeper/quota/x", "zookeeper/x", "nothing")
"""Outside of the run's root, where no run leaves anything."""


def _digest(user: bytes) -> str:
    return user.split(b":")[0].decode() + ":" + base64.b64encode(hashlib.sha1(user).digest()).decode()


_ACLS = (
    ((1, "world", "anyone"),),
    ((31, "auth", ""),),
    ((31, "auth", "ignored"), (1, "world", "anyone")),
    ((31, "digest", _digest(USERS[0])), (1, "world", "anyone")),
    ((31, "digest", _digest(USERS[1])),),
    ((3, "digest", _digest(USERS[0])), (16, "digest", _digest(USERS[1])), (4, "world", "anyone")),
    ((31, "ip", "127.0.0.1"),),
    ((31, "ip", "10.0.0.0/8"), (9, "world", "anyone")),
    ((31, "ip", "127.0.0.0/8"),),
    ((31, "world", "anyone"), (31, "world", "anyone")),
    ((0, "world", "anyone"), (12, "world", "anyone")),
    ((30, "world", "anyone"),),
    ((255, "world", "anyone"),),
)
_BAD_ACLS = (
    None,
    (),
    *(
        ((31, scheme, identity),)
        for scheme, identities in {
            "world": ("someone", None),
            "nothing": ("x",),
            None: (None, "anyone"),
            "": ("",),
            "digest": ("nocolon", "a:b:c", ":", "", None),
            "ip": ("1.2.3", "1.2.3.4/33", "1.2.3.4/0", "300.1.1.1", "::1", "", "1.2.3.4/8/8", "1.2.3.4/x"),
            "sasl": ("me",),
            "x509": ("CN=me",),
            "super": ("",),
            "auth": (None,),
        }.items()
        for identity in identities
    ),
    ((0, "world", "anyone"),),
    ((-1, "world", "anyone"),),
    ((31, "world", "anyone"), (31, "nothing", "x")),
)

_CREATES = (OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL)
_CREATING = 0
"""Stands for one of them."""

_REQUESTS: Mapping[int, float] = {
    _CREATING: 20,
    OpCode.DELETE: 11,
    OpCode.EXISTS: 5,
    OpCode.GET_DATA: 5,
    OpCode.SET_DATA: 9,
    OpCode.GET_CHILDREN: 5,
    OpCode.GET_CHILDREN2: 4,
    OpCode.GET_ALL_CHILDREN_NUMBER: 2,
    OpCode.GET_EPHEMERALS: 2,
    OpCode.GET_ACL: 2,
    OpCode.SET_ACL: 2,
    OpCode.SYNC: 1,
    OpCode.MULTI: 8,
    OpCode.MULTI_READ: 3,
    OpCode.ADD_WATCH: 5,
    OpCode.SET_WATCHES: 2,
    OpCode.SET_WATCHES2: 2,
    OpCode.CHECK_WATCHES: 2,
    OpCode.REMOVE_WATCHES: 3,
    OpCode.WHO_AM_I: 0.5,
    OpCode.PING: 0.5,
    OpCode.CHECK: 0.2,
    OpCode.RECONFIG: 0.1,
}
"""How often each is drawn, beside the operations of Generator._others."""
_TOGETHER = (
    *(_CREATING, OpCode.DELETE, OpCode.SET_DATA, OpCode.MULTI, OpCode.EXISTS, OpCode.GET_CHILDREN, OpCode.GET_DATA),
    *(OpCode.ADD_WATCH, OpCode.SET_WATCHES2, OpCode.MULTI_READ, OpCode.PING),
)
"""Several at once: none of them ends the connection."""

_Request = tuple[int, tuple[Part, ...]]
"""Opcode and parts."""


class Generator:
    """draw() an operation, do it, observe() what came of it, and again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._open = [False] * SLOTS
        self._sessions = 0
        self._session_of = [0] * SLOTS
        self._slot = 0
        self._versions: dict[str, tuple[int, int, int]] = {}
        self._known: list[str] = []
        others = self._others()
        self._kinds: list[int | Callable[[], Operation | _Request]] = [*_REQUESTS, *others]
        self._weights = [*_REQUESTS.values(), *others.values()]
        self._due: list[Operation] = []
        self._watched: list[list[str | None]] = [[] for _ in range(SLOTS)]
        self.until_expiry = 0
        """So many operations until a session ends by its time-out; 0: none does."""

    def draw(self) -> Operation:
        if self._due:
            return self._due.pop(0)
        slot = self._slot = self._random.randrange(SLOTS)
        if self.until_expiry:
            self.until_expiry -= 1
            if not self.until_expiry:
                self._due = self._expiring(slot)
                return self._due.pop(0)
        if not self._open[slot]:
            return self._draw_connect(slot)
        (kind,) = self._random.choices(self._kinds, self._weights)
        drawn = self._request(kind) if isinstance(kind, int) else kind()
        if isinstance(drawn, Operation):
            return drawn._replace(slot=slot)
        opcode, parts = drawn
        mutations = self._mutations() if self._random.random() < 0.04 else ()
        return Operation(slot, opcode, parts, mutations)

    def observe(self, operation: Operation, items: Sequence[Item]) -> None:
        """Learn from what the first server sent."""
        slot = operation.slot
        last = items[-1].plain
        if last[0] == "listed":
            return
        if operation.opcode == OpCode.CONNECT:
            self._open[slot] = last[0] == "connected"
            if last[0] == "connected":
                session = int(last[5].removeprefix("session "))
                self._sessions = max(self._sessions, session + 1)
                self._session_of[slot] = session
                self._watched[slot] = []
        elif last[0] in ("closed", "not connected"):
            self._open[slot] = False
        elif operation.opcode != OpCode.BURST and last[0] == "answer" and last[2] == 0 and not operation.mutations:
            self._learn(operation, last[3])

    def _learn(self, operation: Operation, decoded: tuple) -> None:
        opcode = operation.opcode
        if opcode in _CREATES or opcode == OpCode.EXISTS:
            path = decoded[0] if opcode in _CREATES else operation.parts[0][1]
            if path not in self._versions and isinstance(path, str) and path.startswith("/"):
                self._known.append(path)
                self._versions[path] = (0, 0, 0)
        elif opcode == OpCode.DELETE:
            path = operation.parts[0][1]
            if path in self._versions and self._random.random() < 0.7:
                self._known.remove(path)
                del self._versions[path]
        for value in decoded:
            if (
                isinstance(value, tuple)
                and value
                and value[0] == "stat"
                and opcode not in (OpCode.MULTI, OpCode.MULTI_READ)
            ):
                path = decoded[0] if opcode in _CREATES else operation.parts[0][1]
                if path in self._versions:
                    self._versions[path] = value[1:4]

    # --- values -------------------------------------------------------------------------------------------------------

    def _new_path(self) -> str:
        parent = self._random.choice(self._known) if self._known and self._random.random() < 0.5 else ""
        if parent.count("/") > 3:
            parent = ""
        name = self._random.choice(_NAMES if self._random.random() < 0.95 else _ODD_NAMES)
        return parent.rstrip("/") + "/" + name

    def _path(self) -> str | None:
        chance = self._random.random()
        if chance < 0.02:
            return self._random.choice(_BAD_PATHS)
        if chance < 0.07:
            return "/"
        if chance < 0.75 and self._known:
            return self._random.choice(self._known)
        return self._new_path()

    def _parts_path(self, path: str | None) -> Part:
        return ("text", "/" + self._random.choice(_SPECIAL)) if self._random.random() < 0.01 else ("path", path)

    def _reading_path(self) -> Part:
        chance = self._random.random()
        if chance < 0.003:
            return ("text", "/" + self._random.choice(_ABSENT))
        if chance < 0.01:
            return ("text", self._random.choice((b"/\xff", b"/a\xc0\x80", b"\xed\xa0\x80", b"/\xf0\x9f")))
        return self._parts_path(self._path())

    def _data(self) -> bytes | None:
        chance = self._random.random()
        if chance < 0.05:
            return None
        if chance < 0.1:
            return b""
        if chance < 0.995:
            return b"%d" % self._random.randrange(1000)
        return bytes([self._random.randrange(256)]) * self._random.choice((1000, 10_000, 100_000))

    def _version(self, path: Part, which: int) -> int:
        chance = self._random.random()
        if chance < 0.5:
            return -1
        if chance < 0.95:
            known = self._versions.get(path[1], (0, 0, 0))[which] if isinstance(path[1], str) else 0
            return known if chance < 0.8 else known + self._random.choice((-1, 1, 2))
        return self._random.choice((-2, _MIN_INT, _MAX_INT, 0, 1))

    def _acl(self) -> Part:
        chance = self._random.random()
        if chance < 0.9:
            return OPEN
        return "acls", self._random.choice(_ACLS if chance < 0.97 else _BAD_ACLS)

    def _watch(self) -> Part:
        return "bool", self._random.random() < 0.5

    def _some_paths(self) -> Part:
        if self._random.random() < 0.03:
            return "paths", None
        return "paths", tuple(self._path() for _ in range(self._random.choice((0, 0, 1, 1, 2, 4))))

    def _mutations(self) -> tuple[Mutation, ...]:
        return tuple(self._mutation() for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _mutation(self) -> Mutation:
        kind = self._random.choice(("replace", "replace", "insert", "cut"))
        if kind == "cut":
            data = b""
        elif self._random.random() < 0.5:
            data = bytes([self._random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x2F, self._random.randrange(256)))])
        else:
            number = self._random.choice((-1, -2, 0, 1, 2, 31, 1 << 20, _MAX_INT, _MIN_INT, (1 << 20) - 20))
            data = struct.pack(">i", number)
        return kind, self._random.random(), data

    # --- requests -----------------------------------------------------------------------------------------------------

    def _others(self) -> Mapping[Callable[[], Operation | _Request], float]:
        return {
            self._log_in: 0.7,
            lambda: Operation(0, OpCode.CLOSE_SESSION): 0.6,
            lambda: Operation(0, OpCode.ABANDON): 0.6,
            self._attach: 0.7,
            self._attach_wrongly: 0.3,
            self._unknown: 0.2,
            self._raw: 0.1,
            self._large: 0.03,
            self._burst: 3,
        }

    def _request(self, opcode: int) -> _Request:
        if opcode == _CREATING:
            (opcode,) = self._random.choices(_CREATES, (8, 8, 2, 2))
            return opcode, self._create_parts(opcode)
        return opcode, self._parts(opcode)

    def _parts(self, opcode: int) -> tuple[Part, ...]:
        match opcode:
            case OpCode.EXISTS | OpCode.GET_DATA | OpCode.GET_CHILDREN | OpCode.GET_CHILDREN2:
                path, watch = self._reading_path(), self._watch()
                if watch[1]:
                    self._note(path)
                return path, watch
            case OpCode.DELETE | OpCode.CHECK:
                path = self._reading_path()
                return path, ("int", self._version(path, 0))
            case OpCode.SET_DATA:
                path = self._reading_path()
                return path, ("buffer", self._data()), ("int", self._version(path, 0))
            case OpCode.GET_ALL_CHILDREN_NUMBER | OpCode.GET_EPHEMERALS:
                return (("path", self._path()),)
            case OpCode.GET_ACL | OpCode.SYNC:
                return (self._reading_path(),)
            case OpCode.SET_ACL:
                path = ("path", self._path())
                return path, self._acl(), ("int", self._version(path, 2))
            case OpCode.MULTI:
                return self._several(self._random.choice((0, 1, 1, 2, 2, 3, 3, 4, 6, 9)), self._change)
            case OpCode.MULTI_READ:
                return self._several(self._random.choice((0, 1, 2, 3)), self._read)
            case OpCode.ADD_WATCH:
                path = self._reading_path()
                self._note(path)
                return path, ("int", self._random.choice((0, 1, 0, 1, 0, 1, 0, 1, 2, -1)))
            case OpCode.SET_WATCHES:
                return (self._zxid(), *(self._some_paths() for _ in range(3)))
            case OpCode.SET_WATCHES2:
                return (self._zxid(), *(self._some_paths() for _ in range(5)))
            case OpCode.CHECK_WATCHES | OpCode.REMOVE_WATCHES:
                return self._watched_path(), ("int", self._random.choice((1, 1, 2, 2, 3, 3, 4, 5, 0, -1, 6)))
            case OpCode.RECONFIG:
                text: Part = ("text", self._random.choice((None, "", "server.1=localhost:1:2;3")))
                return text, text, text, ("long", -1)
            case _:
                return ()

    def _several(self, count: int, draw: Callable[[], _Request]) -> tuple[Part, ...]:
        """Those of a multi."""
        parts: list[Part] = []
        for opcode, fields in (draw() for _ in range(count)):
            parts += [("int", opcode), ("bool", False), ("int", -1), *fields]
        return (*parts, ("int", -1), ("bool", True), ("int", -1))

    def _change(self) -> _Request:
        chance = self._random.random()
        if chance < 0.45:
            return self._request(_CREATING)
        if chance < 0.65:
            return self._request(OpCode.DELETE)
        if chance < 0.8:
            return self._request(OpCode.SET_DATA)
        if chance < 0.99:
            path, version = self._parts(OpCode.CHECK)
            return OpCode.CHECK, (path, ("int", -1) if self._random.random() < 0.7 else version)
        return self._request(self._random.choice((OpCode.GET_DATA, OpCode.SET_ACL, OpCode.SYNC)))

    def _read(self) -> _Request:
        if self._random.random() < 0.03:
            return self._request(self._random.choice((OpCode.EXISTS, OpCode.DELETE, OpCode.GET_CHILDREN2)))
        return self._request(self._random.choice((OpCode.GET_DATA, OpCode.GET_CHILDREN)))

    def _create_parts(self, opcode: int) -> tuple[Part, ...]:
        chance = self._random.random()
        path = self._path() if chance < 0.2 else self._new_path()
        if opcode == OpCode.CREATE_CONTAINER:
            flags = 4
        elif opcode == OpCode.CREATE_TTL:
            flags = self._random.choice((5, 6))
        else:
            flags = self._random.choice((0, 0, 0, 1, 1, 2, 3))
        if self._random.random() < 0.03:
            flags = self._random.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, _MAX_INT))
        if flags in (2, 3, 6) and path and self._random.random() < 0.3:
            path = path.rstrip("/") + "/"
        parts: tuple[Part, ...] = (self._parts_path(path), ("buffer", self._data()), self._acl(), ("int", flags))
        if opcode == OpCode.CREATE_TTL:
            days = self._random.choice((3_600_000, 86_400_000, (1 << 40) - 1, 3_600_001))
            bad = self._random.choice((0, -1, 1 << 40, _MAX_LONG, _MIN_LONG))
            parts += (("long", days if self._random.random() < 0.9 else bad),)
        return parts

    def _zxid(self) -> Part:
        chance = self._random.random()
        if chance < 0.9:
            return "zxid", -1 - int(self._random.expovariate(0.05))
        return "long", self._random.choice((0, -1, 1, _MAX_LONG, _MIN_LONG))

    def _watched_path(self) -> Part:
        watched = self._watched[self._slot]
        return (
            ("path", self._random.choice(watched)) if watched and self._random.random() < 0.7 else self._reading_path()
        )

    def _note(self, path: Part) -> None:
        if path[0] == "path":
            self._watched[self._slot].append(path[1])

    def _log_in(self) -> Operation:
        if self._random.random() < 0.8:
            return logging_in(0, self._random.choice(USERS))
        scheme = self._random.choice(("digest", "ip", "world", "nothing", "sasl", "x509", "", None, "auth", "super"))
        data = self._random.choice((None, b"", b":", b"user", b"a:b:c", b"\xff:\xff", "ü:ü".encode()))
        return Operation(0, OpCode.AUTH, (("int", 0), ("text", scheme), ("buffer", data)))

    def _unknown(self) -> _Request:
        opcode = self._random.choice((0, -1, 10, 23, 99, 108, 109, 1000, _MAX_INT, _MIN_INT, 102, 16, -2, -12))
        return opcode, (self._reading_path(), ("int", 0))

    def _raw(self) -> Operation:
        """Ends the connection."""
        sizes = (-1, _MIN_INT, _MAX_INT, 1 << 20, (1 << 20) + 1, 0x72756F6B)  # the last one: ruok
        packets = [struct.pack(">i", size) for size in sizes]
        packets += [struct.pack(">i", size) + bytes(size) for size in (0, 1, 4, 7)]
        return Operation(0, OpCode.RAW, (("bytes", self._random.choice(packets)),))

    def _large(self) -> _Request:
        """Near the bound of 1,048,575 bytes a packet."""
        size = self._random.choice((900_000, 1_048_575 - 100, 1_048_400))
        return OpCode.SET_DATA, (("path", self._path()), ("buffer", bytes(size)), ("int", -1))

    def _burst(self) -> Operation:
        opcodes = self._random.choices(_TOGETHER, k=self._random.choice((2, 3, 4, 8)))
        return Operation(0, OpCode.BURST, tuple(("request", self._request(opcode)) for opcode in opcodes))

    # --- connections --------------------------------------------------------------------------------------------------

    def _expiring(self, slot: int) -> list[Operation]:
        """A session of the shortest time-out, whose time-out ends it."""
        create = (("buffer", b"expiring"), OPEN, ("int", 1))
        creates = [Operation(slot, OpCode.CREATE2, (("path", self._new_path()), *create)) for _ in range(4)]
        return [connecting(slot, 1), *creates, Operation(slot, OpCode.EXPIRE)]

    def _timeout(self) -> int:
        return self._random.choice((3_600_000, 1_800_000, 3_000_000, 4_000_000, _MAX_INT))

    def _draw_connect(self, slot: int) -> Operation:
        chance = self._random.random()
        if chance < 0.4 and self._sessions:
            return attaching(slot, self._random.randrange(max(0, self._sessions - 6), self._sessions), self._timeout())
        if chance < 0.9:
            return connecting(slot, self._timeout())
        return self._odd_connect(slot)

    def _odd_connect(self, slot: int) -> Operation:
        version = self._random.choice((0, 0, 0, 1, -1))
        zxid = self._random.choice((("long", 0), ("long", -1), ("long", _MAX_LONG), self._zxid(), self._zxid()))
        password = self._random.choice((bytes(16), b"", None, b"x", bytes(17)))
        last: tuple[Part, ...] = self._random.choice(((), (("bool", False),), (("bool", True),), (("bytes", b"\1x"),)))
        parts = (("int", version), zxid, ("int", self._timeout()), ("long", 0), ("buffer", password), *last)
        return Operation(slot, OpCode.CONNECT, parts, self._cuts())

    def _cuts(self) -> tuple[Mutation, ...]:
        return (("cut", self._random.random(), b""),) if self._random.random() < 0.1 else ()

    def _attach(self) -> Operation:
        """To one's own session, or away from another client."""
        if self._random.random() < 0.5:
            number = self._random.choice(self._session_of)
        else:
            number = self._random.randrange(self._sessions)
        return attaching(0, number, self._timeout())

    def _attach_wrongly(self) -> Operation:
        number = self._random.choice(self._session_of)
        session: Part = self._random.choice((("session", number), ("long", 12345), ("long", -1)))
        password = self._random.choice((bytes(16), b"", None, b"x" * 16))
        parts = (("int", 0), ("long", 0), ("int", self._timeout()), session, ("buffer", password), ("bool", False))
        return Operation(0, OpCode.CONNECT, parts)

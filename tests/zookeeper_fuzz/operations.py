"""What the fuzz does, as plain values: printable, repeatable, and of any subset the same meaning."""

from __future__ import annotations

from typing import NamedTuple

from .jute import OpCode, Part

__all__ = ["OPEN", "USERS", "Mutation", "Operation", "attaching", "connecting", "logging_in", "show"]

OPEN: Part = ("acls", ((31, "world", "anyone"),))
"""An ACL that allows everything to everybody."""

USERS = (b"u1:p1", b"u2:p2")
"""All that log in; the observer does as each."""

_NAMES = {number: name for name, number in vars(OpCode).items() if isinstance(number, int)}

Mutation = tuple[str, float, bytes]
"""What is done to the encoded body: "replace", "insert" or "cut" (what follows), where (a share of its length), and the
bytes."""


class Operation(NamedTuple):
    """opcode: of the request, or what else a client does. slot: number of the client. mutations: damage to the body."""

    slot: int
    opcode: int
    parts: tuple[Part, ...] = ()
    mutations: tuple[Mutation, ...] = ()

    @property
    def requests(self) -> list[Operation]:
        """One for each request."""
        if self.opcode != OpCode.BURST:
            return [self]
        return [Operation(self.slot, opcode, parts) for _, (opcode, parts) in self.parts]

    def damaged(self, body: bytes) -> bytes:
        for kind, where, data in self.mutations:
            at = int(where * len(body))
            if kind == "replace":
                body = body[:at] + data + body[at + len(data) :]
            elif kind == "insert":
                body = body[:at] + data + body[at:]
            elif kind == "cut":
                body = body[:at]
            else:
                raise ValueError(f"{kind!r}: no kind of mutation")
        return body


def connecting(slot: int, timeout_ms: int = 3_600_000) -> Operation:
    """A new session."""
    parts = (("int", 0), ("long", 0), ("int", timeout_ms), ("long", 0), ("buffer", bytes(16)), ("bool", False))
    return Operation(slot, OpCode.CONNECT, parts)


def attaching(slot: int, session: int, timeout_ms: int = 3_600_000) -> Operation:
    """To the session of that number."""
    known = (("session", session), ("password", session), ("bool", False))
    return Operation(slot, OpCode.CONNECT, (("int", 0), ("long", 0), ("int", timeout_ms), *known))


def logging_in(slot: int, user: bytes) -> Operation:
    """By digest; `user`: name:password."""
    return Operation(slot, OpCode.AUTH, (("int", 0), ("text", "digest"), ("buffer", user)))


def show(operation: Operation) -> str:
    """One line for people; `repr` is what the program reads again."""
    fields = ", ".join(f"{kind} {_shortened(value)}" for kind, value in operation.parts)
    damage = f" damaged by {operation.mutations!r}" if operation.mutations else ""
    name = _NAMES.get(operation.opcode, str(operation.opcode))
    return f"client {operation.slot}: {name} {fields}{damage}"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:80]}… ({len(text)} characters)"

"""The format strings of `metaq consume`, in kcat's style: `%t [%p] at %o: %s\\n`. Pure: a message in, bytes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

__all__ = ["FORMAT_HELP", "MessageLike", "compile_format", "message_fields", "printable_time"]


class PartitionLike(Protocol):
    """Broker id and number of a partition, whose str() is `<brokerId>-<partition>`."""

    @property
    def broker_id(self) -> int: ...
    @property
    def partition(self) -> int: ...


class MessageLike(Protocol):
    """What of a metaq.Message a format can show."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> Any: ...
    @property
    def offset(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def attribute(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def timestamp(self) -> int | None: ...


def _utf8(text: object) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")


_FIELDS: dict[str, tuple[str, Callable[[MessageLike], bytes]]] = {
    "s": ("payload", lambda m: bytes(m.payload)),
    "S": ("payload size in bytes", lambda m: b"%d" % len(m.payload)),
    "t": ("topic", lambda m: _utf8(m.topic)),
    "p": ("partition, as BROKER-PARTITION", lambda m: _utf8(partition_name(m))),
    "b": ("broker id", lambda m: b"%d" % m.partition.broker_id),
    "o": ("byte offset", lambda m: b"%d" % m.offset),
    "i": ("message id", lambda m: b"%d" % m.id),
    "k": ("key (several: separated by blanks)", lambda m: _utf8(" ".join(m.keys))),
    "K": ("key size in bytes, -1 without a key", lambda m: b"%d" % (len(_utf8(" ".join(m.keys))) if m.keys else -1)),
    "g": ("tag", lambda m: _utf8(m.tag or "")),
    "a": ("attribute of metaq 1.x", lambda m: _utf8(m.attribute or "")),
    "T": (
        "store time in ms since 1970, -1 if not known",
        lambda m: b"%d" % (-1 if m.timestamp is None else m.timestamp),
    ),
    "h": ("headers, as name=value,name=value", lambda m: _utf8(",".join(f"{n}={v}" for n, v in m.headers.items()))),
    "%": ("a percent sign", lambda m: b"%"),
}

FORMAT_HELP = "  ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _FIELDS.items())

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)", re.DOTALL)


def compile_format(text: str) -> Callable[[MessageLike], bytes]:
    """Return a function that writes a message as the format `text` says.

    Raises ValueError naming an unknown %letter or \\escape and the choices.
    """
    pieces: list[bytes | Callable[[MessageLike], bytes]] = []
    position = 0
    for match in _PIECE.finditer(text):
        pieces.append(_utf8(text[position : match.start()]))
        position = match.end()
        pieces.append(_escape(match["escape"]) if match["field"] is None else _field(match["field"]))
    pieces.append(_utf8(text[position:]))
    parts = [piece for piece in pieces if piece]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _field(letter: str) -> Callable[[MessageLike], bytes]:
    if letter not in _FIELDS:
        raise ValueError(f"'%{letter}' is no field: choose {' '.join('%' + name for name in _FIELDS)}")
    return _FIELDS[letter][1]


def _escape(name: str) -> bytes:
    if name[:1] == "x" and len(name) == 3:
        return bytes.fromhex(name[1:])
    if name not in _ESCAPES:
        raise ValueError(f"'\\{name}' is no escape: choose \\n \\t \\r \\0 \\\\ or \\xNN")
    return _ESCAPES[name]


def partition_name(message: MessageLike) -> str:
    """`<brokerId>-<partition>`, as ZooKeeper and 1.x write a partition."""
    return f"{message.partition.broker_id}-{message.partition.partition}"


def message_fields(message: MessageLike) -> dict[str, object]:
    """The message as one JSON object; a payload that is no UTF-8 is given as `payload_hex` instead of `payload`."""
    payload = bytes(message.payload)
    try:
        content: dict[str, object] = {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        content = {"payload_hex": payload.hex()}
    return {
        "topic": message.topic,
        "partition": partition_name(message),
        "offset": message.offset,
        "id": message.id,
        "timestamp": message.timestamp,
        "tag": message.tag,
        "attribute": message.attribute,
        "keys": list(message.keys),
        "headers": dict(message.headers),
        **content,
    }


def printable_time(time_ms: int | None) -> str:
    """`time_ms` (ms since 1970) in ISO 8601, UTC, or `-`."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")

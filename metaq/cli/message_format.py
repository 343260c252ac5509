"""The format strings of `metaq consume`, in kcat's style: `%t [%p] at %o: %s\\n`. Pure: a message in, bytes out."""

from __future__ import annotations

import re
from collections.abc import Callable

from metaq.client.message import Message

__all__ = ["FORMAT_HELP", "compile_format", "message_fields"]


def _utf8(text: object) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")


_FIELDS: dict[str, tuple[str, Callable[[Message], bytes]]] = {
    "s": ("payload", lambda m: m.payload),
    "S": ("payload size in bytes", lambda m: b"%d" % len(m.payload)),
    "t": ("topic", lambda m: _utf8(m.topic)),
    "p": ("partition, as BROKER-PARTITION", lambda m: _utf8(m.partition)),
    "b": ("broker id", lambda m: b"%d" % m.partition.broker),
    "o": ("byte offset", lambda m: b"%d" % m.offset),
    "i": ("message id", lambda m: b"%d" % m.id),
    "k": ("key (several: separated by blanks)", lambda m: _utf8(" ".join(m.keys))),
    "K": ("key size in bytes, -1 without a key", lambda m: b"%d" % (len(_utf8(" ".join(m.keys))) if m.keys else -1)),
    "g": ("tag", lambda m: _utf8(m.tag or "")),
    "a": ("attribute of metaq 1.x", lambda m: _utf8(m.attribute or "")),
    "T": (
        "store time in ms since 1970, -1 if not known",
        lambda m: b"%d" % (-1 if m.timestamp_ms is None else m.timestamp_ms),
    ),
    "h": ("headers, as name=value,name=value", lambda m: _utf8(",".join(f"{n}={v}" for n, v in m.headers.items()))),
    "%": ("a percent sign", lambda m: b"%"),
}

FORMAT_HELP = "  ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _FIELDS.items())

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)", re.DOTALL)


def compile_format(text: str) -> Callable[[Message], bytes]:
    """Return a function that writes a message as the format `text` says.

    Raises ValueError naming an unknown %letter or \\escape and the choices.
    """
    pieces: list[bytes | Callable[[Message], bytes]] = []
    position = 0
    for match in _PIECE.finditer(text):
        pieces.append(_utf8(text[position : match.start()]))
        position = match.end()
        pieces.append(_escape(match["escape"]) if match["field"] is None else _field(match["field"]))
    pieces.append(_utf8(text[position:]))
    parts = [piece for piece in pieces if piece]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _field(letter: str) -> Callable[[Message], bytes]:
    if letter not in _FIELDS:
        raise ValueError(f"'%{letter}' is not a field: choose {' '.join('%' + name for name in _FIELDS)}")
    return _FIELDS[letter][1]


def _escape(name: str) -> bytes:
    if name[:1] == "x" and len(name) == 3:
        return bytes.fromhex(name[1:])
    if name not in _ESCAPES:
        raise ValueError(f"'\\{name}' is not an escape: choose \\n \\t \\r \\0 \\\\ or \\xNN")
    return _ESCAPES[name]


def message_fields(message: Message) -> dict[str, object]:
    """The message as one JSON object; a payload that is not UTF-8 is given as `payload_hex` instead of `payload`."""
    payload = message.payload
    try:
        content: dict[str, object] = {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        content = {"payload_hex": payload.hex()}
    return {
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": message.offset,
        "id": message.id,
        "timestamp": message.timestamp_ms,
        "tag": message.tag,
        "attribute": message.attribute,
        "keys": list(message.keys),
        "headers": dict(message.headers),
        **content,
    }

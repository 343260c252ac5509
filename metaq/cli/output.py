"""Print the results of commands: as JSON for programs, or as tables for people. All commands print numbers and sizes in
the same style.

Messages are printed by format strings as in kcat: `%t [%p] at %o: %s\\n`. All output for people is printed by this
module, which escapes control characters. They must be escaped because many of the texts come from clients, and a
terminal would execute the control characters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from metaq.protocol.printable import printable
from metaq.protocol.properties import PropertyValue, property_text

if TYPE_CHECKING:
    from metaq.client.records.message import Message
    from metaq.protocol.previews import Preview

__all__ = [
    "FORMAT_HELP",
    "UNKNOWN",
    "byte_size",
    "compile_format",
    "counted",
    "echo",
    "field_text",
    "json_text",
    "message_fields",
    "moment",
    "preview_fields",
    "print_json",
    "say",
    "show",
    "show_warnings",
]

UNKNOWN = "unknown"
"""The text in a table cell whose number is unknown. The cell is not left empty, because an empty cell could be mistaken
for 0.
"""


def print_json(value: Any) -> None:
    """Print `value` as indented JSON on stdout. The keys of each object are printed in the order of the dict."""
    print(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON, in ASCII and without control characters."""
    import simplejson  # not needed for tables

    text: str = simplejson.dumps(value, indent=indent)
    return text.replace("\x7f", "\\u007f")  # the only control character that JSON does not escape


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text for people on stdout, or on stderr if `err` is set, with control characters escaped. nl: whether to
    add a line end.
    """
    click.echo(printable(text), err=err, nl=nl)


def show_warnings() -> None:
    """Make Python escape control characters in log messages when it prints them on stderr itself. Python does this with
    warnings and errors if the program has not set up logging.
    """
    import logging  # not needed for a help text

    class Shown(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record))

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Shown())


def show(as_json: bool, value: Any, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print `value` as JSON if `as_json` is set, otherwise print `rows` as a table with the head `columns`."""
    if as_json:
        print_json(value)
    else:
        from .tables import print_table  # not needed by commands without tables

        print_table(columns, rows)


def say(as_json: bool, value: Any, text: str) -> None:
    """Print `value` as JSON if `as_json` is set, otherwise print the sentence `text`."""
    if as_json:
        print_json(value)
    else:
        echo(text)


def byte_size(count: float) -> str:
    """Return `count` bytes in a suitable unit: 999 B, 1.0 kB, 12.3 MB (powers of 1,000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def counted(number: int | None, noun: str) -> str:
    """Return a number with its noun, such as `1 message` or `1,200 messages`; for None return `unknown messages`. noun:
    the noun in the singular.
    """
    if number is None:
        return f"{UNKNOWN} {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def moment(ms: int | None) -> str | None:
    """Convert a time in Unix milliseconds to a text in ISO 8601. Return None for 0 and None, which mean "never"."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else None


# --- messages ---------------------------------------------------------------------------------------------------------


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
    "h": (
        "properties, as name=value,name=value",
        lambda m: _utf8(",".join(f"{name}={property_text(value)}" for name, value in m.properties.items())),
    ),
    "%": ("a percent sign", lambda m: b"%"),
}

FORMAT_HELP = "  ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _FIELDS.items())

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)", re.DOTALL)


def compile_format(text: str, terminal: bool | None = None) -> Callable[[Message], bytes]:
    """Return a function that formats a message according to `text`.

    terminal: whether the function must escape control characters that a terminal would execute; by default it does so
    if stdout is a terminal. Raises ValueError for an unknown %letter or \\escape; the error text names this letter or
    escape, and the valid ones.
    """
    shown = sys.stdout.isatty() if terminal is None else terminal
    pieces: list[bytes | Callable[[Message], bytes]] = []
    position = 0
    for match in _PIECE.finditer(text):
        pieces.append(_utf8(text[position : match.start()]))
        position = match.end()
        pieces.append(_escape(match["escape"]) if match["field"] is None else _field(match["field"], shown))
    pieces.append(_utf8(text[position:]))
    parts = [piece for piece in pieces if piece]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _field(letter: str, shown: bool) -> Callable[[Message], bytes]:
    if letter not in _FIELDS:
        raise ValueError(f"'%{letter}' is not a field: choose {' '.join('%' + name for name in _FIELDS)}")
    write = _FIELDS[letter][1]
    return (lambda m: printable(write(m).decode("utf-8", "backslashreplace")).encode("utf-8")) if shown else write


def _escape(name: str) -> bytes:
    if name[:1] == "x" and len(name) == 3:
        return bytes.fromhex(name[1:])
    if name not in _ESCAPES:
        raise ValueError(f"'\\{name}' is not an escape: choose \\n \\t \\r \\0 \\\\ or \\xNN")
    return _ESCAPES[name]


def _json_value(value: PropertyValue) -> object:
    return {"base64": property_text(value)} if isinstance(value, bytes) else value


def preview_fields(preview: Preview) -> dict[str, object]:
    """Return the JSON fields for the preview of a delayed or half message. The field payload_start is null if the
    payload is compressed.
    """
    payload = preview.payload
    return {
        "keys": list(preview.keys),
        "payload_start": None if payload is None else payload.decode("utf-8", "replace"),
    }


def field_text(value: object) -> object:
    """Convert the value of a JSON field for a table of names and values, and return it. Numbers are written without
    thousands separators, so that users can copy them.
    """
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return value if isinstance(value, str) or value is None else str(value)


def message_fields(message: Message) -> dict[str, object]:
    """Return the message as a dict for JSON. If the payload is not UTF-8, the field `payload_hex` replaces `payload`. A
    property whose value is bytes becomes {"base64": …}.
    """
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
        "properties": {name: _json_value(value) for name, value in message.properties.items()},
        **content,
    }

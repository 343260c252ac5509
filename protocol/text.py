"""The text protocol of metaq 1.x: commands and answers (wire.md).

A command or an answer is `header line CRLF [body]`. The tokens of the header line are separated by one blank; trailing
blanks are ignored, and a double blank means an empty token. The docstring of every class below begins with its header
line. `parse_command` decodes header lines for the broker, `AnswerReader` decodes a broker's answers. After the header
line of `put`, `sync`, `value` and `result` follows a body, whose length is a token of the line. `RequestReader`
(requests.py) and `AnswerReader` wait until the body is complete.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BODY_BYTES, MAX_LINE_BYTES, MAX_RECORD_BODY_BYTES
from .transactions import NULL_KEY, TransactionType, parse_key, parse_own_key

__all__ = [
    "COMMON_PUT",
    "Answer",
    "AnswerReader",
    "Get",
    "IgnoredAnswer",
    "OffsetQuery",
    "Put",
    "Quit",
    "Result",
    "Stats",
    "Sync",
    "TextCommand",
    "TransactionCommand",
    "TransactionType",
    "Value",
    "Version",
    "encode_get",
    "encode_offset",
    "encode_put",
    "encode_put_result",
    "encode_result",
    "encode_result_line",
    "encode_stats",
    "encode_sync_line",
    "encode_transaction",
    "encode_value_line",
    "encode_version",
    "parse_command",
    "parse_common_put",
    "parse_put_result",
]

CRLF = b"\r\n"
NO_OPAQUE = INT32_MAX
"""The opaque in the answer to a `version` or `stats` command that has no opaque."""
NO_CHECKSUM = -1
_UNPACKS = b"unpacks"


class Put(NamedTuple):
    """`put topic partition len flag [checksum] [txKey] opaque` CRLF body. If the partition is -1, the broker chooses
    the partition.
    """

    topic: str
    partition: int
    flag: int
    checksum: int
    tx_key: str | None
    opaque: int
    body: bytes = b""


class Get(NamedTuple):
    """`get topic group partition offset maxSize opaque [unpacks]`. The offset and maxSize are in bytes.

    unpacks: whether the client can read compressed messages. metaq's own clients send this token to metaq's own
    brokers. Java brokers ignore it, because all brokers ignore additional tokens at the end of this line.
    """

    topic: str
    group: str
    partition: int
    offset: int
    max_size: int
    opaque: int
    unpacks: bool = False


class OffsetQuery(NamedTuple):
    """`offset topic group partition offset opaque`: ask for an offset at or before the given one at which a record
    certainly begins: the start of the segment that contains the given offset.
    """

    topic: str
    group: str
    partition: int
    offset: int
    opaque: int


class Stats(NamedTuple):
    """`stats [item [opaque]]`: ask for statistics. With the item "" the broker reports statistics about its own
    process.
    """

    item: str
    opaque: int


class Version(NamedTuple):
    """`version [opaque]`: ask for the broker's version. 1.x clients also use this command as their heartbeat."""

    opaque: int


class Quit(NamedTuple):
    """`quit`: tell the broker to close the connection after it has sent the answers to the commands before this one."""


class TransactionCommand(NamedTuple):
    """`transaction txKey sessionId TYPE [timeout] [uniqueQualifier] opaque`. The timeout is in seconds."""

    key: str | None
    session: str
    type: TransactionType
    timeout: int | None
    qualifier: str | None
    opaque: int


class Sync(NamedTuple):
    """`sync topic partition len flag msgId [checksum] opaque` CRLF body: sent by a synchronous master to its slave."""

    topic: str
    partition: int
    flag: int
    message_id: int
    checksum: int
    opaque: int
    body: bytes = b""


class IgnoredAnswer(NamedTuple):
    """A `result …` or `value …` that a client has sent to a broker. The broker reads it to its end and drops it, as the
    Java broker does.
    """


class TooLargePut(NamedTuple):
    """A put whose body of `body_bytes` bytes is larger than MAX_BODY_BYTES. The broker refuses the put, and drops the
    bytes of the body as they arrive.
    """

    topic: str
    partition: int
    body_bytes: int
    opaque: int


TextCommand = Put | TooLargePut | Get | OffsetQuery | Stats | Version | Quit | TransactionCommand | Sync | IgnoredAnswer


class Result(NamedTuple):
    """`result code bodyLen opaque` CRLF body (UTF-8 text)."""

    code: int
    opaque: int
    text: str


class Value(NamedTuple):
    """`value totalLen opaque` CRLF data: raw bytes of the log from the requested offset on."""

    opaque: int
    data: memoryview


Answer = Result | Value


# --- numbers, exactly as Integer.parseInt and Long.parseLong take them ----------------------------------------------


def _integer(token: bytes, low: int, high: int) -> int:
    digits = token[1:] if token[:1] in (b"-", b"+") else token
    if not digits.isdigit() or len(digits) > 32:
        raise RemoteProtocolError(f"not a number: {token[:40]!r}")
    value = int(token)
    if not low <= value <= high:
        raise RemoteProtocolError(f"number out of range: {token!r}")
    return value


def _int32(token: bytes) -> int:
    if token.isdigit() and len(token) < 10:  # the common case, in two C calls
        return int(token)
    return _integer(token, INT32_MIN, INT32_MAX)


def _int64(token: bytes) -> int:
    return _integer(token, -INT64_MAX - 1, INT64_MAX)


def _any_body_length(token: bytes) -> int:
    length = _int32(token)
    if length < 0:
        raise RemoteProtocolError(f"negative body length {length}")
    return length


def _body_length(token: bytes) -> int:
    length = _any_body_length(token)
    if length > MAX_RECORD_BODY_BYTES:  # a `sync` also copies records that came in a frame
        raise RemoteProtocolError(f"body of {length} bytes is above the limit of {MAX_RECORD_BODY_BYTES}")
    return length


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")  # as Java decodes: damaged bytes become U+FFFD, never an error


# --- commands, as the broker reads them -------------------------------------------------------------------------------

COMMON_PUT = re.compile(
    rb"put ([^ \r\n]{1,250}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,10}) (-?[0-9]{1,10})\r\n"
)
"""Matches the header line of a put as 1.4 clients usually send it: with a partition and a checksum, and without a
transaction.
"""
_SMALL_NUMBERS = {b"%d" % number: number for number in range(256)}
_new_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


def parse_common_put(data: bytes, position: int) -> tuple[Put | None, int]:
    """Return the put that begins at `position` of `data`, and the position after it, if the put is complete and has the
    form that 1.4 clients send.

    Return (None, position) for all other bytes, including incomplete or invalid puts; the caller then uses
    parse_command. Parsing is the most expensive step of a put in the broker, so this function uses one regular
    expression and as few calls as possible.
    """
    match = COMMON_PUT.match(data, position)
    if match is None:
        return None, position
    topic, partition, length, flag, checksum, opaque = match.groups()
    start = match.end()
    end = start + int(length)
    crc, number = int(checksum), int(opaque)
    if end > len(data) or crc > INT32_MAX or not INT32_MIN <= number <= INT32_MAX or end - start > MAX_BODY_BYTES:
        return None, position
    small = _SMALL_NUMBERS
    fields = (
        topic.decode("utf-8", "replace"),
        small[partition] if partition in small else int(partition),
        small[flag] if flag in small else int(flag),
        crc,
        None,
        number,
        data[start:end],
    )
    return _new_tuple(Put, fields), end


def parse_command(line: bytes) -> tuple[TextCommand, int]:
    """Decode one header line (without CR LF); return the command and the length of the body that follows it.

    The body of a returned Put or Sync is b""; RequestReader sets it later. Raises RemoteProtocolError for all lines
    that the Java decoder refuses; a broker then closes the connection without an answer.
    """
    tokens = line.rstrip(b" ").split(b" ")  # Java's split drops trailing empty tokens
    if not tokens[0]:
        raise RemoteProtocolError("blank line")
    word = tokens[0]
    parse = _PARSERS.get(word)
    if parse is None:
        if word[:1] == b"q":
            return Quit(), 0
        if word[:1] == b"v":
            return _parse_version(tokens)
        raise RemoteProtocolError(f"unknown command {word[:40]!r}")
    try:
        return parse(tokens)
    except IndexError:
        raise RemoteProtocolError(f"too few tokens: {line[:80]!r}") from None


def _parse_put(tokens: list[bytes]) -> tuple[TextCommand, int]:
    count = len(tokens)
    if not 6 <= count <= 8:
        raise RemoteProtocolError(f"put has {count} tokens, not 6 to 8")
    checksum, tx_key = NO_CHECKSUM, None
    if count == 8:
        checksum, tx_key = _int32(tokens[5]), parse_own_key(_text(tokens[6]))
    elif count == 7:
        if tokens[5][:1].isdigit() or tokens[5][:1] == b"-":
            checksum = _int32(tokens[5])
        else:
            tx_key = parse_own_key(_text(tokens[5]))
    length = _any_body_length(tokens[3])
    put = Put(_text(tokens[1]), _int32(tokens[2]), _int32(tokens[4]), checksum, tx_key, _int32(tokens[-1]))
    if length > MAX_BODY_BYTES:
        return TooLargePut(put.topic, put.partition, length, put.opaque), length
    return put, length


def _parse_get(tokens: list[bytes]) -> tuple[TextCommand, int]:
    topic, group = _text(tokens[1]), _text(tokens[2])
    numbers = _int32(tokens[3]), _int64(tokens[4]), _int32(tokens[5]), _int32(tokens[6])
    return Get(topic, group, *numbers, len(tokens) > 7 and tokens[7] == _UNPACKS), 0


def _parse_offset(tokens: list[bytes]) -> tuple[TextCommand, int]:
    return OffsetQuery(_text(tokens[1]), _text(tokens[2]), _int32(tokens[3]), _int64(tokens[4]), _int32(tokens[5])), 0


def _parse_stats(tokens: list[bytes]) -> tuple[TextCommand, int]:
    item = _text(tokens[1]) if len(tokens) > 1 else ""
    return Stats(item, _int32(tokens[2]) if len(tokens) > 2 else NO_OPAQUE), 0


def _parse_version(tokens: list[bytes]) -> tuple[TextCommand, int]:
    return Version(_int32(tokens[1]) if len(tokens) > 1 else NO_OPAQUE), 0


def _parse_transaction(tokens: list[bytes]) -> tuple[TextCommand, int]:
    count = len(tokens)
    if not 5 <= count <= 7:
        raise RemoteProtocolError(f"transaction has {count} tokens, not 5 to 7")
    timeout, qualifier = None, None
    if count == 7:
        timeout, qualifier = _int32(tokens[4]), _text(tokens[5])
    elif count == 6:
        if tokens[4].isdigit():
            timeout = _int32(tokens[4])
        else:
            qualifier = _text(tokens[4])
    try:
        kind = TransactionType(_text(tokens[3]))
    except ValueError:
        raise RemoteProtocolError(f"unknown transaction type {tokens[3][:40]!r}") from None
    key = parse_key(_text(tokens[1]))
    return TransactionCommand(key, _text(tokens[2]), kind, timeout, qualifier, _int32(tokens[-1])), 0


def _parse_sync(tokens: list[bytes]) -> tuple[TextCommand, int]:
    count = len(tokens)
    if not 7 <= count <= 8:
        raise RemoteProtocolError(f"sync has {count} tokens, not 7 or 8")
    checksum = _int32(tokens[6]) if count == 8 else NO_CHECKSUM
    length = _body_length(tokens[3])
    command = Sync(
        _text(tokens[1]), _int32(tokens[2]), _int32(tokens[4]), _int64(tokens[5]), checksum, _int32(tokens[-1])
    )
    return command, length


def _parse_result_to_ignore(tokens: list[bytes]) -> tuple[TextCommand, int]:
    _int32(tokens[1]), _int32(tokens[3])
    return IgnoredAnswer(), _body_length(tokens[2])


def _parse_value_to_ignore(tokens: list[bytes]) -> tuple[TextCommand, int]:
    _int32(tokens[2])
    return IgnoredAnswer(), _body_length(tokens[1])


_PARSERS = {
    b"put": _parse_put,
    b"get": _parse_get,
    b"offset": _parse_offset,
    b"stats": _parse_stats,
    b"version": _parse_version,
    b"transaction": _parse_transaction,
    b"sync": _parse_sync,
    b"result": _parse_result_to_ignore,
    b"value": _parse_value_to_ignore,
}


# --- answers, as the broker writes them -------------------------------------------------------------------------------


def encode_result(code: int, text: str, opaque: int) -> bytes:
    """Return a complete `result` answer: the header line and the text."""
    body = text.encode("utf-8", "backslashreplace")  # it may contain the name of a file
    return encode_result_line(code, len(body), opaque) + body


def encode_result_line(code: int, length: int, opaque: int) -> bytes:
    """Return the header line of a `result` answer, CR LF included. The caller sends `length` bytes of text after it."""
    return b"result %d %d %d\r\n" % (code, length, opaque)


def encode_put_result(opaque: int, message_id: int, partition: int, offset: int) -> bytes:
    """Return a complete `result` answer for a put that was stored."""
    body = b"%d %d %d" % (message_id, partition, offset)
    return b"result 200 %d %d\r\n%b" % (len(body), opaque, body)


def encode_value_line(length: int, opaque: int) -> bytes:
    """Return the header line of a `value` answer, CR LF included. The caller sends `length` bytes of the log after
    it.
    """
    return b"value %d %d\r\n" % (length, opaque)


# --- commands, as the client writes them ------------------------------------------------------------------------------


def _token(name: str) -> bytes:
    raw = name.encode("utf-8")
    if not raw or b" " in raw or b"\r" in raw or b"\n" in raw:
        raise LocalProtocolError(f"{name!r} cannot be a token: it is empty or has a blank or line end")
    return raw


def encode_put(
    topic: str, partition: int, flag: int, checksum: int, opaque: int, body: bytes, tx_key: str | None = None
) -> bytes:
    """Return a complete `put` command in the form that the 1.4.6 client sends. Its header line has 7 tokens, or 8 with
    the key of a transaction.
    """
    key = b"" if tx_key is None else b" " + _token(tx_key)
    return b"put %b %d %d %d %d%b %d\r\n%b" % (_token(topic), partition, len(body), flag, checksum, key, opaque, body)


def encode_get(
    topic: str, group: str, partition: int, offset: int, max_size: int, opaque: int, unpacks: bool = False
) -> bytes:
    """Return a `get` command. offset and max_size are in bytes. unpacks: whether the client can read compressed
    messages; it must be False if the broker's answer to `version` does not contain COMPRESSED_MARK.
    """
    line = b"get %b %b %d %d %d %d" % (_token(topic), _token(group), partition, offset, max_size, opaque)
    return b"%b %b\r\n" % (line, _UNPACKS) if unpacks else line + b"\r\n"


def encode_offset(topic: str, group: str, partition: int, offset: int, opaque: int) -> bytes:
    """Return an `offset` command."""
    return b"offset %b %b %d %d %d\r\n" % (_token(topic), _token(group), partition, offset, opaque)


def encode_transaction(
    tx_key: str | None, session: str, kind: TransactionType, timeout: int, qualifier: str, opaque: int
) -> bytes:
    """Return a `transaction` command. tx_key: None for RECOVER. timeout: seconds, 0 = no timeout. qualifier: "" = no
    qualifier.
    """
    key = _token(NULL_KEY if tx_key is None else tx_key)
    # a qualifier of digits alone would be read as the timeout
    seconds = b" %d" % timeout if timeout or qualifier.isdigit() else b""
    unique = b" " + _token(qualifier) if qualifier else b""
    return b"transaction %b %b %b%b%b %d\r\n" % (key, _token(session), kind.value.encode(), seconds, unique, opaque)


def encode_stats(item: str, opaque: int) -> bytes:
    """Return a `stats` command. If `item` is "", the command has two blanks after `stats`, as the Java client sends
    it.
    """
    return b"stats %b %d\r\n" % (_token(item) if item else b"", opaque)


def encode_sync_line(
    topic: str, partition: int, length: int, flag: int, message_id: int, checksum: int, opaque: int
) -> bytes:
    """Return the header line of a `sync` command, CR LF included. The caller sends a body of `length` bytes after
    it.
    """
    return b"sync %b %d %d %d %d %d %d\r\n" % (_token(topic), partition, length, flag, message_id, checksum, opaque)


def encode_version(opaque: int) -> bytes:
    """Return a `version` command."""
    return b"version %d\r\n" % opaque


def parse_put_result(text: str) -> tuple[int, int, int]:
    """Parse the text of the answer to a successful put; return (message id, partition, offset). Surplus tokens are
    ignored, as in Java.
    """
    tokens = text.split(" ")
    try:
        return int(tokens[0]), int(tokens[1]), int(tokens[2])
    except (IndexError, ValueError) as error:
        raise RemoteProtocolError(f"put answered {text[:80]!r} instead of 'id partition offset'") from error


class AnswerReader:
    """Parses a broker's answers of the text protocol from a stream of bytes. The class does no I/O.

    The cost is O(bytes), because each byte is copied at most once when received pieces are joined. A header line has at
    most MAX_LINE_BYTES. A body has at most `max_body_bytes`. The default of `max_body_bytes` is more than the maximum
    size of a message, because the body of a `value` may have several messages: up to the broker's maxTransferSize,
    which the client does not know.
    """

    def __init__(self, max_body_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_body_bytes = max_body_bytes
        self._chunks: list[bytes] = []
        self._missing = 0  # bytes still to come before the next parsing; 0 = parse at once

    def receive(self, data: bytes) -> list[Answer]:
        """Take the next bytes of the stream; return the answers that are complete now. Raises RemoteProtocolError,
        after which the caller must close the connection.
        """
        if self._missing > len(data):
            self._chunks.append(data)
            self._missing -= len(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._missing = 0
        answers: list[Answer] = []
        position = 0
        while (taken := self._one(data, position, answers)) > 0:
            position += taken
        if position < len(data):
            self._chunks.append(data[position:] if position else data)
        return answers

    def _one(self, data: bytes, position: int, answers: list[Answer]) -> int:
        line_end = data.find(CRLF, position, position + MAX_LINE_BYTES + 2)
        if line_end < 0:
            if len(data) - position > MAX_LINE_BYTES:
                raise RemoteProtocolError(f"no line end within {MAX_LINE_BYTES} bytes")
            return 0
        tokens = data[position:line_end].split(b" ")
        body = line_end + 2
        if tokens[0] == b"result" and len(tokens) >= 4:
            end = body + self._length(tokens[2])
            if end <= len(data):
                text = data[body:end].decode("utf-8", "replace")
                answers.append(Result(_int32(tokens[1]), _int32(tokens[3]), text))
        elif tokens[0] == b"value" and len(tokens) >= 3:
            end = body + self._length(tokens[1])
            if end <= len(data):
                answers.append(Value(_int32(tokens[2]), memoryview(data)[body:end]))
        else:
            raise RemoteProtocolError(f"not an answer: {data[position:line_end][:80]!r}")
        if end > len(data):
            self._missing = end - len(data)
            return 0
        return end - position

    def _length(self, token: bytes) -> int:
        length = _int32(token)
        if not 0 <= length <= self._max_body_bytes:
            raise RemoteProtocolError(f"answer announces a body of {length} bytes")
        return length

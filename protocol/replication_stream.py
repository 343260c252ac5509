"""Encode and decode the messages of the replication stream between the nodes of a broker set. The code in this module
does no I/O.

A follower opens a connection to its leader's port and sends the frame FOLLOW. All later bytes, in both directions, have
this format (little-endian):

    message   bytes of the rest u32 | kind u8 | the rest
    BLOCK     CRC-32 of what follows u32 | number u64 | committed in memory u64 | committed on the disk u64 |
              entries u32 | bytes of all names u32 | a row per entry | names | index units | data
    row       offset of the entry's data in its partition i64 | where the segment begins that has it i64 |
              data bytes u32 | index units u32 | bytes of the partition's name u16 | lane u8 | 0 u8
    ACK       received u64 | safe u64 | number of the last ping u64
    PING      number u64 | committed in memory u64 | committed on the disk u64
    COMMITTED committed in memory u64 | committed on the disk u64
    others    JSON

An entry contains consecutive whole records of one segment. An entry with a negative segment does not contain records,
but a change of the transaction log (broker/sets/transaction_mirror.py). A leader's blocks have consecutive numbers.
When a follower connects, the leader first sends it the data that it lacks (the initial copy). The blocks of the initial
copy have the number 0, and the follower does not acknowledge them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import simplejson
from isal.isal_zlib import crc32

from .errors import RemoteProtocolError
from .frames import frame_bytes, parse_frame
from .record import Buffer

__all__ = [
    "COPY",
    "MAX_FOLLOWER_MESSAGE_BYTES",
    "MAX_HELLO_BYTES",
    "MAX_MESSAGE_BYTES",
    "UNIT_BYTES",
    "Ack",
    "Hello",
    "Kind",
    "Lane",
    "Ping",
    "StreamBlock",
    "StreamEntry",
    "StreamMessage",
    "StreamReader",
    "encode_ack",
    "encode_block",
    "encode_committed",
    "encode_hello",
    "encode_json",
    "encode_ping",
    "parse_ack",
    "parse_block",
    "parse_committed",
    "parse_hello",
    "parse_json",
    "parse_ping",
]

COPY = 0
"""The block number of each block that belongs to the initial copy for a follower."""

UNIT_BYTES = 32
"""Size of an index unit (broker/store/index.py)."""

MAX_MESSAGE_BYTES = 1 << 28
"""Maximum size of a message in bytes. The largest messages are blocks; a block contains at most the data that the
leader appended in one step of its event loop.
"""

MAX_FOLLOWER_MESSAGE_BYTES = 32 << 20
"""Maximum size in bytes of a message from a follower. The largest such message is READY, because it contains the name
of each partition.
"""

MAX_HELLO_BYTES = 256 << 10
"""Maximum size in bytes of the body of FOLLOW. A thousand epochs take 50 KB of it."""

_LENGTH = Struct("<I")
_PREFIX = Struct("<IB")
_CRC = Struct("<I")
_HEAD = Struct("<QQQII")
_ROW = np.dtype(
    [
        ("base", "<i8"),
        ("segment", "<i8"),
        ("bytes", "<u4"),
        ("units", "<u4"),
        ("name", "<u2"),
        ("lane", "u1"),
        ("zero", "u1"),
    ]
)
_ACK = Struct("<QQQ")
_PING = Struct("<QQQ")
_COMMITTED = Struct("<QQ")


class Kind(IntEnum):
    """The kinds of messages. The docstring of each kind begins with its sender."""

    BLOCK = 1
    """Sent by the leader: records that were appended."""
    ACK = 2
    """Sent by a follower: the number of the last block that it has in memory, the number of the last block that it has
    on the disk, and the number of the last ping that it has received. The number of the ping tells the leader that the
    follower still follows it, which extends the time for which the leader may lead.
    """
    PING = 3
    """Sent by the leader several times a second, so that followers answer with an ACK."""
    READY = 4
    """Sent by a follower after WELCOME, when it has removed those of its data that the leader does not have. The
    message contains the begin and end offsets of the follower's partitions, and the size and the digest of its
    transaction log.
    """
    LIVE = 5
    """Sent by the leader: the initial copy is complete. The message contains the number of the last block whose data
    the copy includes; blocks with later numbers follow.
    """
    DROP = 6
    """Sent by the leader after retention has deleted records. The message contains the new begin offsets of the
    partitions.
    """
    BEGIN = 7
    """Sent by the leader: the names of partitions whose data the follower must drop, and for each of them the offset at
    which the follower then begins to store new data. This offset is after all data that the follower has of the
    partition.
    """
    HAND_OVER = 8
    """Sent by the leader to a follower that has all data: the follower is to apply for the leadership of the set
    now.
    """
    LEAVE = 9
    """Sent by a follower that will stop, or whose disk has failed, so that the leader no longer counts it as in sync.
    """
    WELCOME = 10
    """Sent by the leader as its first message: the leader's epoch, the list of all epochs that it knows, and an offset
    for each of its partitions. The offset is the end that the partition had in the last epoch that both the leader and
    the follower know.
    """
    REFUSED = 11
    """Sent by the leader instead of WELCOME if it does not accept the follower. The message contains the reason."""
    CAUGHT_UP = 12
    """Sent by the leader once, when the follower has all committed data."""
    COMMITTED = 13
    """Sent by the leader: the number of the last block that is committed in memory, and the number of the last block
    that is committed on the disk. The leader may wait some milliseconds before it sends this message. It does not send
    the message if it has meanwhile sent a new block, because the block contains these numbers, too. The follower does
    not answer this message.
    """


class Lane(IntEnum):
    """The condition that must be met before an entry counts as committed: all in-sync nodes have the entry in memory
    (MEMORY), or all have it on the disk (DISK).
    """

    MEMORY = 0
    DISK = 1


class Hello(NamedTuple):
    """The data in the body of FOLLOW, by which a follower describes itself to the leader. set: the broker id of the
    set. node: the follower's name. instance: the id of the follower's data directory. epoch: the highest epoch that the
    follower has seen.
    epochs: the number and the id of each epoch in which data of the follower was written.
    """

    set: int
    node: str
    instance: str
    epoch: int
    epochs: list[tuple[int, str]]


class StreamEntry(NamedTuple):
    """An entry of a block. name: `<topic>-<partition>` in UTF-8. base: byte offset of the first record. segment: byte
    offset of the beginning of the segment that contains the records. lane: a value of Lane. units: packed index units,
    UNIT_BYTES each. data: the records.
    """

    name: bytes
    base: int
    segment: int
    lane: int
    units: Buffer
    data: Sequence[Buffer]


class StreamBlock(NamedTuple):
    """A decoded block. number: the block's number. committed: the number of the last block that is committed in memory,
    and of the last block that is committed on the disk.
    """

    number: int
    committed: tuple[int, int]
    entries: list[StreamEntry]


class Ack(NamedTuple):
    """A follower's acknowledgement. received: the number of the last block that the follower has in memory. safe: the
    number of the last block that the follower has on the disk. ping: the number of the last ping that the follower has
    received.
    """

    received: int
    safe: int
    ping: int


class Ping(NamedTuple):
    number: int
    committed: tuple[int, int]


StreamMessage = tuple[Kind, memoryview]
"""A message of the stream: its kind, and the bytes after the kind."""


def encode_block(number: int, committed: tuple[int, int], entries: Sequence[StreamEntry]) -> list[Buffer]:
    """Return a BLOCK message as a list of buffers. The data of the entries is not copied."""
    rows = np.zeros(len(entries), _ROW)
    names, bases, segments, lanes, units, data = zip(*entries, strict=True) if entries else ((),) * 6
    rows["base"], rows["segment"], rows["lane"] = bases, segments, lanes
    rows["bytes"] = [sum(map(len, buffers)) for buffers in data]
    rows["units"] = [len(each) // UNIT_BYTES for each in units]
    rows["name"] = list(map(len, names))
    joined = b"".join(names)
    head = b"".join((_HEAD.pack(number, *committed, len(entries), len(joined)), rows.tobytes(), joined, *units))
    checksum = crc32(head)
    size = 1 + _CRC.size + len(head)
    buffers = [buffer for each in data for buffer in each]
    for buffer in buffers:
        checksum = crc32(buffer, checksum)
        size += len(buffer)
    return [_PREFIX.pack(size, Kind.BLOCK) + _CRC.pack(checksum) + head, *buffers]


def parse_block(payload: memoryview) -> StreamBlock:
    """Decode a BLOCK message. The units and the data of its entries are views of the payload. Raises
    RemoteProtocolError.
    """
    try:
        (checksum,) = _CRC.unpack_from(payload)
        number, memory, disk, count, names_bytes = _HEAD.unpack_from(payload, _CRC.size)
        at = _CRC.size + _HEAD.size
        rows = np.frombuffer(payload, _ROW, count, at).tolist()
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"a block of {len(payload)} bytes is cut: {error}") from error
    if crc32(payload[_CRC.size :]) != checksum:
        raise RemoteProtocolError(f"block {number} does not have its checksum")
    name_at = at + count * _ROW.itemsize
    unit_at = name_at + names_bytes
    data_at = unit_at + UNIT_BYTES * sum(row[3] for row in rows)
    entries = []
    for base, segment, size, units, name_bytes, lane, _ in rows:
        entries.append(
            StreamEntry(
                bytes(payload[name_at : name_at + name_bytes]),
                base,
                segment,
                lane,
                payload[unit_at : unit_at + UNIT_BYTES * units],
                (payload[data_at : data_at + size],),
            )
        )
        name_at += name_bytes
        unit_at += UNIT_BYTES * units
        data_at += size
    if data_at != len(payload):
        raise RemoteProtocolError(f"block {number} has {len(payload)} bytes, its entries {data_at}")
    return StreamBlock(number, (memory, disk), entries)


def encode_ack(ack: Ack) -> bytes:
    return _PREFIX.pack(1 + _ACK.size, Kind.ACK) + _ACK.pack(*ack)


def parse_ack(payload: memoryview) -> Ack:
    """Decode the payload of an ACK message, by which a follower acknowledges blocks. Raises RemoteProtocolError."""
    return Ack(*_unpack(_ACK, payload, "acknowledgement"))


def encode_ping(ping: Ping) -> bytes:
    return _PREFIX.pack(1 + _PING.size, Kind.PING) + _PING.pack(ping.number, *ping.committed)


def parse_ping(payload: memoryview) -> Ping:
    """Decode the payload of a PING message. Raises RemoteProtocolError."""
    number, memory, disk = _unpack(_PING, payload, "ping")
    return Ping(number, (memory, disk))


def encode_committed(committed: tuple[int, int]) -> bytes:
    return _PREFIX.pack(1 + _COMMITTED.size, Kind.COMMITTED) + _COMMITTED.pack(*committed)


def parse_committed(payload: memoryview) -> tuple[int, int]:
    """Decode the payload of a COMMITTED message. Return the numbers of the last blocks that are committed in memory and
    on the disk. Raises RemoteProtocolError.
    """
    memory, disk = _unpack(_COMMITTED, payload, "message of what is committed")
    return memory, disk


def encode_json(kind: Kind, value: Mapping[str, Any]) -> bytes:
    body = simplejson.dumps(value, separators=(",", ":")).encode()
    return _PREFIX.pack(1 + len(body), kind) + body


def parse_json(payload: memoryview) -> dict[str, Any]:
    """Decode the payload of a message that consists of a JSON object. Raises RemoteProtocolError."""
    try:
        value = simplejson.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a message of {len(payload)} bytes is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"a message is {type(value).__name__}, not an object")
    return value


def encode_hello(hello: Hello) -> bytes:
    return simplejson.dumps(hello._asdict()).encode()


def parse_hello(body: memoryview) -> Hello:
    """Decode the body of a FOLLOW request. Raises RemoteProtocolError."""
    if len(body) > MAX_HELLO_BYTES:
        raise RemoteProtocolError(f"FOLLOW with {len(body)} bytes, and not with {MAX_HELLO_BYTES} at most")
    words = parse_json(body)
    try:
        epochs = [(int(number), str(identity)) for number, identity in words["epochs"]]
        of_set, epoch = int(words["set"]), int(words["epoch"])
        return Hello(of_set, str(words["node"]), str(words["instance"]), epoch, epochs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"FOLLOW does not say who asks: {error!r}") from error


def _unpack(layout: Struct, payload: memoryview, what: str) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise RemoteProtocolError(f"the {what} has {len(payload)} bytes, not {layout.size}")
    return layout.unpack(payload)


def _frame_remark(data: bytes) -> str:
    """Return the remark of a response frame at the beginning of `data`, or "" if there is no such frame. A broker that
    refuses to serve a connection sends such a frame instead of messages of the stream.
    """
    try:
        length = frame_bytes(data, 0)
        return parse_frame(data, 0, length).remark if 0 < length <= len(data) else ""
    except RemoteProtocolError:
        return ""


class StreamReader:
    """Splits received bytes into messages of the stream. Each message is stored in a separate buffer, so that the
    caller can keep views of parts of a message without copying them.
    """

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._most = max_message_bytes
        self._head = b""
        self._body: memoryview | None = None
        self._filled = 0

    def receive(self, data: Buffer) -> list[StreamMessage]:
        """Take the next received bytes; return the messages that are complete now. Raises RemoteProtocolError."""
        found: list[StreamMessage] = []
        rest = memoryview(data)
        while len(rest):
            if self._body is None:
                missing = _LENGTH.size - len(self._head)
                self._head += bytes(rest[:missing])
                rest = rest[missing:]
                if len(self._head) < _LENGTH.size:
                    break
                (size,) = _LENGTH.unpack(self._head)
                if not 0 < size <= self._most:
                    if said := _frame_remark(self._head + bytes(rest)):
                        raise RemoteProtocolError(f"it refuses the stream: {said}")
                    raise RemoteProtocolError(f"a message of {size} bytes, and not of 1 to {self._most}")
                # a bytearray would first be filled with zeros
                self._body, self._filled, self._head = np.empty(size, np.uint8).data, 0, b""
            body = self._body
            taken = min(len(rest), len(body) - self._filled)
            body[self._filled : self._filled + taken] = rest[:taken]
            self._filled += taken
            rest = rest[taken:]
            if self._filled == len(body):
                found.append(self._message(body))
                self._body = None
        return found

    def _message(self, body: memoryview) -> StreamMessage:
        try:
            kind = Kind(body[0])
        except ValueError:
            raise RemoteProtocolError(f"no message is of kind {body[0]}") from None
        return kind, body[1:]

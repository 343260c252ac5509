"""Read stored records as bytes or as messages, and find out where damaged bytes end. metaq's own brokers find the end
of a damaged range themselves. For a Java broker, the client reads the bytes after the damage until it finds an intact
record.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import CorruptRecord, NoMessageBegins, OffsetOutOfRange
from metaq.protocol.frames import encode_frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.pulls import NOT_DAMAGED, READER_GROUP, PullReply, PullRequest
from metaq.protocol.record import HEADER, HEADER_BYTES
from metaq.protocol.refusals import text_error
from metaq.protocol.resync import RecordSearch
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Value, encode_get
from metaq.protocol.where import Where

from ..records.decoding import Records, decode_walking, in_bytes
from ..records.message import Message
from ..records.results import TopicPartition
from ..transport.connection import Build, Connection, Reply
from .asking import Asked, accepted, as_result, ask
from .partition_bounds import Bounds, bounds_behind, max_offset

__all__ = [
    "BegunPull",
    "Pulled",
    "Waiting",
    "damaged_bytes",
    "decode_records",
    "locate_damage",
    "located",
    "read_bytes",
    "read_chosen",
    "read_messages",
    "waiting_from",
]

_PULL_CODES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""Response codes of a pull's answer for which, as for SUCCESS, `accepted` raises no error: nothing was found, or the
offset is out of range.
"""


class Pulled(NamedTuple):
    """The answer to a pull. runs: groups of adjacent stored records, each group with its byte offset in the partition.
    next_offset: the byte offset at which the next pull must begin. It is None if records came over the text protocol;
    then the next pull begins where the last complete record ends.
    sizes: the sizes of the records in bytes, headers included, if there is only one run and the broker has sent the
    sizes.
    """

    runs: list[tuple[int, memoryview]]
    next_offset: int | None
    sizes: npt.NDArray[np.int64] | None = None


class BegunPull:
    """A pull that was sent to a broker. The broker reads and sends the records while the caller does other work.

    The pull reads stored records from byte `offset` on. If `tags` are given, the answer contains the records that have
    one of these tags, and perhaps a few others. The text protocol has no filter, so its answers contain all records.
    Only one thread may use the pull, and until the answer has come, this thread must not use the connection for
    anything else.
    """

    def __init__(
        self,
        connection: Connection,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        tags: tuple[str, ...] = (),
        where: Where | None = None,
    ) -> None:
        """where: the content filter, as in `read_chosen`. The caller must still apply the filter to the messages in the
        answer, because brokers without content filters send all messages.
        """
        self._connection = connection
        self._asked = partition, offset, max_bytes
        self._call = connection.begin(_build_pull(connection, partition, offset, max_bytes, tags, where))

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the answer. Return whether the pull has ended, so that `result` need not wait."""
        self._connection.drive(self._call, time.monotonic() + seconds)
        return self._call.done

    def result(self) -> Pulled:
        """Wait for the answer, at most for the request timeout, and return it. A result without runs means that the
        partition has no matching record between the pull's offset and next_offset. Raises the errors of `read_bytes`.
        """
        return _pulled(self._connection.finish(self._call), self._connection, *self._asked)


def read_bytes(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None = None
) -> memoryview:
    """Return the bytes of stored records from byte `offset` on. The first record is complete, the last record may be
    incomplete. At the end of the partition the result is empty.

    Raises OffsetOutOfRange, which contains the bounds of the readable bytes, if `offset` is outside of them. Raises
    CorruptRecord if the broker knows that no message begins at `offset`; a Java broker does not check this.
    """
    reply = connection.call(_build_pull(connection, partition, offset, max_bytes), timeout)
    runs = _pulled(reply, connection, partition, offset, max_bytes, timeout).runs
    return runs[0][1] if runs else memoryview(b"")


def read_messages(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None = None
) -> list[Message]:
    """Return messages from byte `offset` on: as many as have records that fit into `max_bytes` bytes, but at least one.
    At the end of the partition return [].

    Raises OffsetOutOfRange if the partition has no readable byte `offset`. Raises CorruptRecord, with the end of the
    damage, if the first record is damaged. If a later record is damaged, the list ends before this record; if the
    caller then reads from the record's offset on, that call raises CorruptRecord.
    """
    try:
        return decode_records(read_bytes(connection, partition, offset, max_bytes, timeout), partition, offset)
    except CorruptRecord as error:
        raise located(connection, partition, error, timeout) from None


def read_chosen(
    connection: Asked,
    partition: TopicPartition,
    offset: int,
    max_bytes: int,
    where: Where | None = None,
    timeout: float | None = None,
) -> tuple[list[Message], int]:
    """Read as `read_messages` does, but return only the messages that match the filter `where`, and the offset at which
    the next read must begin. If `where` is None, all messages match. At the end of the partition the returned offset
    equals `offset`. A broker that supports content filters does not even send the messages that do not match.
    """
    reply = connection.call(_build_pull(connection, partition, offset, max_bytes, where=where), timeout)
    pulled = _pulled(reply, connection, partition, offset, max_bytes, timeout)
    messages: list[Message] = []
    end = offset
    for start, data in pulled.runs:
        decoded = decode_walking(Records(*in_bytes(data), start, None), partition, where=where)
        messages += decoded.messages
        end = decoded.end
        if decoded.damage or end == start:
            if end > offset:
                return messages, end  # the next read begins with the damaged record
            cut = f"no complete message in {len(data)} bytes: does one begin there?"
            raise located(connection, partition, CorruptRecord.of(partition, start, decoded.damage or cut), timeout)
    return messages, end if pulled.next_offset is None else pulled.next_offset


def decode_records(data: memoryview, partition: TopicPartition, offset: int) -> list[Message]:
    """Decode the complete records of `data`, which begins at byte `offset` of `partition`, and return their messages.

    Raises CorruptRecord if the first record is damaged. If a later record is damaged, the list ends before this record.
    Also raises CorruptRecord if `data` contains no complete record, because brokers always send the first record
    completely.
    """
    decoded = decode_walking(Records(*in_bytes(data), offset, None), partition)
    messages = list(decoded.messages)
    if data and not messages:
        cut = f"no complete message in {len(data)} bytes: does one begin there?"
        raise CorruptRecord.of(partition, offset, decoded.damage or cut)
    return messages


class Waiting(NamedTuple):
    """How much data waits for a reader between its position and the end of a partition.

    bytes: number of bytes of the stored messages. messages: number of messages; it is None if the broker cannot count
    messages (a Java broker). seconds: number of seconds since the oldest of these messages was stored; it is 0.0 if
    there is no message, and None if the oldest message is damaged or its id has no time (a Java broker). id_before: the
    id of the message before the position, as in `bounds_behind`.
    """

    bounds: Bounds
    bytes: int
    messages: int | None
    seconds: float | None
    id_before: int = UNKNOWN_ID


def waiting_from(
    connection: Asked, partition: TopicPartition, position: int, now: float, last_id: int = UNKNOWN_ID
) -> Waiting:
    """Return how much stored data there is between byte `position` and the end of the partition. now: the current time
    in seconds since 1970. last_id: the id of the last message before the position, as far as the caller knows; see
    `bounds_behind`.
    """
    bounds, before, id_before = bounds_behind(connection, partition, position, last_id)
    begin = min(max(position, bounds.first), bounds.end)
    if begin == bounds.end:
        return Waiting(bounds, 0, None if bounds.messages is None else 0, 0.0, id_before)
    messages = None if before is None or bounds.messages is None else bounds.messages - before
    try:
        oldest = read_messages(connection, partition, begin, 1)
    except (CorruptRecord, OffsetOutOfRange):
        oldest = []
    stored = oldest[0].timestamp_ms if oldest else None
    seconds = None if stored is None else max(0.0, now - stored / 1000)
    return Waiting(bounds, bounds.end - begin, messages, seconds, id_before)


# --- damage -----------------------------------------------------------------------------------------------------------


def locate_damage(
    connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None
) -> CorruptRecord | None:
    """If the record at byte `offset` of a partition is damaged, return an error object that describes the damage, with
    the offset where it ends. Return None if the record is intact.

    metaq's own broker searches for the end of the damage itself, and remembers the result. Over the text protocol, this
    function reads the bytes up to the next intact record or the end of the partition, and blocks meanwhile.
    """
    if connection.speaks_frames:
        request = PullRequest(partition.topic, partition.partition, offset, 1, READER_GROUP, verify=True)
        frame = ask(connection, RequestCode.PULL, request.to_ext(), partition, timeout, _PULL_CODES)
        reply = PullReply.from_ext(frame.ext)
        if reply.damaged_from == NOT_DAMAGED:
            return None
        return damaged_bytes(partition, reply.damaged_from, reply.next_offset)
    end = max_offset(connection, partition, timeout)

    def read(size: int, position: int) -> bytes:
        """Return `size` bytes from `position` on, or fewer at the end of the partition. More than one request is needed
        if `size` is above the broker's maxTransferSize, or if the bytes are in several segments.
        """
        data = b""
        while len(data) < size:
            more = _get_once(connection, partition, position + len(data), size - len(data), timeout)
            if not more:
                break
            data += more
        return data

    search = RecordSearch(read, offset, end, offset)
    if offset >= end or search.begins_good():
        return None
    while not search.step():
        pass
    return damaged_bytes(partition, offset, end if search.found is None else search.found)


def located(
    connection: Asked, partition: TopicPartition, error: CorruptRecord, timeout: float | None = None
) -> CorruptRecord:
    """Complete `error`, which a reader has raised for a damaged record: if it lacks the end of the damage, return the
    error that `locate_damage` finds at its position. Return `error` itself if it is complete, or if `locate_damage`
    finds no damage there.
    """
    return error if error.end is not None else locate_damage(connection, partition, error.position, timeout) or error


def damaged_bytes(partition: TopicPartition, start: int, end: int) -> CorruptRecord:
    """Return the error which says that the bytes [start, end) of a partition are damaged and contain no intact
    record.
    """
    return CorruptRecord.of(partition, start, "no good record is there", end)


# --- frames and text --------------------------------------------------------------------------------------------------


def _build_pull(
    connection: Asked,
    partition: TopicPartition,
    offset: int,
    max_bytes: int,
    tags: tuple[str, ...] = (),
    where: Where | None = None,
) -> Build:
    if not connection.speaks_frames:
        return _build_get(connection, partition, offset, max_bytes)
    text = where.text if where is not None and connection.takes_where else ""
    request = PullRequest(
        partition.topic, partition.partition, offset, max_bytes, READER_GROUP, tags, sizes=True, where=text
    )
    return lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),)


def _pulled(
    reply: Reply,
    connection: Asked,
    partition: TopicPartition,
    offset: int,
    max_bytes: int,
    timeout: float | None = None,
) -> Pulled:
    """Decode the answer to a pull request or a `get` command that reads from `offset` on. Raises the errors of
    `read_bytes`.
    """
    if not connection.speaks_frames:
        data = _got(reply, connection, partition, offset)
        # The answer to a `get` is cut at the requested size, even inside its first record: then request more bytes.
        while len(data) >= max_bytes and not _first_is_whole(data) and max_bytes <= MAX_FRAME_BYTES:
            max_bytes *= 2
            data = _get_once(connection, partition, offset, max_bytes, timeout)
        return Pulled([(offset, data)] if data else [], None if data else offset)
    frame = accepted(reply, connection, partition, _PULL_CODES)
    answer = PullReply.from_ext(frame.ext)
    if frame.code == ResponseCode.PULL_OFFSET_MOVED:
        if answer.damaged_from != NOT_DAMAGED:
            raise damaged_bytes(partition, answer.damaged_from, answer.next_offset)
        if answer.min_offset <= offset <= answer.max_offset:
            raise NoMessageBegins.there(partition, offset, answer.next_offset)
        raise OffsetOutOfRange(offset, answer.min_offset, answer.max_offset)
    runs, sizes = answer.records_in(frame.body, offset)
    return Pulled(runs, answer.next_offset, sizes)


def _get_once(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None
) -> memoryview:
    return _got(
        connection.call(_build_get(connection, partition, offset, max_bytes), timeout), connection, partition, offset
    )


def _build_get(connection: Asked, partition: TopicPartition, offset: int, max_bytes: int) -> Build:
    place = partition.topic, READER_GROUP, partition.partition, offset, max_bytes
    return lambda opaque: (encode_get(*place, opaque, connection.knows_compressed),)


def _got(reply: Reply, connection: Asked, partition: TopicPartition, offset: int) -> memoryview:
    """Return the bytes in the answer to a `get` command that reads from `offset` on. Raises OffsetOutOfRange and the
    errors of text_error.
    """
    if isinstance(reply, Value):
        return reply.data
    result = as_result(reply, connection)
    if result.code == Status.NOT_FOUND:
        return memoryview(b"")
    if result.code == Status.MOVED and result.text.isdigit():
        raise OffsetOutOfRange(offset, int(result.text), int(result.text))  # 1.x reports only the nearer bound
    raise text_error(result, partition, connection.endpoint)


def _first_is_whole(data: memoryview) -> bool:
    return len(data) >= HEADER_BYTES and HEADER.unpack_from(data)[0] <= len(data) - HEADER_BYTES

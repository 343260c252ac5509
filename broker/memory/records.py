"""Make the records of an internal log, and split such a log into its records. Each kind of message defines the content
of its records' bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from metaq.protocol.record import HEADER, HEADER_BYTES, checksum

from ..store.index import UNIT
from ..store.segments import Snapshot

__all__ = ["internal_record", "read_bodies", "read_cut", "record_id_at"]

_READ_BYTES = 4 << 20


def record_id_at(time_ms: float) -> int:
    """Return the id for a record that is written to an internal log at `time_ms` (Unix ms)."""
    return max(0, int(time_ms) - EPOCH_MS) << TIME_SHIFT


def internal_record(body: bytes, record_id: int, offset: int) -> tuple[bytes, bytes]:
    """Return a whole record and its index unit, to be appended at byte `offset` of an internal log. record_id: the
    result of `record_id_at`, which includes the time.
    """
    size = HEADER_BYTES + len(body)
    unit = UNIT.pack(offset, record_id, (record_id >> TIME_SHIFT) + EPOCH_MS, size, 0)
    return HEADER.pack(len(body), checksum(body), record_id, 0) + body, unit


def read_cut(
    snapshot: Snapshot, first_offset: int, most_bytes: int | None = None
) -> Iterator[tuple[int, bytes, Sequence[tuple[int, int]]]]:
    """Read an internal log in pieces that contain several records, and yield the pieces in order. Each item has the
    piece's byte offset in the log, the piece's bytes, and for each record in the piece the indexes [start, end) of its
    body in these bytes. The iteration stops after about `most_bytes` bytes, at the end of a record. Raises StoreError.
    """
    last = None if most_bytes is None else first_offset + most_bytes
    size = _READ_BYTES if most_bytes is None else min(_READ_BYTES, most_bytes)
    offset, rest = first_offset, b""
    unpack = HEADER.unpack_from
    while (last is None or offset - len(rest) < last) and (data := snapshot.read(offset, size)):
        base = offset - len(rest)
        offset += len(data)
        rest += data
        start, most = 0, len(rest) if last is None else last - base
        bodies = []
        while start < most and start + HEADER_BYTES <= len(rest):
            end = start + HEADER_BYTES + unpack(rest, start)[0]
            if end > len(rest):
                break
            bodies.append((start + HEADER_BYTES, end))
            start = end
        if bodies:
            yield base, rest, bodies
        rest = rest[start:]


def read_bodies(snapshot: Snapshot, first_offset: int, most_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the end offset and the body of each record of an internal log. The arguments have the same meaning as in
    `read_cut`.
    """
    for base, data, bodies in read_cut(snapshot, first_offset, most_bytes):
        for start, end in bodies:
            yield base + end, data[start:end]

"""Hold the messages of one partition of a FakeBroker in memory, in a MemoryLog."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import (
    HEADER,
    HEADER_BYTES,
    Buffer,
    RecordHeader,
    checksum,
    is_blank,
    iter_headers,
    tag_hash,
    tag_hash_of_body,
)
from metaq.protocol.where import Where

__all__ = ["MemoryLog", "checked"]


def checked(records: memoryview, sizes: list[int]) -> list[RecordHeader]:
    """Check the records of a batch, and return their headers. sizes: the size of each record in bytes. Raises
    RemoteProtocolError, as a broker does, for records that a client must not send.
    """
    found = list(iter_headers(records, stored=False))
    if [each.length + HEADER_BYTES for each in found] != sizes:
        raise RemoteProtocolError("record sizes do not match the records")
    if any(checksum(records[each.start + HEADER_BYTES : each.end]) != each.checksum or each.id for each in found):
        raise RemoteProtocolError("a record has a wrong checksum, or an id")
    return found


@dataclass(slots=True)
class MemoryLog:
    """The log of one partition. data: the bytes of all records, without gaps. first: the offset that the first stored
    byte, data[0], has in the partition. starts: the offsets of the records.
    """

    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    first: int = 0
    closed: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    def append(self, body: Buffer, identity: int, flag: int) -> int:
        """Store one record and return its offset."""
        offset = self.end
        self.starts.append(offset)
        self.ids.append(identity)
        self.tags.append(tag_hash_of_body(body, flag))
        self.data += HEADER.pack(len(body), checksum(body), identity, flag)
        self.data += body
        return offset

    def append_all(self, records: memoryview, found: list[RecordHeader], ids: list[int]) -> int:
        """Store the records of a batch, and return the offset of the first record."""
        start = self.end
        for each, identity in zip(found, ids, strict=True):
            self.append(records[each.start + HEADER_BYTES : each.end], identity, each.flag)
        return start

    def drop_before(self, offset: int) -> None:
        """Drop the records before `offset`, as a real broker drops old records. A record must begin at `offset`."""
        count = int(np.searchsorted(self.starts, offset))
        del self.data[: offset - self.first]
        del self.starts[:count], self.ids[:count], self.tags[:count]
        self.first = offset

    def begin_of(self, offset: int) -> int:
        """Return the offset of the record that contains the byte at `offset`. If `offset` is the end of the log, return
        it unchanged.
        """
        return offset if offset == self.end else self.starts[bisect_right(self.starts, offset) - 1]

    def bodies(self) -> list[bytes]:
        """Return the bodies of all records, in order."""
        data = bytes(self.data)
        return [data[each.start + HEADER_BYTES : each.end] for each in iter_headers(data)]

    def before(self, offset: int) -> int:
        """Return the number of records that end at or before `offset`."""
        if offset >= self.end:
            return len(self.starts)
        return max(0, int(np.searchsorted(self.starts, offset, side="right")) - 1)

    def sizes(self, offset: int, max_bytes: int) -> list[int]:
        """Return the sizes (header and body) of the records that lie completely in the `max_bytes` bytes from `offset`
        on. As in a real broker, which has the sizes in its index, the sizes are correct even for damaged records.
        """
        ends = [*self.starts[1:], self.end]
        known = zip(self.starts, ends, strict=False)  # without a record, ends still has one item
        return [end - start for start, end in known if start >= offset and end <= offset + max_bytes]

    def damage_at(self, offset: int) -> int | None:
        """Return the offset of the next record if the record at `offset` is damaged. Return None if it is intact, or if
        no record begins at `offset`.
        """
        if offset not in self.starts:
            return None
        (size, *_) = self.sizes(offset, len(self.data))
        record = bytes(self.data[offset - self.first : offset - self.first + size])
        header = HEADER.unpack_from(record)
        body = record[HEADER_BYTES:]
        good = header[0] == len(body) and header[1] == checksum(body) and not is_blank(*header[:3])
        return None if good else offset + size

    def slice(self, offset: int, max_bytes: int, whole_first: bool = False) -> bytes:
        start = offset - self.first
        if whole_first and offset in self.starts:
            max_bytes = max(max_bytes, self.sizes(offset, len(self.data))[0])
        return bytes(self.data[start : start + max_bytes])

    def chosen(self, offset: int, tags: Iterable[str], where: Where | None) -> list[tuple[int, int]]:
        """Return (offset, size) of each record from `offset` on that has one of the `tags` and matches the filter
        `where`. If `tags` is empty, tags are not checked; if `where` is None, no filter is evaluated.
        """
        wanted = {tag_hash(tag) for tag in tags}
        ends = [*self.starts[1:], self.end]
        known = zip(self.starts, ends, self.tags, strict=False)
        found = [(start, end - start) for start, end, tag in known if start >= offset and (not wanted or tag in wanted)]
        return found if where is None else [each for each in found if where.holds_for(*self._record(*each))]

    def _record(self, offset: int, size: int) -> tuple[bytes, int]:
        """Return the body and the flag of the record at `offset`."""
        record = self.slice(offset, size)
        return record[HEADER_BYTES:], HEADER.unpack_from(record)[3]

"""Hold fetched records until they are delivered to the user."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import CorruptRecord
from metaq.protocol.record import COMPRESSED_FLAG, EXPIRES_FLAG
from metaq.protocol.where import Where

from ..records.decoding import Decoded, Records, decode_sized, decode_walking, in_bytes
from ..records.message import Message
from ..records.results import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from ..records.arrow import DecodedColumns

__all__ = ["Chunk"]


@dataclass(slots=True, eq=False)
class Chunk(Records):
    """A sequence of fetched records that are adjacent in the log. The checksums of the records are checked only when
    the records are delivered. Each delivery moves `start` (the index in the data) and `offset` (the byte offset in the
    partition) to the next record that is not delivered.

    end_offset: the offset in the partition where the next chunk begins. This offset may be after the end of the chunk's
    last record, because the broker leaves out records that the tag filter does not accept. damage: set if the bytes up
    to end_offset are damaged; the chunk then has no records.

    A chunk may be used by only one thread at a time.
    """

    end_offset: int
    damage: CorruptRecord | None = None
    _decoded: Decoded | None = field(default=None, init=False)
    _columns: DecodedColumns | None = field(default=None, init=False)
    _batch: pyarrow.RecordBatch | None = field(default=None, init=False)
    """All rows of `_columns` as one record batch. It is None if a payload is compressed or the batch was not made
    yet.
    """
    last_id: int | None = field(default=None, init=False)
    _taken: int = field(default=0, init=False)
    """Number of delivered messages of `_decoded`, or of delivered rows of `_columns`."""

    @classmethod
    def of(
        cls,
        records: memoryview | bytes,
        offset: int,
        end_offset: int,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> Chunk:
        """Return a chunk with these records, which begin at the byte position `offset` of the partition. If `records`
        is a memoryview of bytes, it is not copied.
        """
        return cls(*in_bytes(records), offset, sizes, end_offset)

    @classmethod
    def damaged(cls, damage: CorruptRecord, offset: int) -> Chunk:
        """Return a chunk without records that represents the damaged bytes from `offset` to the end of the damage. The
        data after the damage are in other chunks.
        """
        return cls(b"", 0, 0, offset, None, offset if damage.end is None else damage.end, damage)

    @property
    def bytes_left(self) -> int:
        """Number of bytes of this chunk that are not delivered yet."""
        return self.end - self.start

    @property
    def reached(self) -> int:
        """The byte offset in the partition before which all records are delivered or filtered out."""
        return self.offset if self.start < self.end else self.end_offset

    def take(
        self,
        partition: TopicPartition,
        limit: int,
        tags: Container[str] | None = None,
        check: bool = True,
        where: Where | None = None,
    ) -> list[Message]:
        """Remove at most `limit` messages from the front of the chunk, and return them.

        tags: only messages with one of these tags are returned; the broker has compared only hashes of tags, so other
        messages may be in the chunk. where: only messages that match this filter are returned; a broker that cannot
        filter has sent all messages. check: whether to check the records' checksums. An incomplete record at the end of
        the data is left out. If a record is damaged, the records before it are returned. If the damaged record is the
        first one left in the chunk, CorruptRecord is raised.
        """
        if self.damage is not None:
            raise self.damage
        if self._columns is not None:
            self._forget_batch()
        decoded = self._decoded
        if decoded is None:
            decode = decode_walking if self.sizes is None else decode_sized
            decoded = self._decoded = decode(self, partition, tags, check, where)
        if decoded.damage and self.offset == decoded.end:
            raise CorruptRecord.of(partition, self.offset, decoded.damage)
        messages = list(islice(decoded.messages, limit))
        self._taken += len(messages)
        self._move(messages[-1].next_offset if self._taken < decoded.total else decoded.end)
        return messages

    @property
    def may_expire(self) -> bool:
        """Whether any message that `take` returns may have an expiry time."""
        return self._decoded is not None and bool(self._decoded.flags & EXPIRES_FLAG)

    @property
    def gives_batches(self) -> bool:
        """Whether `take_batch` may be called: true if the sizes of the records are known and no message of the chunk
        was decoded yet.
        """
        return self.sizes is not None and self._decoded is None

    def take_batch(
        self, partition: TopicPartition, limit: int, check: bool = True, now_ms: int = 0
    ) -> pyarrow.RecordBatch:
        """Take messages as `take` does, but return them as one record batch (arrow.SCHEMA). Messages that have expired
        at `now_ms` (Unix milliseconds) are left out.

        The batch may be empty. Afterwards `last_id` is the id of the last message that was taken. CorruptRecord is also
        raised if the first remaining message cannot be decompressed; the error's attribute `end` is then the offset
        after this message.
        """
        from ..records.arrow import decode_columns  # pyarrow is an extra

        if self._columns is None:
            self._columns = decode_columns(self, partition, check)
            self._batch = self._columns.columns.to_batch() if self._columns.packed is None else None
        columns, batch, first = self._columns, self._batch, self._taken
        if columns.damage and self.offset == columns.end:
            raise CorruptRecord.of(partition, self.offset, columns.damage)
        if batch is None:
            rows = columns.unpacked(partition, first, limit).columns.to_batch()
        else:
            rows = batch if not first and batch.num_rows <= limit else batch.slice(first, limit)
        self._pass(rows.num_rows)
        return rows if columns.expires is None else _living(rows, columns.expires[first : self._taken] > now_ms)

    def keep_unpackable(self, taken: list[Message]) -> list[Message]:
        """`taken` must be the result of the last `take`. Return its messages before the first message that cannot be
        decompressed. Put back that message and the following ones. Raises CorruptRecord if the first message of `taken`
        cannot be decompressed, because then there is nothing to return.
        """
        for number, message in enumerate(taken):
            if message.flag & COMPRESSED_FLAG:
                try:
                    message.payload  # noqa: B018
                except CorruptRecord:
                    self.give_back(taken[number:])
                    if not number:
                        raise
                    return taken[:number]
        return taken

    def pass_unreadable(self) -> None:
        """Skip the first remaining message, which cannot be decompressed. Called after CorruptRecord was raised for
        it.
        """
        if self._columns is not None:
            self._pass(1)
            return
        assert self._decoded is not None
        (message,) = islice(self._decoded.messages, 1)
        self.last_id = message.id
        self._taken += 1
        self._move(message.next_offset if self._taken < self._decoded.total else self._decoded.end)

    def _pass(self, count: int) -> None:
        """Mark the next `count` rows of `_columns` as delivered."""
        assert self._columns is not None
        columns, self._taken = self._columns.columns, self._taken + count
        self.last_id = int(columns.ids[self._taken - 1]) if count else None
        end = self._taken == len(columns.ids)
        self._move(self._columns.end if end else columns.offset[self._taken].as_py())

    def _forget_batch(self) -> None:
        """Forget the decoded `_columns`, because the remaining records must now be decoded as messages."""
        assert self.sizes is not None
        self.sizes = self.sizes[self._taken :]
        self._columns, self._batch, self._taken = None, None, 0

    def give_back(self, messages: Sequence[Message]) -> None:
        """Put messages that the last `take` has returned back into the chunk."""
        assert self._decoded is not None
        self._decoded = self._decoded._replace(messages=chain(messages, self._decoded.messages))
        self._taken -= len(messages)
        self._move(messages[0].offset)

    def _move(self, offset: int) -> None:
        self.start += offset - self.offset
        self.offset = offset


def _living(rows: pyarrow.RecordBatch, living: npt.NDArray[np.bool_]) -> pyarrow.RecordBatch:
    import pyarrow as pa  # an extra

    return rows if living.all() else rows.filter(pa.array(living))

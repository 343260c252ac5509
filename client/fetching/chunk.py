"""Fetched records that wait to be handed out."""

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
from ..records.values import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from ..records.arrow import DecodedColumns

__all__ = ["Chunk"]


@dataclass(slots=True, eq=False)
class Chunk(Records):
    """Records of which nothing is checked before they are handed out; start and offset move with what is handed out.

    end_offset: the position once the chunk is used up; it may lie behind the last record, where the broker skipped
    others (tag filter). damage: set if the bytes up to end_offset are damaged, and there is no record.

    One thread at a time.
    """

    end_offset: int
    damage: CorruptRecord | None = None
    _decoded: Decoded | None = field(default=None, init=False)
    _columns: DecodedColumns | None = field(default=None, init=False)
    _batch: pyarrow.RecordBatch | None = field(default=None, init=False)
    """Of all of `_columns`, if no payload is compressed."""
    last_id: int | None = field(default=None, init=False)
    _taken: int = field(default=0, init=False)
    """Messages of `_decoded`, or rows of `_columns`, that were handed out."""

    @classmethod
    def of(
        cls,
        records: memoryview | bytes,
        offset: int,
        end_offset: int,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> Chunk:
        """The chunk of these records, which begin at `offset`. A view into bytes is not copied."""
        return cls(*in_bytes(records), offset, sizes, end_offset)

    @classmethod
    def damaged(cls, damage: CorruptRecord, offset: int) -> Chunk:
        """What stands for damaged bytes that were met at `offset`, in front of what follows them."""
        return cls(b"", 0, 0, offset, None, offset if damage.end is None else damage.end, damage)

    @property
    def bytes_left(self) -> int:
        """Bytes not handed out yet."""
        return self.end - self.start

    @property
    def reached(self) -> int:
        """The position behind what was handed out."""
        return self.offset if self.start < self.end else self.end_offset

    def take(
        self,
        partition: TopicPartition,
        limit: int,
        tags: Container[str] | None = None,
        check: bool = True,
        where: Where | None = None,
    ) -> list[Message]:
        """At most `limit` messages from the front, which moves past them.

        tags: only messages with one of these (the broker compares hashes, so others may be among them). where: only
        those for which it holds (not every broker filters by it). check: whether checksums are compared. A cut last
        record is left out. Raises CorruptRecord for a damaged record once that is the first one left; before it returns
        what is good in front of it.
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
        """Whether any of the messages that `take` gives has a time from which on it is handed out no more."""
        return self._decoded is not None and bool(self._decoded.flags & EXPIRES_FLAG)

    @property
    def gives_batches(self) -> bool:
        """Whether `take_batch` may be called: sizes are known, and no messages were made of it already."""
        return self.sizes is not None and self._decoded is None

    def take_batch(
        self, partition: TopicPartition, limit: int, check: bool = True, now_ms: int = 0
    ) -> pyarrow.RecordBatch:
        """As `take`, as one record batch (arrow.SCHEMA), without what has expired at `now_ms` (since 1970): it may be
        empty. `last_id` is then of the last message that was taken for it. Raises CorruptRecord with its end, too: the
        first one left cannot be unpacked."""
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
        """What `take` has just returned, up to the first message that cannot be unpacked: it and those behind it are
        left here again. Raises CorruptRecord if that is the first one."""
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
        """The first message left is one that CorruptRecord was raised for, as it cannot be unpacked."""
        if self._columns is not None:
            self._pass(1)
            return
        assert self._decoded is not None
        (message,) = islice(self._decoded.messages, 1)
        self.last_id = message.id
        self._taken += 1
        self._move(message.next_offset if self._taken < self._decoded.total else self._decoded.end)

    def _pass(self, count: int) -> None:
        """So many rows of `_columns` are done with."""
        assert self._columns is not None
        columns, self._taken = self._columns.columns, self._taken + count
        self.last_id = int(columns.ids[self._taken - 1]) if count else None
        end = self._taken == len(columns.ids)
        self._move(self._columns.end if end else columns.offset[self._taken].as_py())

    def _forget_batch(self) -> None:
        """Messages are wanted of what is left."""
        assert self.sizes is not None
        self.sizes = self.sizes[self._taken :]
        self._columns, self._batch, self._taken = None, None, 0

    def give_back(self, messages: Sequence[Message]) -> None:
        """Undo the `take` that has just returned these."""
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

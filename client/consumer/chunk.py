"""Fetched records that wait to be handed out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import CorruptRecord
from metaq.protocol.where import Where

from ..decoding import Decoded, Records, decode_sized, decode_walking, in_bytes
from ..message import Message
from ..values import TopicPartition

if TYPE_CHECKING:
    import pyarrow

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
    _batch: tuple[pyarrow.RecordBatch, int, str] | None = field(default=None, init=False)
    """As DecodedColumns."""
    _taken: int = field(default=0, init=False)
    """Messages of `_decoded`, or rows of `_batch`, that were handed out."""

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
        if self._batch is not None:
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
    def gives_batches(self) -> bool:
        """Whether `take_batch` may be called: sizes are known, and no messages were made of it already."""
        return self.sizes is not None and self._decoded is None

    def take_batch(self, partition: TopicPartition, limit: int, check: bool = True) -> pyarrow.RecordBatch:
        """As `take`, as one record batch (arrow.SCHEMA)."""
        from ..arrow import decode_columns  # pyarrow is an extra

        if self._batch is None:
            columns, end, damage = decode_columns(self, partition, check)
            self._batch = columns.to_batch(), end, damage
        batch, end, damage = self._batch
        if damage and self.offset == end:
            raise CorruptRecord.of(partition, self.offset, damage)
        rows = batch if not self._taken and batch.num_rows <= limit else batch.slice(self._taken, limit)
        self._taken += rows.num_rows
        self._move(batch["offset"][self._taken].as_py() if self._taken < batch.num_rows else end)
        return rows

    def _forget_batch(self) -> None:
        """Messages are wanted of what is left."""
        assert self.sizes is not None
        self.sizes = self.sizes[self._taken :]
        self._batch, self._taken = None, 0

    def give_back(self, messages: Sequence[Message]) -> None:
        """Undo the `take` that has just returned these."""
        assert self._decoded is not None
        self._decoded = self._decoded._replace(messages=chain(messages, self._decoded.messages))
        self._taken -= len(messages)
        self._move(messages[0].offset)

    def _move(self, offset: int) -> None:
        self.start += offset - self.offset
        self.offset = offset

"""Fetched records that wait to be handed out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import CorruptRecord

from ..message import Message
from ..values import TopicPartition
from .decoding import Decoded, decode_sized, decode_walking

if TYPE_CHECKING:
    import pyarrow

    from .arrow import DecodedBatch

__all__ = ["Chunk"]


@dataclass(slots=True, eq=False)
class Chunk:
    """Records that lie back to back in a partition; nothing is checked before they are handed out.

    They are data[start:end], where `data` is what was received and is never copied; start moves with what is handed
    out. offset: of data[start]. end_offset: the position once the chunk is used up; it may lie behind the last record,
    where the broker skipped others (tag filter). sizes: of all records with their headers, which fill [start, end);
    None if they are not known. damage: set if the bytes up to end_offset are damaged, and there is no record.

    One thread at a time.
    """

    data: bytes
    start: int
    end: int
    offset: int
    end_offset: int
    sizes: npt.NDArray[np.int64] | None = None
    damage: CorruptRecord | None = None
    _decoded: Decoded | None = field(default=None, init=False)
    _batch: DecodedBatch | None = field(default=None, init=False)
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
        if isinstance(records, bytes):
            return cls(records, 0, len(records), offset, end_offset, sizes)
        whole = records.obj
        if not isinstance(whole, bytes) or not records.contiguous:
            return cls.of(bytes(records), offset, end_offset, sizes)
        start = _address(records) - _address(whole)
        return cls(whole, start, start + len(records), offset, end_offset, sizes)

    @classmethod
    def damaged(cls, damage: CorruptRecord, offset: int) -> Chunk:
        """What stands for damaged bytes that were met at `offset`, in front of what follows them."""
        return cls(b"", 0, 0, offset, offset if damage.end is None else damage.end, damage=damage)

    @property
    def bytes_left(self) -> int:
        """Bytes not handed out yet."""
        return self.end - self.start

    def take(
        self, partition: TopicPartition, limit: int, tags: Container[str] | None = None, check: bool = True
    ) -> list[Message]:
        """At most `limit` messages from the front, which moves past them.

        tags: only messages with one of these (the broker compares hashes, so others may be among them). check: whether
        checksums are compared. A cut last record is left out. Raises CorruptRecord for a damaged record once that is
        the first one left; before it returns what is good in front of it.
        """
        if self.damage is not None:
            raise self.damage
        if self._batch is not None:
            self._forget_batch()
        decoded = self._decoded
        if decoded is None:
            decode = decode_walking if self.sizes is None else decode_sized
            decoded = self._decoded = decode(self, partition, tags, check)
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
        from .arrow import decode_batch  # pyarrow is an extra

        decoded = self._batch
        if decoded is None:
            decoded = self._batch = decode_batch(self, partition, check)
        if decoded.damage and self.offset == decoded.end:
            raise CorruptRecord.of(partition, self.offset, decoded.damage)
        whole = not self._taken and decoded.batch.num_rows <= limit
        rows = decoded.batch if whole else decoded.batch.slice(self._taken, limit)
        self._taken += rows.num_rows
        rest = self._taken < decoded.batch.num_rows
        self._move(decoded.batch["offset"][self._taken].as_py() if rest else decoded.end)
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


def _address(buffer: memoryview | bytes) -> int:
    """Where a buffer lies in memory. A memoryview does not tell its position inside its object in another way."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

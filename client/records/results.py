"""The types of some results of the client's methods: SendResult, BatchResults and Lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, overload

from metaq.protocol.arrays import np
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BatchResults", "Lag", "SendResult", "TopicPartition"]


class SendResult(NamedTuple):
    """The result of sending a message: the message's id, its partition, and the byte position of its record in the
    partition.

    offset: it is -1 while the message has no offset, because the message is in an uncommitted transaction or in a local
    store. For a message in a local store, message_id is 0, too.

    replicas: the number of nodes of a broker set that had the message when it was acknowledged: on disk with
    `ack=disk`, otherwise at least in memory. The number is 1 with `ack=leader` and in a transaction. `replicas` is None
    if the broker does not report the number: the broker is no node of a broker set, or the client uses the text
    protocol.

    due: for a message that was sent with `deliver_at` or `delay`, the time in UTC when the broker delivers the message.
    It is None for all other messages. The offset of a delayed message is -1, and the delivered message gets another id.
    `Producer.cancel` accepts this result.
    """

    message_id: int
    partition: TopicPartition
    offset: int
    replicas: int | None = None
    due: datetime | None = None

    @property
    def pending(self) -> bool:
        """Whether the message has no offset in its partition yet: it is delayed, in an uncommitted transaction, or in a
        local store.
        """
        return self.offset < 0


_make = partial(tuple.__new__, SendResult)
"""Makes a SendResult like SendResult._make, but without a call of a Python function for each result."""


class BatchResults(Sequence[SendResult]):
    """The results of sending one batch. Each result is computed only when it is read, from the id and the offset of the
    first message and from the sizes of the records.
    """

    __slots__ = ("_first_id", "_ids", "_listed", "_offsets", "partition", "replicas")

    def __init__(
        self,
        first_id: int,
        partition: TopicPartition,
        offset: int,
        sizes: npt.NDArray[np.int64],
        replicas: int | None = None,
    ) -> None:
        self.partition = partition
        self.replicas = replicas
        self._first_id = first_id
        self._ids: npt.NDArray[np.int64] | None = None
        self._listed: tuple[list[int], list[int]] | None = None
        self._offsets = np.empty(len(sizes), dtype=np.int64)
        self._offsets[0] = offset
        np.cumsum(sizes[:-1], out=self._offsets[1:])
        self._offsets[1:] += offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def message_ids(self) -> npt.NDArray[np.int64]:
        """The ids of all messages of the batch, as int64."""
        if self._ids is None:
            self._ids = message_ids_from(self._first_id, len(self))
        return self._ids

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The byte offsets of all messages of the batch, as int64."""
        return self._offsets

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._listed is None:  # numpy converts single numbers far more slowly than all at once
            self._listed = self.message_ids.tolist(), self._offsets.tolist()
        ids, offsets = self._listed
        return SendResult(ids[index], self.partition, offsets[index], self.replicas)

    def __iter__(self) -> Iterator[SendResult]:
        ids, offsets = self.message_ids.tolist(), self._offsets.tolist()
        return map(_make, zip(ids, repeat(self.partition), offsets, repeat(self.replicas), repeat(None)))

    def __repr__(self) -> str:
        return f"<{len(self)} results, partition {self.partition}, from offset {int(self._offsets[0])}>"


class Lag(NamedTuple):
    """How far a consumer's position is behind the end of a partition, in bytes and in messages.

    `messages` is None if the broker cannot count messages (a Java broker). Both fields are None until the broker has
    told the consumer where it begins to read.
    """

    messages: int | None
    bytes: int | None

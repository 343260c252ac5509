"""One append of a request's records, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..delays.deliverer import Delayed
from ..store.partition_log import PartitionLog
from ..store.store import Append

if TYPE_CHECKING:
    from .sequences import Stored

__all__ = ["Number", "Write"]


@dataclass(slots=True, eq=False)
class Number:
    """The number that a producer has given to a write.

    records: the number of records in the write, with the bits of `row_bits` for delayed messages. repeat_ms: how many
    milliseconds ago the producer first sent the write; -1 if this is no repetition. before: the producer's last stored
    write at the time when this one was admitted.
    """

    producer: int
    sequence: int
    records: int = 1
    repeat_ms: int = -1
    before: Stored | None = None


class Write(Append):
    """Whole records to append to one partition, and the result of the append. The object lives until its request is
    answered.

    After `Sequences.admit`, a repeated write has `first_id`, `base`, `end` and `delayed` of the write that was stored
    first.
    """

    __slots__ = ("copy_errors", "delayed", "first_id", "number", "replicas")

    def __init__(self, log: PartitionLog, data: Sequence[Buffer] = (), units: Buffer = b"") -> None:
        Append.__init__(self, log, data, units)  # `super` would take a fifth of the time
        self.number: Number | None = None
        self.delayed: Delayed | None = None
        """Set for delayed and half messages. `log` is then the internal log where they wait."""
        self.first_id = 0
        """The ordinary id of the first record; 0 where nobody needs it."""
        self.copy_errors: Sequence[MetaqError | None] = ()
        """On a synchronous master: for each record why the slave does not have it, or None; empty without a slave."""
        self.replicas = 0
        """In a broker set: how many nodes, this one included, have the records when they may be acknowledged."""

    @property
    def target(self) -> PartitionLog:
        """The partition that the records are for."""
        return self.log if self.delayed is None else self.delayed.target

    @property
    def answered_id(self) -> int:
        """The message id of the first record for the answer."""
        return self.first_id if self.delayed is None else self.delayed.pending_id or self.first_id

    @property
    def answered_offset(self) -> int:
        """The byte offset of the first record for the answer; -1 for delayed messages."""
        return self.base if self.delayed is None else -1

    @property
    def failure(self) -> MetaqError | None:
        """Why not all records are safe; None if they are."""
        if self.error is not None or not self.copy_errors:
            return self.error
        return next((error for error in self.copy_errors if error is not None), None)

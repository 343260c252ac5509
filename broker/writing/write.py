"""Define `Write`, one append of a request's records together with the result of the append, and `Number`, the sequence
number of a write.
"""

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
    """The sequence number that a producer has given to a write.

    records: the number of records in the write; if they are delayed messages, the high bits of this number say which
    internal log contains the messages (`row_bits`). repeat_ms: how many milliseconds ago the producer first sent the
    write. It is -1 if the write is sent for the first time. before: the producer's last write to the partition before
    this one. It is None if there was none.
    """

    producer: int
    sequence: int
    records: int = 1
    repeat_ms: int = -1
    before: Stored | None = None


class Write(Append):
    """Whole records to append to one partition, and the result of the append. The object lives until its request is
    answered.

    If a client repeats a write that is stored already, `Sequences.admit` gives the repeated write the values of
    `first_id`, `base`, `end` and `delayed` of the stored one.
    """

    __slots__ = ("copy_errors", "delayed", "first_id", "number", "replicas")

    def __init__(self, log: PartitionLog, data: Sequence[Buffer] = (), units: Buffer = b"") -> None:
        Append.__init__(self, log, data, units)  # `super` would take a fifth of the time
        self.number: Number | None = None
        self.delayed: Delayed | None = None
        """Set if the write contains delayed or half messages, otherwise None. If it is set, `log` is the internal log
        where these messages wait.
        """
        self.first_id = 0
        """The id of the first record, taken from the broker's ordinary message ids. It is 0 for writes whose id is not
        needed. While a delayed record waits, it also has another id (`Delayed.pending_id`).
        """
        self.copy_errors: Sequence[MetaqError | None] = ()
        """On a synchronous master: for each record the reason why the slave does not have it, or None if the slave has
        it. The sequence is empty if the broker has no slave.
        """
        self.replicas = 0
        """In a broker set: the number of nodes, this one included, that had the records when the write became safe."""

    @property
    def target(self) -> PartitionLog:
        """The log of the partition for which the client has sent the records. For delayed messages it differs from
        `log`, which is the internal log where they wait.
        """
        return self.log if self.delayed is None else self.delayed.target

    @property
    def answered_id(self) -> int:
        """The message id of the first record, as the answer to the request states it."""
        return self.first_id if self.delayed is None else self.delayed.pending_id or self.first_id

    @property
    def answered_offset(self) -> int:
        """The byte offset of the first record, as the answer to the request states it. It is -1 for delayed
        messages.
        """
        return self.base if self.delayed is None else -1

    @property
    def failure(self) -> MetaqError | None:
        """The reason why not all records are safe. It is None if all records are safe."""
        if self.error is not None or not self.copy_errors:
            return self.error
        return next((error for error in self.copy_errors if error is not None), None)

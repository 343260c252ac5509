"""Protocols that describe objects of the package writing/, which stores messages. The package delays/ uses these
objects. The protocols are needed because delays/ may not import writing/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from metaq.protocol.errors import MetaqError

from ..partitions.message_ids import MessageIds
from ..partitions.partitions import Partitions
from ..store.partition_log import PartitionLog

if TYPE_CHECKING:
    from .delays import Pended

__all__ = ["Delayed", "Deliverer", "DueWrite"]


@dataclass(slots=True, eq=False)
class Delayed:
    """Describes a write to an internal log of delayed messages.

    target: the partition of the waiting messages, or the partition that the marks are about. pending_id: the id that
    the first message has in the internal log, or 0 if this id is unknown. It can be unknown if a producer has repeated
    a numbered send. pended: the records of the messages; it becomes None as soon as they are appended.
    """

    target: PartitionLog
    pending_id: int = 0
    pended: Pended | None = None


class DueWrite(Protocol):
    """Records to append to a log, and the result of the append. The objects of class Write that `make_write` returns
    have these attributes. [base, end): the byte offsets of the records.
    """

    log: PartitionLog
    base: int
    end: int
    error: MetaqError | None
    delayed: Delayed | None

    @property
    def failure(self) -> MetaqError | None:
        """The error that has prevented a record from becoming safe, or None if all records are safe."""


class Deliverer(Protocol):
    """Appends due messages to their partitions. For each of these messages it also appends a mark to the internal
    log.
    """

    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def copies(self) -> object | None:
        """An object if the records that the Deliverer appends are also copied to other nodes of a broker set; otherwise
        None.
        """

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Return the log of a partition to which messages are to be appended. Raises the error of a refused put if the
        partition takes no messages.
        """

    def append(self, writes: Iterable[Any]) -> list[Any]:
        """Append the records of each DueWrite, in the given order. Return the writes that are not safe yet."""

    def when_safe(self, waiting: Sequence[Any], done: Callable[[], None]) -> None:
        """Call `done` once, as soon as each of these writes is safe or has an error."""

"""Protocols for what this package needs from the package writing/, which stores messages. This package may not import
writing/.
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

    target: the partition for which the messages wait, or which the marks concern. pending_id: the pending id of the
    first message; 0 if unknown, which is possible for a repeated write. pended: the messages, until they are appended.
    """

    target: PartitionLog
    pending_id: int = 0
    pended: Pended | None = None


class DueWrite(Protocol):
    """Records to append, and the result of the append. `make_write` makes a Write, which has these attributes. [base,
    end): byte offsets of the records.
    """

    log: PartitionLog
    base: int
    end: int
    error: MetaqError | None
    delayed: Delayed | None

    @property
    def failure(self) -> MetaqError | None:
        """The error because of which the records are not all safe; None if they are safe."""


class Deliverer(Protocol):
    """Stores due messages and the marks about them."""

    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def copies(self) -> object | None:
        """None unless appends are also copied to other nodes of a set."""

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Return the log to append to. Raises the error of a refused put if the partition takes no messages."""

    def append(self, writes: Iterable[Any]) -> list[Any]:
        """Append each DueWrite in order. Return those that are not safe yet."""

    def when_safe(self, waiting: Sequence[Any], done: Callable[[], None]) -> None:
        """Call `done` when each of these writes is safe or has an error."""

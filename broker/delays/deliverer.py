"""What delays need from the room that stores messages (writing/), which stands above this one."""

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
    """What a write to a log of delayed messages is about.

    target: the partition that its messages wait for, or that its marks are about. pending_id: of the first message; 0
    if unknown, as it may be for a repeated write. pended: the messages, until they are appended.
    """

    target: PartitionLog
    pending_id: int = 0
    pended: Pended | None = None


class DueWrite(Protocol):
    """Records to append, and the result: a Write, as `make_write` makes it. [base, end): byte offsets."""

    log: PartitionLog
    base: int
    end: int
    error: MetaqError | None
    delayed: Delayed | None

    @property
    def failure(self) -> MetaqError | None:
        """Why the records are not all safe; None if they are."""


class Deliverer(Protocol):
    """Stores due messages, and the marks about them."""

    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def copies(self) -> object | None:
        """None unless appends also go to other nodes of a set."""

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Return the log to append to. Raises as a refused put."""

    def append(self, writes: Iterable[Any]) -> list[Any]:
        """Append each DueWrite in order. Return those that are not safe yet."""

    def when_safe(self, waiting: Sequence[Any], done: Callable[[], None]) -> None:
        """Call `done` once each of these is safe, or has an error."""

"""What delays ask of the room that stores messages (writing/), which stands above this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from metaq.protocol.errors import MetaqError

from ..partitions.message_ids import MessageIds
from ..partitions.partitions import Partitions
from ..store.partition_log import PartitionLog

__all__ = ["Deliverer", "DueWrite"]


class DueWrite(Protocol):
    """Records to be appended, and what became of them: a Write, as `make_write` makes it. [base, end): byte offsets."""

    log: PartitionLog
    base: int
    end: int
    error: MetaqError | None
    delayed_for: PartitionLog | None
    """The partition that marks are about."""

    @property
    def failure(self) -> MetaqError | None:
        """Why not all records are safe; None if they are."""


class Deliverer(Protocol):
    """Stores what is due, and the marks that say so."""

    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def copies(self) -> object | None:
        """None unless what is appended goes to the other nodes of a set, too."""

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Where to append. Raises what refuses a put."""

    def append(self, writes: Iterable[Any]) -> list[Any]:
        """Append each DueWrite in order; returns those that are not safe yet."""

    def when_safe(self, waiting: Sequence[Any], done: Callable[[], None]) -> None:
        """Call `done` once each of these is safe, or has an error."""

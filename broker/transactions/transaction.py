"""One transaction: its messages, by partition in the order they were put, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from metaq.protocol.record import HEADER_BYTES, Buffer
from metaq.protocol.transactions import is_xa

from ..network.pending_puts import PUT_OVERHEAD_BYTES
from ..runtime.reactor import Timer
from ..store.partition_log import PartitionLog

if TYPE_CHECKING:
    from .writer import RedoFile

__all__ = ["Block", "OpenTransaction", "TransactionState"]


class TransactionState(Enum):
    """How far a transaction has come. FINISHED: committed, rolled back, or on the way there."""

    ACTIVE = "active"
    PREPARED = "prepared"
    FINISHED = "finished"


class Block:
    """A transaction's messages of one partition; they are appended together, in this order."""

    __slots__ = ("ids", "log", "puts", "size")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.puts: list[tuple[int, int, Buffer]] = []
        """Flag, checksum of the body, body."""
        self.ids: list[int] = []
        self.size = 0
        """Bytes in the partition."""

    def add(self, message_id: int, flag: int, checksum: int, body: Buffer) -> None:
        self.puts.append((flag, checksum, body))
        self.ids.append(message_id)
        self.size += HEADER_BYTES + len(body)

    @property
    def store(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.log.topic}-{self.log.partition}"


class OpenTransaction:
    """Lives on the reactor thread. owner: the connection of a local transaction, None for XA."""

    __slots__ = ("blocks", "content", "file", "key", "messages", "owner", "prepared_at_ms", "size", "state", "timer")

    def __init__(self, key: str, owner: object = None) -> None:
        self.key = key
        self.owner = owner
        self.state = TransactionState.ACTIVE
        self.blocks: dict[PartitionLog, Block] = {}
        self.file: RedoFile | None = None
        """Where its records go; None until the first message."""
        self.messages = 0
        self.content = 0
        """Of its messages' records in the log: see redo.add_content."""
        self.size = 0
        """Bytes of all its records."""
        self.prepared_at_ms: int | None = None
        """Unix milliseconds; set when the preparation is on the disk."""
        self.timer: Timer | None = None

    @property
    def is_xa(self) -> bool:
        return is_xa(self.key)

    @property
    def held_bytes(self) -> int:
        """Memory that its messages take."""
        return self.size + PUT_OVERHEAD_BYTES * self.messages

    @property
    def topics(self) -> list[str]:
        return sorted({log.topic for log in self.blocks})

    def add(self, log: PartitionLog, message_id: int, flag: int, checksum: int, body: Buffer) -> None:
        block = self.blocks.get(log)
        if block is None:
            block = self.blocks[log] = Block(log)
        block.add(message_id, flag, checksum, body)
        self.messages += 1
        self.size += HEADER_BYTES + len(body)

    def finish(self) -> Iterable[Block]:
        """Nothing more may come; return the messages and let go of them."""
        self.state = TransactionState.FINISHED
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        blocks, self.blocks = self.blocks, {}
        return blocks.values()

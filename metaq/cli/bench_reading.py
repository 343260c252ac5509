"""Reading a backlog for `metaq bench consume`: as messages or as Arrow, one reader after the other."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple, Protocol

from metaq.client.consumer import Consumer
from metaq.client.message import Message

from .bench_measure import Run, Tally

__all__ = ["ArrowReader", "Backlog", "MessageReader", "Piece", "Polled", "Reader"]

POLL_MESSAGES = 1000
ARROW_MESSAGES = 65_536
POLL_SECONDS = 0.1
"""Longest wait for messages before it is looked at whether the run is over."""
IDLE_SECONDS = 2.0
"""A group's backlog counts as read when nothing came for this long."""
JOIN_SECONDS = 30.0
"""How long the first message may take to come: connecting, joining a group, another member's hand-over."""


class Polled(Protocol):
    """A Consumer or a PartitionReader."""

    def poll(self, max_messages: int = ..., timeout: float = ...) -> list[Message]: ...


class Piece(NamedTuple):
    """What was read at once. next_offset: behind the last message; None where that is not looked at."""

    messages: int
    payload_bytes: int
    next_offset: int | None = None


class Reader(Protocol):
    """Reads on from where it stopped."""

    def read(self, most: int, seconds: float) -> Piece:
        """At most `most` messages, waiting at most `seconds` for the first."""
        ...


class MessageReader:
    """Takes the payload of each message."""

    def __init__(self, polled: Polled) -> None:
        self._polled = polled

    def read(self, most: int, seconds: float) -> Piece:
        """As Reader."""
        messages = self._polled.poll(min(most, POLL_MESSAGES), seconds)
        size = sum(len(message.payload) for message in messages)
        return Piece(len(messages), size, messages[-1].next_offset if messages else None)


class ArrowReader:
    """Takes record batches, up to 65,536 messages each. Needs pyarrow."""

    def __init__(self, consumer: Consumer) -> None:
        import pyarrow.compute  # an extra

        self._consumer = consumer
        self._compute = pyarrow.compute

    def read(self, most: int, seconds: float) -> Piece:
        """As Reader."""
        batch = self._consumer.poll_arrow(min(most, ARROW_MESSAGES), seconds)
        sizes = self._compute.sum(self._compute.binary_length(batch.column("payload")))
        return Piece(batch.num_rows, sizes.as_py() or 0)


class Backlog:
    """Reads one reader after the other, each to the offset behind its last message; None: until nothing more comes.

    Its time runs from the first message, polled alone, to the last: connecting and joining are not measured.
    """

    def __init__(self, readers: Generator[tuple[Reader, int | None], None, None], run: Run) -> None:
        self._readers = readers
        self._run = run
        self._first_ns = 0
        self._last_ns = 0
        self.payload_bytes = 0
        """Of all messages but the first."""

    def read(self, tally: Tally) -> None:
        """The job."""
        with closing(self._readers) as readers:
            for reader, end in readers:
                self._read_one(reader, end, tally)

    def _read_one(self, reader: Reader, end: int | None, tally: Tally) -> None:
        last_came = self._run.clock_ns()
        while not self._run.over and (most := self._run.left(tally.messages, ARROW_MESSAGES)):
            piece = reader.read(most if self._first_ns else 1, POLL_SECONDS)
            now = self._run.clock_ns()
            if piece.messages:
                self._count(piece, now, tally)
                last_came = now
                if end is not None and piece.next_offset is not None and piece.next_offset >= end:
                    return
            elif now - last_came > (IDLE_SECONDS if tally.messages else JOIN_SECONDS) * 1e9:
                return

    def _count(self, piece: Piece, now: int, tally: Tally) -> None:
        tally.messages += piece.messages
        self._last_ns = now
        if self._first_ns:
            self.payload_bytes += piece.payload_bytes
        else:
            self._first_ns = now

    def measured(self, messages: int) -> tuple[int, float]:
        """How many of `messages` came after the first, and in how many seconds."""
        return messages - 1, (self._last_ns - self._first_ns) / 1e9

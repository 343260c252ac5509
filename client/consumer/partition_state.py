"""What a consumer knows about one partition it owns.

Who may touch what: the fetching side (reader threads, timers) changes `fetch_offset`, `pulling`, adds to `chunks`;
the polling thread takes from `chunks` and changes `position` and `consumed`; the rebalance thread ends it all with
`deactivate`. `lock` guards chunks, buffered_bytes, pulling, active and generation; the rest has one writer.

A seek, another broker to read from or the loss of the partition begins a new generation: an answer to a pull of an
older one is dropped. A seek and the loss also make a move: what was handed out before it does not count any more.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from metaq.coordination.backoff import Backoff

from ..values import TopicPartition
from .chunk import Chunk

__all__ = ["NOWHERE", "UNKNOWN_MESSAGE_ID", "PartitionState"]

UNKNOWN_MESSAGE_ID = -1
NOWHERE = -1
"""No offset."""


@dataclass(slots=True, eq=False)
class PartitionState:
    """One claim of one partition; made when it is claimed, useless once inactive."""

    partition: TopicPartition
    backoff: Backoff
    fence: Any = None
    """Proof of ownership for commits (the ZooKeeper session of the owner node)."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    active: bool = True
    revoking: bool = False
    """Another member shall get it: nothing is fetched or handed out any more."""
    announced: bool = True
    """The user was told that it is assigned: nothing is handed out before."""
    opened: bool = False
    """The first position is known."""
    generation: int = 0
    moves: int = 0
    fetch_offset: int = 0
    """Behind what was fetched: where the next answer begins."""
    ahead: int | None = None
    """Where the pull begins that was sent while the answer before it was still coming in."""
    pulling: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)
    buffered_bytes: int = 0
    position: int = 0
    """Byte offset of the next message to hand out."""
    last_id: int = UNKNOWN_MESSAGE_ID
    consumed: tuple[int, int] | None = None
    """(next offset, last message id) that a commit may write; None before the first message."""
    committed: tuple[int, int] | None = None
    """What the last successful commit of this claim wrote, or what was stored when it began."""
    damage: int = 0
    """How often in a row what was fetched at one position has failed its check."""
    suspect: int = NOWHERE
    """What was fetched here has failed its check: the broker shall look at it too."""
    reported: int = NOWHERE
    """Where the damage begins that the user was told of last."""
    led_back_from: int = NOWHERE
    """From here the broker has led to the start of a record once."""
    fetch_bytes: int = 0
    """Asked for by the next `get` (text protocol: grows while no record fits)."""
    idle_ms: int = 0
    empty_gets: int = 0
    """Answers in a row that there is nothing (text protocol)."""
    complaint: str = ""
    """The last fetch error that was logged, so that one trouble gives one line."""

    def start_at(self, offset: int | None, *, first: bool = False, moves: int | None = None) -> int | None:
        """Begin a new generation at `offset`, None: at the position; fetched data and answers under way are dropped.
        Returns its number; the caller is going to pull. first: only if there is no position yet, as a seek may have set
        one. moves: only if there was no move since it was so many. None if that is not so.
        """
        empty: deque[Chunk] = deque()
        with self.lock:  # no call in here: an interrupt (interrupts.py) finds all of it done or nothing
            if (first and self.opened) or (moves is not None and moves != self.moves):
                return None
            if offset is None:
                offset = self.position
            self.generation += 1
            self.moves += 1
            self.chunks = empty
            self.buffered_bytes = 0
            self.pulling = True
            self.ahead = None
            self.suspect = NOWHERE
            self.fetch_offset = self.position = offset
            self.opened = True
            return self.generation

    def forget_damage(self) -> None:
        """The user has moved the position: what is damaged there is told again."""
        self.damage = 0
        self.reported = NOWHERE

    def pull_anew(self) -> int | None:
        """Begin a new generation that keeps what was fetched: the answers under way are dropped.

        Returns its number if a pull was under way, which is to be sent again; None if there was none.
        """
        with self.lock:
            if not (self.pulling and self.active):
                return None
            self.generation += 1
            self.ahead = None
            return self.generation

    def forget_ahead(self, generation: int) -> int | None:
        """A pull of this generation failed: of two under way drop both, so that one takes their place. Returns its
        generation; None if the failed one was dropped already.
        """
        with self.lock:
            if generation != self.generation:
                return None
            if self.ahead is not None:
                self.ahead = None
                self.generation += 1
            return self.generation

    def end_ahead(self) -> bool:
        """An answer is complete: whether the next pull was sent already."""
        with self.lock:
            ahead, self.ahead = self.ahead, None
            return ahead is not None

    def add(self, generation: int, chunk: Chunk) -> bool:
        """Append fetched data; False if the partition was lost or moved meanwhile (the data is dropped)."""
        with self.lock:
            if generation != self.generation or not self.active or self.revoking:
                return False
            size = chunk.bytes_left
            # the one call comes last, so that an interrupt (interrupts.py) comes before all of it, or after
            self.buffered_bytes += size
            self.fetch_offset = chunk.end_offset
            self.chunks.append(chunk)
            return True

    @property
    def has_next(self) -> bool:
        """Whether something was fetched that may be handed out."""
        return bool(self.chunks) and self.announced and self.active and not self.revoking

    def next_chunk(self) -> Chunk | None:
        """The oldest fetched chunk, left in place until `drop_chunk`; None before it is announced. Polling thread."""
        with self.lock:
            return self.chunks[0] if self.has_next else None

    def drop_chunk(self, chunk: Chunk) -> None:
        """The chunk was handed out completely. Polling thread."""
        with self.lock:
            if self.chunks and self.chunks[0] is chunk:
                self.chunks.popleft()
                self.buffered_bytes = sum(each.bytes_left for each in self.chunks)

    def deactivate(self) -> None:
        """The partition is lost: drop everything fetched."""
        with self.lock:
            self.active = False
            self.generation += 1
            self.moves += 1
            self.chunks.clear()
            self.buffered_bytes = 0

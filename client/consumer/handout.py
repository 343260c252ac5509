"""What the polling thread has given to the user, and what of that counts as consumed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty

from metaq.protocol.errors import CorruptRecord

from ..message import Message
from .arrivals import Arrivals
from .delivery import take_messages
from .fetcher import Fetcher
from .partition_state import PartitionState

__all__ = ["Handout"]

_DAMAGE_TRIES = 3
"""A record with a wrong checksum is fetched again (it may be damaged on the way) so often before the user is told."""


class Handout:
    """Takes messages out of the buffers, in the order their chunks arrived. One polling thread; `lock` is held while
    messages are taken, so that the rebalance thread sees either none of a poll's messages handed out or all of them.

    A message counts as consumed when `acknowledge` is called after it was handed out: at the next poll, or by commit().
    """

    def __init__(self, arrivals: Arrivals, fetcher: Fetcher, tags: frozenset[str] | None) -> None:
        self._arrivals = arrivals
        self._fetcher = fetcher
        self._tags = tags
        self._current: PartitionState | None = None
        self._handed: dict[PartitionState, tuple[int, int]] = {}
        self.lock = threading.Lock()

    def acknowledge(self) -> None:
        """Everything handed out so far counts as consumed."""
        if self._handed:
            with self.lock:
                for state, reached in self._handed.items():
                    state.consumed = reached
                self._handed.clear()

    def is_out(self, states: Iterable[PartitionState]) -> bool:
        """Whether messages of these partitions are with the user."""
        with self.lock:
            return any(state in self._handed for state in states)

    def forget(self, state: PartitionState) -> None:
        """What was handed out of a partition shall not count as consumed any more (seek)."""
        with self.lock:
            self._handed.pop(state, None)

    def next_is(self, state: PartitionState) -> None:
        """The polling thread took this arrival itself, while it waited."""
        self._current = state

    def take(self, limit: int) -> list[Message]:
        """At most `limit` messages that are there now. Raises CorruptRecord."""
        messages: list[Message] = []
        with self.lock:
            while len(messages) < limit:
                state = self._current or self._next_arrival()
                if state is None:
                    break
                try:
                    messages += self._take_from(state, limit - len(messages))
                except CorruptRecord as error:
                    self._damaged(state, error, report=not messages)
                    if messages:
                        break
        return messages

    def _next_arrival(self) -> PartitionState | None:
        try:
            while True:
                state = self._arrivals.get_nowait()
                if state is not None:
                    self._current = state
                    return state
        except Empty:
            return None

    def _take_from(self, state: PartitionState, limit: int) -> list[Message]:
        chunk = state.next_chunk()
        if chunk is None:  # lost, or moved by a seek
            self._current = None
            return []
        messages = take_messages(chunk, state.partition, limit, self._tags)
        if messages:
            state.last_id = messages[-1].id
            state.damage = 0
        if len(messages) < limit and chunk.bytes_left and not messages:
            raise CorruptRecord(
                f"{state.partition.topic}-{state.partition}", chunk.offset, "its length cannot be right"
            )
        if not chunk.bytes_left:
            state.position = chunk.end_offset
            state.drop_chunk(chunk)
            self._current = None
            self._fetcher.refill(state)
        else:
            state.position = chunk.offset
        self._handed[state] = (state.position, state.last_id)
        return messages

    def _damaged(self, state: PartitionState, error: CorruptRecord, report: bool) -> None:
        """Fetch the record again; after some tries tell the user, at each poll, until there is a seek."""
        self._current = None
        state.position = error.position
        if state.damage < _DAMAGE_TRIES:
            state.damage += 1
            self._fetcher.move(state, error.position)
            return
        self._arrivals.put(state)
        if report:
            raise error

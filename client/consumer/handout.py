"""What the polling thread has given to the user, and what of that counts as consumed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from metaq.protocol.errors import CorruptRecord

from ..decoding import WRONG_LENGTH
from ..message import Message
from ..values import TopicPartition
from .arrivals import Arrivals
from .chunk import Chunk
from .damage import DamagePolicy
from .fetcher import Fetcher
from .partition_state import PartitionState

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Accept", "Handout", "take_next"]

Accept = Callable[[Message], bool]


class Handout:
    """Takes messages out of the buffers, chunk by chunk of each partition in turn. One polling thread; `lock` is held
    while messages are taken, so that the rebalance thread sees either none of a poll's messages handed out or all.

    A message counts as consumed when `acknowledge` is called after it was handed out: at the next poll, or by commit().
    What was taken and did not reach the user, because an exception came into the polling thread from outside (Ctrl-C,
    a signal's handler), comes again. So a poll sets `under_way` to False as the last thing before it returns: that is
    an attribute, because a signal's handler may run when a call returns, but not between an assignment and a return.
    accept: the user's filter; what it refuses is passed over and counts as consumed; `take` raises what it raises.
    check_crcs: as in ConsumerConfig. damage: what to do where stored bytes are damaged.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        fetcher: Fetcher,
        tags: frozenset[str] | None,
        accept: Accept | None = None,
        check_crcs: bool | None = None,
        damage: DamagePolicy | None = None,
    ) -> None:
        self._arrivals = arrivals
        self._fetcher = fetcher
        self._tags = tags
        self._accept = accept
        self._damage = damage or DamagePolicy()
        self._check_messages, self._check_batches = check_crcs is not False, check_crcs is True
        self._handed: dict[PartitionState, tuple[int, int]] = {}
        self._began: dict[PartitionState, tuple[int, int]] = {}  # where `take` has begun: position and last id
        self.under_way = False
        self._held: set[PartitionState] = set()
        self.lock = threading.Lock()

    def acknowledge(self) -> None:
        """Everything handed out so far counts as consumed."""
        if self.under_way:
            self.take_back()
        if self._handed:
            with self.lock:
                for state, reached in self._handed.items():
                    state.consumed = reached
                self._handed.clear()
                self._began.clear()

    def take_back(self) -> None:
        """What was taken when an exception ended the poll comes again; positions are back at it. May be repeated."""
        with self.lock:
            for state, (position, last_id) in self._began.items():
                self._handed.pop(state, None)
                if state.active:
                    state.last_id = last_id
                    self._fetcher.move(state, position)
            self._began.clear()
            self.under_way = False

    def _begin(self, state: PartitionState) -> None:
        self.under_way = True
        self._began.setdefault(state, (state.position, state.last_id))

    def announce(self, states: Iterable[PartitionState], told: Sequence[TopicPartition]) -> None:
        """The user was told that these of the states' partitions are assigned: what is there may be handed out."""
        for state in states:
            if state.partition in told:
                state.announced = True
                self._arrivals.put(state)

    def is_out(self, states: Iterable[PartitionState]) -> bool:
        """Whether messages of these partitions are with the user."""
        with self.lock:
            return any(state in self._handed or state in self._held for state in states)

    def hold(self, state: PartitionState) -> bool:
        """A handler (listener.py) is about to work on the partition; False if it is not ours to work on any more."""
        with self.lock:
            if not state.active or state.revoking:
                return False
            self._held.add(state)
            return True

    def let_go(self, state: PartitionState) -> None:
        """The opposite of `hold`."""
        with self.lock:
            self._held.discard(state)

    def forget(self, state: PartitionState) -> None:
        """What was handed out of a partition shall not count as consumed any more (seek)."""
        with self.lock:
            self._handed.pop(state, None)
            self._began.pop(state, None)

    def take(self, limit: int) -> list[Message]:
        """At most `limit` messages that are there now. Raises CorruptRecord, and what on_damaged raises."""
        messages: list[Message] = []
        with self.lock:
            while len(messages) < limit:
                found = self._next()
                if found is None:
                    break
                state, chunk = found
                self._begin(state)
                try:
                    messages += self._take_from(state, chunk, limit - len(messages))
                except CorruptRecord as error:
                    self._damaged(state, error, report=not messages)
                    if messages:
                        break
                except _Refused as refused:  # first what is good; the filter is asked again at the next call
                    if messages:
                        break
                    self.under_way = False
                    raise refused.error from None
            self.under_way = bool(messages)
        return messages

    def _next(self) -> tuple[PartitionState, Chunk] | None:
        """The partition whose turn it is, and its oldest chunk."""
        while (state := self._arrivals.first()) is not None:
            chunk = state.next_chunk()
            if chunk is not None:
                return state, chunk
            self._arrivals.discard_unless_ready(state)  # used up, lost, or moved by a seek
        return None

    def take_batch(self, limit: int) -> pyarrow.RecordBatch:
        """As `take`, as one record batch (arrow.SCHEMA) of what is there now, empty if nothing is.

        An answer with record sizes becomes one batch; what came in smaller answers, or must go through a filter here,
        is gathered message by message.
        """
        from ..arrow import EMPTY, record_batch  # pyarrow is an extra

        with self.lock:
            found = self._next()
            if found is not None and found[1].gives_batches and not (self._tags or self._accept):
                self._begin(found[0])
                try:
                    return self._batch_of(*found, limit)
                except CorruptRecord as error:
                    self._damaged(found[0], error, report=True)
                    return EMPTY
        messages = self.take(limit)
        return record_batch(messages) if messages else EMPTY

    def _batch_of(self, state: PartitionState, chunk: Chunk, limit: int) -> pyarrow.RecordBatch:
        batch = chunk.take_batch(state.partition, limit, self._check_batches)
        state.last_id = batch["id"][-1].as_py()
        state.damage = 0
        state.position = chunk.offset if chunk.bytes_left else chunk.end_offset
        self._handed_out(state, chunk)
        return batch

    def _take_from(self, state: PartitionState, chunk: Chunk, limit: int) -> list[Message]:
        taken, position = take_next(state, chunk, limit, self._tags, self._check_messages)
        messages = taken
        if taken:
            if self._accept is not None:
                try:
                    messages = list(filter(self._accept, taken))
                except Exception as error:
                    chunk.give_back(taken)
                    state.position = chunk.offset
                    raise _Refused(error) from None
            state.last_id = taken[-1].id
            state.damage = 0
        state.position = position
        self._handed_out(state, chunk)
        return messages

    def _handed_out(self, state: PartitionState, chunk: Chunk) -> None:
        """Something of the chunk is with the user, up to state.position."""
        if not chunk.bytes_left:
            state.drop_chunk(chunk)
            self._arrivals.pass_over(state)
            self._fetcher.refill(state)
        self._handed[state] = (state.position, state.last_id)

    def _damaged(self, state: PartitionState, error: CorruptRecord, report: bool) -> None:
        """Have what fails here fetched and looked at again. Where it is known to be damaged, pass over it or tell the
        user, at each poll, until there is a seek.
        """
        if report:  # else there are messages, which come again if on_damaged raises
            self.under_way = False
        chunk = state.next_chunk()
        if chunk is None or chunk.damage is None:
            state.position = error.position
            self._fetcher.examine(state, error.position)
            return
        self._arrivals.pass_over(state)
        if self._damage.passes(state, error):
            state.position = chunk.end_offset
            self._handed_out(state, chunk)
            return
        if report:
            raise error


class _Refused(Exception):  # internal
    """What the user's filter raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def take_next(
    state: PartitionState, chunk: Chunk, limit: int, tags: frozenset[str] | None, check: bool
) -> tuple[list[Message], int]:
    """At most `limit` messages of the chunk, and the position behind what was passed. Raises CorruptRecord."""
    messages = chunk.take(state.partition, limit, tags, check)
    if chunk.bytes_left and not messages:
        raise CorruptRecord.of(state.partition, chunk.offset, WRONG_LENGTH)
    return messages, chunk.offset if chunk.bytes_left else chunk.end_offset

"""The true places of 1.x clients' requests after a filter has left out records. No I/O. Reactor thread.

A 1.x client adds the bytes that it got to its offset. If an answer leaves out rejected records, the client's offset
falls behind the stored one: 300 stored bytes with 100 accepted ones move it by 100. For each connection, topic,
partition and group, `RememberedPlaces` keeps the places of the last answers' bytes, and so the meaning of the next
request's offset.

Why no message is lost, even if a client restarts or reconnects:
- A client starts where a record begins, at offset = stored offset. It then processes disjoint accepted records of the
  log, so its offset grows by at most as much as the stored one: offset <= stored offset. So it has processed all
  accepted records that begin before its offset.
- An offset is unknown if another connection or consumer sends it, after a restart of the broker, and after this module
  has dropped the answer to save memory. The broker then takes it as a stored offset and reads from the start of the
  record that contains this byte: some messages come again, none is missed.
- The repeated messages are bounded. A 301 sets the client's offset to the stored one as soon as the client is
  `MAX_GAP_BYTES` behind, has been behind for `PUT_RIGHT_SECONDS`, or has got all messages.
Places are forgotten when another connection asks for the same group and partition, because later offsets may come from
the answers of that connection. If several answers may have led to an offset, the smallest of their places counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_GAP_BYTES", "PUT_RIGHT_SECONDS", "Answered", "FoundOffset", "Key", "RememberedPlaces"]

MAX_GAP_BYTES = 8 << 20
"""How many rejected bytes a client's offset may fall behind before it is corrected; the last record may exceed this."""

PUT_RIGHT_SECONDS = 5.0
"""How long an offset may stay behind. Java clients commit every 5 s by default, and pause for 0.5 s after a 301."""

_MAX_ANSWERS = 4
"""How many answers are kept for one connection and partition: to a request that timed out and the next one, or to an
application's own gets."""

_MAX_PLACES = 1 << 16
_MAX_DETAIL_BYTES = 32 << 20
"""The most bytes, for all connections, of the ends of records within answers, 8 bytes each. The oldest are given up
first."""

Key = tuple[str, int, str]
"""topic, partition, group."""

Ends = npt.NDArray[np.uint32]
_NOTHING: Ends = np.empty(0, np.uint32)


class Answered(NamedTuple):
    """One answer: `size` accepted bytes for the client's offsets [offset, offset + size].

    stored, stored_end: the stored offsets for which `offset` and `offset + size` stand. client_ends, stored_ends: the
    end of each record, relative to `offset` and to `stored`; empty if dropped to save memory. behind_since: when this
    client's offset fell behind the stored one (reactor seconds); None if it has not.
    """

    offset: int
    size: int
    stored: int
    stored_end: int
    client_ends: Ends = _NOTHING
    stored_ends: Ends = _NOTHING
    behind_since: float | None = None

    @property
    def detail_bytes(self) -> int:
        """The memory that the ends take."""
        return self.client_ends.nbytes + self.stored_ends.nbytes

    @property
    def is_exact(self) -> bool:
        """Whether no record was left out, in this answer or before."""
        return self.offset == self.stored and self.size == self.stored_end - self.stored

    def place_of(self, offset: int) -> int | None:
        """Return the stored offset for the start or for the end of a record; None for any other offset."""
        if offset == self.offset + self.size:
            return self.stored_end
        if offset == self.offset:
            return self.stored
        if not self.offset < offset < self.offset + self.size:
            return None
        number = int(np.searchsorted(self.client_ends, offset - self.offset))
        if number == len(self.client_ends) or self.client_ends[number] != offset - self.offset:
            return None
        return self.stored + int(self.stored_ends[number])


class FoundOffset(NamedTuple):
    """A request's offset and its stored place. answers: those that may have led the client to this offset; if none
    did, the offset is taken as a stored one."""

    offset: int
    stored: int
    answers: tuple[Answered, ...] = ()

    @property
    def gap(self) -> int:
        """How many bytes the client's offset is behind."""
        return self.stored - self.offset

    @property
    def behind_since(self) -> float | None:
        """When the offset fell behind."""
        return min((each.behind_since for each in self.answers if each.behind_since is not None), default=None)


class _Holder:
    """The connection that asked last for a key, and the broker's last answers to it."""

    __slots__ = ("answers", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.answers: list[Answered] = []


class RememberedPlaces:
    """All remembered answers. An owner stands for a connection and is compared by identity."""

    def __init__(self) -> None:
        self.filtered: set[tuple[str, str]] = set()
        """(topic, group) of all groups with a filter since the broker's start: as many as configurations name."""
        self._holders: OrderedDict[Key, _Holder] = OrderedDict()  # last answered ones at the end
        self._owned: dict[object, set[Key]] = {}
        self._detailed: OrderedDict[Key, None] = OrderedDict()  # holders whose answers have details, in the same order
        self._detail_bytes = 0

    def __len__(self) -> int:
        """The number of groups and partitions for which a holder is known."""
        return len(self._holders)

    def find(self, owner: object, key: Key, offset: int) -> FoundOffset:
        """Return the stored place of a request's offset. If another connection holds the key, forget its answers."""
        holder = self._holders.get(key)
        if holder is None:
            return FoundOffset(offset, offset)
        if holder.owner is not owner:
            self.forget(key)
            return FoundOffset(offset, offset)
        places = [(each.place_of(offset), each) for each in holder.answers]
        known = [(place, each) for place, each in places if place is not None]
        if not known:
            return FoundOffset(offset, offset)
        return FoundOffset(offset, min(place for place, _ in known), tuple(each for _, each in known))

    def claim(self, owner: object, key: Key) -> None:
        """Make the owner the holder of the key while its request is under way: `answered` remembers only the answers
        to the holder, and another connection's request takes the key away."""
        holder = self._holders.get(key)
        if holder is None or holder.owner is not owner:
            self.forget(key)
            self._holders[key] = _Holder(owner)
            self._owned.setdefault(owner, set()).add(key)
            if len(self._holders) > _MAX_PLACES:
                self.forget(next(iter(self._holders)))

    def answered(self, owner: object, key: Key, found: FoundOffset, answer: Answered) -> None:
        """Remember the answer to the owner's request at `found`, and forget the answers that led the client there: it
        will not ask at their offsets again."""
        holder = self._holders.get(key)
        if holder is None or holder.owner is not owner:
            return
        self._remove(holder, found.answers)
        if holder.answers or not answer.is_exact:  # exact offsets would be taken as they are anyway
            holder.answers.append(answer)
            self._detail_bytes += answer.detail_bytes
            self._remove(holder, holder.answers[:-_MAX_ANSWERS])
            self._holders.move_to_end(key)
            self._detailed[key] = None
            self._detailed.move_to_end(key)
            while self._detail_bytes > _MAX_DETAIL_BYTES:
                self._give_up_details(self._detailed.popitem(last=False)[0])

    def moved(self, owner: object, key: Key, found: FoundOffset, offset: int) -> None:
        """Note that the broker told the owner's client to go on at `offset`, which is a stored offset."""
        self.answered(owner, key, found, Answered(offset, 0, offset, offset))

    def forget(self, key: Key) -> None:
        """Forget a key: the next request's offset is then taken as a stored offset."""
        holder = self._holders.pop(key, None)
        if holder is None:
            return
        self._remove(holder, holder.answers)
        self._detailed.pop(key, None)
        owned = self._owned[holder.owner]
        owned.discard(key)
        if not owned:
            del self._owned[holder.owner]

    def connection_lost(self, owner: object) -> None:
        """Forget a lost connection. O(its keys)."""
        for key in list(self._owned.get(owner, ())):
            self.forget(key)

    def _remove(self, holder: _Holder, answers: Iterable[Answered]) -> None:
        gone = {id(each) for each in answers}
        if gone:
            self._detail_bytes -= sum(each.detail_bytes for each in holder.answers if id(each) in gone)
            holder.answers = [each for each in holder.answers if id(each) not in gone]

    def _give_up_details(self, key: Key) -> None:
        holder = self._holders[key]
        self._detail_bytes -= sum(each.detail_bytes for each in holder.answers)
        holder.answers = [each._replace(client_ends=_NOTHING, stored_ends=_NOTHING) for each in holder.answers]

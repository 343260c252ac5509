"""Find the stored offset (the true offset in the log) that a request of a 1.x client means after a filter has left out
records. This module does no I/O, and is used only on the reactor thread.

A 1.x client adds the number of received bytes to its offset. If an answer leaves out rejected records, the client's
offset falls behind the stored offset. For example, if 100 of 300 stored bytes were accepted, the client's offset grows
by 100 and the stored offset by 300. For each connection, topic, partition and group, `RememberedPlaces` keeps the
stored offsets of the bytes in the last answers. From these stored offsets `RememberedPlaces` finds the one that the
client's next request means.

Why no message is lost, even if a client restarts or reconnects:
- A client starts at the beginning of a record, where its offset equals the stored offset. After that the client
  processes each accepted record once. The client's offset grows by the bytes of accepted records only, whereas the
  stored offset grows by the bytes of all records. So the client's offset is never higher than the stored offset, and
  the client has processed all accepted records that begin before its offset.
- The broker cannot find the stored offset for a request's offset if the offset comes from an answer on another
  connection, if the broker was restarted, or if this module has dropped the answer to save memory. The broker then
  treats the request's offset as a stored offset, and reads from the start of the record that contains the byte at this
  offset. This offset is not higher than the true stored offset, so some messages are delivered again, but none is
  missed.
- The number of repeated messages is limited. An answer 301 sets the client's offset to the stored offset as soon as the
  client is `MAX_GAP_BYTES` behind, has been behind for `PUT_RIGHT_SECONDS`, or has received all messages.

When a second connection sends a request for the same group and partition, the answers that were kept for the first
connection are dropped, because the offset in a later request can come from an answer on either connection. If an offset
can belong to several kept answers, the smallest of the stored offsets is used, so that no message is missed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_GAP_BYTES", "PUT_RIGHT_SECONDS", "Answered", "FoundOffset", "Key", "RememberedPlaces"]

MAX_GAP_BYTES = 8 << 20
"""When a client's offset has fallen behind the stored offset by this many rejected bytes, an answer 301 corrects the
client's offset. The difference can exceed this limit by a part of the record with which it reaches the limit.
"""

PUT_RIGHT_SECONDS = 5.0
"""When a client's offset has been behind the stored offset for this many seconds, an answer 301 corrects the client's
offset. Java clients commit their offsets every 5 s by default, and pause for 0.5 s after an answer 301.
"""

_MAX_ANSWERS = 4
"""The most answers that are kept for one connection and partition. The last answer alone is not enough in two cases: a
request has timed out at the client, or the application sends gets of its own in addition to the gets of its consumer.
In both cases the client's next request can begin where an earlier answer ended, and not the last one.
"""

_MAX_PLACES = 1 << 16
_MAX_DETAIL_BYTES = 32 << 20
"""The most bytes of memory that the arrays `client_ends` and `stored_ends` of the remembered answers may take for all
connections together. Each record in an answer takes 8 bytes. If the arrays take more bytes, the arrays of the oldest
answers are dropped.
"""

Key = tuple[str, int, str]
"""Identifies one consumer group that reads one partition: (topic, partition, group)."""

Ends = npt.NDArray[np.uint32]
_NOTHING: Ends = np.empty(0, np.uint32)


class Answered(NamedTuple):
    """An answer with `size` bytes of accepted records to a request at `offset`. After this answer, the client can send
    a request with any offset in [offset, offset + size], depending on how many of the records it has processed.

    stored: the stored offset that `offset` means. stored_end: the stored offset that `offset + size` means.
    client_ends: the end of each record, relative to `offset`. stored_ends: the end of each record, relative to
    `stored`. Both arrays are empty if they were dropped to save memory. behind_since: when this client's offset fell
    behind the stored offset, in seconds of the reactor's clock, or None if it is not behind.
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
        """The bytes of memory that `client_ends` and `stored_ends` take."""
        return self.client_ends.nbytes + self.stored_ends.nbytes

    @property
    def is_exact(self) -> bool:
        """Whether the client's offsets equal the stored offsets, both before and after this answer."""
        return self.offset == self.stored and self.size == self.stored_end - self.stored

    def place_of(self, offset: int) -> int | None:
        """Return the offset in the log (the stored offset) that the client means by `offset`. Return None if no record
        of this answer begins or ends at `offset`, as the client counts bytes.
        """
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
    """The offset of a request, and the stored offset that the client means by it. answers: those of the remembered
    answers that have brought the client to this offset, or may have done so. If there are no such answers, `stored`
    equals `offset`.
    """

    offset: int
    stored: int
    answers: tuple[Answered, ...] = ()

    @property
    def gap(self) -> int:
        """The number of bytes by which the client's offset is lower than the true offset in the log."""
        return self.stored - self.offset

    @property
    def behind_since(self) -> float | None:
        """The time when the client's offset fell behind the stored offset, in seconds of the reactor's clock, or None
        if it is not behind.
        """
        return min((each.behind_since for each in self.answers if each.behind_since is not None), default=None)


class _Holder:
    """The connection that last sent a request for a key, and the broker's last answers to these requests."""

    __slots__ = ("answers", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.answers: list[Answered] = []


class RememberedPlaces:
    """All remembered answers of a broker. The argument `owner` of its methods represents a connection, and is compared
    by identity.
    """

    def __init__(self) -> None:
        self.filtered: set[tuple[str, str]] = set()
        """The pairs (topic, group) of all groups that have had a filter since the broker's start. Only pairs that
        server.ini has named are added, so the set stays small.
        """
        self._holders: OrderedDict[Key, _Holder] = OrderedDict()  # those answered last are at the end
        self._owned: dict[object, set[Key]] = {}
        self._detailed: OrderedDict[Key, None] = OrderedDict()  # holders whose answers have details, in the same order
        self._detail_bytes = 0

    def __len__(self) -> int:
        """The number of keys that have a holder. The holder of a key is the connection that last sent a request for
        this key.
        """
        return len(self._holders)

    def find(self, owner: object, key: Key, offset: int) -> FoundOffset:
        """Find the stored offset that the owner's client means by the `offset` of its request. If another connection
        sent the last request for the key, drop the remembered answers to that connection.
        """
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
        """Make the owner the holder of the key. This method must be called before the owner's request is answered.
        From then on, until another connection becomes the holder, calls of `answered` for this owner remember its
        answers.
        """
        holder = self._holders.get(key)
        if holder is None or holder.owner is not owner:
            self.forget(key)
            self._holders[key] = _Holder(owner)
            self._owned.setdefault(owner, set()).add(key)
            if len(self._holders) > _MAX_PLACES:
                self.forget(next(iter(self._holders)))

    def answered(self, owner: object, key: Key, found: FoundOffset, answer: Answered) -> None:
        """Remember the answer to the owner's request at the offset `found`. Forget the earlier answers `found.answers`,
        because by this request the client has shown that it has processed them.
        """
        holder = self._holders.get(key)
        if holder is None or holder.owner is not owner:
            return
        self._remove(holder, found.answers)
        if holder.answers or not answer.is_exact:  # unknown offsets are taken as stored ones anyway
            holder.answers.append(answer)
            self._detail_bytes += answer.detail_bytes
            self._remove(holder, holder.answers[:-_MAX_ANSWERS])
            self._holders.move_to_end(key)
            self._detailed[key] = None
            self._detailed.move_to_end(key)
            while self._detail_bytes > _MAX_DETAIL_BYTES:
                self._give_up_details(self._detailed.popitem(last=False)[0])

    def moved(self, owner: object, key: Key, found: FoundOffset, offset: int) -> None:
        """Record that the broker has told the owner's client to continue at `offset`, which is a stored offset."""
        self.answered(owner, key, found, Answered(offset, 0, offset, offset))

    def forget(self, key: Key) -> None:
        """Forget a key and its answers. The offset of the next request is then treated as a stored offset."""
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
        """Forget all keys of a lost connection. The run time is proportional to the number of these keys."""
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

"""A table of waiting delayed or half messages in the order of their times. For each message the table has the message
id and a number, 16 bytes in total.

The number is the byte offset of the message's record in its internal log.

(In the tables of halves/senders.py it is the number of the message's sender instead.) The highest bits of an id are the
time at which the message is due (protocol/delays.py), so ids in ascending order are in the order of these times. The
table consists of leaves. The ids that were added last are in the leaf `_recent`. When `_recent` is full, its ids are
moved to the other leaves. Each of these other leaves has its own range of ids. A leaf consists of an array of sorted
ids, an array of their numbers, and the ids and numbers that were added after the last sorting. So an insertion or a
removal of a message copies the arrays of at most one leaf, and takes O(log n) time. The methods accept batches of ids
as numpy arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..memory.delayed_records import Ids

__all__ = ["NOWHERE", "WaitingTable"]

Places = npt.NDArray[np.intp]

NOWHERE = -1
_LEAF = 4096
"""The greatest number of ids in a leaf other than `_recent`. A leaf with more ids is divided into smaller leaves. The
ids of a full leaf take 32 KiB, and an insertion into it takes 20 µs.
"""

_RECENT = 1 << 14
_UNSORTED = 512
_NONE: Ids = np.empty(0, np.int64)
_NOWHERE: Places = np.empty(0, np.intp)
_NO_IDS: tuple[Ids, Ids] = (_NONE, _NONE)
_FIRST: Places = np.zeros(1, np.intp)
_NOT_HERE: Ids = np.full(1, NOWHERE, np.int64)


class _Leaf:
    """Sorted ids with the byte offsets of their records. New ids and their offsets are first in separate arrays; `sort`
    merges these with the sorted arrays.
    """

    __slots__ = ("added_ids", "added_offsets", "ids", "offsets")

    def __init__(self, ids: Ids = _NONE, offsets: Ids = _NONE) -> None:
        self.ids = ids
        self.offsets = offsets
        self.added_ids = array("q")
        self.added_offsets = array("q")

    def __len__(self) -> int:
        return len(self.ids) + len(self.added_ids)

    def add(self, ids: Ids, offsets: Ids) -> None:
        self.added_ids.frombytes(ids.tobytes())
        self.added_offsets.frombytes(offsets.tobytes())

    def sort(self) -> None:
        """Merge the additions into the sorted arrays. `added_ids` is empty afterwards."""
        if not self.added_ids:
            return
        ids, offsets = np.array(self.added_ids, np.int64), np.array(self.added_offsets, np.int64)
        self.added_ids, self.added_offsets = array("q"), array("q")
        if len(ids) > 1:
            order = ids.argsort(kind="stable")
            ids, offsets = ids[order], offsets[order]
        if not len(self.ids):
            self.ids, self.offsets = ids, offsets
            return
        if ids[0] > self.ids[-1]:
            self.ids, self.offsets = np.concatenate((self.ids, ids)), np.concatenate((self.offsets, offsets))
            return
        places = self.ids.searchsorted(ids)
        self.ids, self.offsets = np.insert(self.ids, places, ids), np.insert(self.offsets, places, offsets)

    def find(self, ids: Ids) -> tuple[npt.NDArray[np.bool_], Places]:
        """Return two arrays. The first one says for each of these ids whether it is in this leaf. The second one has
        the indexes in `self.ids` of those ids that are in this leaf. The argument `ids` must be sorted.
        """
        self.sort()
        if not len(self.ids):
            return np.zeros(len(ids), np.bool_), _NOWHERE
        places = self.ids.searchsorted(ids)
        here = self.ids[np.minimum(places, len(self.ids) - 1)] == ids
        return here, places[here]

    def least(self) -> int | None:
        self.sort()
        return int(self.ids[0]) if len(self.ids) else None


_Use = Callable[[_Leaf, Places, Places], Ids]


class WaitingTable:
    """A table of waiting messages. Only one thread may use a table. The table contains each id at most once. Methods
    with an argument `ids` accept the ids in any order. If such a method returns an array with a value for each id, the
    values are in the order of the argument.
    """

    def __init__(self) -> None:
        self._recent = _Leaf()
        self._leaves = [_Leaf()]
        self._firsts: list[int] = []
        """The lowest id of the range of each leaf except the first one."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # --- changes ------------------------------------------------------------------------------------------------------

    def insert(self, ids: Ids, offsets: Ids) -> None:
        """Insert ids that are not in the table yet."""
        self._count += len(ids)
        recent = self._recent
        recent.add(ids, offsets)
        if len(recent) > _RECENT:
            recent.sort()
            self._recent = _Leaf()
            self._deal(recent.ids, recent.offsets)

    def remove(self, ids: Ids) -> Ids:
        """Remove ids. Return the byte offsets of their records, with NOWHERE for ids that are not in the table."""
        return self._each(ids, self._take)

    def find(self, ids: Ids) -> Ids:
        """Return the byte offsets of the records of these ids, like `remove`, but without removing the ids."""
        return self._each(ids, lambda leaf, here, places: leaf.offsets[places])

    def move(self, ids: Ids, offsets: Ids) -> Ids:
        """Set new record offsets for these ids. Return the old offsets, with NOWHERE for ids that are not in the table.
        An id that is not in the table is not added.
        """
        order = ids.argsort(kind="stable")
        wanted = offsets[order]

        def replace(leaf: _Leaf, here: Places, places: Places) -> Ids:
            before = leaf.offsets[places]
            leaf.offsets[places] = wanted[here]
            return before

        return self._each(ids, replace)

    def clear(self) -> None:
        """Remove all ids."""
        self._recent, self._leaves, self._firsts, self._count = _Leaf(), [_Leaf()], [], 0

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int | None:
        """The lowest id, or None if the table is empty."""
        found = [least for least in (self._recent.least(), self._first_leaf().least()) if least is not None]
        return min(found, default=None)

    def until(self, end: int, most: int) -> tuple[Ids, Ids]:
        """Return the lowest ids below `end` in sorted order, at most `most` of them, and the offsets of their
        records.
        """
        return self._range(0, 0, end, most)

    def after(self, start: int, most: int) -> tuple[Ids, Ids]:
        """Return the lowest ids above `start` in sorted order, at most `most` of them, and the offsets of their
        records.
        """
        return self._range(bisect_right(self._firsts, start), start + 1, None, most)

    def lying_before(self, offset: int) -> Iterator[tuple[Ids, Ids]]:
        """Yield for each leaf the ids whose records lie before byte `offset` of the internal log, and these records'
        offsets. During the iteration, ids may be removed and offsets changed, but no ids may be inserted.
        """
        for leaf in [self._recent, *self._leaves]:
            leaf.sort()
            chosen = leaf.offsets < offset
            yield leaf.ids[chosen], leaf.offsets[chosen]

    def all_offsets(self) -> Iterator[Ids]:
        """Yield the record offsets of all ids, in one array for each leaf."""
        for leaf in [self._recent, *self._leaves]:
            leaf.sort()
            yield leaf.offsets

    # --- leaves -------------------------------------------------------------------------------------------------------

    def _first_leaf(self) -> _Leaf:
        """Remove empty leaves at the beginning, and return the first remaining leaf. The returned leaf is empty only if
        all leaves are empty.
        """
        while not len(self._leaves[0]) and len(self._leaves) > 1:
            del self._leaves[0], self._firsts[0]
        return self._leaves[0]

    def _range(self, number: int, start: int, end: int | None, most: int) -> tuple[Ids, Ids]:
        pieces = [_between(self._recent, start, end, most)]
        left = most
        for leaf in self._leaves[number:]:
            piece = _between(leaf, start, end, left)
            pieces.append(piece)
            left -= len(piece[0])
            if not left or (end is not None and len(leaf) > len(piece[0])):
                break
        ids = np.concatenate([ids for ids, _ in pieces])
        offsets = np.concatenate([offsets for _, offsets in pieces])
        order = ids.argsort(kind="stable")[:most]
        return ids[order], offsets[order]

    def _shares(self, ids: Ids) -> list[tuple[int, int, int]]:
        """Divide sorted ids into slices, one for each leaf to which some of the ids belong. Return a tuple (leaf
        number, start, end) for each slice, where [start, end) are indexes in `ids`.
        """
        firsts, shares, start = self._firsts, [], 0
        while start < len(ids):
            number = bisect_right(firsts, ids[start])
            end = len(ids) if number == len(firsts) else int(ids.searchsorted(firsts[number]))
            shares.append((number, start, end))
            start = end
        return shares

    def _deal(self, ids: Ids, offsets: Ids) -> None:
        """Add each of the sorted ids, with its offset, to the leaf in whose range the id is."""
        for number, start, end in reversed(self._shares(ids)):  # dividing a leaf renumbers the leaves after it
            leaf = self._leaves[number]
            leaf.add(ids[start:end], offsets[start:end])
            if len(leaf.added_ids) > _UNSORTED or len(leaf) > _LEAF:
                leaf.sort()
                if len(leaf) > _LEAF:
                    self._divide(number)

    def _divide(self, number: int) -> None:
        leaf = self._leaves[number]
        pieces = max(2, -(-len(leaf) * 4 // (_LEAF * 3)))  # each piece is three quarters full
        bounds = [len(leaf) * piece // pieces for piece in range(pieces + 1)]
        parts = [_Leaf(leaf.ids[start:end].copy(), leaf.offsets[start:end].copy()) for start, end in pairwise(bounds)]
        self._leaves[number : number + 1] = parts
        self._firsts[number:number] = [int(part.ids[0]) for part in parts[1:]]

    def _each(self, ids: Ids, use: _Use) -> Ids:
        """Sort `ids`. For each leaf that has some of the ids, call use(leaf, indexes of these ids among the sorted ids,
        indexes of these ids in the leaf). `use` returns the record offsets of these ids. Return the offsets in the
        order of `ids`, with NOWHERE for ids that no leaf has.
        """
        if len(ids) == 1:
            return self._one(ids, use)
        if not self._count:
            return np.full(len(ids), NOWHERE, np.int64)
        order = ids.argsort(kind="stable")
        wanted = ids[order]
        result = np.full(len(ids), NOWHERE, np.int64)
        here, places = self._recent.find(wanted)
        if len(places):
            which = here.nonzero()[0]
            result[which] = use(self._recent, which, places)
        left = (~here).nonzero()[0]
        rest = wanted[left]
        for number, start, end in self._shares(rest):
            leaf = self._leaves[number]
            here, places = leaf.find(rest[start:end])
            if len(places):
                which = left[start:end][here]
                result[which] = use(leaf, which, places)
        found = np.empty(len(ids), np.int64)
        found[order] = result
        return found

    def _one(self, ids: Ids, use: _Use) -> Ids:
        """Do the same as `_each` for a single id, but faster. The benchmark `transactions-1` shows the difference."""
        if self._count:
            for leaf in (self._recent, self._leaves[bisect_right(self._firsts, ids[0])]):
                leaf.sort()
                places = leaf.ids.searchsorted(ids)
                if places[0] < len(leaf.ids) and leaf.ids[places[0]] == ids[0]:
                    return use(leaf, _FIRST, places)
        return _NOT_HERE.copy()

    def _take(self, leaf: _Leaf, here: Places, places: Places) -> Ids:
        offsets = leaf.offsets[places]
        count = len(places)
        self._count -= count
        if int(places[-1]) == count - 1:  # removal of the first ids, which are due: the usual case
            leaf.ids, leaf.offsets = leaf.ids[count:], leaf.offsets[count:]
            return offsets
        leaf.ids, leaf.offsets = np.delete(leaf.ids, places), np.delete(leaf.offsets, places)
        return offsets


def _between(leaf: _Leaf, start: int, end: int | None, most: int) -> tuple[Ids, Ids]:
    """Return two new arrays: the lowest ids of a leaf that are in [start, end), at most `most` of them, and their
    record offsets.
    """
    leaf.sort()
    first = int(leaf.ids.searchsorted(start)) if start else 0
    last = len(leaf.ids) if end is None else int(leaf.ids.searchsorted(end))
    last = min(last, first + most)
    return (leaf.ids[first:last].copy(), leaf.offsets[first:last].copy()) if last > first else _NO_IDS

"""Evaluate a filter on many records at once. `Where.holds_for` would return the same result for each record, but here
no Python bytecode is executed for each single record.

The attributes of the records are copied into the rows of matrices; each matrix has attributes of similar length.
Payloads are never read. In a property list, the byte 0x01 ends a name and the byte 0x02 ends a value. One NumPy
comparison finds these bytes in all rows of a matrix. So the positions of names and values are arrays, too, and a
condition is evaluated on the values of all rows at once. NumPy compares texts (by =, <>, or IN with few texts) and
numbers of up to 15 digits, for all rows at once. For all other conditions, the predicate's `test` is called once for
each distinct value. `python -m bench.where` measures the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..limits import MAX_WHERE_ATTRIBUTE
from ..properties import TYPE_MARK
from ..record import ATTRIBUTE_FLAG, HEADER, HEADER_BYTES, PROPERTIES_FLAG, Buffer, header_dtype
from .expression import And, Condition, Constant, Expression, Or
from .predicates import COMPARISONS, CompareNumber, CompareText, In, IsNull, Predicate
from .values import FALSE, TRUE, UNKNOWN
from .where import PropertyName, Where, value_of

__all__ = ["matching"]

_WIDTHS = np.array((64, 128, 256, 512, 1024))
"""If the attributes differ too much in length for a single matrix, they are distributed to matrices of these widths in
bytes. An attribute that is longer than the largest width goes into no matrix and is decoded by itself.
"""

_WASTE = 2
"""All attributes go into a single matrix if the width that the longest attribute needs is at most this number times the
average of the widths that the attributes need, and at most the largest of _WIDTHS.
"""

_BLOCK_BYTES = 256 << 10
"""Maximum size of one matrix in bytes. So the matrix and the results of searches in it stay in the cache of a processor
core.
"""

_FEW = 24
"""Minimum number of rows of a matrix. If there are fewer attributes for a matrix, no matrix is made, because making it
would cost more than decoding each attribute by itself.
"""

_HEADER = header_dtype()
_HEAD_DTYPE = np.dtype([*((name, _HEADER[name].str) for name in _HEADER.names or ()), ("attribute", ">i4")])
"""Layout of a record's header, followed by the length of the record's attribute if the record has one."""
_LENGTH_BYTES = _HEAD_DTYPE.itemsize - HEADER_BYTES

_NAME_END, _VALUE_END = 1, 2
_TYPED, _INT, _FLOAT = ord(TYPE_MARK), ord("i"), ord("f")
_ZERO, _DOT, _MINUS, _PLUS = ord("0"), ord("."), ord("-"), ord("+")

_DIGITS = 15
"""The arithmetic with doubles in this module is exact for numbers with at most this many decimal digits."""
_POWERS = 10.0 ** np.arange(_DIGITS + 1)

_FEW_TEXTS = 8
"""If an IN has at most this many texts, NumPy compares the values of all rows with the first text, then with the
second, and so on. For an IN with more texts, the predicate's `test` is called once for each distinct value instead.
"""

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
_Truths = npt.NDArray[np.uint8]


def matching(where: Where, data: Buffer, starts: _Ints, sizes: _Ints, *, most_steps: int | None = None) -> _Bools:
    """Return for each record whether the filter matches it. A record is data[start : start + size], header included.

    starts: in ascending order. The checksum and the length in a record's header are not checked. most_steps: a bound
    for the cost of LIKE. If the LIKE predicates could need more search steps than this for a record (`Where.searched`),
    the result for the record is True without evaluation. None means that there is no bound.
    """
    found = np.full(len(starts), where.holds_for_none)
    begins, lengths, flags = _attributes(data, starts, sizes)
    asked = lengths >= 0
    if not any(each.is_whole for each in where.names):
        asked &= (flags & PROPERTIES_FLAG) != 0
    if most_steps is not None and where.searched:
        costly = asked & (lengths * where.searched > most_steps)
        found[costly] = True
        asked &= ~costly
    rows = np.flatnonzero(asked)
    for width, chosen in _matrices(begins[rows] - 1, lengths[rows] + 2, len(data)):
        step = max(_FEW, _BLOCK_BYTES // width) if width else len(chosen)
        for first in range(0, len(chosen), step):
            some = rows[chosen[first : first + step]]
            if width and len(some) >= _FEW:
                block = _Block(data, begins[some], lengths[some], flags[some], width)
                found[some] = block.truths(where.expression, where) == TRUE
                continue
            for row, begin, length, flag in zip(
                some.tolist(), begins[some].tolist(), lengths[some].tolist(), flags[some].tolist(), strict=True
            ):
                found[row] = where.holds_for_attribute(bytes(data[begin : begin + length]), flag)
    return found


def _matrices(begins: _Ints, widths: _Ints, end: int) -> Iterator[tuple[int, _Ints]]:
    """Choose matrices for the attributes, and yield for each matrix its width and the indices of the attributes that
    become its rows. The indices of the attributes that go into no matrix are yielded with the width 0. begins, widths:
    for each attribute, the position in the data where its row would begin, and the minimum width of the row. end: the
    number of bytes of the data; no row may extend beyond it.
    """
    if not len(widths):
        return
    widest = -(-int(widths.max()) // 16) * 16
    if widest <= min(_WASTE * widths.mean(), _WIDTHS[-1]):
        chosen = np.full(len(widths), widest)
    else:
        chosen = np.append(_WIDTHS, 0)[np.searchsorted(_WIDTHS, widths)]
    chosen[begins + chosen > end] = 0
    for width in np.unique(chosen).tolist():
        yield width, np.flatnonzero(chosen == width)


def _attributes(data: Buffer, starts: _Ints, sizes: _Ints) -> tuple[_Ints, _Ints, npt.NDArray[np.int32]]:
    """Return for each record the position of its attribute, the length of the attribute, and the record's flag. The
    length is -1 if the record has no attribute, if the attribute's stated length does not fit into the record, or if it
    exceeds MAX_WHERE_ATTRIBUTE.
    """
    room = len(data) - _HEAD_DTYPE.itemsize + 1
    inside = int(np.searchsorted(starts, room))
    heads = np.zeros(len(starts), _HEAD_DTYPE)
    if inside:
        anywhere = np.ndarray(room, f"V{_HEAD_DTYPE.itemsize}", data, 0, (1,))
        heads[:inside] = anywhere[starts[:inside]].view(_HEAD_DTYPE)
    for row in range(inside, len(starts)):  # the body, near the end of the data, is too short for an attribute
        heads[row] = (*HEADER.unpack_from(data, int(starts[row])), 0)
    flags = heads["flag"].astype(np.int32)
    lengths = heads["attribute"].astype(np.int64)
    room_for = sizes - (HEADER_BYTES + _LENGTH_BYTES)
    lengths[((flags & ATTRIBUTE_FLAG) == 0) | (room_for < 0) | (lengths > room_for) | (lengths < 0)] = -1
    lengths[lengths > MAX_WHERE_ATTRIBUTE] = -1
    return starts + _HEAD_DTYPE.itemsize, lengths, flags


class _Column(NamedTuple):
    """The values of one property as bytes, for the rows of a _Block that have the property. starts, ends: each value is
    flat[start : end] of the _Block.

    rows: for each value, the number of the row that contains it. typed: for each value, whether it is written as
        another type than text.
    """

    asked: PropertyName
    rows: _Ints
    starts: _Ints
    ends: _Ints
    typed: _Bools

    def of(self, chosen: _Ints | _Bools) -> _Column:
        """Return a column with only the chosen values."""
        return _Column(self.asked, self.rows[chosen], self.starts[chosen], self.ends[chosen], self.typed[chosen])


class _Numbers(NamedTuple):
    """The values of a column as numbers; NaN for a value that is not a number. sure: for each value, whether its
    conversion by numpy is certainly exact. If not, the predicate's `test` must evaluate the value.
    """

    values: npt.NDArray[np.float64]
    sure: _Bools


class _Block:
    """A matrix whose rows are the attributes of records; `flat` is the same matrix as a one-dimensional array of bytes.
    In each row there is a byte 0x02 before and after the attribute. So each item of a property list is between two
    bytes 0x02.
    """

    def __init__(self, data: Buffer, begins: _Ints, lengths: _Ints, flags: npt.NDArray[np.int32], width: int) -> None:
        """begins, lengths: the position and the length of each attribute in `data`. width: the width of the matrix in
        bytes. The width is at least two more than the greatest length. For each attribute, `data` must have `width`
        bytes from begin - 1 on.
        """
        count = self._count = len(begins)
        anywhere = np.ndarray(len(data) - width + 1, f"V{width}", data, 0, (1,))
        self._matrix = anywhere[begins - 1]
        self._width = width
        self._flat: npt.NDArray[np.uint8] = self._matrix.view(np.uint8)
        self._firsts = np.arange(1, count * width, width)
        self._ends = self._firsts + lengths
        self._flat[self._firsts - 1] = _VALUE_END
        self._flat[self._ends] = _VALUE_END
        self._listed = (flags & PROPERTIES_FLAG) != 0
        self._all_listed = bool(self._listed.all())
        self._list_ends = self._ends if self._all_listed else np.where(self._listed, self._ends, 0)
        self._marks = np.flatnonzero((self._flat - np.uint8(_NAME_END)) < _VALUE_END)  # each 0x01 and 0x02
        self._columns: dict[str, _Column] = {}
        self._numbers: dict[str, _Numbers] = {}
        self._bytes: bytes | None = None

    def truths(self, expression: Expression, where: Where, needed: _Bools | None = None) -> _Truths:
        """Return the truth value of the expression for each row. needed: the rows whose result matters; None means all
        rows. The results of other rows are arbitrary.
        """
        if isinstance(expression, Condition):
            return self._condition(expression, where, needed)
        if isinstance(expression, And | Or):
            combine: Callable[[_Truths, _Truths], _Truths]
            combine, decided = (np.minimum, FALSE) if isinstance(expression, And) else (np.maximum, TRUE)
            found = self.truths(expression.of[0], where, needed)
            for each in expression.of[1:]:
                open_ = found != decided
                needed = open_ if needed is None else needed & open_
                if not needed.any():
                    break
                found = combine(found, self.truths(each, where, needed))
            return found
        if isinstance(expression, Constant):
            return np.full(self._count, expression.truth, np.uint8)
        return np.uint8(TRUE) - self.truths(expression.of, where, needed)

    # --- columns ------------------------------------------------------------------------------------------------------

    def _column(self, asked: PropertyName) -> _Column:
        column = self._columns.get(asked.name)
        if column is None:
            column = self._columns[asked.name] = self._find_column(asked)
        return column

    def _find_column(self, asked: PropertyName) -> _Column:
        item, marks = asked.item, self._marks
        behind = len(item) - 1
        found = np.flatnonzero(self._flat[marks - behind] == _VALUE_END)
        # A name contains no mark, so the mark before the end of a name is the mark in front of the name. Therefore the
        # compared ranges do not overlap, however many marks there are. No item lies in two rows, because a row begins
        # with a 0x02.
        found = found[marks[found - 1] == marks[found] - behind]
        found = found[self._texts(marks[found] - behind, len(item)) == item]
        name_ends = marks[found]
        rows = name_ends // self._width
        inside = name_ends < self._list_ends[rows]
        if not inside.all():  # a payload may look like a property list
            found, name_ends, rows = found[inside], name_ends[inside], rows[inside]
        if len(rows) > 1 and not (last := np.append(rows[1:] != rows[:-1], True)).all():
            # if a name is repeated, its last value counts
            found, name_ends, rows = found[last], name_ends[last], rows[last]
        ends = marks[found + 1]
        if (self._flat[ends] != _VALUE_END).any():  # a value has a 0x01
            value_ends = marks[self._flat[marks] == _VALUE_END]
            ends = value_ends[np.searchsorted(value_ends, name_ends)]
        starts = name_ends + 1
        if asked.is_whole and not self._all_listed:
            plain = np.flatnonzero(~self._listed)
            rows = np.concatenate((rows, plain))
            starts = np.concatenate((starts, self._firsts[plain]))
            ends = np.concatenate((ends, self._ends[plain]))
        typed = np.zeros(len(rows), np.bool_)
        if asked.is_typed:
            typed = (self._bytes_at(starts) == _TYPED) & (ends > starts)
        return _Column(asked, rows, starts, ends, typed)

    def _texts(self, starts: _Ints, length: int) -> npt.NDArray[np.bytes_]:
        """Return the bytes flat[start : start + length] for each start. All of these ranges must be within the
        matrix.
        """
        if not len(starts):
            return np.empty(0, f"S{length}")
        texts: npt.NDArray[np.bytes_] = np.ndarray(len(self._flat) - length + 1, f"S{length}", self._flat, 0, (1,))
        return texts[starts]

    def _bytes_at(self, positions: _Ints) -> npt.NDArray[np.uint8]:
        """Return the byte of the matrix at each position. For a position after the end of the matrix, return its last
        byte.
        """
        return self._flat[np.minimum(positions, len(self._flat) - 1)]

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _condition(self, condition: Condition, where: Where, needed: _Bools | None) -> _Truths:
        predicate = condition.predicate
        column = self._column(where.name(condition.name))
        truths = np.full(self._count, predicate.test(None), np.uint8)
        if isinstance(predicate, IsNull):
            truths[column.rows] = FALSE
            return truths
        if needed is not None:
            chosen = needed[column.rows]
            if not chosen.all():
                column = column.of(chosen)
        if not len(column.rows):
            return truths
        if isinstance(predicate, CompareText) and predicate.comparison in ("=", "<>"):
            self._compare_texts(column, (predicate.text,), predicate, truths, predicate.comparison == "=")
        elif isinstance(predicate, In) and not (predicate.numbers or predicate.bools):
            if len(predicate.texts) <= _FEW_TEXTS:
                self._compare_texts(column, tuple(predicate.texts), predicate, truths, True)
            else:
                self._ask_each(column, predicate, truths)
        elif isinstance(predicate, CompareNumber):
            self._compare_numbers(column, predicate, truths, COMPARISONS[predicate.comparison], float(predicate.number))
        elif isinstance(predicate, In) and not (predicate.texts or predicate.bools):
            self._compare_numbers(column, predicate, truths, np.isin, np.array(list(predicate.numbers), np.float64))
        else:
            self._ask_each(column, predicate, truths)
        return truths

    def _compare_texts(
        self, column: _Column, texts: tuple[str, ...], predicate: Predicate, truths: _Truths, positive: bool
    ) -> None:
        """Compare each value with `texts`, byte by byte, and set the rows' results in `truths`. positive: whether an
        equal value gives TRUE (= and IN) or FALSE (<>). Invalid UTF-8 decodes to characters that no filter contains, so
        texts are equal exactly if their bytes are equal.
        """
        lengths = column.ends - column.starts
        equal = np.zeros(len(lengths), np.bool_)
        for text in texts:
            encoded = text.encode("utf-8")
            of_length = np.flatnonzero(lengths == len(encoded))
            if encoded:
                equal[of_length] |= self._texts(column.starts[of_length], len(encoded)) == encoded
            else:
                equal[of_length] = True
        truths[column.rows] = np.where(equal == positive, np.uint8(TRUE), np.uint8(FALSE))
        if column.typed.any():
            self._ask_each(column.of(column.typed), predicate, truths)

    def _compare_numbers(
        self, column: _Column, predicate: Predicate, truths: _Truths, compare: Callable[[Any, Any], Any], literal: Any
    ) -> None:
        """Compare the values with a literal, as doubles, and set the rows' results in `truths`. NumPy rounds the
        literal if it is an integer that a double cannot hold exactly. Such a literal has more than _DIGITS digits,
        before and after the rounding, and the values that are compared here have at most _DIGITS. So rounding does not
        change the results.
        """
        numbers = self._as_numbers(column)
        found = compare(numbers.values, literal).astype(np.uint8) * np.uint8(TRUE)
        found[np.isnan(numbers.values)] = UNKNOWN
        truths[column.rows] = found
        if not numbers.sure.all():
            self._ask_each(column.of(~numbers.sure), predicate, truths)

    def _as_numbers(self, column: _Column) -> _Numbers:
        """Parse the column's values as numbers. Values such as 12, -7.25, 0x03 i12 and 0x03 f0.5 with at most _DIGITS
        digits are parsed; for other values `sure` is False.
        """
        kinds = self._bytes_at(column.starts + 1)
        starts = column.starts + np.where(column.typed, 2, 0)
        typed_number = column.typed & ((kinds == _INT) | (kinds == _FLOAT))
        signs = self._bytes_at(starts)
        negative = signs == _MINUS
        starts = starts + (negative | ((signs == _PLUS) & ~column.typed))
        lengths = column.ends - starts
        sure = (lengths > 0) & (lengths <= _DIGITS + 1) & (typed_number | ~column.typed)
        longest = int(lengths[sure].max()) if sure.any() else 0
        digits = np.zeros(len(starts), np.int64)
        count = np.zeros(len(starts), np.int64)
        fraction = np.full(len(starts), -1)  # digits after the dot
        for place in range(longest):
            there = sure & (place < lengths)
            each = self._bytes_at(starts + place)
            digit = each - np.uint8(_ZERO)
            is_digit = there & (digit <= 9)
            is_dot = there & (each == _DOT) & (fraction < 0) & (count > 0)
            sure &= ~there | is_digit | is_dot
            digits = np.where(is_digit, digits * 10 + digit, digits)
            count += is_digit
            fraction += is_digit & (fraction >= 0)
            fraction[is_dot] = 0
        sure &= (count <= _DIGITS) & (fraction != 0) & ~((fraction > 0) & column.typed & (kinds == _INT))
        values = digits / _POWERS[np.clip(fraction, 0, _DIGITS)]
        np.negative(values, out=values, where=negative)
        values[~sure] = np.nan
        return _Numbers(values, sure)

    def _ask_each(self, column: _Column, predicate: Predicate, truths: _Truths) -> None:
        """Set the rows' results in `truths` by calling the predicate's `test`, once for each distinct value of the
        column.
        """
        if self._bytes is None:
            self._bytes = self._matrix.tobytes()
        raws = map(self._bytes.__getitem__, map(slice, column.starts.tolist(), column.ends.tolist()))
        known: dict[bytes, int] = {}
        answers: list[int] = []
        for raw in raws:
            answer = known.get(raw)
            if answer is None:
                answer = known[raw] = predicate.test(value_of(raw, column.asked.is_typed))
            answers.append(answer)
        truths[column.rows] = answers

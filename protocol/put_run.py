"""Parse many `put` commands of one read together, so that they share most of the cost of parsing a single one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .limits import INT32_MAX, INT32_MIN
from .text import COMMON_PUT, Put

__all__ = ["LEAST_PUTS", "MOST_PUTS", "PutRun", "parse_put_run"]

LEAST_PUTS = 32
"""Fewer puts than this are parsed one by one, which is then cheaper."""

MOST_PUTS = 4096
"""Maximum puts that are served together, which takes some milliseconds. Only a read with tiny puts has more of them."""

_MAX_PUT_BYTES = 4096
"""Maximum size of the first put of a run. Headers are searched in all bytes; for larger puts it is cheaper to skip each
body by its length.
"""

_PIECES = 7  # of each put: the tokens of its header, and its body
_HEADER_BYTES = len(b"put      \r\n")  # besides the tokens


class PutRun(NamedTuple):
    """Consecutive puts, each for a partition, with a checksum and without a transaction, as one list for each field."""

    topics: list[str]
    partitions: list[int]
    flags: list[int]
    checksums: list[int]
    opaques: list[int]
    bodies: list[bytes]

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.bodies))

    def pieces(self) -> Iterator[PutRun]:
        """Yield the puts in runs of at most MOST_PUTS."""
        if len(self.bodies) <= MOST_PUTS:
            yield self
            return
        for start in range(0, len(self.bodies), MOST_PUTS):
            part = slice(start, start + MOST_PUTS)
            numbers = self.partitions[part], self.flags[part], self.checksums[part], self.opaques[part]
            yield PutRun(self.topics[part], *numbers, self.bodies[part])

    def puts(self) -> Iterator[Put]:
        """Yield the puts one by one."""
        for topic, partition, flag, checksum, opaque, body in zip(*self, strict=True):
            yield Put(topic, partition, flag, checksum, None, opaque, body)


def parse_put_run(data: bytes, most: int = 0) -> tuple[PutRun | None, int]:
    """Return the puts at the beginning of `data` that are whole, valid and in the usual form, and where they end.

    most: maximum number of puts; 0: all. Returns (None, 0) if there are fewer than LEAST_PUTS, or if they are large.
    All headers are found at once, including bytes in a body that look like one. So a put counts only if its body has
    the announced length; the first put with another length ends the run.
    """
    first = COMMON_PUT.match(data)
    if first is None:
        return None, 0
    size = first.end() + int(first[3])
    if size > _MAX_PUT_BYTES or LEAST_PUTS * size > len(data):
        return None, 0
    pieces = COMMON_PUT.split(data, most)
    lengths = list(map(int, pieces[3::_PIECES]))
    found = list(map(len, pieces[_PIECES::_PIECES]))
    surplus = max(0, found[-1] - lengths[-1])  # no header after the last put ends its body
    if surplus:
        found[-1] = lengths[-1]
        pieces[-1] = pieces[-1][: lengths[-1]]
    count = whole = len(lengths)
    if found != lengths:
        whole = next(number for number in range(count) if found[number] != lengths[number])
    run = _run(pieces[1 : 1 + whole * _PIECES]) if whole >= LEAST_PUTS else None
    if run is None:
        return None, 0
    rest = sum(map(len, pieces[1 + whole * _PIECES :])) + (count - whole) * _HEADER_BYTES
    return run, len(data) - rest - surplus


def _run(pieces: list[bytes]) -> PutRun | None:
    """Return the run from the pieces of its puts; None if a number exceeds Java's range."""
    topics, partitions, _, flags, checksums, opaques, bodies = (pieces[column::_PIECES] for column in range(_PIECES))
    crcs, numbers = list(map(int, checksums)), list(map(int, opaques))
    if max(crcs) > INT32_MAX or min(numbers) < INT32_MIN or max(numbers) > INT32_MAX:
        return None
    names = {topic: topic.decode("utf-8", "replace") for topic in set(topics)}
    return PutRun(
        list(map(names.__getitem__, topics)), list(map(int, partitions)), list(map(int, flags)), crcs, numbers, bodies
    )

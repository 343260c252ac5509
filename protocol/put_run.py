"""Parse many `put` commands in one step if one read of the connection has returned them. Most of the parsing work is
then done once for all of these commands, and not once for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .limits import INT32_MAX, INT32_MIN
from .text import COMMON_PUT, Put

__all__ = ["LEAST_PUTS", "MOST_PUTS", "PutRun", "parse_put_run"]

LEAST_PUTS = 32
"""Minimum number of puts that are parsed together. Fewer puts cost less if they are parsed one by one."""

MOST_PUTS = 4096
"""Maximum number of puts that a broker serves before it turns to other connections; to serve so many puts takes some
milliseconds. One read of the connection returns more puts than this only if they are tiny.
"""

_MAX_PUT_BYTES = 4096
"""Maximum size in bytes of the first put of a run. To parse a run, `parse_put_run` searches all bytes for headers, also
the bytes of the bodies. Larger puts are parsed one by one, which costs less: each header contains the length of its
body and so tells where the next header begins, and no body must be searched.
"""

_PIECES = 7  # of each put: the tokens of its header, and its body
_HEADER_BYTES = len(b"put      \r\n")  # besides the tokens


class PutRun(NamedTuple):
    """Consecutive puts, with one list for each field. Each put names a partition, has a checksum and belongs to no
    transaction.
    """

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
    """Parse the puts at the beginning of `data` that are complete, valid, and in the form that COMMON_PUT (text.py)
    matches. Return them with the position after the last one.

    most: maximum number of puts; 0 means no maximum. Return (None, 0) if there are fewer than LEAST_PUTS puts, or if
    the first put is larger than _MAX_PUT_BYTES. A single regular-expression search finds all headers in `data`, but it
    also finds bytes of a body that look like a header. So a put is accepted only if the bytes up to the next header
    have the length that the put's header announces. The first put with another length ends the run.
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
    """Make a PutRun. pieces: for each put, the fields of its header and then its body, as the search of `parse_put_run`
    has separated them. Return None if a number in a header is outside the range of Java's int.
    """
    topics, partitions, _, flags, checksums, opaques, bodies = (pieces[column::_PIECES] for column in range(_PIECES))
    crcs, numbers = list(map(int, checksums)), list(map(int, opaques))
    if max(crcs) > INT32_MAX or min(numbers) < INT32_MIN or max(numbers) > INT32_MAX:
        return None
    names = {topic: topic.decode("utf-8", "replace") for topic in set(topics)}
    return PutRun(
        list(map(names.__getitem__, topics)), list(map(int, partitions)), list(map(int, flags)), crcs, numbers, bodies
    )

"""Check whether a broker could read the internal logs in a data directory, from which it builds its memories (for
example the table of delayed messages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from metaq.protocol.errors import StoreError

from ..assembly.kinds import KINDS, MessageKind
from ..store.files import Files, opened, read_exactly
from ..store.internal_logs import NUMBERS
from ..store.recovery import trusted_checkpoint
from ..store.scan import walk
from ..store.segment import SegmentFile, segment_files
from .findings import Finding, Level

__all__ = ["KeptLog", "inspect_kept", "kept_logs"]


class KeptLog(NamedTuple):
    """An internal log in a data directory. name: `<topic>-<number>`, where `topic` is the internal topic."""

    name: str
    path: str
    kind: MessageKind
    segments: Sequence[SegmentFile]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


def kept_logs(files: Files, data_path: str) -> Iterator[KeptLog]:
    """Yield the internal logs in a data directory. Raises OSError."""
    for topic, kind in KINDS.items():
        for number in NUMBERS:
            path = kind.path(data_path, number)
            if files.is_directory(path):
                yield KeptLog(f"{topic}-{number}", path, kind, segment_files(files, path))


def inspect_kept(
    files: Files, log: KeptLog, *, fast: bool, in_use: bool, advance: Callable[[int], None]
) -> Iterator[Finding]:
    """Read an internal log and yield a finding for each problem. The arguments `fast`, `in_use` and `advance` have the
    same meaning as in `inspect_partition`.
    """
    for before, after in pairwise(log.segments):
        if before.end != after.first_offset:
            text = f"the segment before it ends at byte {before.end}: {log.kind.memory.name} are lost"
            yield Finding(Level.DAMAGE, after.path, text)
    for segment in log.segments:
        try:
            yield from _inspect(files, log, segment, fast, in_use, advance)
        except OSError as error:
            if not (in_use and isinstance(error, FileNotFoundError)):  # otherwise its broker has made the log shorter
                yield Finding(Level.DAMAGE, segment.path, f"cannot be read: {error.strerror}")


def _inspect(
    files: Files, log: KeptLog, segment: SegmentFile, fast: bool, in_use: bool, advance: Callable[[int], None]
) -> Iterator[Finding]:
    known = trusted_checkpoint(files, segment)
    checked = 0 if known is None else known.end - segment.first_offset
    position = checked if fast else 0
    with opened(files, segment.path) as fd:
        for units, end in walk(files, fd, position, segment.size, segment.first_offset):
            if len(units):
                data = read_exactly(files, fd, end - position, position)
                base = segment.first_offset + position
                for offset, size in units[["offset", "size"]].tolist():
                    try:
                        log.kind.memory.check_record(bytes(data[offset - base : offset - base + size]))
                    except StoreError as error:
                        yield Finding(Level.DAMAGE, segment.path, f"the record at byte {offset}: {error}")
            else:
                where = f"[{segment.first_offset + position}, {segment.first_offset + end})"
                if end < segment.size or segment is not log.segments[-1] or position < checked:
                    text = f"{end - position} damaged bytes {where}: {log.kind.memory.name} are lost"
                    yield Finding(Level.DAMAGE, segment.path, text)
                elif not in_use:
                    text = f"a torn tail {where}: a record that was never finished, cut at the start"
                    yield Finding(Level.WARNING, segment.path, text)
            advance(end - position)
            position = end

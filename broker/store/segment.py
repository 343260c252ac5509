"""A segment: one `.meta` file of a partition, and what the broker knows about its state (storage.md §3)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from metaq.protocol.errors import StoreError

from .files import Files, OpenFile, OpenFiles
from .index import Index
from .key_index import KeyBlock

__all__ = [
    "DATA_SUFFIX",
    "INDEX_SUFFIX",
    "KEYS_SUFFIX",
    "MAX_OFFSET",
    "Segment",
    "SegmentFile",
    "check_contiguous",
    "create_segment",
    "data_name",
    "offset_named",
    "segment_files",
]

DATA_SUFFIX = ".meta"
INDEX_SUFFIX = ".index"
KEYS_SUFFIX = ".keys"

MAX_OFFSET = 1 << 62
"""The highest byte offset where a segment can begin. No partition becomes so long. Even if a segment begins at this
offset, the offsets of records that are appended to it fit into 64 bits.
"""

_log = logging.getLogger(__name__)


def data_name(first_offset: int) -> str:
    """Return the file name of the segment that starts at this byte offset."""
    return f"{first_offset:020d}{DATA_SUFFIX}"


def offset_named(name: str) -> int | None:
    """Return the byte offset in a data file's name, or None if the name is not that of a data file."""
    stem = name.removesuffix(DATA_SUFFIX)
    return int(stem) if stem.isascii() and stem.isdecimal() and int(stem) <= MAX_OFFSET else None


class SegmentFile(NamedTuple):
    """A segment as it was found on the disk. first_offset: byte offset in the partition. modified_ms: the time of the
    last change in Unix ms.
    """

    path: str
    first_offset: int
    size: int
    modified_ms: int

    @property
    def end(self) -> int:
        return self.first_offset + self.size

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX

    @property
    def keys_path(self) -> str:
        return self.path.removesuffix(DATA_SUFFIX) + KEYS_SUFFIX


class Segment:
    """A segment that belongs to a log of the running broker. Only the thread that owns the store may use this object;
    but other threads may read the paths, `first_offset` and `removed`.

    `index` is None while the index of a closed segment is missing or damaged and not yet rebuilt. All data before the
    byte offset `synced` are known to be on the disk. All data before the byte offset `checkpointed` are known to be on
    the disk together with their index units. `keys`: the blocks of the segment's key file, or None until the key file
    is read. `removed`: whether the segment was removed from its log.
    """

    __slots__ = ("checkpointed", "data", "first_offset", "index", "keys", "path", "removed", "size", "synced")

    def __init__(self, path: str, first_offset: int, size: int, data: OpenFile, index: Index | None) -> None:
        self.path = path
        self.first_offset = first_offset
        self.size = size
        self.data = data
        self.index = index
        self.keys: tuple[KeyBlock, ...] | None = None
        self.removed = False
        self.synced = self.checkpointed = first_offset

    @property
    def end(self) -> int:
        """The byte offset in the partition directly behind the segment's last byte."""
        return self.first_offset + self.size

    @property
    def finished(self) -> bool:
        """Whether this segment needs no further sync job. It is True if a checkpoint covers the whole segment. It is
        also True if the whole segment is synced and its index is being rebuilt, because the rebuild itself writes a
        checkpoint.
        """
        done = self.synced if self.index is None else self.checkpointed
        return done == self.first_offset + self.size

    @property
    def count(self) -> int:
        """The number of records in the segment. It is 0 while the index is being rebuilt."""
        return 0 if self.index is None else len(self.index)

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX

    @property
    def keys_path(self) -> str:
        return self.path.removesuffix(DATA_SUFFIX) + KEYS_SUFFIX

    def close(self) -> None:
        """Close the descriptors."""
        self.data.close()
        if self.index is not None:
            self.index.file.close()


def segment_files(files: Files, directory: str) -> list[SegmentFile]:
    """Return the `.meta` files of a partition directory, sorted by offset. Other files are ignored.

    A `.meta` file whose name is not an offset is skipped and logged. Such a file causes no error, so it does not keep
    the broker from serving the partitions. Raises OSError.
    """
    found = []
    for name in files.list_directory(directory):
        if not name.endswith(DATA_SUFFIX):
            continue
        path = os.path.join(directory, name)
        first_offset = offset_named(name)
        if first_offset is None:
            _log.error(
                "%s is passed over: the name before %s is not a byte offset. Move the file elsewhere", path, DATA_SUFFIX
            )
            continue
        status = files.status(path)
        found.append(SegmentFile(path, first_offset, status.size, status.modified_ms))
    return sorted(found, key=lambda file: file.first_offset)


def check_contiguous(found: Sequence[SegmentFile]) -> None:
    """Raise StoreError if there is a gap or an overlap between neighbouring segments. The error names both files."""
    for before, after in pairwise(found):
        if before.end != after.first_offset:
            what = "gap" if before.end < after.first_offset else "overlap"
            raise StoreError(
                f"{what} of {abs(after.first_offset - before.end)} bytes: {before.path} ends at {before.end}, but "
                f"{after.path} follows: restore the missing data, or move one side's files elsewhere"
            )


def create_segment(open_files: OpenFiles, directory: str, first_offset: int) -> Segment:
    """Create a new empty segment on the disk. The directory is not synced. Raises OSError, also if the file exists."""
    path = os.path.join(directory, data_name(first_offset))
    files = open_files.files
    files.close(files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    index_path = path.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX
    return Segment(path, first_offset, 0, open_files.file(path), Index(open_files.file(index_path)))

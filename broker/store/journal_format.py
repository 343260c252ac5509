"""The format of journal files: `<data path>/metaqjournal/<20-digit number>.journal` contains a sequence of blocks.

A block contains the data of a group of appends, which one sync makes safe. All numbers are little-endian:

    magic u32 | CRC-32 of all that follows u32 |
    number of the file u64 | data bytes u64 | entries u32 | bytes of all names u32 |
    a row per entry: offset of its data in the partition i64, data bytes u32, name bytes u16, 0 u16 |
    the names, `<topic>-<partition>` UTF-8, back to back | the data, whole records, back to back

If a block is incomplete or its CRC-32 is wrong, the broker uses none of its data. An incomplete block can be dropped
without loss, because puts are acknowledged only after their whole block was synced. No block except the last block of
the last file can be incomplete. So anywhere else, bytes that are not a good block are damage. The broker skips such
bytes and uses the good blocks behind them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.record import Buffer

from . import tuning
from .files import Files, naming, opened, read_exactly

__all__ = [
    "DAMAGED_SUFFIX",
    "JOURNAL_DIRECTORY",
    "JOURNAL_SUFFIX",
    "JournalContents",
    "JournalData",
    "JournalEntry",
    "JournalGap",
    "encode_block",
    "journal_number",
    "read_journal",
]

JOURNAL_DIRECTORY = "metaqjournal"
JOURNAL_SUFFIX = ".journal"
DAMAGED_SUFFIX = ".damaged"
"""This suffix is added to the name of a journal file that is kept because a part of it could not be read."""

_NAME = re.compile(r"[0-9]{20}\.journal")
_MAGIC = 0x4B51544D  # "MTQK"
_PREFIX = Struct("<II")
_MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_HEAD = Struct("<QQII")
_ROW = np.dtype([("base", "<i8"), ("bytes", "<u4"), ("name_bytes", "<u2"), ("zero", "<u2")])


class JournalEntry(NamedTuple):
    """The location of an entry's data: bytes [position, position + length) of the journal file `path`. base: the byte
    offset in the partition where the data begin.
    """

    base: int
    length: int
    path: str
    position: int

    @property
    def end(self) -> int:
        return self.base + self.length


def encode_block(
    number: int, names: Sequence[bytes], bases: Sequence[int], ends: Sequence[int], data: Sequence[Buffer]
) -> list[Buffer]:
    """Return a block for the journal file with this number, divided into buffers. names: for each entry, the name of
    its partition. bases,
    ends: the byte offsets in the partition where each entry's data begin and end. data: the data of all entries,
    divided into buffers in any way.
    """
    rows = np.zeros(len(names), _ROW)
    rows["base"] = bases
    rows["bytes"] = np.subtract(ends, bases)
    rows["name_bytes"] = list(map(len, names))
    joined_names = b"".join(names)
    data_bytes = int(rows["bytes"].sum(dtype=np.uint64))
    head = _HEAD.pack(number, data_bytes, len(names), len(joined_names)) + rows.tobytes() + joined_names
    if data_bytes < tuning.JOURNAL_JOIN_BELOW_BYTES * len(data):
        body = b"".join((head, *data))
        return [_PREFIX.pack(_MAGIC, crc32(body)), body]
    checksum = crc32(head)
    for buffer in data:
        checksum = crc32(buffer, checksum)
    return [_PREFIX.pack(_MAGIC, checksum) + head, *data]


class JournalData:
    """Reads the data of journal entries. Each journal file is opened at the first read from it and stays open until
    `close`. Only one thread may use this object.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: dict[str, int] = {}

    def read(self, entry: JournalEntry) -> bytes:
        """Return the data of this entry: whole records. Raises OSError."""
        fd = self._open.get(entry.path)
        if fd is None:
            fd = self._open[entry.path] = self._files.open(entry.path, os.O_RDONLY)
        with naming(entry.path):
            return read_exactly(self._files, fd, entry.length, entry.position)

    def close(self) -> None:
        """Close the files."""
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()


class JournalGap(NamedTuple):
    """Bytes [start, end) of a journal file that contain no good block.

    damaged: True if the bytes may have contained acknowledged puts; False if they are at the end of the last journal
    file, so that they are probably a block whose write was interrupted.
    """

    path: str
    start: int
    end: int
    damaged: bool


class JournalContents(NamedTuple):
    """The content of the whole journal. entries: a dict from partition name to the partition's entries, in order.
    paths: the paths of all journal files, oldest first. gaps: the parts of these files that cannot be read.
    """

    entries: dict[str, list[JournalEntry]]
    paths: list[str]
    gaps: list[JournalGap]

    @property
    def damaged_paths(self) -> list[str]:
        """The paths of the journal files in which damage has perhaps destroyed acknowledged puts."""
        return list(dict.fromkeys(gap.path for gap in self.gaps if gap.damaged))


def read_journal(files: Files, data_path: str) -> JournalContents:
    """Read and check all journal files, and return where their entries are. The bytes of at most one file are in memory
    at a time. Raises OSError.
    """
    directory = os.path.join(data_path, JOURNAL_DIRECTORY)
    contents = JournalContents({}, [], [])
    if not files.is_directory(directory):
        return contents
    names = (name for name in files.list_directory(directory) if _NAME.fullmatch(name))
    contents.paths.extend(os.path.join(directory, name) for name in sorted(names))
    for path in contents.paths:
        _read_file(files, path, contents, last=path == contents.paths[-1])
    return contents


def journal_number(path: str) -> int:
    """Return the number in a journal file's name. Raises ValueError."""
    return int(os.path.basename(path).removesuffix(JOURNAL_SUFFIX))


def _read_file(files: Files, path: str, contents: JournalContents, *, last: bool) -> None:
    with opened(files, path) as fd:
        data = memoryview(read_exactly(files, fd, files.status(path).size, 0))
    number = journal_number(path)
    position = 0
    while position < len(data):
        block = _block_at(data, position, number)
        if block is None:
            start, position = position, _next_block(data, position, number)
            contents.gaps.append(JournalGap(path, start, position, damaged=position < len(data) or not last))
            continue
        names_at, data_at, rows, position = block
        for base, length, size, _ in rows.tolist():
            name = bytes(data[names_at : names_at + size]).decode()
            contents.entries.setdefault(name, []).append(JournalEntry(base, length, path, data_at))
            names_at += size
            data_at += length


def _block_at(data: memoryview, position: int, number: int) -> tuple[int, int, npt.NDArray[Any], int] | None:
    """Examine the block at `position`. Return the position of the block's names, the position of its data, its table
    with one row for each entry, and the position where the block ends. Return None if the block is not good.
    """
    head = position + _PREFIX.size
    if head + _HEAD.size > len(data):
        return None
    magic, checksum = _PREFIX.unpack_from(data, position)
    file_number, data_bytes, entries, name_bytes = _HEAD.unpack_from(data, head)
    names_at = head + _HEAD.size + entries * _ROW.itemsize
    data_at = names_at + name_bytes
    end = data_at + data_bytes
    if magic != _MAGIC or file_number != number or end > len(data) or crc32(data[head:end]) != checksum:
        return None
    return names_at, data_at, np.frombuffer(data, _ROW, entries, head + _HEAD.size), end


def _next_block(data: memoryview, position: int, number: int) -> int:
    """Return the position of the first good block behind `position`, or the end of the data if there is none."""
    raw = data.obj
    assert isinstance(raw, bytes)
    while (position := raw.find(_MAGIC_BYTES, position + 1)) >= 0:
        if _block_at(data, position, number) is not None:
            return position
    return len(data)

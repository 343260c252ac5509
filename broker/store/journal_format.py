"""The files of the journal: `<data path>/metaqjournal/<20-digit number>.journal`, a sequence of blocks.

A block is what one sync made safe. Little-endian:

    magic u32 | CRC-32 of all that follows u32 |
    number of the file u64 | data bytes u64 | entries u32 | bytes of all names u32 |
    a row per entry: offset of its data in the partition i64, data bytes u32, name bytes u16, 0 u16 |
    the names, `<topic>-<partition>` UTF-8, back to back | the data, whole records, back to back

A block is good as a whole or not at all: nothing of a torn one was ever acknowledged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from metaq.protocol.record import Buffer

from .files import Files, read_exactly

__all__ = [
    "JOURNAL_DIRECTORY",
    "JOURNAL_SUFFIX",
    "JournalData",
    "JournalEntry",
    "encode_block",
    "journal_number",
    "read_journal",
]

JOURNAL_DIRECTORY = "metaqjournal"
JOURNAL_SUFFIX = ".journal"

_NAME = re.compile(r"[0-9]{20}\.journal")
_MAGIC = 0x4B51544D  # "MTQK"
_PREFIX = Struct("<II")
_HEAD = Struct("<QQII")
_ROW = np.dtype([("base", "<i8"), ("bytes", "<u4"), ("name_bytes", "<u2"), ("zero", "<u2")])

_SMALL_BYTES = 4096
"""Data in buffers smaller than this on average is joined: one copy costs less than so many calls."""


class JournalEntry(NamedTuple):
    """Where an entry's data lies: bytes [position, position + length) of a journal file. base: its partition offset."""

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
    """A block for file `number`: for each entry its partition's name and offsets; the data of all in any buffers."""
    rows = np.zeros(len(names), _ROW)
    rows["base"] = bases
    rows["bytes"] = np.subtract(ends, bases)
    rows["name_bytes"] = list(map(len, names))
    joined_names = b"".join(names)
    data_bytes = int(rows["bytes"].sum(dtype=np.uint64))
    head = _HEAD.pack(number, data_bytes, len(names), len(joined_names)) + rows.tobytes() + joined_names
    if data_bytes < _SMALL_BYTES * len(data):
        body = b"".join((head, *data))
        return [_PREFIX.pack(_MAGIC, crc32(body)), body]
    checksum = crc32(head)
    for buffer in data:
        checksum = crc32(buffer, checksum)
    return [_PREFIX.pack(_MAGIC, checksum) + head, *data]


class JournalData:
    """Reads entries' data; each file is opened once, until `close`. One thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: dict[str, int] = {}

    def read(self, entry: JournalEntry) -> bytes:
        """The entry's records. Raises OSError."""
        fd = self._open.get(entry.path)
        if fd is None:
            fd = self._open[entry.path] = self._files.open(entry.path, os.O_RDONLY)
        return read_exactly(self._files, fd, entry.length, entry.position)

    def close(self) -> None:
        """Close the files."""
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()


def read_journal(files: Files, data_path: str) -> tuple[dict[str, list[JournalEntry]], list[str]]:
    """All entries by partition name, in order, and the paths of the files they are in, oldest first.

    A file is read up to its first torn block: what follows was never acknowledged. Memory: one file's bytes at a time.
    Raises OSError.
    """
    directory = os.path.join(data_path, JOURNAL_DIRECTORY)
    if not files.is_directory(directory):
        return {}, []
    names = (name for name in files.list_directory(directory) if _NAME.fullmatch(name))
    paths = [os.path.join(directory, name) for name in sorted(names)]
    found: dict[str, list[JournalEntry]] = {}
    for path in paths:
        for partition, entry in _read_file(files, path):
            found.setdefault(partition, []).append(entry)
    return found, paths


def journal_number(path: str) -> int:
    """The number in a journal file's name. Raises ValueError."""
    return int(os.path.basename(path).removesuffix(JOURNAL_SUFFIX))


def _read_file(files: Files, path: str) -> Iterator[tuple[str, JournalEntry]]:
    fd = files.open(path, os.O_RDONLY)
    try:
        data = memoryview(read_exactly(files, fd, files.status(path).size, 0))
    finally:
        files.close(fd)
    position = 0
    number = journal_number(path)
    while position + _PREFIX.size + _HEAD.size <= len(data):
        magic, checksum = _PREFIX.unpack_from(data, position)
        head = position + _PREFIX.size
        file_number, data_bytes, entries, name_bytes = _HEAD.unpack_from(data, head)
        names_at = head + _HEAD.size + entries * _ROW.itemsize
        data_at = names_at + name_bytes
        end = data_at + data_bytes
        if magic != _MAGIC or file_number != number or end > len(data) or crc32(data[head:end]) != checksum:
            return
        rows = np.frombuffer(data, _ROW, entries, head + _HEAD.size)
        for base, length, size, _ in rows.tolist():
            name = bytes(data[names_at : names_at + size]).decode()
            yield name, JournalEntry(base, length, path, data_at)
            names_at += size
            data_at += length
        position = end

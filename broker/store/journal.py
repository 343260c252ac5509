"""One sequential log for all partitions whose puts wait for the disk: one sync for many partitions.

A put is written to its partition's file through the page cache, and once more to the journal. Everything that arrives
while one sync of the journal runs shares the next: the group commit, across partitions and connections. The partition
files are synced later, by checkpoints; when they cover a journal file, that file goes. So what an acknowledgement costs
does not grow with the number of partitions. While only one or two of them are busy their files are synced themselves,
which spares the second write.

Files: `<data path>/metaqjournal/<20-digit number>.journal`. 1.x ignores a directory without `-` in its name.
An entry, little-endian: magic u32 | CRC-32 of all that follows u32 | data bytes u32 | name bytes u16 | 0 u16 |
offset of the data in its partition i64 | number of the file u64 | `<topic>-<partition>` UTF-8 | data: whole records.

Invariants: entries of one partition follow each other without a gap, in offset order; a file is removed only when all
its entries are synced in their partitions; after a failed write or sync nothing is written any more.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, Protocol

from isal.isal_zlib import crc32

from metaq.protocol.errors import LogReadOnly, MetaqError
from metaq.protocol.record import Buffer

from .files import Files, read_exactly, write_all
from .flush import RunInThread, VisibleCallback

__all__ = [
    "JOURNAL_DIRECTORY",
    "JOURNAL_SUFFIX",
    "Journal",
    "JournalEntry",
    "JournaledLog",
    "journal_number",
    "read_journal",
]

_log = logging.getLogger(__name__)

JOURNAL_DIRECTORY = "metaqjournal"
JOURNAL_SUFFIX = ".journal"

MAX_FILE_BYTES = 64 << 20
"""A file that has grown to this is followed by the next, and its partitions are checkpointed."""

_DIRECT_PARTITIONS = 2
"""Up to so many busy partitions are synced themselves."""

_NAME = re.compile(r"[0-9]{20}\.journal")
_MAGIC = 0x4A51544D  # "MTQJ"
_PREFIX = Struct("<II")
_HEADER = Struct("<IHHqQ")
_FIXED_BYTES = _PREFIX.size + _HEADER.size


class JournaledLog(Protocol):
    """A partition's log, as its journal sees it. Owning thread."""

    topic: str
    partition: int
    visible_end: int

    @property
    def synced_end(self) -> int:
        """Byte offset up to which the partition's own files are synced."""

    def sync_directly(self, end: int, callback: VisibleCallback) -> None:
        """Sync the partition's own file up to `end` at least, then call back."""

    def journaled(self, end: int, sequence: int) -> None:
        """Everything below `end`, the first `sequence` records of the log's own count, is safe."""

    def sync_failed(self, cause: str) -> None:
        """Nothing can be made safe any more."""


class JournalEntry(NamedTuple):
    """Where an entry's data lies: bytes [position, position + length) of a journal file. base: its partition offset."""

    base: int
    length: int
    path: str
    position: int

    @property
    def end(self) -> int:
        return self.base + self.length


class _Append(NamedTuple):
    log: JournaledLog
    base: int
    end: int
    sequence: int
    data: Buffer


class _File:
    """A journal file and what it holds: the last offset of each partition that has entries in it."""

    __slots__ = ("ends", "fd", "number", "path", "size")

    def __init__(self, number: int, path: str, fd: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.size = 0
        self.ends: dict[JournaledLog, int] = {}


class Journal:
    """Lives on the owning thread; writes and syncs in a worker thread, one group at a time."""

    def __init__(
        self,
        data_path: str,
        files: Files,
        run_in_thread: RunInThread,
        checkpoint: Callable[[Any], None],
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """checkpoint(log): have the log's own files synced soon; `tick` sees when that is done."""
        self.failure: LogReadOnly | None = None
        self.directory = os.path.join(data_path, JOURNAL_DIRECTORY)
        self._files = files
        self._run_in_thread = run_in_thread
        self._checkpoint = checkpoint
        self._max_file_bytes = max_file_bytes
        self._waiting: list[_Append] = []
        self._running = False
        self._direct = 0  # direct syncs under way
        self._file: _File | None = None
        self._full: deque[_File] = deque()
        self._next_number = 0
        self._closed = False
        self._lock = threading.Lock()  # held while a group is written: close() waits for it

    @property
    def size_bytes(self) -> int:
        """Bytes in all its files."""
        return sum(file.size for file in (*self._full, *((self._file,) if self._file else ())))

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, log: JournaledLog, base: int, end: int, sequence: int, data: Buffer) -> None:
        """Have what was appended to `log` at [base, end) made safe; `log.journaled` is called then.

        sequence: records in the log up to `end`, in its own count. data: the bytes, kept unchanged until then.
        """
        self._waiting.append(_Append(log, base, end, sequence, data))
        if not (self._running or self._closed) and self.failure is None:
            self._start()

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, []
        group = [each for each in waiting if each.log.visible_end < each.end]  # else a checkpoint has covered it
        if not group:
            return
        self._running = True
        last = {each.log: each for each in group}
        if len(last) <= _DIRECT_PARTITIONS:
            self._direct = len(last)
            for each in last.values():
                each.log.sync_directly(each.end, self._synced_directly)
        else:
            self._run_in_thread(partial(self._write, group), partial(self._written, last))

    def _synced_directly(self, error: MetaqError | None) -> None:
        """A log has made itself safe, or has failed by itself; either way the next group may go."""
        self._direct -= 1
        if not self._direct:
            self._group_ended()

    def _group_ended(self) -> None:
        self._running = False
        if self._waiting and not self._closed and self.failure is None:
            self._start()

    def _write(self, group: Sequence[_Append]) -> None:
        """Worker thread: one write, one sync; nothing once the journal is closed. Raises OSError."""
        with self._lock:
            if self._closed:
                return
            file = self._file or self._new_file()
            buffers = [buffer for each in group for buffer in _encode(each, file.number)]
            size = sum(map(len, buffers))
            write_all(self._files, file.fd, buffers, file.size)
            self._files.fdatasync(file.fd)
            file.size += size

    def _new_file(self) -> _File:
        """Worker thread; the owning one does not look at `_file` while a group is under way."""
        self._files.make_directory(self.directory)
        path = os.path.join(self.directory, f"{self._next_number:020d}{JOURNAL_SUFFIX}")
        file = _File(self._next_number, path, self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        self._file = file
        self._next_number += 1
        self._files.fsync_directory(self.directory)
        self._files.fsync_directory(os.path.dirname(self.directory))
        return file

    def _written(self, last: dict[JournaledLog, _Append], result: object) -> None:
        if self._closed:
            return  # the logs' close has answered everybody
        if isinstance(result, BaseException):
            self._fail(str(result), last)
            return
        file = self._file
        assert file is not None
        for log, each in last.items():
            file.ends[log] = each.end
        if file.size >= self._max_file_bytes:
            self._retire(file)
        for log, each in last.items():
            log.journaled(each.end, each.sequence)
        self._group_ended()

    def _fail(self, cause: str, last: dict[JournaledLog, _Append]) -> None:
        self.failure = LogReadOnly(self.directory, cause)
        _log.error("the journal %s takes no more writes until the broker is restarted: %s", self.directory, cause)
        waiting, self._waiting = self._waiting, []
        for log in dict.fromkeys((*last, *(each.log for each in waiting))):
            log.sync_failed(f"the journal failed: {cause}")

    # --- truncation ---------------------------------------------------------------------------------------------------

    def _retire(self, file: _File) -> None:
        self._file = None
        self._full.append(file)
        for log in file.ends:
            self._checkpoint(log)

    def tick(self) -> None:
        """Remove the files that the partitions' own files cover now. To be called several times a second."""
        while self._full and not self._closed:
            file = self._full[0]
            file.ends = {log: end for log, end in file.ends.items() if log.synced_end < end}
            if file.ends:
                return
            self._full.popleft()
            self._run_in_thread(partial(self._remove, file), partial(_report_removal, file.path))

    def _remove(self, file: _File) -> None:
        self._files.close(file.fd)
        self._files.unlink(file.path)

    def start_after(self, number: int) -> None:
        """The journal of an earlier life ended with this file number; new files follow it."""
        self._next_number = number + 1

    def stop(self) -> None:
        """Begin nothing any more; waits for a group being written. The logs are then closed, which syncs them."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """After `stop` and the logs' own close: remove every file, or keep them all if a log is not synced."""
        files = [*self._full, *((self._file,) if self._file is not None else ())]
        synced = self.failure is None and all(log.synced_end >= end for file in files for log, end in file.ends.items())
        for file in files:
            if synced:
                self._remove(file)
            else:
                self._files.close(file.fd)
        self._file = None
        self._full.clear()


def _report_removal(path: str, result: object) -> None:
    if isinstance(result, BaseException):
        _log.error("journal file %s is of no more use but could not be removed: %s", path, result)


def _encode(each: _Append, number: int) -> tuple[Buffer, Buffer]:
    name = f"{each.log.topic}-{each.log.partition}".encode()
    head = _HEADER.pack(len(each.data), len(name), 0, each.base, number) + name
    checksum = crc32(each.data, crc32(head))
    return _PREFIX.pack(_MAGIC, checksum) + head, each.data


# --- reading ----------------------------------------------------------------------------------------------------------


def read_journal(files: Files, data_path: str) -> tuple[dict[str, list[JournalEntry]], list[str]]:
    """All entries by partition name, in order, and the paths of the files they are in, oldest first.

    A file is read up to its first torn entry: what follows was never acknowledged. Memory: one file's bytes at a time.
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
    while position + _FIXED_BYTES <= len(data):
        magic, checksum = _PREFIX.unpack_from(data, position)
        head = position + _PREFIX.size
        length, name_bytes, _, base, file_number = _HEADER.unpack_from(data, head)
        start = position + _FIXED_BYTES + name_bytes
        end = start + length
        if magic != _MAGIC or file_number != number or end > len(data) or crc32(data[head:end]) != checksum:
            return
        yield bytes(data[start - name_bytes : start]).decode(), JournalEntry(base, length, path, start)
        position = end

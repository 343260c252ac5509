"""The files of the standalone ZooKeeper: a log of the results of requests, and snapshots. All functions block. Any
thread may call them, but only one thread at a time.

    log.<hex>        header, then blocks; <hex> is the zxid after the header's
    snapshot.<hex>   header, then blocks, then an empty block; <hex> is the header's zxid

    header   magic, 8 bytes | zxid i64 | CRC-32 u32 of the bytes before it
    block    magic u32 | bytes of the entries u32 | CRC-32 u32 of all bytes after it | zxid i64 | entries
             (coordination/standalone/log_entries.py)

All numbers are in network byte order. The zxid in the header of a log file is that of the last entry of the previous
log file. A block contains the zxid of its last entry. Each log file begins with the entry that follows the last entry
of the previous log file.

Invariants:
- A block is written only after the block before it is synced. So after a crash, only the last block of the last file
  can be incomplete. If an intact block follows a bad block, the bad block was once complete and was damaged later.
- A snapshot file gets its final name only after the snapshot and all log entries whose changes it can contain were
  synced.
- A log file is removed when no snapshot that is kept needs its entries.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from metaq.coordination.standalone.jute import Malformed
from metaq.coordination.standalone.log_entries import Restored
from metaq.protocol.errors import CorruptRecord, StoreError

from ..store.files import Files, check_named, naming, opened, read_exactly, write_all
from ..store.rewriting import secure_file

__all__ = ["KEPT_SNAPSHOTS", "LogFiles"]

_log = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 3

_LOG_MAGIC, _SNAPSHOT_MAGIC = b"metaqzkl", b"metaqzks"
_HEADER = Struct("!8sqI")
_BLOCK = Struct("!4sIIq")
_BLOCK_MAGIC = b"mqzb"
_CHECKED = Struct("!q")
_NAME = re.compile(r"(log|snapshot)\.([0-9a-f]{1,16})")
_TEMPORARY = ".snapshot.tmp"


class _Block(NamedTuple):
    zxid: int
    entries: bytes
    end: int
    """The position in the file, in bytes, where the block ends."""


class LogFiles:
    """Reads and writes the log files and snapshot files in one directory.

    Every method may raise OSError. The caller must not write anything after such an error, because the content of the
    disk is unknown.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.zxid = 0
        """The zxid of the last entry read or written."""
        self.log_bytes = 0
        """The number of bytes written to the log since the last snapshot."""
        self.snapshot_bytes = 0
        """The size of the last snapshot in bytes."""
        self._restored = Restored()
        self._files = files
        self._directory = directory
        self._fd = -1
        self._end = 0
        self._log_path = ""
        self._snapshot_fd = -1
        self._snapshot_end = 0
        self._snapshot_zxid = 0
        files.make_directory(directory)
        files.fsync_directory(os.path.dirname(os.path.abspath(directory)))
        with suppress(FileNotFoundError):
            files.unlink(self._path(_TEMPORARY))

    def load(self) -> None:
        """Read the newest snapshot and the log entries after it, cut off an incomplete block at the end of the log, and
        prepare to append. Raises CorruptRecord, StoreError.
        """
        start = self._load_snapshot()
        logs = self._numbers("log")
        needed = [number for number in logs if number > start] if start in _befores(logs) else []
        if not needed and (start or logs):
            raise StoreError(f"{self._directory}: the log behind zxid 0x{start:x} is missing: restore it")
        self.zxid = start
        for number in needed:
            self._load_log(number, is_last=number == needed[-1])
        if self._fd < 0:
            self._begin_log()

    def take_restored(self) -> Restored:
        """Return the entries that `load` has read, and drop this object's reference to them. To be called once, after
        `load`.
        """
        restored, self._restored = self._restored, Restored()
        return restored

    def append(self, entries: bytes, zxid: int) -> None:
        """Append a block with these entries to the log and sync it. zxid: the zxid of the last of these entries."""
        block = _encode_block(entries, zxid)
        with naming(self._log_path):
            write_all(self._files, self._fd, [block], self._end)
            self._files.fdatasync(self._fd)
            check_named(self._files, self._log_path)
        self._end += len(block)
        self.log_bytes += len(block)
        self.zxid = zxid

    def begin_snapshot(self) -> None:
        """Begin a new log file, to which `append` writes from now on. Also begin a snapshot file, which
        `add_to_snapshot` fills.
        """
        self._files.close(self._fd)
        self._begin_log()
        self._snapshot_zxid = self.zxid
        path = self._path(_TEMPORARY)
        self._snapshot_fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._snapshot_end = 0
        self._write_snapshot(_encode_header(_SNAPSHOT_MAGIC, self._snapshot_zxid))

    def add_to_snapshot(self, entries: bytes) -> None:
        if entries:
            self._write_snapshot(_encode_block(entries, self._snapshot_zxid))

    def finish_snapshot(self) -> None:
        """Sync the complete snapshot, give it its final name, and remove the snapshots and log files that are no longer
        needed. Before this call, the caller must have appended to the log all entries whose changes the snapshot can
        contain.
        """
        self._write_snapshot(_encode_block(b"", self._snapshot_zxid))
        path = self._path(_TEMPORARY)
        with naming(path):
            self._files.fdatasync(self._snapshot_fd)
        self._files.close(self._snapshot_fd)
        self._snapshot_fd = -1
        self._files.rename(path, self._path(f"snapshot.{self._snapshot_zxid:x}"))
        self._files.fsync_directory(self._directory)
        self.snapshot_bytes = self._snapshot_end
        self.log_bytes = self._end
        self._remove_old()

    def close(self) -> None:
        for fd in (self._fd, self._snapshot_fd):
            if fd >= 0:
                self._files.close(fd)
        self._fd = self._snapshot_fd = -1

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _numbers(self, kind: str) -> list[int]:
        """Return the numbers in the names of all files of this kind ("log" or "snapshot"), sorted."""
        names = (_NAME.fullmatch(name) for name in self._files.list_directory(self._directory))
        return sorted(int(name[2], 16) for name in names if name and name[1] == kind)

    def _begin_log(self) -> None:
        self._log_path = self._path(f"log.{self.zxid + 1:x}")
        self._fd = self._files.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        header = _encode_header(_LOG_MAGIC, self.zxid)
        with naming(self._log_path):
            write_all(self._files, self._fd, [header], 0)
            self._files.fdatasync(self._fd)
        self._files.fsync_directory(self._directory)
        self._end = len(header)

    def _write_snapshot(self, data: bytes) -> None:
        with naming(self._path(_TEMPORARY)):
            write_all(self._files, self._snapshot_fd, [data], self._snapshot_end)
        self._snapshot_end += len(data)

    def _remove_old(self) -> None:
        snapshots = self._numbers("snapshot")
        for number in snapshots[:-KEPT_SNAPSHOTS]:
            self._files.unlink(self._path(f"snapshot.{number:x}"))
        if len(snapshots) < KEPT_SNAPSHOTS:
            return
        oldest = snapshots[-KEPT_SNAPSHOTS]
        for number in self._numbers("log"):
            if number <= oldest:
                self._files.unlink(self._path(f"log.{number:x}"))

    # --- reading ------------------------------------------------------------------------------------------------------

    def _load_snapshot(self) -> int:
        """Load the entries of the newest snapshot that is not damaged into `_restored`. Return the zxid of this
        snapshot, or 0 if no snapshot was ever made.
        """
        numbers = self._numbers("snapshot")
        for number in reversed(numbers):
            path = self._path(f"snapshot.{number:x}")
            try:
                self._read_snapshot(path, number)
            except CorruptRecord as error:
                _log.error("%s: trying the snapshot before it", error)
                self._restored = Restored()
            else:
                return number
        if numbers:
            raise StoreError(f"{self._directory}: none of its {len(numbers)} snapshots can be read: restore one")
        return 0

    def _read_snapshot(self, path: str, number: int) -> None:
        data = self._read(path)
        at = _check_header(path, data, _SNAPSHOT_MAGIC, number)
        while True:
            block = _block_at(data, at)
            if block is None:
                raise CorruptRecord(path, at, "it is not an intact part of a snapshot")
            if not block.entries:
                break
            self._apply(path, at, block)
            at = block.end
        self.snapshot_bytes = len(data)

    def _load_log(self, number: int, is_last: bool) -> None:
        path = self._path(f"log.{number:x}")
        if is_last:
            self._secure(path)
        data = self._read(path)
        if is_last and not _is_header(data, _LOG_MAGIC, number - 1) and not _has_block(data, 0):
            _log.warning("%s was just begun when the machine or the server stopped: it is begun again", path)
            return
        at = _check_header(path, data, _LOG_MAGIC, number - 1)
        if number - 1 != self.zxid:
            raise StoreError(f"{path} does not follow zxid 0x{self.zxid:x}, where the log before it ends: restore that")
        while at < len(data):
            block = _block_at(data, at)
            if block is None:
                if not is_last or _has_block(data, at):
                    raise CorruptRecord(path, at, "it is not an intact block of the log, and others follow it")
                _log.warning("%s: cutting the last %d bytes, which were never acknowledged", path, len(data) - at)
                break
            self._apply(path, at, block)
            self.zxid = block.zxid
            at = block.end
        self.log_bytes += at
        if is_last:
            self._open_end(path, at, len(data))

    def _secure(self, path: str) -> None:
        """Make sure that all bytes of the file are on the disk. After a failed sync in an earlier run of the server,
        some bytes may be only in the page cache, and the kernel never writes them to the disk by itself. This method
        writes such bytes again.
        """

        def sync() -> None:
            with opened(self._files, path, os.O_RDWR) as fd, suppress(OSError):  # secure_file compares the bytes anyway
                self._files.fdatasync(fd)

        rewritten = secure_file(self._files, path, sync)
        if rewritten:
            _log.warning("%s: %d bytes that had not reached the disk were written again", path, rewritten)

    def _open_end(self, path: str, end: int, size: int) -> None:
        self._log_path, self._end = path, end
        self._fd = self._files.open(path, os.O_RDWR)
        with naming(path):
            if end < size:
                self._files.truncate(self._fd, end)
            # the bytes that were read may only be in the page cache, but clients will see them
            self._files.fdatasync(self._fd)
        self._files.fsync_directory(self._directory)

    def _apply(self, path: str, at: int, block: _Block) -> None:
        try:
            self._restored.apply(block.entries)
        except Malformed as error:
            raise CorruptRecord(path, at, str(error)) from error

    def _read(self, path: str) -> bytes:
        with opened(self._files, path) as fd:
            return read_exactly(self._files, fd, self._files.status(path).size, 0)


def _befores(logs: list[int]) -> set[int]:
    """Return for each log file the zxid of the entry before the file. logs: the numbers in the files' names; each is
    the zxid of the file's first entry.
    """
    return {number - 1 for number in logs}


def _encode_header(magic: bytes, zxid: int) -> bytes:
    return _HEADER.pack(magic, zxid, crc32(magic + _CHECKED.pack(zxid)))


def _is_header(data: bytes, magic: bytes, zxid: int) -> bool:
    return data.startswith(_encode_header(magic, zxid))


def _check_header(path: str, data: bytes, magic: bytes, zxid: int) -> int:
    """Check that a file begins with the header for this `magic` and `zxid`, and return the position where the first
    block begins. Raises CorruptRecord if the file has another header.
    """
    if not _is_header(data, magic, zxid):
        raise CorruptRecord(path, 0, "the header is not the one that belongs to its name")
    return _HEADER.size


def _encode_block(entries: bytes, zxid: int) -> bytes:
    number = _CHECKED.pack(zxid)
    return _BLOCK.pack(_BLOCK_MAGIC, len(entries), crc32(entries, crc32(number)), zxid) + entries


def _block_at(data: bytes, at: int) -> _Block | None:
    if len(data) - at < _BLOCK.size:
        return None
    magic, size, checksum, zxid = _BLOCK.unpack_from(data, at)
    end = at + _BLOCK.size + size
    if magic != _BLOCK_MAGIC or end > len(data):
        return None
    entries = data[at + _BLOCK.size : end]
    return _Block(zxid, entries, end) if checksum == crc32(entries, crc32(_CHECKED.pack(zxid))) else None


def _has_block(data: bytes, at: int) -> bool:
    """Return whether an intact block begins at the position `at` or anywhere behind it."""
    while (at := data.find(_BLOCK_MAGIC, at)) >= 0:
        if _block_at(data, at):
            return True
        at += 1
    return False

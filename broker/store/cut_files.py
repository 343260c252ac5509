"""Cut off the end of a partition on the disk. If the broker crashes at any moment, its next start finds the partition
either as it was before the cut or as it is after the cut.

The removed data are kept: whole segments as `<segment>.damaged-<first offset>`, the end of the last remaining segment
as `<segment>.damaged-<where it was cut>`. When the removed data are on the disk under these names, the file `cut`,
which describes the cut, is written in the partition's directory and synced. From then on the cut can no longer be
undone: if the broker finds the file `cut` when it starts, it finishes the cut. Before a cut, the journal must no longer
contain data of the partition. Otherwise the next start of the broker would restore the removed bytes from the journal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import StoreError

from . import tuning
from .damage import walk_segment
from .files import Files, may_exist, opened, read_exactly, replace_file, unused_name, write_all
from .index import IndexDamaged, UnitArray, UnitReader, read_checkpoint, replace_index
from .scan import bound_java_times
from .segment import SegmentFile, data_name, segment_files

__all__ = ["CUT_NAME", "Change", "CutUnfinished", "change_partition", "finish_cut", "keep_copy", "set_aside"]

_log = logging.getLogger(__name__)

CUT_NAME = "cut"
_NOWHERE = -1


class Change(NamedTuple):
    """Describes a cut: remove all data from byte offset `end` on. If `begin` is not None: remove all data and begin an
    empty segment at byte offset `begin`, which must lie in none of the partition's segments.
    """

    end: int
    begin: int | None = None


def keep_copy(files: Files, source: int, start: int, end: int, path: str) -> None:
    """Copy bytes [start, end) of the file with the descriptor `source` into a new file at `path`. Sync the new file,
    but not the directory that contains it. Raises OSError.
    """
    with opened(files, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as target:
        for position in range(start, end, tuning.COPY_BYTES):
            data = read_exactly(files, source, min(tuning.COPY_BYTES, end - position), position)
            write_all(files, target, [data], position - start)
        files.fdatasync(target)


def set_aside(files: Files, file: SegmentFile) -> str | None:
    """Take a segment out of its partition: rename its data file and remove its index files. Return the new path of the
    data file, or None if the segment had no data.

    The directory is not synced. Raises OSError.
    """
    kept = None
    if file.size:
        kept = unused_name(files, f"{file.path}.damaged-{file.first_offset}")
        files.rename(file.path, kept)
    else:
        files.unlink(file.path)
    for path in (file.index_path, file.keys_path):
        with suppress(FileNotFoundError):
            files.unlink(path)
    return kept


class CutUnfinished(StoreError):
    """Raised if a cut has failed at a moment when the file `cut` exists or may exist. Only the next start of the broker
    can finish it.
    """


def change_partition(files: Files, directory: str, change: Change) -> list[str]:
    """Carry out the change in the partition's files, and sync them. Return the paths of the files that contain the
    removed data. Blocks, so it is called in a worker thread.

    Before the call, all data and indexes of the partition must be synced, nothing may write to them, and the journal
    must hold no data of the partition. On failure, raises StoreError if nothing was changed, else CutUnfinished.
    """
    path = os.path.join(directory, CUT_NAME)
    kept = []
    made = False
    try:
        last = _shortened(segment_files(files, directory), change)
        if last is not None:
            _check_boundary(files, last, change.end)
            kept.append(_copy_end(files, directory, last, change.end))
        replace_file(files, path, b"%d %d\n" % (change.end, _NOWHERE if change.begin is None else change.begin))
        made = True
        return kept + _carry_out(files, directory, change)
    except OSError as error:
        if made or may_exist(files, path):
            raise CutUnfinished(f"{directory}: a cut can only be finished by the next start: {error}") from error
        raise StoreError(f"{directory} cannot be cut: {error}") from error


def finish_cut(files: Files, directory: str) -> None:
    """Finish a cut that a crash has interrupted, if there is one. To be called at the start of the broker. Raises
    OSError, StoreError.
    """
    path = os.path.join(directory, CUT_NAME)
    try:
        size = files.status(path).size
    except FileNotFoundError:
        return
    with opened(files, path) as fd:
        words = read_exactly(files, fd, size, 0).split()
    if len(words) != 2 or not all(word.lstrip(b"-").isdigit() for word in words):
        raise StoreError(f"{path} does not say where the partition ends: it was not written by a broker")
    end, begin = map(int, words)
    _log.warning("%s: a cut that was interrupted is finished", directory)
    _carry_out(files, directory, Change(end, None if begin < 0 else begin))


def _shortened(found: Sequence[SegmentFile], change: Change) -> SegmentFile | None:
    """Return the segment that stays but becomes shorter, because it has bytes behind the new end. Return None if there
    is none.
    """
    if change.begin is not None:
        return None
    file = next((file for file in reversed(found) if file.first_offset < change.end), found[0])
    return file if file.end > change.end else None


def _copy_end(files: Files, directory: str, file: SegmentFile, end: int) -> str:
    path = unused_name(files, f"{file.path}.damaged-{end}")
    with opened(files, file.path) as fd:
        keep_copy(files, fd, end - file.first_offset, file.size, path)
    files.fsync_directory(directory)
    _log.warning("%s: bytes [%d, %d) are cut off, and kept as %s", file.path, end, file.end, path)
    return path


def _carry_out(files: Files, directory: str, change: Change) -> list[str]:
    """Do all steps of a change that are not done yet, after the file `cut`, which describes the change, was written.
    Return the paths of the segments that were taken out.
    """
    found = segment_files(files, directory)
    kept = []
    if (last := _shortened(found, change)) is not None:
        _shorten(files, directory, last, change.end)
    for file in reversed(found):
        if _goes(file, found[0], change):
            name = set_aside(files, file)
            if name is not None:
                kept.append(name)
                start = file.first_offset
                _log.warning("%s: bytes [%d, %d) are taken out, and kept as %s", file.path, start, file.end, name)
    if change.begin is not None:
        path = os.path.join(directory, data_name(change.begin))
        with opened(files, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            files.fdatasync(fd)
    files.fsync_directory(directory)
    files.unlink(os.path.join(directory, CUT_NAME))
    files.fsync_directory(directory)
    return kept


def _goes(file: SegmentFile, first: SegmentFile, change: Change) -> bool:
    """Return whether the change removes the whole segment `file`. first: the partition's first segment. If a cut
    removes all data, this segment stays, without data.
    """
    if change.begin is not None:
        return file.first_offset != change.begin
    return file.first_offset >= change.end and file.first_offset > first.first_offset


def _shorten(files: Files, directory: str, file: SegmentFile, end: int) -> None:
    """Shorten a segment to byte offset `end`. Shorten its index first, because the index must not describe data that
    the data file does not have.
    """
    units = _units(files, file, end)
    units = units[: int(np.searchsorted(units["offset"], end))]
    replace_index(files, file.index_path, units, file.first_offset, end)
    with suppress(FileNotFoundError):
        files.unlink(file.keys_path)
    files.fsync_directory(directory)
    with opened(files, file.path, os.O_RDWR) as fd:
        files.truncate(fd, end - file.first_offset)
        files.fdatasync(fd)


def _check_boundary(files: Files, file: SegmentFile, end: int) -> None:
    if end == file.first_offset:
        return
    if end < file.first_offset:
        raise StoreError(f"{file.path}: there is no data before {file.first_offset}, so it cannot be cut at {end}")
    units = _units(files, file, end + 1)
    number = int(np.searchsorted(units["offset"], end))
    begins = number < len(units) and int(units["offset"][number]) == end
    ends = number > 0 and int(units["offset"][number - 1]) + int(units["size"][number - 1]) == end
    if not begins and not ends:
        raise StoreError(f"{file.path} cannot be cut at {end}: no record begins or ends there")


def _units(files: Files, file: SegmentFile, end: int) -> UnitArray:
    """Return index units of a segment: those of all records that begin before byte offset `end`, and perhaps later
    ones. The units are read from the index file or, if it does not have them all, made from the records.
    """
    stored = read_checkpoint(files, file.index_path, file.first_offset)
    if stored is not None and stored.checkpoint.crc is not None and stored.checkpoint.end >= min(end, file.end):
        known = stored.checkpoint
        try:
            with UnitReader(files, file.index_path, known.units, known.crc or 0) as reader:
                return reader.units(0, known.units)
        except IndexDamaged as damage:
            _log.warning("%s", damage)
    with opened(files, file.path) as fd:
        units, _ = walk_segment(files, fd, file.first_offset, file.size)
    bound_java_times(units, file.modified_ms)
    return units

"""The key file beside a segment, compared with what the segment's records say."""

from __future__ import annotations

import os
from enum import Enum

import numpy as np

from metaq.broker.store.files import Files, read_exactly
from metaq.broker.store.index import IndexDamaged
from metaq.broker.store.key_index import ENTRY_BYTES, KeyBlock, read_blocks, scan_keys
from metaq.broker.store.recovery import trusted_checkpoint
from metaq.broker.store.segment import SegmentFile
from metaq.broker.store.unit_reader import UnitReader

__all__ = ["KeysState", "inspect_keys"]


class KeysState(Enum):
    """Derived data like an index: whatever its state, a broker of ours makes it good again."""

    OK = "ok"
    BEHIND = "behind"
    """Blocks are missing at its end: a broker adds them, or it is torn and they are made again."""
    MISSING = "missing"
    WRONG = "wrong"
    """Its entries are not those of the records."""


def inspect_keys(files: Files, file: SegmentFile, *, last: bool, fast: bool) -> KeysState:
    """Read a segment's key file and, unless `fast`, the keys of its records; change nothing. Raises OSError.

    last: of its partition, which has no complete key file yet. Records that no index describes are not compared.
    """
    try:
        size = files.status(file.keys_path).size
    except FileNotFoundError:
        return KeysState.OK if last else KeysState.MISSING
    blocks = read_blocks(files, file.keys_path, file.path, file.first_offset, file.end)
    if not fast and not _describes(files, file, blocks):
        return KeysState.WRONG
    torn = size > (blocks[-1].next_position if blocks else 0)
    complete = bool(blocks) and blocks[-1].end == file.end
    return KeysState.BEHIND if torn or not (complete or last) else KeysState.OK


def _describes(files: Files, file: SegmentFile, blocks: tuple[KeyBlock, ...]) -> bool:
    known = trusted_checkpoint(files, file)
    if known is None or known.crc is None:
        return True
    data, keys = files.open(file.path, os.O_RDONLY), -1
    try:
        keys = files.open(file.keys_path, os.O_RDONLY)
        with UnitReader(files, file.index_path, known.units, known.crc) as reader:
            return all(_is_right(files, file, block, reader, data, keys) for block in blocks if block.end <= known.end)
    except IndexDamaged:  # which is told of the index
        return True
    finally:
        files.close(data)
        if keys >= 0:
            files.close(keys)


def _is_right(files: Files, file: SegmentFile, block: KeyBlock, reader: UnitReader, data: int, keys: int) -> bool:
    units = reader.units(reader.starting_before(block.start), reader.starting_before(block.end))
    expected = np.sort(scan_keys(files, data, units, file.first_offset, lambda seconds: None))
    stored = np.frombuffer(read_exactly(files, keys, block.entries * ENTRY_BYTES, block.position), "<u8")
    return bool(np.array_equal(stored, expected))

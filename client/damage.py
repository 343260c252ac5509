"""Finding out how far damaged bytes go: the broker is asked, or, if it cannot tell, the bytes behind them are read."""

from __future__ import annotations

from metaq.protocol.errors import CorruptRecord
from metaq.protocol.resync import RecordSearch

from .inquiry import Asked, damaged_bytes, max_offset, read_raw, verified_pull
from .values import TopicPartition

__all__ = ["locate_damage", "located"]


def locate_damage(
    connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None
) -> CorruptRecord | None:
    """The damage at byte `offset` of a partition, with its end; None if a good record is there.

    Our broker searches itself, and keeps the result. Over the text protocol this reads the bytes up to the next good
    record or the end, and blocks for as long as that takes. Raises what inquiry.py raises.
    """
    if connection.speaks_frames:
        return verified_pull(connection, partition, offset, timeout)
    end = max_offset(connection, partition, timeout)

    def read(size: int, position: int) -> bytes:
        return read_raw(connection, partition, position, size, timeout)

    search = RecordSearch(read, offset, end, offset)
    if offset >= end or search.begins_good():
        return None
    while not search.step():
        pass
    return damaged_bytes(partition, offset, end if search.found is None else search.found)


def located(
    connection: Asked, partition: TopicPartition, error: CorruptRecord, timeout: float | None = None
) -> CorruptRecord:
    """What `locate_damage` finds where a reader has found an error, or that error itself."""
    return error if error.end is not None else locate_damage(connection, partition, error.position, timeout) or error

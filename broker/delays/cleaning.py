"""Append the waiting messages of an internal log's oldest segment to the log's end again, so that the oldest segment
can be removed.

Only one segment is rewritten at a time, because the waiting messages of all segments can have gigabytes in total. The
messages keep their ids, because a producer that wants to cancel a delayed message names its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from twisted.internet.task import deferLater

from metaq.protocol.record import Buffer

from .. import tuning
from ..memory.delayed_records import Ids, Pending, encode_pending, place_tag
from ..store.batch import units_of
from ..store.store import Append
from .delayed_log import DelayedLog, read_records
from .waiting_table import NOWHERE

if TYPE_CHECKING:
    from .delays import Delays

__all__ = ["write_oldest_anew"]


async def write_oldest_anew(delays: Delays, contents: DelayedLog) -> None:
    """Append the waiting messages of the log's oldest segment to the log's end again, a few at a time with pauses.
    Raises OSError or StoreError if the segment cannot be read.
    """
    log = contents.log
    end = log.segments[0].end if len(log.segments) > 1 else log.first_offset
    ids = np.concatenate([ids for table in contents.tables() for ids, _ in table.lying_before(end)])
    while len(ids):
        chosen, left = ids[: tuning.DELAYED_TURN_RECORDS], ids[tuning.DELAYED_TURN_RECORDS :]
        offsets = contents.find(chosen)
        there = (offsets != NOWHERE) & (offsets < end)
        chosen, offsets = chosen[there], offsets[there]
        if len(chosen):
            most = tuning.DELAYED_CLEANED_BYTES
            records = read_records(log.segments.read, offsets, most)
            if records is None:
                read = partial(read_records, log.segments.snapshot().read, offsets, most)
                records = cast(list[bytes], await delays.in_thread(read))
            _rewrite(delays, contents, chosen[: len(records)], records)
            left = np.concatenate((chosen[len(records) :], left))  # records beyond the size limit were not read
        ids = left
        if len(ids):
            await deferLater(cast(Any, delays.reactor), tuning.DELAYED_CLEANING_PAUSE_SECONDS)


def _rewrite(delays: Delays, contents: DelayedLog, ids: Ids, records: Sequence[bytes]) -> None:
    waits = contents.find(ids) != NOWHERE  # some may have been delivered or cancelled during the read
    chosen = [record for record, waiting in zip(records, waits.tolist(), strict=True) if waiting]
    if messages := delays.decoded(contents, ids[waits], chosen):
        _append(delays, contents, messages)
        delays.rewritten(contents, messages)


def _append(delays: Delays, contents: DelayedLog, messages: Sequence[Pending]) -> None:
    log, base = contents.log, contents.log.end_offset
    buffers: list[Buffer] = []
    sizes: list[int] = []
    for each in messages:
        columns = (each.flag,), (each.checksum,), (each.body,), (each.taken,), (each.id,)
        more, size = encode_pending(each.place, *columns, anew=True)
        buffers += more
        sizes += size
    ids, widths = np.array([each.id for each in messages], np.int64), np.array(sizes, np.int64)
    units = units_of(base, ids, widths, 0, delays.now_ms())
    units["tag"] = [place_tag(each.place, anew=True) for each in messages]
    append = Append(log, buffers, units.tobytes())
    delays.store.append_many((append,))
    if append.error is not None:
        raise append.error
    contents.appended()
    contents.rewritten(ids, base + widths.cumsum() - widths)

"""Read the messages in the partitions of a data directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers, property_of

__all__ = ["Stored", "stored"]


class Stored(NamedTuple):
    """A stored message. time_ms: when it was stored in its partition, by its id. due_ms: of a delayed message."""

    payload: str
    time_ms: int
    due_ms: int | None


def stored(data: Path, topics: Iterable[str]) -> Iterator[Stored]:
    """Yield the messages, whose payloads are ASCII."""
    for directory in (each for topic in topics for each in data.glob(f"{topic}-*")):
        content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.meta")))
        for each in iter_headers(content):
            body = content[each.start + HEADER_BYTES : each.end]
            attribute = attribute_of(body, each.flag)
            due = None if attribute is None else property_of(attribute, b"metaq.due")
            payload = body if attribute is None else body[4 + len(attribute) :]
            yield Stored(payload.decode("ascii"), store_time_ms(each.id) or 0, None if due is None else int(due))

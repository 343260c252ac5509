"""Read the journals of a run into the facts for the checkers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from metaq import browse
from metaq.protocol.record import HEADER_BYTES, RecordHeader, iter_headers, payload_start
from tests.kills.journal import Line, read_journal

from .facts import Ack, Call, Delivery, Name, Owner, Place, Send, Stored, narrowed
from .member import partition_text

__all__ = [
    "browsed",
    "deliveries_in",
    "member_files",
    "member_name",
    "owned_in",
    "owners_in",
    "seen_in",
    "sends_in",
    "stored_in",
]


def browsed(connect: str, topics: Iterable[str]) -> dict[str, list[Stored]]:
    """Return the messages that brokers deliver, by partition. Raises MetaqError."""
    found: dict[str, list[Stored]] = {}
    for message in (message for topic in topics for message in browse(connect, topic)):
        partition = partition_text(message.partition)
        name = Name.parse(message.payload.partition(b" ")[0].decode("ascii"))
        record = Stored(partition, message.offset, message.next_offset, message.id, name)
        found.setdefault(partition, []).append(record)
    return found


def stored_in(logs: Mapping[str, bytes], topics: Iterable[str]) -> dict[str, list[Stored]]:
    """Return the messages of these topics, by partition. logs: the bytes of partitions."""
    return {
        partition: [
            Stored(partition, header.start, header.end, header.id, _name(data, header))
            for header in iter_headers(memoryview(data))
        ]
        for partition, data in logs.items()
        if partition.partition(" ")[0] in topics
    }


def _name(data: bytes, header: RecordHeader) -> Name:
    """Return the name of a stored message. A message with a key or a tag has an attribute before its payload."""
    body = data[header.start + HEADER_BYTES : header.end]
    found = re.match(rb"([a-z]+[0-9]*/[^/ ]+/[0-9]+)(?: |$)", body[payload_start(body, header.flag) :])
    assert found is not None, body
    return Name.parse(found[1].decode("ascii"))


def deliveries_in(lines: Iterable[Line], member: str, stored: Iterable[Stored]) -> Iterator[Delivery]:
    """Yield a member's deliveries. Java's client does not report the offset: it is looked up by the message's id, else
    -1."""
    offsets = {(each.partition, each.id): each.offset for each in stored}
    for kind, time, *values in lines:
        if kind == "handed":
            _, partition, messages = values
            for offset, message_id, name in messages:
                yield Delivery(time, member, partition, Place(offset, message_id, Name.parse(name)))
        elif kind == "got":
            partition, message_id, text = values
            place = Place(offsets.get((partition, message_id), -1), message_id, Name.parse(text.partition(" ")[0]))
            yield Delivery(time, member, partition, place)


def member_files(directory: Path) -> list[Path]:
    """Return the journals of all lives of all consumers: `<group>.<name>.events`."""
    return sorted(directory.glob("*.events"))


def member_name(path: Path) -> tuple[str, str]:
    """Return group and name of the member to which a journal belongs."""
    group, _, name = path.name.removesuffix(".events").partition(".")
    return group, name


def sends_in(lines: Iterable[Line]) -> Iterator[Send]:
    """Yield the sends in a journal of producers."""
    for kind, time, *values in lines:
        if kind in ("ack", "fail"):
            begun, text, *rest = values
            name = Name.parse(text)
            yield Send(begun, time, name, Ack(name, *rest)) if kind == "ack" else Send(begun, time, name, None, rest[1])


def owners_in(
    lines: Iterable[Line], group: str, member: str, frozen: Sequence[tuple[float, float]] = ()
) -> list[Owner]:
    """Return the ownerships of one life of a consumer. frozen: when its process was stopped.

    run() reports a loss when the running handlers have returned, and meanwhile other handlers may work for the next
    claim of a partition. So a handler that goes back begins an ownership of its own if a loss is reported after it.
    """
    lines = list(lines)
    late, tags = _choices(lines)
    owners: list[Owner] = []
    held: dict[str, Owner] = {}
    working: dict[int, Call] = {}
    for line, comes in zip(lines, _coming_notices(lines), strict=True):
        kind, time = line[0], line[1]
        if kind == "assigned":
            for partition, position in zip(line[2], line[3] if len(line) > 3 else [None] * len(line[2]), strict=True):
                held[partition] = Owner(group, member, partition, time, position=position, begins_late=late, tags=tags)
                owners.append(held[partition])
        elif kind == "revoked":
            for partition in line[2]:
                if (owner := held.pop(partition, None)) is not None:
                    owner.end = time
        elif kind in ("handed", "handler"):
            began, partition, messages = line[2], line[3], line[4]
            if kind == "handler" and comes == "revoked" and messages[0][0] <= _last_offset(held.get(partition)):
                held.pop(partition).end = time
            if partition not in held:
                held[partition] = Owner(group, member, partition, time, announced=False, begins_late=late, tags=tags)
                owners.append(held[partition])
            places = [Place(offset, message_id, Name.parse(name)) for offset, message_id, name in messages]
            call = Call(narrowed(began, time, frozen), time, places)
            owner = held[partition]
            owner.calls.append(call)
            if kind == "handler":
                owner.calls_handlers = True
                call.done = math.inf
                working[line[5]] = call
        elif kind == "done":
            working.pop(line[2]).done = time
    return owners


def _choices(lines: Iterable[Line]) -> tuple[bool, tuple[str, ...]]:
    """Return whether the consumer was to begin at the end, and the tags that it takes."""
    for line in lines:
        if line[0] == "started" and len(line) > 4:
            return line[4] == "latest", tuple(line[5])
    return False, ()


def _last_offset(owner: Owner | None) -> int:
    return owner.calls[-1].places[-1].offset if owner is not None and owner.calls else -1


def _coming_notices(lines: Sequence[Line]) -> list[str]:
    """Return, for each line about delivered messages, what the next notice of their partition reports."""
    coming: dict[str, str] = {}
    found = []
    for line in reversed(lines):
        found.append(coming.get(line[3], "") if line[0] in ("handed", "handler") else "")
        if line[0] in ("assigned", "revoked"):
            coming.update(dict.fromkeys(line[2], line[0]))
    return found[::-1]


def owned_in(directory: Path) -> list[Owner]:
    """Return all ownerships so far."""
    return [owner for path in member_files(directory) for owner in owners_in(read_journal(path), *member_name(path))]


def seen_in(directory: Path) -> dict[str, set[tuple[str, int]]]:
    """Return partition and offset of all messages that each group has got so far."""
    seen: dict[str, set[tuple[str, int]]] = {}
    for path in member_files(directory):
        places = seen.setdefault(member_name(path)[0], set())
        for line in read_journal(path):
            if line[0] in ("handed", "handler"):
                places.update((line[3], message[0]) for message in line[4])
    return seen

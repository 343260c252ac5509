"""Format and parse the payloads of znodes. set_payloads.py handles the payloads of broker sets, move_payloads.py the
payloads of moves, security_payloads.py the payloads of users and their grants, and this module all other payloads. No
other file formats or parses payloads. The functions are pure.

zookeeper.md §2 describes the formats. Payloads are UTF-8. Null, empty and blank payloads all mean that the znode has no
content, and are parsed to None. The reason is that 1.x creates intermediate znodes with null, and other tools create
them with empty data. Any other payload that does not follow its format raises CoordinationError with the path and the
data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from metaq.protocol.errors import ConfigError, CoordinationError
from metaq.protocol.limits import INT64_MAX

__all__ = [
    "MAX_PARTITIONS",
    "UNKNOWN_MESSAGE_ID",
    "Begun",
    "ConsumerFilter",
    "DecidedBatch",
    "ListenerAddress",
    "Offset",
    "damaged",
    "format_begun",
    "format_broker_url",
    "format_checksum",
    "format_consumer_filter",
    "format_consumer_id",
    "format_consumer_zone",
    "format_decided_batch",
    "format_group_zones",
    "format_listeners",
    "format_offset",
    "format_partition_count",
    "format_plain_count",
    "format_topics",
    "format_zone",
    "host_and_port",
    "parse_begun",
    "parse_broker_id",
    "parse_broker_url",
    "parse_checksum",
    "parse_consumer_filter",
    "parse_consumer_id",
    "parse_consumer_zone",
    "parse_decided_batch",
    "parse_group_zones",
    "parse_listeners",
    "parse_offset",
    "parse_partition_count",
    "parse_replica_name",
    "parse_slave_name",
    "parse_topics",
    "parse_zone",
    "payload_text",
]

MAX_PARTITIONS = 1 << 20
"""Largest number of partitions of a topic that one payload may state. A larger number counts as a damaged payload,
because so many partitions would fill the memory of every client.
"""

UNKNOWN_MESSAGE_ID = -1
"""The message id in an Offset for which no last processed message is known: a tool has set the offset, or the group
begins at this offset.
"""

_INT = re.compile(r"[+-]?[0-9]+\Z")
_COUNT = re.compile(r"[0-9]{1,9}\Z")
_CHECKSUM = re.compile(r"[0-9]{1,10}\Z")
_URL = re.compile(r"meta://(?:\[([^\]\s]+)\]|([^\[\]:/?#\s]+)):([0-9]{1,5})/?(?:\?.*)?\Z")
_HOST = re.compile(r"[A-Za-z0-9.-]+\Z")
_REPLICA = re.compile(r"([0-9]{1,9})-(?:m|s([0-9]{1,9}))\Z")
_SLAVE = re.compile(r"slave([0-9]{1,9})\Z")
_ZONE_STRATEGY = "zone"


@dataclass(frozen=True, slots=True)
class Offset:
    """A group's position in one partition.

    message_id: id of the last processed message; UNKNOWN_MESSAGE_ID if there is none. Ids made by Java may be negative.
    offset: the byte position in the partition at which the group continues to read.
    """

    message_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """The last decided batch of a Spark query: all its rows are in the query's topics, or will certainly be written
    there.

    pending: names of the batch's transactions that are perhaps not committed yet. topic: a topic to which the batch was
    written; if the batch was written to several topics, an arbitrary one of them.
    """

    batch: int
    pending: tuple[str, ...] = ()
    topic: str = ""


def payload_text(path: str, data: bytes | None) -> str | None:
    """Return the payload as a text, or None if it is null, empty or blank. Raises CoordinationError if it is not
    UTF-8.
    """
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError as error:
        raise damaged(path, data, "UTF-8 text") from error
    return text if text.strip() else None


def damaged(path: str, data: bytes | str | None, expected: str) -> CoordinationError:
    """Return the error to raise for a payload that does not follow its format. expected: the format."""
    return CoordinationError(f"ZooKeeper node {path} holds {data!r} instead of {expected}: correct or delete the node")


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- brokers ----------------------------------------------------------------------------------------------------------


def format_broker_url(host: str, port: int) -> bytes:
    """Return `meta://host:port`; an IPv6 host is put in brackets.

    Raises ConfigError for a host that Java's URI class cannot parse, because a URL with this host would make every 1.x
    client in the cluster fail.
    """
    if not 0 < port < 65536:
        raise ConfigError("serverPort", port, "choose a port between 1 and 65535")
    if ":" not in host and not _HOST.match(host):
        raise ConfigError("hostName", host, "use letters, digits, '-' and '.' only: 1.x clients cannot parse others")
    return f"meta://{host_and_port(host, port)}".encode()


def parse_broker_url(path: str, data: bytes | None) -> tuple[str, int] | None:
    """Return (host, port) of `meta://host:port`. An IPv6 host is returned without brackets; a query part is ignored."""
    text = payload_text(path, data)
    if text is None:
        return None
    found = _URL.match(text.strip())
    if not found or not 0 < int(found[3]) < 65536:
        raise damaged(path, data, "meta://host:port")
    return found[1] or found[2], int(found[3])


def format_checksum(crc32: int) -> bytes:
    """Return the payload for the checksum of server.ini: the CRC-32 of the file's bytes as an unsigned decimal
    number.
    """
    return str(crc32 & 0xFFFFFFFF).encode()


def parse_checksum(path: str, data: bytes | None) -> int | None:
    """Parse a payload that format_checksum() has made."""
    text = payload_text(path, data)
    if text is None:
        return None
    if not _CHECKSUM.match(text.strip()):
        raise damaged(path, data, "a CRC-32 in decimal digits")
    return int(text)


def parse_broker_id(path: str, name: str) -> int:
    """Parse the name of a child of the znode broker_ids as a broker id. Raises CoordinationError if the name is not a
    broker id. The function does not skip such a child silently, because every rebalance of 1.x clients fails while the
    child exists.
    """
    if not _COUNT.match(name):
        raise CoordinationError(f"ZooKeeper node {path} has the child {name!r}, which is not a broker id: delete it")
    return int(name)


def parse_slave_name(name: str) -> int | None:
    """Return the slave id `n` if the name of a broker's child znode is `slave<n>`, or None if the name has another
    form.
    """
    found = _SLAVE.match(name)
    return int(found[1]) if found else None


class ListenerAddress(NamedTuple):
    """Where clients find one listener of a broker, or its main port. tls: `required`, `optional` or `none`. protocols:
    `text`, `frames`.
    """

    name: str
    host: str
    port: int
    tls: str
    protocols: tuple[str, ...]


def format_listeners(listeners: Iterable[ListenerAddress]) -> bytes:
    """Return the payload of the znode that contains a broker's listeners."""
    return json.dumps({"listeners": [each._asdict() for each in listeners]}, separators=(",", ":")).encode()


def parse_listeners(path: str, data: bytes | None) -> dict[str, ListenerAddress]:
    """Return the listeners of a broker by name. Unknown fields are ignored, so that later versions can add some."""
    if (text := payload_text(path, data)) is None:
        return {}
    try:
        listed: list[dict[str, object]] = json.loads(text)["listeners"]
        found = [_listener(each) for each in listed]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = [None]
    if None in found:
        raise damaged(path, data, '{"listeners":[{"name":…,"host":…,"port":…,"tls":…,"protocols":[…]}]}')
    return {each.name: each for each in found if each is not None}


def _listener(fields: dict[str, object]) -> ListenerAddress | None:
    """Return the listener that a JSON object describes, or None if it describes none. Raises KeyError, TypeError."""
    name, host, port, tls, protocols = (fields[key] for key in ListenerAddress._fields)
    if not (type(name) is type(host) is type(tls) is str and type(port) is int and type(protocols) is list):
        return None
    if not (name and host and 0 < port < 65536 and all(type(each) is str for each in protocols)):
        return None
    return ListenerAddress(name, host, port, tls, tuple(map(str, protocols)))


def format_zone(zone: str) -> bytes:
    """Return the payload of the znode that contains a broker's zone."""
    return zone.encode()


def parse_zone(path: str, data: bytes | None) -> str:
    """Parse a payload that format_zone() has made. Return "" if there is no zone."""
    return payload_text(path, data) or ""


# --- topics -----------------------------------------------------------------------------------------------------------


def format_plain_count(partitions: int) -> bytes:
    """Return the payload of a znode below topics/: the number of partitions as plain text. Clients older than 1.4.3
    read these znodes.
    """
    return str(partitions).encode()


def format_partition_count(partitions: int, replica: str) -> bytes:
    """Return the payload of a znode below topics-pub/ or topics-sub/, byte for byte as 1.x writes it. Java clients
    refuse the JSON object if it has any key that 1.x does not write.
    """
    return json.dumps({"numParts": partitions, "broker": replica}, separators=(",", ":")).encode()


def parse_partition_count(path: str, data: bytes | None) -> int | None:
    """Return the number of partitions in the payload of a znode below topics-pub/ or topics-sub/. Return None if the
    payload is empty or is the JSON value null.

    Java clients skip payloads that have an unknown key or no number of partitions. For such a payload this function
    raises CoordinationError, and our clients then skip the payload, too. The reason is that all members of a group,
    Java clients and ours, must see the same partitions.
    """
    text = payload_text(path, data)
    if text is None:
        return None
    expected = '{"numParts":<number>,"broker":"<replica>"}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise damaged(path, data, expected) from error
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() - {"numParts", "broker"}:
        raise damaged(path, data, expected)
    count = value.get("numParts")
    if isinstance(count, str) and _COUNT.match(count.strip()):
        count = int(count)
    if type(count) is not int or not 0 <= count <= MAX_PARTITIONS:
        raise damaged(path, data, expected)
    return count


def parse_replica_name(path: str, name: str) -> tuple[int, int | None]:
    """Parse the name of a child of a topic's znode, for example `0-m` or `0-s1`. Return two values: the broker id, and
    the slave id, which is None for the master.
    """
    found = _REPLICA.match(name)
    if not found:
        raise CoordinationError(
            f"ZooKeeper node {path} has the child {name!r}, neither <broker>-m nor <broker>-s<slave>: delete it"
        )
    return int(found[1]), None if found[2] is None else int(found[2])


# --- consumer groups --------------------------------------------------------------------------------------------------


def format_topics(topics: Iterable[str]) -> bytes:
    """Return the payload of a consumer's znode: the consumer's topics, joined by commas. (1.x writes the topics in the
    arbitrary order of a Java hash set, so readers must ignore the order.)
    """
    return ",".join(topics).encode()


def parse_topics(path: str, data: bytes | None) -> list[str]:
    """Return the topics in the payload of a consumer's znode, in their written order. The result contains no empty
    names, as in Java clients, which use String.split.
    """
    text = payload_text(path, data)
    return [topic for topic in text.split(",") if topic] if text else []


def format_consumer_zone(zone: str) -> bytes:
    """Return a JSON object with the consumer's assignment strategy, which is always `zone`, and the consumer's zone."""
    return json.dumps({"strategy": _ZONE_STRATEGY, "zone": zone}, separators=(",", ":")).encode()


def parse_consumer_zone(path: str, data: bytes | None) -> str | None:
    """Return the zone of a consumer that assigns by zones, or None if the consumer has another strategy. Unknown fields
    are ignored.
    """
    text = payload_text(path, data)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        if fields["strategy"] != _ZONE_STRATEGY:
            return None
        if type(zone := fields["zone"]) is str:
            return zone
    except (ValueError, KeyError, TypeError):
        pass  # reported below, with the node
    raise damaged(path, data, '{"strategy":"zone","zone":<name>}')


class ConsumerFilter(NamedTuple):
    """A consumer's filter for the messages of a topic. tags: the tags that the filter accepts, sorted; () accepts any
    tag. where: the text of the content filter as the user wrote it, "" for none.
    """

    tags: tuple[str, ...] = ()
    where: str = ""


def format_consumer_filter(filters: Mapping[str, ConsumerFilter]) -> bytes:
    """Return a JSON object with the filter of each topic. Empty `tags` and `where` are left out."""
    fields = {
        topic: ({"tags": list(each.tags)} if each.tags else {}) | ({"where": each.where} if each.where else {})
        for topic, each in sorted(filters.items())
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_consumer_filter(path: str, data: bytes | None) -> dict[str, ConsumerFilter]:
    """Parse a payload that format_consumer_filter() has made. Unknown fields are ignored."""
    text = payload_text(path, data)
    if text is None:
        return {}
    try:
        return {topic: _filter(fields) for topic, fields in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise damaged(path, data, '{<topic>:{"tags":[<tag>],"where":<filter>}}') from None


def _filter(fields: Mapping[str, Any]) -> ConsumerFilter:
    tags, where = fields.get("tags", []), fields.get("where", "")
    if type(where) is not str or type(tags) is not list or not all(type(tag) is str for tag in tags):
        raise ValueError(fields)
    return ConsumerFilter(tuple(sorted(tags)), where)


class Begun(NamedTuple):
    """The message that the owner of a partition has begun to process. offset: the message's offset, written before the
    processing begins; -1 if the owner processes messages without writing their offsets first. alone: how many owners of
    the partition, one after the other, have died while they were processing this message and no other message.
    """

    offset: int = -1
    alone: int = 0


def format_begun(begun: Begun) -> bytes:
    """Return a JSON object with `offset` and `alone`. The object is empty if `offset` is -1."""
    return json.dumps(begun._asdict() if begun.offset >= 0 else {}, separators=(",", ":")).encode()


def parse_begun(path: str, data: bytes | None) -> Begun:
    """Parse a payload that format_begun() has made. Unknown fields are ignored."""
    text = payload_text(path, data)
    if text is None:
        return Begun()
    try:
        fields = json.loads(text)
        offset, alone = fields.get("offset", -1), fields.get("alone", 0)
        if type(offset) is int and type(alone) is int:
            return Begun(offset, alone)
    except (ValueError, AttributeError):
        pass  # reported below, with the node
    raise damaged(path, data, '{"offset":<offset>,"alone":<number>}')


def format_group_zones(zones: Mapping[int, str]) -> bytes:
    """Return a JSON object with the zone of each broker id, sorted by id."""
    return json.dumps({str(each): zones[each] for each in sorted(zones)}, separators=(",", ":")).encode()


def parse_group_zones(path: str, data: bytes | None) -> dict[int, str]:
    """Parse a payload that format_group_zones() has made. Return an empty dict for an empty payload."""
    text = payload_text(path, data)
    if text is None:
        return {}
    try:
        fields = json.loads(text)
        if all(_COUNT.match(each) and type(zone) is str for each, zone in fields.items()):
            return {int(each): zone for each, zone in fields.items()}
    except (ValueError, AttributeError):
        pass  # reported below, with the node
    raise damaged(path, data, "{<broker id>:<zone>}")


def format_consumer_id(consumer_id: str) -> bytes:
    """Return the payload of an owner znode, which is the consumer id."""
    return consumer_id.encode()


def parse_consumer_id(path: str, data: bytes | None) -> str | None:
    """Return the consumer id in the payload of an owner znode."""
    return payload_text(path, data)


def format_offset(offset: Offset) -> bytes:
    """Return the payload of a group's offset, in the form `msgId-offset`."""
    return f"{offset.message_id}-{offset.offset}".encode()


def parse_offset(path: str, data: bytes | None) -> Offset | None:
    """Parse a payload of the form `msgId-offset`. The text is split at the last `-`, because message ids may be
    negative. A payload without `-` contains only an offset; clients before 1.4 write this form.
    """
    text = payload_text(path, data)
    if text is None:
        return None
    message_id, _, offset = text.strip().rpartition("-")
    if not message_id:
        message_id, offset = str(UNKNOWN_MESSAGE_ID), text.strip()
    if not (_INT.match(message_id) and _INT.match(offset)):
        raise damaged(path, data, "<message id>-<offset>")
    if abs(int(offset)) > INT64_MAX or not -INT64_MAX - 1 <= int(message_id) <= INT64_MAX:
        raise damaged(path, data, "<message id>-<offset>, each of 64 bits")
    return Offset(int(message_id), int(offset))


def format_decided_batch(decided: DecidedBatch) -> bytes:
    """Return a JSON object with the fields of DecidedBatch."""
    fields = {"batch": decided.batch, "pending": decided.pending, "topic": decided.topic}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_decided_batch(path: str, data: bytes | None) -> DecidedBatch | None:
    """Parse a payload that format_decided_batch() has made. Unknown fields are ignored."""
    text = payload_text(path, data)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        batch, pending, topic = fields["batch"], fields["pending"], fields["topic"]
        if type(batch) is int and type(topic) is str and all(type(each) is str for each in pending):
            return DecidedBatch(batch, tuple(pending), topic)
    except (ValueError, KeyError, TypeError):
        pass  # reported below, with the node
    raise damaged(path, data, "a decided batch in JSON")

"""Turn the rows of a DataFrame that is written to topics into messages. This module defines which columns the DataFrame
may have, and what each column means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from metaq.client.producer import partition_for_key
from metaq.client.producer.packing import Packer
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import ClientError, ConfigError, LocalProtocolError
from metaq.protocol.limits import MAX_DELAY_SECONDS
from metaq.protocol.properties import PropertyValue, decode_value
from metaq.protocol.record import (
    DELAYED_FLAG,
    DUE_PROPERTY,
    MAX_PRIORITY,
    PRIORITY_SHIFT,
    encode_attributes,
    encode_body,
)

from .options import WriteOptions
from .schema import CARRIED

__all__ = ["COLUMNS", "PreparedItem", "Rows", "by_partition", "check_columns", "rows_by_topic", "size_of"]

COLUMNS = {
    "value": "string or binary",
    "topic": "string",
    "key": "string or binary",
    "tag": "string",
    "attribute": "string",
    "headers": "map<string,string> or array<struct<key:string,value:binary>>",
    "deliver_at": "timestamp",
    "priority": "int",
}
"""The columns that a written DataFrame may have, and the allowed types of each."""

PreparedItem = bytes | Message
"""A message that is ready to be sent except for its partition: a payload without tag, keys and properties, or a Message
whose body already contains the encoded attribute.
"""

_NOWHERE = TopicPartition("", -1, -1)


class _Headers(NamedTuple):
    """The decoded value of the column `headers` in one row. reserved: metaq's own properties."""

    properties: dict[str, PropertyValue]
    reserved: dict[str, str]


_NO_HEADERS = _Headers({}, {})


class _Said(NamedTuple):
    """The values of the columns of one row, except its payload. due: the delivery time in Unix ms; None means that the
    message is not delayed.
    """

    key: str | None = None
    tag: str | None = None
    attribute: str | None = None
    due: int | None = None
    priority: int = 0


class Rows(NamedTuple):
    """The messages made from rows of one topic, in the order of the rows. keys: for each row, the key that determines
    the row's partition, or None if the row has no key. `keys` itself is None if no row has a key. Either all rows have
    a delivery time (deliver_at), or none has one.
    """

    topic: str
    keys: Sequence[str | None] | None
    items: Sequence[PreparedItem]


def size_of(item: PreparedItem) -> int:
    """Return the size of the prepared message's body in bytes."""
    return len(item.body) if isinstance(item, Message) else len(item)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Check the columns of a DataFrame that is to be written. Raise ConfigError if rows with the columns of `schema`
    cannot be turned into messages.
    """
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError("column", field.name, f"is not written: select only {', '.join(COLUMNS)}")
        if not _has_type(field.name, field.dataType):
            wanted = COLUMNS[field.name]
            raise ConfigError("column", field.name, f"has type {field.dataType.simpleString()}: cast it to {wanted}")
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise ConfigError("column", ", ".join(names), "names a column twice: select each once")
    if "value" not in names:
        raise ConfigError("column", "value", "is missing: give the payload this name, as string or binary")
    if options.topic is None and "topic" not in names:
        raise ConfigError("topic", "", "is missing: set the option, or add a column topic")
    if options.topic is not None and "topic" in names:
        raise ConfigError("topic", options.topic, "is also a column: set the option or keep the column, not both")
    if options.exactly_once and "deliver_at" in names:
        raise ConfigError(
            "exactlyOnce",
            "true",
            "does not go with the column deliver_at, because a message in a transaction waits for its commit alone: "
            "leave out one of the two",
        )


def _has_type(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, (StringType, BinaryType))
    if name == "deliver_at":
        return isinstance(kind, TimestampType)
    if name == "priority":
        return isinstance(kind, IntegralType)
    if name != "headers":
        return isinstance(kind, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return [name for name, _ in fields] == ["key", "value"] and all(_has_type(*field) for field in fields)


def rows_by_topic(
    batch: pa.RecordBatch, topic: str | None, *, typed: bool = False, packer: Packer | None = None
) -> Iterator[Rows]:
    """Yield the rows of each topic as messages. typed: whether the values in the column headers have the form that a
    read with typedHeaders returns. packer: the object that compresses the payloads; None means that they are not
    compressed. Raises ClientError for a row that cannot be a message.
    """
    for name, rows in _by_topic(batch, topic):
        for each in _by_time(rows):
            yield _rows(name, each, typed, packer)


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    for name in pc.unique(column).to_pylist():
        if name is None:
            raise ClientError("column topic is null in a row: fill it or filter such rows out")
        yield name, batch.filter(pc.equal(column, name))


def _by_time(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the rows into rows without a delivery time and rows with a delivery time, because a batch of messages must
    not contain both kinds.
    """
    if "deliver_at" not in batch.schema.names or not batch.num_rows:
        yield batch
        return
    column = batch.column("deliver_at")
    if column.null_count in (0, batch.num_rows):
        yield batch
        return
    yield batch.filter(pc.is_null(column))
    yield batch.filter(pc.is_valid(column))


def by_partition(
    rows: Rows, partitions: Sequence[TopicPartition]
) -> tuple[Sequence[PreparedItem], dict[TopicPartition | None, tuple[str, list[PreparedItem]]]]:
    """Choose the partition of each row that has a key. Return the messages of the rows without a key, and a dict for
    the other rows. For each chosen partition, the dict contains the messages of all rows whose key leads to this
    partition, and the key of one of these rows.

    If `partitions` is empty, because no broker publishes the topic now, the messages of all rows with a key are in the
    dict under None.
    """
    if rows.keys is None:
        return rows.items, {}
    plain: list[PreparedItem] = []
    keyed: dict[TopicPartition | None, tuple[str, list[PreparedItem]]] = {}
    places: dict[str, list[PreparedItem]] = {}
    for key, item in zip(rows.keys, rows.items, strict=True):
        if key is None:
            plain.append(item)
            continue
        items = places.get(key)
        if items is None:
            partition = partition_for_key(key, partitions) if partitions else None
            _, items = keyed.setdefault(partition, (key, []))
            places[key] = items
        items.append(item)
    return plain, keyed


def _rows(topic: str, batch: pa.RecordBatch, typed: bool, packer: Packer | None) -> Rows:
    values = batch.column("value").cast(pa.binary())
    if values.null_count:
        raise ClientError("column value is null in a row: a message needs a payload, filter such rows out")
    payloads: list[bytes] = values.to_pylist()
    keys = _texts(batch, "key")
    said = (keys, _texts(batch, "tag"), _texts(batch, "attribute"), _due(batch), _priorities(batch))
    headers = _headers(batch, typed)
    if headers is None and all(column is None for column in said):
        return Rows(topic, None, payloads)  # the producer compresses them
    defaults = ([default] * len(payloads) for default in _Said())
    columns = zip(*(given or default for given, default in zip(said, defaults, strict=True)), strict=True)
    known: dict[tuple[Any, ...], tuple[int, bytes]] = {}  # the encoded attributes by the arguments of a _Said
    items: list[PreparedItem] = []
    for row, names, payload in zip(columns, headers or [None] * len(payloads), payloads, strict=True):
        encoded = None if names else known.get(row)
        if encoded is None:
            encoded = _encode(_Said(*row), names)
            if not names:
                known[row] = encoded
        flag, attribute = encoded
        if not flag and row[0] is None:
            items.append(payload)
            continue
        if packer is not None:
            packed, payload = packer.pack(payload)
            flag |= packed
        # A Message keeps its own keys, regardless of its batch's key.
        items.append(Message(_NOWHERE, -1, -1, flag, encode_body(payload, flag, attribute)))
    return Rows(topic, keys, items)


def _encode(said: _Said, headers: _Headers | None) -> tuple[int, bytes]:
    properties, reserved = headers or _NO_HEADERS
    if said.due is not None:
        reserved = {**reserved, DUE_PROPERTY: str(said.due)}
    keys = said.key.split() if said.key else ()
    if said.key and said.key != " ".join(keys):
        raise ClientError(
            f"a row's key {said.key[:40]!r} could not be read as it is: the keys of a message are words with one blank "
            "between two; write trim(regexp_replace(key, '\\\\s+', ' ')), and null for a key of blanks alone"
        )
    try:
        flag, text = encode_attributes(said.attribute, said.tag, keys, properties, reserved)
    except LocalProtocolError as error:
        raise ClientError(f"a row is not a message: {error}") from error
    return flag | (0 if said.due is None else DELAYED_FLAG) | said.priority << PRIORITY_SHIFT, text


def _due(batch: pa.RecordBatch) -> list[int | None] | None:
    """Return the column deliver_at as Unix ms, rounded up. Return None if the column is missing, or null in all
    rows.
    """
    if "deliver_at" not in batch.schema.names or batch.column("deliver_at").null_count == batch.num_rows:
        return None
    column = batch.column("deliver_at").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    latest = (time.time() + MAX_DELAY_SECONDS) * 1_000_000
    if pc.max(column).as_py() > latest:
        days = MAX_DELAY_SECONDS // 86400
        raise ClientError(f"column deliver_at is more than {days} days ahead in a row, which no broker keeps")
    return [None if each is None else max(0, -(-each // 1000)) for each in column.to_pylist()]


def _priorities(batch: pa.RecordBatch) -> list[int] | None:
    """Return the column priority, with 0 in place of null. Return None if the column is missing, or has 0 or null in
    all rows.
    """
    if "priority" not in batch.schema.names or not batch.num_rows:
        return None
    column = batch.column("priority").cast(pa.int64()).fill_null(0)
    least, most = pc.min_max(column).as_py().values()
    if least < 0 or most > MAX_PRIORITY:
        wrong = least if least < 0 else most
        raise ClientError(f"column priority is {wrong} in a row: choose 0 (ordinary) … {MAX_PRIORITY} (most urgent)")
    return None if not most else column.to_pylist()


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None] | None:
    """Return the values of the column `name` as texts, or None if the column is missing, or null in all rows."""
    if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
        return None
    try:
        texts: list[str | None] = batch.column(name).cast(pa.binary()).cast(pa.string()).to_pylist()
    except pa.ArrowInvalid as error:
        raise ClientError(f"column {name} is not UTF-8 in a row: a {name} is text") from error
    return texts


def _headers(batch: pa.RecordBatch, typed: bool) -> list[_Headers | None] | None:
    if "headers" not in batch.schema.names or batch.column("headers").null_count == batch.num_rows:
        return None
    column = batch.column("headers")
    pairs: Callable[[Any], tuple[Any, Any]] = (
        tuple
        if pa.types.is_map(column.type)
        else lambda entry: (entry["key"], entry["value"]) if entry else (None, None)
    )
    return [None if row is None else _named(map(pairs, row), typed) for row in column.to_pylist()]


def _named(pairs: Iterator[tuple[Any, Any]], typed: bool) -> _Headers:
    """Decode header values: UTF-8 becomes text, other bytes stay bytes. typed: whether the bytes are values in the form
    that `encode_value` writes, which includes their types; if so, decode the values.
    """
    found = _Headers({}, {})
    for name, value in pairs:
        if name is None:
            raise ClientError("column headers: a name is null: give each header a name and a value")
        if value is None:
            raise ClientError(f"column headers: {name!r} has no value, but null: give it one, or leave the header out")
        if name in found.properties:
            raise ClientError(f"column headers has {name!r} twice: give each header once")
        try:
            text = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            found.properties[name] = value
            continue
        if typed and name in CARRIED:
            found.reserved[name] = text
        else:
            found.properties[name] = decode_value(text) if typed else text
    return found

"""From rows to messages: which columns a DataFrame may have to be written, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from metaq.client.message import Message
from metaq.client.producer import partition_for_key
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError, ConfigError, LocalProtocolError
from metaq.protocol.properties import PropertyValue, decode_value
from metaq.protocol.record import TYPE, encode_attributes, encode_body

from .options import WriteOptions

__all__ = ["COLUMNS", "PreparedItem", "Rows", "by_partition", "check_columns", "rows_by_topic", "size_of"]

COLUMNS = {
    "value": "string or binary",
    "topic": "string",
    "key": "string or binary",
    "tag": "string",
    "attribute": "string",
    "headers": "map<string,string> or array<struct<key:string,value:binary>>",
}
"""What is written, and the types it may have."""

PreparedItem = bytes | Message
"""A payload, or a body that has its attributes in front already (its place is nowhere yet)."""

_NOWHERE = TopicPartition("", -1, -1)


class _Headers(NamedTuple):
    """What the column headers says of one row."""

    properties: dict[str, PropertyValue]
    reserved: dict[str, str]


_NO_HEADERS = _Headers({}, {})


class Rows(NamedTuple):
    """Rows of one topic, in their order. keys: choose their partitions; None if there is no key at all."""

    topic: str
    keys: Sequence[str | None] | None
    items: Sequence[PreparedItem]


def size_of(item: PreparedItem) -> int:
    """Bytes of the message's body."""
    return len(item.body) if isinstance(item, Message) else len(item)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise ConfigError if rows of `schema` cannot be messages."""
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


def _has_type(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, (StringType, BinaryType))
    if name != "headers":
        return isinstance(kind, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return [name for name, _ in fields] == ["key", "value"] and all(_has_type(*field) for field in fields)


def rows_by_topic(batch: pa.RecordBatch, topic: str | None, *, typed: bool = False) -> Iterator[Rows]:
    """The rows of each topic. typed: headers are as a read with typedHeaders gives them. Raises ClientError for a row
    that is not a message."""
    if topic is not None:
        yield _rows(topic, batch, typed)
        return
    column = batch.column("topic")
    for name in pc.unique(column).to_pylist():
        if name is None:
            raise ClientError("column topic is null in a row: fill it or filter such rows out")
        yield _rows(name, batch.filter(pc.equal(column, name)), typed)


def by_partition(
    rows: Rows, partitions: Sequence[TopicPartition]
) -> tuple[Sequence[PreparedItem], dict[TopicPartition | None, tuple[str, list[PreparedItem]]]]:
    """Rows without key, and by partition those with one, beside one of its keys.

    Without partitions (nobody publishes the topic now) all keys are under None.
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


def _rows(topic: str, batch: pa.RecordBatch, typed: bool) -> Rows:
    values = batch.column("value").cast(pa.binary())
    if values.null_count:
        raise ClientError("column value is null in a row: a message needs a payload, filter such rows out")
    payloads: list[bytes] = values.to_pylist()
    keys = _texts(batch, "key")
    tags, attributes, headers = _texts(batch, "tag"), _texts(batch, "attribute"), _headers(batch, typed)
    if keys is None and tags is None and attributes is None and headers is None:
        return Rows(topic, None, payloads)
    nothing: Sequence[None] = [None] * len(payloads)
    known: dict[tuple[str | None, str | None, str | None], tuple[int, bytes]] = {}
    items: list[PreparedItem] = []
    columns = zip(keys or nothing, tags or nothing, attributes or nothing, headers or nothing, payloads, strict=True)
    for key, tag, attribute, names, payload in columns:
        encoded = None if names else known.get((key, tag, attribute))
        if encoded is None:
            encoded = _encode(attribute, tag, key, names)
            if not names:
                known[key, tag, attribute] = encoded
        flag, text = encoded
        if flag or key is not None:  # a Message keeps its own keys, whichever key its batch goes by
            items.append(Message(_NOWHERE, -1, -1, flag, encode_body(payload, flag, text)))
        else:
            items.append(payload)
    return Rows(topic, keys, items)


def _encode(attribute: str | None, tag: str | None, key: str | None, headers: _Headers | None) -> tuple[int, bytes]:
    try:
        return encode_attributes(attribute, tag, key.split() if key else (), *(headers or _NO_HEADERS))
    except LocalProtocolError as error:
        raise ClientError(f"a row is not a message: {error}") from error


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None] | None:
    """The column as texts; None if it is not there, or null in all rows."""
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
        tuple if pa.types.is_map(column.type) else lambda entry: (entry["key"], entry["value"])
    )
    return [None if row is None else _named(map(pairs, row), typed) for row in column.to_pylist()]


def _named(pairs: Iterator[tuple[Any, Any]], typed: bool) -> _Headers:
    """UTF-8 is text, and other bytes are bytes; typed: or what it stands for."""
    found = _Headers({}, {})
    for name, value in pairs:
        if name is None or value is None or name in found.properties:
            raise ClientError(f"column headers has {name!r} twice, or null: each header is a name and a value, once")
        try:
            text = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            found.properties[name] = value
            continue
        if typed and name == TYPE:
            found.reserved[name] = text
        else:
            found.properties[name] = decode_value(text) if typed else text
    return found

"""The columns of a topic, for Spark and for Arrow.

key        binary     the message's keys, separated by blanks; null without a key
value      binary     the payload
topic      string
partition  int        number within its broker
broker     int        id of the broker
offset     long       byte offset in the partition
id         long       message id
timestamp  timestamp  when the broker stored the message; null for a Java broker's message, whose id contains no time
tag        string     null without a tag
attribute  string     the attribute of metaq 1.x, which may be a tag alone; null without an attribute
headers    array      of struct (key string, value binary), with includeHeaders only: the properties; null if none
priority   int        with includePriority only: how urgent the message is for shared consumers, 0 (ordinary) … 9
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from metaq.client.records.arrow import Columns
from metaq.protocol.properties import PropertyValue, encode_value, property_text
from metaq.protocol.record import EXPIRES, TYPE, Attributes, priorities_of

__all__ = [
    "ARROW_SCHEMA",
    "ARROW_SCHEMA_WITH_HEADERS",
    "CARRIED",
    "SPARK_COLUMNS",
    "SPARK_SCHEMA",
    "SPARK_SCHEMA_WITH_HEADERS",
    "schema_for",
    "to_batch",
]

CARRIED = (TYPE, EXPIRES)
"""Those of metaq's own properties that are in the column headers of a read with typedHeaders. They are included so that
a message that is read and sent again keeps its content type and its expiry time.
"""

SPARK_SCHEMA = StructType(
    [
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), False),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("broker", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("id", LongType(), False),
        StructField("timestamp", TimestampType(), True),
        StructField("tag", StringType(), True),
        StructField("attribute", StringType(), True),
    ]
)

ARROW_SCHEMA = to_arrow_schema(SPARK_SCHEMA, timezone="UTC")
"""The Arrow schema of the default columns. Record batches for Spark must have exactly this schema."""

SPARK_SCHEMA_WITH_HEADERS = StructType(
    [
        *SPARK_SCHEMA.fields,
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
            True,
        ),
    ]
)
"""The columns of a read with includeHeaders=true. The column `headers` has the same type as in Spark's Kafka source."""

ARROW_SCHEMA_WITH_HEADERS = to_arrow_schema(SPARK_SCHEMA_WITH_HEADERS, timezone="UTC")

SPARK_COLUMNS = StructType([*SPARK_SCHEMA_WITH_HEADERS.fields, StructField("priority", IntegerType(), False)])
"""All columns that a read can have."""

_ARROW_COLUMNS = to_arrow_schema(SPARK_COLUMNS, timezone="UTC")


def schema_for(headers: bool, priority: bool = False) -> StructType:
    """Return the columns of a read with these options (includeHeaders and includePriority)."""
    chosen = {"headers": headers, "priority": priority}
    return StructType([field for field in SPARK_COLUMNS.fields if chosen.get(field.name, True)])


def to_batch(columns: Columns, schema: pa.Schema, *, typed: bool = False) -> pa.RecordBatch:
    """Return a record batch with the columns of `schema`, which are some of SPARK_COLUMNS in any order. Columns that
    `schema` lacks are not computed.

    typed: whether header values keep the form in which they are written in a record, which includes their types; if
    true, the headers also include the properties of CARRIED.
    """
    makers = _TYPED_COLUMNS if typed else _COLUMNS
    return pa.RecordBatch.from_arrays([makers[name](columns) for name in schema.names], schema=schema)


def _type(name: str) -> pa.DataType:
    return _ARROW_COLUMNS.field(name).type


def _of_attributes(name: str, value: Callable[[Attributes], object]) -> Callable[[Columns], pa.Array]:
    return lambda columns: columns.of_attributes(value, _type(name))


def _key(attributes: Attributes) -> bytes | None:
    return " ".join(attributes.keys).encode("utf-8") if attributes.keys else None


def _headers(attributes: Attributes) -> list[dict[str, str | bytes]] | None:
    return [{"key": name, "value": _binary(value)} for name, value in attributes.properties.items()] or None


def _typed_headers(attributes: Attributes) -> list[dict[str, str | bytes]] | None:
    pairs = [(name, encode_value(value, name)) for name, value in attributes.properties.items()]
    pairs += [(name, text) for name, text in attributes.reserved.items() if name in CARRIED]
    return [{"key": name, "value": text.encode("utf-8")} for name, text in pairs] or None


def _binary(value: PropertyValue) -> bytes:
    return value if isinstance(value, bytes) else property_text(value).encode("utf-8")


_COLUMNS: dict[str, Callable[[Columns], pa.Array]] = {
    **{name: attrgetter(name) for name in ("topic", "partition", "broker", "offset")},
    "id": lambda columns: pa.array(columns.ids),
    "key": _of_attributes("key", _key),
    "value": attrgetter("payload"),
    "timestamp": lambda columns: columns.timestamp("us"),
    "priority": lambda columns: pa.array(priorities_of(columns.flags)),
    "tag": _of_attributes("tag", attrgetter("tag")),
    "attribute": _of_attributes("attribute", attrgetter("attribute")),
    "headers": _of_attributes("headers", _headers),
}

_TYPED_COLUMNS = {**_COLUMNS, "headers": _of_attributes("headers", _typed_headers)}

"""Stored records as Arrow columns."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from metaq.client.records.arrow import columns_of, decode_columns
from metaq.client.records.decoding import WRONG_CHECKSUM, WRONG_LENGTH, ZEROS, Records, decode_walking
from metaq.client.records.results import TopicPartition
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import PRIORITY_MASK, PRIORITY_SHIFT, encode_attributes, encode_body, encode_record
from metaq.spark_connector.schema import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS, SPARK_SCHEMA, schema_for, to_batch

PLACE = TopicPartition("trades", 2, 3)
STORED_MS = 1_700_000_000_123
OUR_ID = message_id(counter_at(STORED_MS), 2)


def record(payload=b"x", message_id=OUR_ID, **attributes):
    flag, raw = encode_attributes(**attributes)
    return encode_record(encode_body(payload, flag, raw), message_id, flag)


def decoded(data, offset=1000, end=None, sizes=None, check=True):
    return decode_columns(Records(data, 0, len(data), offset, sizes), PLACE, check, end)


def table(data, schema=ARROW_SCHEMA, **options):
    return to_batch(decoded(data, **options).columns, schema)


def test_arrow_schema_is_what_spark_expects_of_the_spark_schema():
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)


def test_every_column_of_a_message():
    properties = {"h": "v", "n": -7, "raw": b"\xff", "yes": True}
    second = record(b"second", tag="buy", keys=["o-1", "o-2"], attribute="old", properties=properties)
    data = record(b"first") + second
    headers = {"h": b"v", "n": b"-7", "raw": b"\xff", "yes": b"true"}
    rows = table(data, ARROW_SCHEMA_WITH_HEADERS).to_pylist()
    stored = datetime.fromtimestamp(STORED_MS / 1000, UTC)
    place = {"topic": "trades", "partition": 3, "broker": 2, "id": OUR_ID, "timestamp": stored}
    nothing = {"key": None, "tag": None, "attribute": None, "headers": None}
    some = {"key": b"o-1 o-2", "tag": "buy", "attribute": "old", "headers": pairs(headers)}
    assert rows == [
        place | nothing | {"value": b"first", "offset": 1000},
        place | some | {"value": b"second", "offset": 1025},
    ]


def test_the_column_priority_is_made_of_the_flags():
    bodies = [(b"a", 0), (b"b", 9 << PRIORITY_SHIFT), (b"c", 3 << PRIORITY_SHIFT), (b"d", PRIORITY_MASK)]
    data = b"".join(encode_record(body, OUR_ID, flag) for body, flag in bodies)
    chosen = to_arrow_schema(schema_for(headers=False, priority=True), timezone="UTC")
    found = decoded(data).columns
    assert to_batch(found, chosen)["priority"].to_pylist() == [0, 9, 3, 9]
    assert to_batch(found.slice(1, 2), chosen)["priority"].to_pylist() == [9, 3]
    assert "priority" not in schema_for(headers=True).fieldNames()


def pairs(headers):
    return [{"key": name, "value": value} for name, value in headers.items()]


def test_typed_headers_are_as_the_record_has_them_with_the_content_type():
    reserved = {"metaq.type": "application/json", "metaq.correlation": "7", "metaq.expires": "1700000000000"}
    data = record(b"x", properties={"h": "v", "n": -7, "raw": b"\xff"}, reserved=reserved)
    (row,) = to_batch(decoded(data).columns, ARROW_SCHEMA_WITH_HEADERS, typed=True).to_pylist()
    typed = {"h": b"v", "n": b"\x03i-7", "raw": b"\x03x/w=="}
    typed |= {"metaq.type": b"application/json", "metaq.expires": b"1700000000000"}
    assert row["headers"] == pairs(typed)


def test_batch_has_exactly_the_schema_and_is_valid():
    batch = table(record(b"a", tag="t") + record(b""))
    batch.validate(full=True)
    assert batch.schema.equals(ARROW_SCHEMA)


def test_only_the_columns_of_a_schema_are_made():
    chosen = pa.schema([ARROW_SCHEMA.field("offset"), ARROW_SCHEMA.field("value")])
    assert table(record(b"a"), chosen).to_pylist() == [{"offset": 1000, "value": b"a"}]


def test_a_java_brokers_id_gives_no_timestamp():
    rows = table(record(message_id=-5468) + record())
    assert rows.column("timestamp").null_count == 1
    assert rows.column("id").to_pylist()[0] == -5468


ATTRIBUTES = st.sampled_from(
    [{}, {"tag": "x"}, {"attribute": "a"}, {"tag": "é", "keys": ["k1", "k2"]}, {"properties": {"h": "v", "n": 0.5}}]
)
MESSAGES: Any = st.one_of(
    st.lists(st.tuples(st.binary(max_size=40), ATTRIBUTES), min_size=1, max_size=20),
    st.builds(lambda payload, count: [(payload, {})] * count, st.binary(max_size=5), st.integers(2, 200)),
)


@settings(deadline=None)
@given(MESSAGES, st.booleans(), st.booleans())
def test_a_block_is_what_its_messages_are(messages, known, check):
    """The fast way agrees with the plain one: record by record, message by message."""
    records = [record(payload, OUR_ID + number, **each) for number, (payload, each) in enumerate(messages)]
    data = b"".join(records)
    found = decoded(data, sizes=np.array([len(each) for each in records]) if known else None, check=check)
    walked = decode_walking(Records(data, 0, len(data), 1000, None), PLACE)
    plain = columns_of(list(walked.messages))
    assert (found.end, found.damage) == (walked.end, walked.damage) == (1000 + len(data), "")
    batch = to_batch(found.columns, ARROW_SCHEMA_WITH_HEADERS)
    batch.validate(full=True)
    assert batch.equals(to_batch(plain, ARROW_SCHEMA_WITH_HEADERS))
    assert found.columns.to_batch().equals(plain.to_batch())


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 2000), st.integers(0, 10**6), st.integers(0, 255))
def test_a_table_of_sizes_finds_the_records_that_steps_find(payloads, limit, place, wrong):
    """Up to the same damage, which is not looked at behind the end."""
    records = [record(payload) for payload in payloads]
    sizes = np.array([len(each) for each in records])
    data = bytearray(b"".join(records))
    data[place % len(data)] ^= wrong if 4 <= place % len(data) < len(records[0]) else 0  # not in a length
    tabled, stepped = (decoded(bytes(data), end=1000 + limit, sizes=each) for each in (sizes, None))
    assert (tabled.end, tabled.damage) == (stepped.end, stepped.damage)
    assert tabled.columns.to_batch().equals(stepped.columns.to_batch())


RUN = record(b"12") + record(b"3456")
BLANK = record(b"") * 2 + bytes(40) + record(b"")


@pytest.mark.parametrize(
    ("data", "more", "found"),
    [
        pytest.param(record(b"whole") + record(b"cut off")[:-1], {}, (1, 1025, ""), id="a cut last record"),
        pytest.param(b"", {}, (0, 1000, ""), id="nothing"),
        pytest.param(record(b"cut off")[:-1], {}, (0, 1000, ""), id="nothing whole"),
        pytest.param(record(b"a") * 3, {"end": 1042}, (2, 1042, ""), id="a record that begins at the end"),
        pytest.param(record(b"a") * 3, {"end": 1043}, (3, 1063, ""), id="a record that begins in front of the end"),
        pytest.param(RUN, {"sizes": [22, 23]}, (1, 1022, WRONG_LENGTH), id="a wrong size"),
        pytest.param(RUN, {"sizes": [23, 23], "check": False}, (0, 1000, WRONG_LENGTH), id="a wrong size, unchecked"),
        pytest.param(BLANK, {}, (2, 1040, ZEROS), id="zeros"),
        pytest.param(BLANK, {"sizes": [20] * 5}, (2, 1040, ZEROS), id="zeros of known sizes"),
        pytest.param(record(b"a") + record(b"bb") + b"\xff" * 30, {}, (2, 1043, WRONG_LENGTH), id="a negative length"),
        pytest.param(b"\xff" * 64, {}, (0, 1000, WRONG_LENGTH), id="a negative length at once"),
    ],
)
def test_a_block_ends_where_its_whole_records_do(data, more, found):
    sizes = more.get("sizes")
    block = decoded(data, **more | {"sizes": sizes and np.array(sizes)})
    assert (len(block.columns.ids), block.end, block.damage) == found
    assert block.columns.to_batch().num_rows == found[0]


def test_damage_is_reported_with_its_exact_offset():
    data = bytearray(record(b"good") + record(b"bad"))
    data[-1] ^= 1
    found = decoded(bytes(data))
    assert found.columns.payload.to_pylist() == [b"good"]
    assert (found.end, found.damage) == (1000 + len(record(b"good")), WRONG_CHECKSUM)


def test_checksums_are_left_out_where_nobody_wants_them():
    data = bytearray(record(b"first") + record(b"second", tag="t"))
    data[24] ^= 1
    unchecked = decoded(bytes(data), sizes=np.array([25, len(data) - 25]), check=False)
    assert unchecked.columns.payload.to_pylist() == [b"firsu", b"second"]

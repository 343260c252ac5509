"""Stored records as Arrow columns."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from metaq.client.values import TopicPartition
from metaq.protocol.errors import CorruptRecord
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import encode_attributes, encode_body, encode_record
from metaq.spark_connector.records import RecordBlock
from metaq.spark_connector.schema import ARROW_SCHEMA, SPARK_SCHEMA

PLACE = TopicPartition("trades", 2, 3)
STORED_MS = 1_700_000_000_123
OUR_ID = message_id(counter_at(STORED_MS), 2)


def record(payload=b"x", message_id=OUR_ID, **attributes):
    flag, raw = encode_attributes(**attributes)
    return encode_record(encode_body(payload, flag, raw), message_id, flag)


def block(data, offset=1000, end=1 << 40):
    return RecordBlock(memoryview(data), PLACE, offset, end)


def test_arrow_schema_is_what_spark_expects_of_the_spark_schema():
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)


def test_every_column_of_a_message():
    data = record(b"first") + record(b"second", tag="buy", keys=["o-1", "o-2"], attribute="old")
    rows = block(data).to_arrow().to_pylist()
    stored = datetime.fromtimestamp(STORED_MS / 1000, UTC)
    place = {"topic": "trades", "partition": 3, "broker": 2, "id": OUR_ID, "timestamp": stored}
    assert rows == [
        place | {"key": None, "value": b"first", "offset": 1000, "tag": None, "attribute": None},
        place | {"key": b"o-1 o-2", "value": b"second", "offset": 1025, "tag": "buy", "attribute": "old"},
    ]


def test_batch_has_exactly_the_schema_and_is_valid():
    batch = block(record(b"a", tag="t") + record(b"")).to_arrow()
    batch.validate(full=True)
    assert batch.schema.equals(ARROW_SCHEMA)


def test_a_java_brokers_id_gives_no_timestamp():
    rows = block(record(message_id=-5468) + record()).to_arrow()
    assert rows.column("timestamp").null_count == 1
    assert rows.column("id").to_pylist()[0] == -5468


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 2000))
def test_a_table_of_sizes_finds_the_records_that_steps_find(payloads, limit):
    records = [record(payload) for payload in payloads]
    sizes = np.array([len(each) for each in records])
    data, end = memoryview(b"".join(records)), 1000 + limit
    tabled, stepped = RecordBlock(data, PLACE, 1000, end, sizes), RecordBlock(data, PLACE, 1000, end)
    assert tabled.next_offset == stepped.next_offset
    assert tabled.to_arrow().equals(stepped.to_arrow())


def test_a_size_that_is_not_the_records_is_damage_there():
    data = record(b"12") + record(b"3456")
    found: Any = RecordBlock(memoryview(data), PLACE, 1000, 1 << 40, np.array([22, 23]))
    assert (len(found), found.next_offset, found.damage.position) == (1, 1022, 1022)


def test_a_cut_last_record_is_left_for_the_next_pull():
    data = record(b"whole") + record(b"cut off")[:-1]
    found = block(data)
    assert len(found) == 1
    assert found.next_offset == 1000 + len(record(b"whole"))


def test_records_that_begin_at_or_after_the_end_do_not_count():
    data = record(b"a") * 3
    assert len(block(data, end=1000 + 2 * len(record(b"a")))) == 2
    assert len(block(data, end=1000 + 2 * len(record(b"a")) + 1)) == 3


@pytest.mark.parametrize("data", [b"", record(b"cut off")[:-1]])
def test_bytes_without_a_complete_record_are_refused_rather_than_asked_for_for_ever(data):
    with pytest.raises(CorruptRecord, match="no complete record"):
        block(data)


def test_damage_is_reported_with_its_exact_offset():
    data = bytearray(record(b"good") + record(b"bad"))
    data[-1] ^= 1
    found = block(bytes(data))
    assert found.to_arrow().column("value").to_pylist() == [b"good"]
    assert found.damage.position == found.next_offset == 1000 + len(record(b"good"))
    with pytest.raises(CorruptRecord, match="checksum"):
        block(bytes(data[24:]))


@pytest.mark.parametrize("known", [False, True])
def test_zeros_are_no_messages(known):
    data = record(b"") * 2 + bytes(40) + record(b"")
    found: Any = RecordBlock(memoryview(data), PLACE, 1000, 1 << 40, np.array([20] * 5) if known else None)
    assert (len(found), found.damage.position) == (2, 1040)
    with pytest.raises(CorruptRecord, match="zeros"):
        block(bytes(40))


def test_a_negative_length_ends_a_block():
    found = block(record(b"a") + record(b"bb") + b"\xff" * 30)
    assert (len(found), found.damage.position) == (2, 1043)


def test_bytes_that_are_no_record_are_refused():
    with pytest.raises(CorruptRecord, match="does the offset begin a record"):
        block(b"\xff" * 64)


@given(
    st.lists(
        st.tuples(st.binary(max_size=50), st.one_of(st.none(), st.text("abc", max_size=3))), min_size=1, max_size=20
    )
)
def test_any_payloads_and_tags_come_back(messages):
    data = b"".join(record(payload, tag=tag) for payload, tag in messages)
    batch = block(data).to_arrow()
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [payload for payload, _ in messages]
    assert batch.column("tag").to_pylist() == [tag for _, tag in messages]
    assert isinstance(batch, pa.RecordBatch)


def test_checksums_are_left_out_only_where_the_sizes_are_known_and_right():
    data = bytearray(record(b"first") + record(b"second", tag="t"))
    sizes = np.array([25, len(data) - 25])
    data[24] ^= 1
    whole = memoryview(data)
    unchecked = RecordBlock(whole, PLACE, 0, 1 << 40, sizes, check_crcs=False).to_arrow()
    assert unchecked.column("value").to_pylist() == [b"firsu", b"second"]
    for known in (None, sizes):
        with pytest.raises(CorruptRecord, match="checksum"):
            RecordBlock(whole, PLACE, 0, 1 << 40, known, check_crcs=known is not None)
    with pytest.raises(CorruptRecord, match="it claims 5 bytes"):
        RecordBlock(whole, PLACE, 0, 1 << 40, sizes + np.array([1, -1]), check_crcs=False)

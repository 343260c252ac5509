"""Payloads that a producer compresses, and consumers that never notice."""

import numpy as np
import pyarrow as pa
import pytest

from metaq.client.arrow import decode_columns, record_batch
from metaq.client.config import ProducerConfig
from metaq.client.consumer.chunk import Chunk
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import Ask, Request
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.decoding import Records
from metaq.client.local_store import StoredMessage
from metaq.client.message import Message
from metaq.client.producer.building import build_batch, build_body
from metaq.client.producer.packing import Packer
from metaq.client.values import TopicPartition
from metaq.protocol.compression import compress
from metaq.protocol.errors import ConfigError, CorruptRecord, LocalProtocolError
from metaq.protocol.limits import MAX_PAYLOAD_BYTES
from metaq.protocol.record import COMPRESSED_FLAG, encode_attributes, encode_body, encode_record

HERE = TopicPartition("t", 0, 1)
LONG = b"the same again and again " * 100
NOISE = np.random.default_rng(1).bytes(5000)


def packer(**settings):
    return Packer.of(ProducerConfig(compression="zstd", **settings))


# --- producing --------------------------------------------------------------------------------------------------------


def test_a_payload_is_compressed_if_that_makes_it_smaller_and_it_is_large_enough():
    flag, body = build_body(LONG, {}, packer())
    assert (flag, len(body) < 100) == (COMPRESSED_FLAG, True)
    assert build_body(NOISE, {}, packer()) == (0, NOISE)
    assert build_body(LONG[:511], {}, packer()) == (0, LONG[:511])
    assert build_body(LONG[:511], {}, packer(compression_from_bytes=0))[0] == COMPRESSED_FLAG
    assert build_body(LONG, {}) == (0, LONG)


def test_the_attribute_is_never_compressed():
    flag, body = build_body(LONG, {"tag": "t", "properties": {"n": 1}}, packer())
    message = Message(HERE, 0, 1, flag, body)
    assert flag == COMPRESSED_FLAG | 3
    assert (message.tag, message.properties, message.payload) == ("t", {"n": 1}, LONG)
    assert b"TAGS\x01t\x02" in body
    assert "compressed" in repr(message)


def test_each_payload_of_a_batch_is_compressed_or_not():
    outgoing = build_batch("t", [LONG, NOISE, bytearray(LONG)], 0.0, {}, packer())
    assert outgoing.flags == [COMPRESSED_FLAG, 0, COMPRESSED_FLAG]
    assert outgoing.message == [LONG, NOISE, LONG]


def test_a_consumed_message_is_sent_on_as_it_is_only_by_a_producer_that_compresses():
    flag, body = build_body(LONG, {"tag": "t"}, packer())
    message = Message(HERE, 0, 1, flag, body)
    same = build_batch("u", [message], 0.0, {}, packer())
    assert (same.flags, same.bodies) == ([flag], [body])
    plain = build_batch("u", [message], 0.0, {})
    assert (plain.flags, plain.bodies) == ([1], [encode_body(LONG, 1, b"t")])


def test_a_payload_above_what_readers_unpack_is_refused():
    with pytest.raises(LocalProtocolError, match=r"above the .* that are compressed: send it in parts"):
        build_body(bytes(MAX_PAYLOAD_BYTES + 1), {}, packer())
    assert build_body(bytes(MAX_PAYLOAD_BYTES), {}, packer())[0] == COMPRESSED_FLAG


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression": "gzip"}, "compression='gzip': choose 'zstd' or None"),
        ({"compression_level": 0}, "compression_level=0: choose 1 or more"),
        ({"compression_level": 23}, "compression_level=23: choose 1 … 22"),
        ({"compression_from_bytes": -1}, "compression_from_bytes=-1: choose 0 or more"),
    ],
)
def test_a_wrong_setting_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        ProducerConfig(**settings)


def test_a_stored_message_gives_its_payload():
    flag, body = build_body(LONG, {"tag": "t"}, packer())
    assert StoredMessage("t", body, flag).payload == LONG


# --- consuming --------------------------------------------------------------------------------------------------------


def record(payload, packed=False, identity=1 << 60, **attributes):
    flag, raw = encode_attributes(**attributes)
    if packed:
        flag |= COMPRESSED_FLAG
        payload = compress(payload, 3) if packed is True else packed
    return encode_record(encode_body(payload, flag, raw), identity, flag)


MIXED = [record(b"a"), record(LONG, True), record(LONG, True, tag="t"), record(b"b", tag="t"), record(b"", True)]
PAYLOADS = [b"a", LONG, LONG, b"b", b""]


def sized(records, offset=1000):
    data = b"".join(records)
    return Chunk.of(data, offset, offset + len(data), np.array([len(each) for each in records]))


@pytest.mark.parametrize("sizes", [True, False])
def test_messages_have_their_payloads(sizes):
    chunk = sized(MIXED)
    if not sizes:
        chunk.sizes = None
    messages = chunk.take(HERE, 10)
    assert [message.payload for message in messages] == PAYLOADS
    assert [message.next_offset for message in messages][-1] == 1000 + sum(map(len, MIXED))


def test_a_message_without_attribute_and_compression_is_still_a_plain_one():
    assert type(sized(MIXED[:1]).take(HERE, 1)[0]).__name__ == "PlainMessage"
    assert type(sized(MIXED[:2]).take(HERE, 1)[0]) is Message


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("check", [True, False])
def test_batches_have_the_payloads_of_the_messages(limit, check):
    chunk, batches = sized(MIXED), []
    while chunk.bytes_left:
        batches.append(chunk.take_batch(HERE, limit, check))
    found = pa.Table.from_batches(batches)
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([record_batch(sized(MIXED).take(HERE, 10))]))
    assert found["payload"].to_pylist() == PAYLOADS


def test_a_batch_takes_bounded_memory(monkeypatch):
    monkeypatch.setattr("metaq.client.arrow.MAX_UNPACKED_BYTES", len(LONG) + 1)
    chunk = sized(MIXED)
    assert [chunk.take_batch(HERE, 10).num_rows for _ in range(2)] == [2, 3]
    assert not chunk.bytes_left


def test_messages_may_follow_a_batch():
    chunk = sized(MIXED)
    assert chunk.take_batch(HERE, 1)["payload"].to_pylist() == PAYLOADS[:1]
    assert [message.payload for message in chunk.take(HERE, 10)] == PAYLOADS[1:]


def test_parts_of_columns_are_what_all_of_them_are():
    data = b"".join(MIXED)
    block = decode_columns(Records(data, 0, len(data), 0, None), HERE)
    parts = [block.unpacked(HERE, start, 2).columns for start in (0, 2, 4)]
    assert [payload for part in parts for payload in part.payload.to_pylist()] == PAYLOADS
    assert [attributes.tag for part in parts for attributes in part.attributes or ()] == [None, None, "t", "t", None]


# --- what cannot be unpacked ------------------------------------------------------------------------------------------

BAD = [record(b"a", identity=7), record(b"", b"no frame", 8), record(b"c", identity=9)]


def core(accept=None, **settings):
    made = ConsumerCore("g", ConsumerConfig(**settings), accept=accept)
    (cursor,) = made.claim([HERE], [1000], announced=True)
    chunk = sized(BAD)
    assert cursor.arrived(Request(cursor, cursor._generation, Ask.PULL, 1000), chunk)
    made.make_ready(cursor)
    return made, cursor


def test_a_message_that_cannot_be_unpacked_says_where_it_is():
    messages = sized(BAD).take(HERE, 10)
    assert (messages[0].payload, messages[2].payload) == (b"a", b"c")
    with pytest.raises(CorruptRecord, match="no Zstandard frame") as caught:
        messages[1].payload.hex()
    assert (caught.value.partition, caught.value.position, caught.value.end) == (
        HERE,
        messages[1].offset,
        messages[1].next_offset,
    )


ACCEPTS = [None, lambda message: True]
"""Batches are made of columns, or of messages."""


@pytest.mark.parametrize("accept", ACCEPTS)
def test_a_batch_ends_in_front_of_it_and_it_is_told_until_there_is_a_seek(accept):
    made, cursor = core(accept)
    assert made.take_batch(10)["payload"].to_pylist() == [b"a"]
    made.under_way = False
    for _ in range(2):
        with pytest.raises(CorruptRecord) as caught:
            made.take_batch(10)
    assert caught.value.end == 1000 + len(BAD[0]) + len(BAD[1])
    assert cursor.position == 1000 + len(BAD[0])


@pytest.mark.parametrize("accept", ACCEPTS)
def test_with_damage_skip_it_is_passed_over(accept):
    made, cursor = core(accept, damage="skip")
    assert made.take_batch(10)["payload"].to_pylist() == [b"a"]
    made.under_way = False
    rest = made.take_batch(10)["payload"].to_pylist()
    assert rest + made.take_batch(10)["payload"].to_pylist() == [b"c"]
    made.under_way = False
    made.acknowledge()
    assert cursor.consumed == (1000 + sum(map(len, BAD)), 9)

"""What a message carries while it waits for another attempt, and the way back to the original."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import Message
from metaq.client.producer.building import build_batch
from metaq.protocol import record as records
from metaq.protocol import retries
from metaq.protocol.compression import compress, payload_of
from metaq.protocol.errors import CorruptRecord, RemoteProtocolError
from metaq.protocol.limits import INT64_MAX, MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.topic_partition import TopicPartition

ORIGIN = retries.Origin(TopicPartition("orders", 3, 17), 1 << 40, 1661382015569625088)
FAILURE = retries.Failure(ORIGIN, 2, "ValueError: no\nmail.py:7 in send", 1_700_000_000_000)

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))
WORD = st.text(st.characters(categories=["L", "N"]), min_size=1)


def record(payload, flag=0, **attributes):
    bits, attribute = records.encode_attributes(**attributes)
    return flag | bits, records.encode_body(payload, bits, attribute)


@given(
    st.binary(max_size=50),
    st.fixed_dictionaries({}, optional={"attribute": TEXT, "tag": TEXT, "keys": st.lists(WORD, max_size=3)}),
    st.sampled_from([0, 8, 0x50, 256]),
    st.one_of(st.none(), st.integers(0, 1 << 34)),
)
def test_the_original_comes_back_byte_for_byte(payload, attributes, bits, delay_ms):
    flag, body = record(payload, bits, **attributes)
    failed_flag, failed_body = retries.encode_failed(flag, body, FAILURE, delay_ms)
    assert retries.restored(failed_flag, failed_body) == (flag, body)
    assert retries.failure_of(failed_flag, failed_body) == FAILURE
    assert bool(failed_flag & records.DELAYED_FLAG) == (delay_ms is not None)
    attribute = records.attribute_of(failed_body, failed_flag)
    assert attribute is not None
    said = records.property_of(attribute, b"metaq.delay")
    assert said == (None if delay_ms is None else b"%d" % delay_ms)


@given(st.binary(max_size=50), st.binary(max_size=20))
def test_an_attribute_of_1_x_comes_back_whatever_its_bytes_are(attribute, payload):
    flag, body = records.ATTRIBUTE_FLAG, records.encode_body(payload, records.ATTRIBUTE_FLAG, attribute)
    assert retries.restored(*retries.encode_failed(flag, body, FAILURE)) == (flag, body)


def test_a_message_that_fails_again_carries_the_last_failure_only():
    flag, body = record(b"p", tag="a", keys=["k"])
    first = retries.encode_failed(flag, body, FAILURE, 1000)
    later = retries.Failure(ORIGIN, 3, "TypeError: other", 1_700_000_001_000)
    again_flag, again_body = retries.restored(*first)
    second = retries.encode_failed(again_flag, again_body, later, 2000)
    assert retries.failure_of(*second) == later
    assert retries.restored(*second) == (flag, body)
    assert second[1].count(b"metaq.origin") == 1


def test_brokers_find_tag_and_keys_of_a_failed_message():
    flag, body = record(b"p", tag="buy", keys=["order-7", "c-3"])
    failed_flag, failed_body = retries.encode_failed(flag, body, FAILURE, 5)
    end = records.payload_start(failed_body, failed_flag)
    assert records.tag_hash_of_body(failed_body, failed_flag) == records.tag_hash("buy")
    assert records.key_hashes(failed_body, 4, end) == [records.key_hash("order-7"), records.key_hash("c-3")]
    lone_flag, lone_body = record(b"p", tag="buy")
    lone = retries.encode_failed(lone_flag, lone_body, FAILURE)
    assert records.decode_attribute(records.attribute_of(lone[1], lone[0]), lone[0])[:2] == ("buy", "buy")


def test_the_time_of_an_earlier_delivery_does_not_count_for_the_next_one():
    """Else a message that was delayed once would come again at once, as its time is over."""
    attribute = b"metaq.due\x011600000000000\x02a\x01b\x02metaq.delay\x01700\x02"
    flag = records.ATTRIBUTE_FLAG | records.PROPERTIES_FLAG
    failed_flag, failed_body = retries.encode_failed(flag, records.encode_body(b"p", flag, attribute), FAILURE, 9)
    found = records.attribute_of(failed_body, failed_flag)
    assert found is not None
    assert records.property_of(found, b"metaq.due") is None
    assert records.property_of(found, b"metaq.delay") == b"9"
    assert retries.restored(failed_flag, failed_body) == (flag, records.encode_body(b"p", flag, b"a\x01b\x02"))


def test_a_message_that_never_failed_says_nothing():
    assert retries.failure_of(0, b"payload") is None
    flag, body = record(b"p", tag="a", keys=["b"])
    assert retries.failure_of(flag, body) is None
    with pytest.raises(RemoteProtocolError, match="no message that failed"):
        retries.restored(flag, body)


@pytest.mark.parametrize(
    "attribute",
    [
        b"metaq.origin\x01orders\x02metaq.attempts\x011\x02metaq.failed\x011\x02",
        b"metaq.origin\x01orders/0-1/2/3/0\x02metaq.attempts\x01x\x02metaq.failed\x011\x02",
        b"metaq.origin\x01orders/0-1/2/3/0\x02metaq.attempts\x011\x02",
        b"metaq.origin\x01orders/0-1/2/3/0\x02metaq.attempts\x01" + b"1" * 10 + b"\x02metaq.failed\x011\x02",
    ],
)
def test_what_is_no_failure_is_refused(attribute):
    flag = records.ATTRIBUTE_FLAG | records.PROPERTIES_FLAG
    with pytest.raises(RemoteProtocolError, match=r"metaq\.origin"):
        retries.failure_of(flag, records.encode_body(b"p", flag, attribute))


@given(st.text())
def test_a_cause_is_bounded_and_stays_readable(text):
    found = retries.shortened(text)
    assert len(found) <= retries.MAX_CAUSE_CHARACTERS
    assert "\x01" not in found
    assert "\x02" not in found
    flag, body = retries.encode_failed(0, b"p", retries.Failure(ORIGIN, 1, text, 5))
    failure = retries.failure_of(flag, body)
    assert failure is not None
    assert failure.cause == found


def test_a_long_cause_shows_that_it_was_cut():
    assert retries.shortened("x" * 5000) == "x" * (retries.MAX_CAUSE_CHARACTERS - 1) + "…"


def test_a_compressed_payload_waits_unpacked_so_that_any_topic_can_have_it():
    payload = b"again and again " * 100
    flag, body = record(compress(payload, 3), records.COMPRESSED_FLAG | 0x50, keys=["k"])
    failed_flag, failed = retries.encode_failed(flag, body, FAILURE, 1000)
    assert not failed_flag & records.COMPRESSED_FLAG
    assert payload_of(failed, failed_flag) == payload
    again_flag, again = retries.restored(failed_flag, failed)
    assert again_flag == flag & ~records.COMPRESSED_FLAG
    assert again == record(payload, keys=["k"])[1]


@pytest.mark.parametrize(
    "packed", [b"no Zstandard frame", compress(bytes(MAX_BODY_BYTES + 1), 1)], ids=["damaged", "large"]
)
def test_a_compressed_payload_that_cannot_be_unpacked_comes_back_as_it_was(packed):
    flag, body = record(packed, records.COMPRESSED_FLAG, tag="t")
    failed_flag, failed = retries.encode_failed(flag, body, FAILURE, None)
    assert not failed_flag & records.COMPRESSED_FLAG
    assert retries.restored(failed_flag, failed) == (flag, body)


def test_a_payload_that_has_to_stay_compressed_is_read_as_its_producer_had_it():
    payload = bytes(MAX_BODY_BYTES + 1)
    flag, body = record(compress(payload, 1), records.COMPRESSED_FLAG, tag="t")
    failed = retries.encode_failed(flag, body, FAILURE, None)
    assert retries.payload_in(*failed) == payload
    lying = Message(TopicPartition("%DEAD%g", 0, 0), 0, 1, *failed)
    assert lying.payload == payload
    assert Message(TopicPartition("%REPLY%", 0, 0), 0, 1, *record(b"x", tag="t")).payload == b"x"


def test_a_dead_letter_whose_compressed_payload_is_damaged_says_so_and_can_be_shown():
    flag, body = record(b"no Zstandard frame", records.COMPRESSED_FLAG)
    failed = retries.encode_failed(flag, body, FAILURE)
    lying = Message(TopicPartition("%DEAD%g", 0, 0), 0, 1, *failed)
    with pytest.raises(CorruptRecord, match="no Zstandard frame"):
        _ = lying.payload
    assert "no Zstandard frame" in repr(lying)


@pytest.mark.parametrize("attribute", [b"", b"a" * 4096, b"a" * 30_000, b"\x01" * 30_000])
def test_the_largest_message_can_fail_whatever_its_attribute_is(attribute):
    flag = records.ATTRIBUTE_FLAG if attribute else 0
    payload = bytes(MAX_BODY_BYTES - 4 - len(attribute)) if attribute else bytes(MAX_BODY_BYTES)
    body = records.encode_body(payload, flag, attribute) if attribute else payload
    assert len(body) == MAX_BODY_BYTES
    origin = retries.Origin(TopicPartition("t" * 240, 999_999_999, 999_999_999), INT64_MAX, INT64_MAX)
    failed = retries.encode_failed(
        flag, body, retries.Failure(origin, 999_999_999, "\U0001f600" * 1000, 10**17), 1 << 40
    )
    assert len(failed[1]) <= MAX_RECORD_BODY_BYTES
    batch = build_batch("%DEAD%g", [Message(TopicPartition("%DEAD%g", 0, 0), 0, 0, *failed)], 0.0, {})
    assert batch.bodies == [failed[1]]
    assert retries.restored(*failed) == (flag, body)


def test_what_a_half_message_said_of_its_transaction_is_not_repeated():
    own = {"metaq.half": "bank", "metaq.check-after": "100", "metaq.type": "text/x"}
    flag, body = record(b"x", reserved=own, tag="t")
    failed_flag, failed = retries.encode_failed(flag, body, FAILURE, 1000)
    reserved = records.decode_attribute(records.attribute_of(failed, failed_flag), failed_flag).reserved
    assert set(reserved) >= {"metaq.type", "metaq.delay"}
    assert not set(reserved) & {"metaq.half", "metaq.check-after"}
    assert retries.restored(failed_flag, failed) == record(b"x", reserved={"metaq.type": "text/x"}, tag="t")


def test_a_record_without_its_expiry_is_the_same_otherwise():
    flag, raw = records.encode_attributes(None, "t", ["k"], {"n": 1}, {records.EXPIRES: "5", records.TYPE: "json"})
    body = records.encode_body(b"payload", flag, raw)
    plain_flag, plain_raw = records.encode_attributes(None, "t", ["k"], {"n": 1}, {records.TYPE: "json"})
    assert flag & records.EXPIRES_FLAG
    assert retries.without_expiry(flag, body) == (plain_flag, records.encode_body(b"payload", plain_flag, plain_raw))
    assert retries.without_expiry(0, b"x") == (0, b"x")

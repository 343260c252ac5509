"""Batches of messages that wait for their time, and half messages: what is built of them."""

import pytest

from metaq import Message, ProducerConfig, TopicPartition
from metaq.client.producer.building import build_batch, build_half
from metaq.client.producer.delays import Timing, timing_of
from metaq.client.producer.packing import Packer
from metaq.protocol.compression import payload_of
from metaq.protocol.errors import LocalProtocolError
from metaq.protocol.halves import HalfTerms, half_of
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, encode_attributes, encode_body

PLACE = TopicPartition("t", 0, 0)
LONG = b"again and again " * 100


def waiting(**reserved):
    flag, text = encode_attributes(reserved={f"metaq.{name}": value for name, value in reserved.items()})
    return Message(PLACE, -1, -1, flag | DELAYED_FLAG, encode_body(b"x", flag, text))


@pytest.mark.parametrize(("said", "timing"), [({"due": "1700000000000"}, Timing.DUE), ({"delay": "5"}, Timing.DELAY)])
def test_messages_that_wait_make_a_batch_that_waits(said, timing):
    batch = build_batch("t", [waiting(**said), waiting(**said)], 0.0, {})
    assert batch.timing is timing
    assert build_batch("t", [b"x"], 0.0, {}).timing is Timing.NOW


def test_a_batch_with_messages_that_wait_and_others_is_refused():
    ordinary = Message(PLACE, -1, -1, 0, b"x")
    for items in ([waiting(delay="5"), ordinary], [b"x", waiting(delay="5")], [waiting(delay="5"), waiting(due="7")]):
        with pytest.raises(LocalProtocolError, match="wait for times of several kinds, or some for none"):
            build_batch("t", list(items), 0.0, {})


def test_a_half_message_is_compressed_and_says_its_group_and_time():
    packer = Packer.of(ProducerConfig(compression="zstd"))
    flag, body = build_half(LONG, {"priority": 7}, HalfTerms("bank", 1500, "p1"), packer)
    assert flag & COMPRESSED_FLAG
    assert len(body) < 200
    assert payload_of(body, flag) == LONG
    assert half_of(flag, body) == HalfTerms("bank", 1500, "p1")
    assert timing_of(flag, body) is Timing.CHECKED_HALF
    flag, body = build_half(LONG, {}, HalfTerms("bank", None))
    assert not flag & COMPRESSED_FLAG
    assert half_of(flag, body) == HalfTerms("bank", None, "")
    assert timing_of(flag, body) is Timing.HALF

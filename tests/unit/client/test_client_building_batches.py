"""Batches of messages that wait for their time, and half messages: what is built of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metaq import Message, ProducerConfig, TopicPartition
from metaq.client.producer.building import build_batch, build_body, build_half
from metaq.client.producer.delays import Timing, timing_of
from metaq.client.producer.packing import Packer
from metaq.client.producer.requesting import ReplyTo, reply_options
from metaq.client.settings.consumer_config import check_tags
from metaq.protocol.compression import compress, payload_of
from metaq.protocol.errors import ConfigError, LocalProtocolError
from metaq.protocol.half_messages import HalfTerms, half_of
from metaq.protocol.limits import MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.record import COMPRESSED_FLAG, CORRELATION, DELAYED_FLAG, REPLY_TO, encode_attributes, encode_body

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
        with pytest.raises(LocalProtocolError, match="mixes deliver_at, delay, and messages without a time"):
            build_batch("t", list(items), 0.0, {})


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5},
        {"deliver_at": datetime.now(UTC) + timedelta(hours=1)},
        {"ttl": 60},
        {"content_type": "text/x"},
        {"reserved": {"metaq.correlation": "7", "metaq.reply-to": "%REPLY% 0-0 x"}},
        {"keys": ["k" * 100], "delay": 5},
        {"tag": "t", "delay": 5},
        {"attribute": "a", "ttl": 60},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_metaq_adds_to_the_largest_message_does_not_make_it_too_large(options):
    users = {name: options[name] for name in ("keys", "tag", "attribute") if name in options}
    flag, attribute = encode_attributes(**users)
    room = MAX_BODY_BYTES - len(encode_body(b"", flag, attribute) if flag else b"")
    assert len(build_body(bytes(room), options)[1]) > MAX_BODY_BYTES
    assert len(build_batch("t", [bytes(room)], 0.0, options).bodies[0]) > MAX_BODY_BYTES
    with pytest.raises(LocalProtocolError, match=f"of {MAX_BODY_BYTES + 1} bytes is above the limit"):
        build_body(bytes(room + 1), options)
    with pytest.raises(LocalProtocolError, match=f"of {MAX_BODY_BYTES + 1} bytes is above the limit"):
        build_batch("t", [b"x", bytes(room + 1)], 0.0, options)


def test_the_largest_half_message_is_no_larger_than_another():
    assert len(build_half(bytes(MAX_BODY_BYTES), {}, HalfTerms("g" * 200, 5))[1]) > MAX_BODY_BYTES
    with pytest.raises(LocalProtocolError, match="above the limit"):
        build_half(bytes(MAX_BODY_BYTES + 1), {}, HalfTerms("bank", 5))


def request(payload: bytes) -> tuple[Message, Any]:
    """A message that asks for a reply, and the options of it."""
    to = ReplyTo(PLACE, "0123456789abcdef")
    own: Any = {"reserved": {REPLY_TO: str(to), CORRELATION: "12"}}
    return Message(PLACE, 0, 0, *build_body(payload, own)), own


def test_a_reply_may_be_as_large_as_its_request():
    """Its address and number are metaq's own; its tag, too, which the request has chosen."""
    asked, own = request(bytes(MAX_BODY_BYTES))
    _, options = reply_options(asked, {})
    assert len(build_body(bytes(MAX_BODY_BYTES), options)[1]) > MAX_BODY_BYTES
    with pytest.raises(LocalProtocolError, match=f"of {MAX_BODY_BYTES + 1} bytes is above the limit"):
        build_body(bytes(MAX_BODY_BYTES + 1), options)
    _, keyed = reply_options(asked, {"keys": ["k"]})  # the user's own, as of other messages: with the list's length
    build_body(bytes(MAX_BODY_BYTES - 4 - len("KEYS=k;")), keyed)
    with pytest.raises(LocalProtocolError):
        build_body(bytes(MAX_BODY_BYTES - 4 - len("KEYS=k;") + 1), keyed)
    with pytest.raises(LocalProtocolError):  # of a request the tag is the user's
        build_body(bytes(MAX_BODY_BYTES), own | {"tag": "t"})


def test_properties_of_metaq_have_a_limit_too():
    with pytest.raises(LocalProtocolError, match=f"above the limit of {MAX_RECORD_BODY_BYTES}"):
        build_body(bytes(MAX_BODY_BYTES), {"content_type": "x" * 20_000})


def test_a_compressed_message_that_would_be_too_large_otherwise_is_sent_on_as_it_is():
    """A dead letter of it could not be redriven."""
    large, small = (Message(PLACE, 0, 0, COMPRESSED_FLAG, compress(bytes(n), 1)) for n in (MAX_BODY_BYTES + 1, 1000))
    batch = build_batch("t", [large, small], 0.0, {})
    assert (batch.flags, batch.bodies) == ([COMPRESSED_FLAG, 0], [large.body, bytes(1000)])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tag": "\ud83d"}, "'tag'"),
        ({"attribute": "\ud83d"}, "'attribute'"),
        ({"tag": "\ud83d", "delay": 5}, "'TAGS'"),
        ({"keys": ["\ud83d"]}, "'KEYS'"),
        ({"properties": {"colour": "\ud83d"}}, "'colour'"),
        ({"properties": {"\ud83d": 1}}, "\\ud83d"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_the_name_of_what_has_it(options, name):
    with pytest.raises(LocalProtocolError, match="not valid UTF-8") as found:
        build_body(b"x", options)
    assert name in str(found.value)
    str(found.value).encode()


def test_half_of_a_surrogate_pair_is_no_tag_of_a_consumer():
    with pytest.raises(ConfigError, match=r"tags='\\ud83d'.*not valid UTF-8"):
        check_tags(["a", "\ud83d"])
    assert check_tags(["\U0001f600"]) == frozenset(["\U0001f600"])


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

"""Serializers: what each writes, what a reader makes of it, and what is said where it does not fit."""

import json
import pickle
from datetime import UTC, date, datetime
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue

from metaq import Message
from metaq.client.producer.building import build_body
from metaq.client.producer.typed import TypedProducer
from metaq.client.serializers import deserializers
from metaq.errors import ClientError, ConfigError, ValueUnreadable
from metaq.protocol.record import encode_record
from metaq.serializers import Avro, Json, MsgPack, Protobuf, Serializer
from tests.unit.client.chunks import HERE, Bench, chunk_of

ORDER = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]}
NEWER: dict[str, Any] = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
WHEN = datetime(2026, 11, 25, 4, 30, tzinfo=UTC)


def untyped(value: object) -> Any:
    """For what a type checker would refuse, as metaq does."""
    return value


def message(payload=b"{}", content_type=None, offset=0):
    flag, body = build_body(payload, {"content_type": content_type})
    return Message(HERE, offset, 1, flag, body)


def sent(serializer, value):
    return message(serializer.dumps(value), serializer.content_type)


@pytest.mark.parametrize(
    ("serializer", "value", "content_type"),
    [
        (Json(), {"a": [1, 0.5, None, True, "é"]}, "application/json"),
        (MsgPack(), {"a": [1, 0.5, None, True, "é", b"\xff"], 7: WHEN}, "application/msgpack"),
        (Avro(ORDER), {"id": 7}, "avro/binary;schema=shop.Order"),
        (Avro(json.dumps(ORDER, indent=2)), {"id": 7}, "avro/binary;schema=shop.Order"),
        (Protobuf(StringValue), StringValue(value="é"), "application/x-protobuf;message=google.protobuf.StringValue"),
    ],
)
def test_a_value_comes_back_with_the_content_type_which_names_its_kind(serializer, value, content_type):
    found = sent(serializer, value)
    assert isinstance(serializer, Serializer)
    assert found.content_type == serializer.content_type == content_type
    assert found.decode(serializer) == value


def test_the_fingerprint_of_avros_specification_stands_in_front():
    assert Avro("int").dumps(1) == bytes.fromhex("c301 8f5c393f1ad57572 02")
    assert Avro("int").content_type == "avro/binary;schema=int"


def test_json_is_compact_and_strict():
    assert Json().dumps({"a": 1, "b": "é"}) == '{"a":1,"b":"é"}'.encode()
    assert Json(default=str).dumps([date(2026, 1, 2)]) == b'["2026-01-02"]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        Json().dumps(float("nan"))
    with pytest.raises(TypeError, match="date is not JSON serializable"):
        Json().dumps(date(2026, 1, 2))


def test_an_avro_value_of_an_older_schema_is_read_as_the_newest():
    old = Avro(ORDER).dumps({"id": 7})
    assert old[:2] == b"\xc3\x01"
    assert Avro(NEWER, ORDER).loads(old) == {"id": 7, "note": ""}
    with pytest.raises(ValueError, match=r"by a schema with the fingerprint .* Avro\(newest, older\)"):
        Avro(NEWER).loads(old)
    with pytest.raises(ValueError, match="single-object encoding"):
        Avro(ORDER).loads(b"\x0e")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Avro({"type": "record"}), "is no Avro schema"),
        (lambda: Protobuf(untyped(str)), "a class that protoc has generated"),
        (lambda: Protobuf(untyped(StringValue())), "without calling it"),
        (lambda: TypedProducer(untyped(None), untyped(Json)), "serializer=.*: give it a serializer, such as Json"),
        (lambda: deserializers("deserializer", 7), "deserializer=7: give it a serializer"),
        (lambda: deserializers("deserializer", []), "give it a serializer"),
        (lambda: deserializers("deserializer", [Json(), "x"]), "give it a serializer"),
    ],
)
def test_a_wrong_option_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_protobuf_refuses_a_value_of_another_class():
    with pytest.raises(TypeError, match=r"is no google.protobuf.StringValue but Struct"):
        Protobuf(StringValue).dumps(untyped(Struct()))


def test_another_type_is_refused_and_both_are_named():
    with pytest.raises(ValueUnreadable, match=r"offset 40: its type is application/msgpack, .* for application/json"):
        message(b"\x80", "application/msgpack", 40).decode(Json())


def test_among_several_the_content_type_chooses_and_the_first_reads_what_says_none():
    several = [Json(), MsgPack()]
    assert sent(MsgPack(), {"a": 1}).decode(several) == sent(Json(), {"a": 1}).decode(several) == {"a": 1}
    assert message(b'"from Java"').decode(several) == "from Java"


def test_a_payload_that_is_no_such_value_says_where_it_is_and_why():
    with pytest.raises(ValueUnreadable, match=r"topic t, partition 0-1, offset 7: it is of type .*json, .* JSONDecode"):
        message(b"{", "application/json", 7).decode(Json())
    with pytest.raises(ValueUnreadable, match="it says no type, and cannot be read as application/json"):
        message(b"{").decode(Json())


def test_a_message_without_a_deserializer_says_how_to_get_one():
    with pytest.raises(ClientError, match=r"write Consumer\(deserializer=…\), or message.decode"):
        message().value.hex()


@pytest.mark.parametrize("content_type", ["", "é", "a\nb", "a\x01b"])
def test_a_content_type_that_cannot_be_one_is_refused(content_type):
    with pytest.raises(ConfigError, match=r"content_type=.*printable ASCII"):
        message(b"", content_type)


class Upper:
    """A user's own."""

    content_type = "text/upper"

    def dumps(self, value: str) -> bytes:
        return value.upper().encode()

    def loads(self, payload: bytes) -> str:
        return payload.decode()


class Noted:
    """Where a typed producer sends."""

    def __init__(self):
        self.sent = []

    def __getattr__(self, name):
        return lambda topic, payload, **options: self.sent.append((name, topic, payload, options))


def test_a_typed_producer_sends_payloads_with_the_content_type():
    noted: Any = Noted()
    orders = TypedProducer(noted, Upper())
    for send in (orders.send, orders.send_async, orders.produce):
        send("t", "a", key="k")
    for send_many in (orders.send_batch, orders.send_batch_async):
        send_many("t", ["d", "e"])
    assert [each[:3] for each in noted.sent] == [
        *((name, "t", b"A") for name in ("send", "send_async", "produce")),
        *((name, "t", [b"D", b"E"]) for name in ("send_batch", "send_batch_async")),
    ]
    assert [options.get("key") for *_, options in noted.sent] == ["k", "k", "k", None, None]
    assert {options["content_type"] for *_, options in noted.sent} == {"text/upper"}


def test_a_consumers_messages_have_values():
    bench = Bench(reader=deserializers("deserializer", Json()))
    bench.arrive(chunk_of(*(encode_record(each.body, 7, each.flag) for each in (sent(Json(), 1), sent(Json(), [2])))))
    found = bench.core.take(10)
    assert [each.value for each in found] == [1, [2]]
    assert found[0] == Message(*found[0])
    assert type(pickle.loads(pickle.dumps(found[0]))) is Message

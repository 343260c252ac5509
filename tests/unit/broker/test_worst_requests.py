"""What the largest request of a verb makes the reactor do is bounded: counted here, measured by bench/worst.py."""

import pytest
import simplejson
from hypothesis import given
from hypothesis import strategies as st
from twisted.web import http as twisted_http

from bench.worst import FRAMES, TEXTS
from metaq.broker.http.gateway import Gateway
from metaq.protocol import frames as frames_module
from metaq.protocol import record as record_module
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.fields import ExtFields
from metaq.protocol.frames import encode_frame, parse_frame
from metaq.protocol.halves import CheckHalvesRequest
from metaq.protocol.limits import (
    MAX_CHECKED_TOPICS,
    MAX_FRAME_HEADER_BYTES,
    MAX_HEADER_TEXTS,
    MAX_PARTS,
    MAX_PULLED_TAGS,
)
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum, decode_attribute, encode_attributes, encode_body, tag_hash, tag_of_attribute
from metaq.protocol.sends import SendManyRequest, SendRequest, announced_topics
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import raw_batch
from tests.unit.broker.http.test_http_pages import Browser
from tests.unit.broker.test_send_many import record


def test_each_verb_has_a_worst_request(harness):
    assert set(FRAMES) == set(harness.gate.frames)
    assert set(TEXTS) == set(harness.gate.texts)


@pytest.fixture
def gateway(harness):
    return Browser(Gateway(harness.gate, harness.broker.pending_puts, harness.broker.account))


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("body", [b"topic=safe&length=1", b"&=" * 1000])
def test_a_message_that_is_put_as_a_form_is_not_parsed_as_one(gateway, harness, monkeypatch, kind, body):
    parsed = []
    parse = twisted_http.parse_qs

    def counted(text, *more):
        parsed.append(len(text))
        return parse(text, *more)

    monkeypatch.setattr(twisted_http, "parse_qs", counted)
    query = f"topic=t&partition=1&flag=0&length={len(body)}"
    status, _, text = gateway.ask("POST", f"/put/0?{query}", body, content_type=kind)
    assert (status, text.split()[1:2]) == (200, [b"1"])
    assert parsed == [len(query)]
    assert harness.store.get("t", 1).segments.read(20, 1 << 20) == body


def header(text):
    data = text.encode()
    return (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


ROOM = MAX_FRAME_HEADER_BYTES - 1000
EXPENSIVE = {
    "fields": '{"code":10,"extFields":{' + ",".join(f'"{n:x}":""' for n in range(70_000)) + "}}",
    "lists": '{"code":10,"x":[' + "[]," * (ROOM // 3) + "0]}",
    "nested": '{"code":10,"x":' + "[" * (ROOM // 2) + "]" * (ROOM // 2) + "}",
    "numbers": '{"code":10,"x":[' + ",".join(["9" * 4000] * 250) + "]}",
    "no end": '{"code":10,"x":"' + "a" * ROOM,
    "quotes": '{"code":10,"x":[' + '"",' * (ROOM // 3) + "0]}",
}


@pytest.mark.parametrize("text", EXPENSIVE.values(), ids=list(EXPENSIVE))
def test_a_large_header_of_many_values_is_refused_before_it_is_decoded(monkeypatch, text):
    def decode(text):
        raise AssertionError(f"{len(text)} characters")

    monkeypatch.setattr(frames_module, "_decode_json", decode)
    data = header(text)
    with pytest.raises(RemoteProtocolError, match=r"names and values|beside its texts"):
        parse_frame(data, 0, len(data))


@pytest.mark.parametrize("letter", ["a", '"', "\\", "é", "\n", ",", "[", "😀"])
def test_a_large_header_with_one_long_text_is_taken(letter):
    text = letter * (ROOM // len(simplejson.dumps(letter)))
    ext = {"key": text, **{f"f{number}": "1" for number in range(MAX_HEADER_TEXTS // 2 - 20)}}
    data = encode_frame(12, 7, ext)
    assert parse_frame(data, 0, len(data)).ext == ext


@pytest.fixture
def decoded(monkeypatch):
    """The attributes that are decoded as a whole."""
    found = []
    decode = record_module.decode_attribute

    def counted(*what):
        found.append(what)
        return decode(*what)

    monkeypatch.setattr(record_module, "decode_attribute", counted)
    return found


def test_no_property_but_the_tag_is_decoded_of_what_is_stored(peer, harness, decoded, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.batch.decode_attribute", record_module.decode_attribute, raising=False)
    flag, attribute = encode_attributes(tag="a", properties={f"{number:x}": "" for number in range(1000)})
    body = encode_body(b"", flag, attribute)
    peer.ask_frame(
        encode_frame(RequestCode.SEND, 1, SendRequest("t", 0, flag, checksum(body)).to_ext(), len(body)) + body
    )
    peer.send(raw_batch("t", 0, [record(body, flag)]))
    harness.turn()
    assert harness.store.get("t", 0).lookup.units(0, 1 << 20)["tag"].tolist() == [tag_hash("a")] * 2
    assert decoded == []


PIECES = st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"a", b"\xc3", b"\xa9", b"TAGS\x01", b"\x02TAGS\x01"])


@given(st.lists(PIECES, max_size=12).map(b"".join), st.sampled_from([1, 3]))
def test_the_tag_alone_is_that_of_the_whole_attribute(attribute, flag):
    assert tag_of_attribute(attribute, flag) == decode_attribute(attribute, flag).tag


LISTS = {
    "tags": (PullRequest, {"topic": "t", "partition": "0", "offset": "0", "maxBytes": "9"}, "||", MAX_PULLED_TAGS),
    "topics of CHECK_HALVES": (CheckHalvesRequest, {"group": "g"}, " ", MAX_CHECKED_TOPICS),
    "topics": (SendManyRequest, {"parts": "1", "count": "1"}, "/", MAX_PARTS),
    "repeats": (SendManyRequest, {"parts": "1", "count": "1", "topics": "t"}, ",", MAX_PARTS),
}


@pytest.mark.parametrize("name", list(LISTS))
def test_a_header_names_only_so_many(name):
    kind: type[ExtFields]
    kind, ext, separator, most = LISTS[name]
    field = name.split()[0]
    kind.from_ext(ext | {field: separator.join(["1"] * most)})
    with pytest.raises(RemoteProtocolError, match=f"more than {most} "):
        kind.from_ext(ext | {field: separator.join(["1"] * (most + 1))})


def test_topics_that_are_too_many_are_no_question_for_the_gates_check():
    assert announced_topics({"topics": "/" * MAX_PARTS}) == (None,)


def test_too_many_topics_are_refused_with_the_limit(peer, harness):
    harness.gate.check = lambda verb, request, topic, caller: None
    ext = SendManyRequest(("t",) * (MAX_PARTS + 1), 1, 1).to_ext()
    answer = peer.ask_frame(encode_frame(RequestCode.SEND_MANY, 1, ext))
    assert (answer.code, str(MAX_PARTS) in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)

"""The core of a connection: requests in, bytes in, a time; outcomes out."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.client_stream import ClientStream, Opening
from metaq.protocol.errors import AccessRefused, BrokerUnavailable, RemoteProtocolError, RequestTimedOut, TlsRequired
from metaq.protocol.frames import RESPONSE, Frame, encode_frame
from metaq.protocol.sends import SendReply, SentReply
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result, encode_result, encode_value_line, encode_version
from tests.frames import FrameReader

OURS = "1.4.6.2 frames/1 many/1"


@dataclass(eq=False)
class Asked:
    """What a driver enters for a request."""

    name: str
    deadline: float = 100.0


def frame(opaque: int, body: bytes = b"", **ext: str) -> bytes:
    return encode_frame(0, opaque, ext, len(body), flag=RESPONSE) + body


def sent(opaque: int) -> bytes:
    return encode_frame(0, opaque, SendReply(7, 0, 64).to_ext(), flag=RESPONSE)


def asking(stream: ClientStream[Asked], *names: str) -> list[Asked]:
    requests = [Asked(name) for name in names]
    stream.pending.update((stream.new_opaque(), request) for request in requests)
    return requests


def ended(stream: ClientStream[Asked]) -> list[tuple[str, Any]]:
    """Name, and answer or error, of what has ended since the last call."""
    found = [(request.name, error if reply is None else reply) for request, reply, error in stream.outcomes]
    stream.outcomes.clear()
    return found


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_version_is_there_once_its_last_byte_is(size):
    raw = encode_result(Status.SUCCESS, OURS, 0)
    opening = Opening()
    found = [opening.receive(raw[start : start + size]) for start in range(0, len(raw), size)]
    assert opening.request == encode_version(0)
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == OURS


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", encode_result(Status.ERROR, "no", 0)])
def test_a_peer_that_is_no_broker_is_told_from_one(raw):
    with pytest.raises(RemoteProtocolError):
        Opening().receive(raw)


def test_a_broker_that_serves_nobody_without_tls_says_so():
    with pytest.raises(AccessRefused, match="connect with TLS"):
        Opening().receive(encode_result(TlsRequired.status, str(TlsRequired()), 0))


def test_the_version_says_what_the_broker_speaks():
    java, first, ours = (ClientStream[Asked]("b", each) for each in ("1.4.6.2", "1.4.6.2 frames/1", OURS))
    assert [(each.speaks_frames, each.takes_many) for each in (java, first, ours)] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert not ClientStream[Asked]("b", OURS, text=True).speaks_frames


def test_frames_are_matched_by_opaque_in_the_order_of_the_answers():
    stream = ClientStream[Asked]("b", OURS)
    asking(stream, "first", "second", "third")
    stream.receive(frame(3) + sent(1) + frame(99))
    (third, first) = ended(stream)
    assert (third[0], first) == ("third", ("first", SentReply(1, 7, 0, 64)))
    assert [request.name for request in stream.pending.values()] == ["second"]


def test_text_answers_are_matched_by_opaque():
    stream = ClientStream[Asked]("b", "1.4.6.2")
    asking(stream, "put", "get")
    stream.receive(encode_value_line(4, 2) + b"data" + encode_result(200, "7 0 64", 1))
    (got, put) = ended(stream)
    assert (got[0], bytes(got[1].data)) == ("get", b"data")
    assert put == ("put", Result(200, 1, "7 0 64"))


@given(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), max_size=12), st.data())
def test_each_request_ends_once_however_the_stream_is_cut_and_whatever_comes_twice(opaques, data):
    raw = b"".join(frame(opaque, b"x" * opaque) for opaque in opaques)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    stream = ClientStream[Asked]("b", OURS)
    asking(stream, *"123456")
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        stream.receive(raw[start:end])
    found = [(name, len(reply.body)) for name, reply in ended(stream)]
    assert found == [(str(opaque), opaque) for opaque in dict.fromkeys(opaques)]


def test_a_request_ends_at_its_deadline_and_its_late_answer_is_dropped():
    stream = ClientStream[Asked]("meta://host:1", OURS)
    early, late = asking(stream, "early", "late")
    early.deadline, late.deadline = 10.0, 20.0
    stream.expire(9.999)
    assert ended(stream) == []
    stream.expire(10.0)
    ((name, error),) = ended(stream)
    assert (name, type(error), str(error)) == ("early", RequestTimedOut, "meta://host:1 did not answer in time")
    stream.receive(frame(1) + frame(2))
    assert [name for name, _ in ended(stream)] == ["late"]


def test_all_requests_end_with_the_connection_and_none_twice():
    stream, broke = ClientStream[Asked]("b", OURS), BrokerUnavailable("it broke")
    asking(stream, "first", "second")
    stream.receive(frame(2))
    stream.end(list(stream.pending), broke)
    stream.end([1, 2], broke)
    (second, first) = ended(stream)
    assert second[0] == "second"
    assert first == ("first", broke)


def test_an_answer_is_seen_to_begin_by_who_receives_what_is_wanted():
    raw = frame(1, b"body", some="field")
    stream = ClientStream[Asked]("b", OURS)
    (request,) = asking(stream, "pull")
    begun = []
    while raw:
        wanted = stream.wanted_bytes
        assert wanted
        stream.receive(raw[:wanted])
        raw = raw[wanted:]
        begun.append(stream.begun)
    assert begun[0] is None
    assert begun[1] is not None
    assert begun[1][0] is request
    assert (begun[1][1].ext, bytes(begun[1][1].body)) == ({"some": "field"}, b"")
    assert begun[2:] == [None]
    assert [(name, bytes(reply.body)) for name, reply in ended(stream)] == [("pull", b"body")]


@pytest.mark.parametrize(("version", "raw"), [(OURS, b"\0\0\0\1\xff\xff\xff\xff"), ("1.4.6.2", b"what\r\n")])
def test_a_stream_whose_bytes_were_wrong_is_torn(version, raw):
    stream = ClientStream[Asked]("b", version)
    assert not stream.torn
    with pytest.raises(RemoteProtocolError):
        stream.receive(raw)
    assert stream.torn


def test_a_heartbeat_is_a_request_of_the_agreed_protocol():
    (beat,) = FrameReader().receive(ClientStream[Asked]("b", OURS).heartbeat(5))
    assert isinstance(beat, Frame)
    assert (beat.code, beat.opaque) == (RequestCode.HEARTBEAT, 5)
    assert ClientStream[Asked]("b", "1.4.6.2").heartbeat(5) == b"version 5\r\n"

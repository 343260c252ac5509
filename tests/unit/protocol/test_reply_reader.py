"""The client's reader of frames gives what the codec's reader gives; only answers to sends come decoded further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.client_stream import ReplyReader
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import RESPONSE, Frame, encode_frame
from metaq.protocol.remoting import OffsetReply
from metaq.protocol.sends import SendReply, SentReply, send_reply
from tests.frames import FrameReader


def sent(opaque=7, identity=2060912502232842240, partition=3, offset=123):
    return encode_frame(0, opaque, SendReply(identity, partition, offset).to_ext(), flag=RESPONSE)


def other(body=b"", **changes):
    arguments = {"code": 0, "opaque": 9, "ext": OffsetReply(5).to_ext(), "flag": RESPONSE, **changes}
    return encode_frame(body_bytes=len(body), **arguments) + body


@pytest.mark.parametrize(
    "said",
    [
        (7, 2060912502232842240, 3, 123),
        (2**31 - 1, 2**63 - 1, 0, 2**62),
        (7, 2060912502232842240, 3, -1),  # it waits for its time
    ],
)
def test_the_answer_to_a_send_is_recognised(said):
    assert ReplyReader().receive(sent(*said)) == [SentReply(*said)]


@pytest.mark.parametrize(("said", "read"), [(0, 0), (1, 1), (255, 255), (1000, 255)])
def test_the_number_of_nodes_comes_with_the_answer(said, read):
    raw = encode_frame(0, 7, send_reply(5, 3, 123, said).to_ext(), flag=RESPONSE)
    assert ReplyReader().receive(raw) == [SentReply(7, 5, 3, 123, read)]


@pytest.mark.parametrize(
    "raw",
    [
        *(other(), other(b"body"), other(ext=SendReply(-5, 0, 0).to_ext()), other(ext=SendReply(5, 0, -2).to_ext())),
        *(other(ext=SendReply(5, 0, 0).to_ext(), **each) for each in ({"code": 1}, {"remark": "x"}, {"body": b"body"})),
        other(ext={**SendReply(5, 0, 0).to_ext(), "more": "1"}),
    ],
)
def test_every_other_frame_is_what_the_codec_makes_of_it(raw):
    assert ReplyReader().receive(raw) == FrameReader().receive(raw)


@given(st.lists(st.sampled_from([sent(), sent(8, 1, 0, 0), other(b"body"), other(b"x" * 300)])), st.data())
def test_frames_come_complete_however_the_stream_is_cut(frames, data):
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = ReplyReader()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = [frame for piece in pieces for frame in reader.receive(piece)]
    assert found == [frame for raw in frames for frame in ReplyReader().receive(raw)]


def test_bytes_of_another_answer_are_not_taken_for_a_send():
    """The body of a pull may hold anything, an answer to a send among it, and be received in any pieces."""
    raw = other(b"in front" + sent() + b"behind")
    start = raw.index(b"in front") + len("in front")
    reader = ReplyReader()
    pieces = [raw[:start], raw[start : start + len(sent())], raw[start + len(sent()) :]]
    (frame,) = [frame for piece in pieces for frame in reader.receive(piece)]
    assert isinstance(frame, Frame)
    assert bytes(frame.body) == b"in front" + sent() + b"behind"


def test_lengths_that_cannot_be_are_refused():
    with pytest.raises(RemoteProtocolError):
        ReplyReader().receive(b"\x00\x00\x00\x01\xff\xff\xff\xff")

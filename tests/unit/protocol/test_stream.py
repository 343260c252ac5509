import pytest
import simplejson
from hypothesis import given
from hypothesis import strategies as st
from simplejson.raw_json import RawJSON

from metaq.broker.store.index import UNIT_BYTES as STORED_UNIT_BYTES
from metaq.protocol import replication_stream as stream
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import RESPONSE, encode_frame
from metaq.protocol.statuses import ResponseCode

ENTRIES = st.lists(
    st.builds(
        lambda name, base, lane, units, data: stream.StreamEntry(
            name, base, base // 2, lane, bytes(stream.UNIT_BYTES * units), data
        ),
        st.text(min_size=1, max_size=9).map(str.encode),
        st.integers(0, 1 << 60),
        st.sampled_from(stream.Lane),
        st.integers(0, 3),
        st.lists(st.binary(max_size=40), max_size=3),
    ),
    max_size=5,
)


def test_a_unit_is_what_the_store_writes() -> None:
    assert stream.UNIT_BYTES == STORED_UNIT_BYTES


@given(ENTRIES, st.integers(1, 50))
def test_a_block_comes_as_it_was_sent_however_its_bytes_are_cut(entries: list[stream.StreamEntry], step: int) -> None:
    sent = b"".join(map(bytes, stream.encode_block(7, (5, 3), entries)))
    reader = stream.StreamReader()
    found = [message for start in range(0, len(sent), step) for message in reader.receive(sent[start : start + step])]
    ((kind, payload),) = found
    assert kind is stream.Kind.BLOCK
    block = stream.parse_block(payload)
    assert (block.number, block.committed) == (7, (5, 3))
    assert [
        (each.name, each.base, each.segment, each.lane, bytes(each.units), b"".join(map(bytes, each.data)))
        for each in block.entries
    ] == [
        (each.name, each.base, each.segment, each.lane, each.units, b"".join(map(bytes, each.data))) for each in entries
    ]


@given(ENTRIES, st.data())
def test_a_changed_byte_is_noticed(entries: list[stream.StreamEntry], data: st.DataObject) -> None:
    sent = bytearray(b"".join(map(bytes, stream.encode_block(7, (5, 3), entries))))
    position = data.draw(st.integers(5, len(sent) - 1))
    sent[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        stream.parse_block(memoryview(sent)[5:])


def test_small_messages_come_as_they_were_sent() -> None:
    sent = (
        stream.encode_ack(stream.Ack(1, 2, 3))
        + stream.encode_ping(stream.Ping(4, (5, 6)))
        + stream.encode_json(stream.Kind.LIVE, {"number": 7})
    )
    sent += stream.encode_committed((8, 9))
    (ack, ping, live, committed) = stream.StreamReader().receive(sent)
    assert (ack[0], stream.parse_ack(ack[1])) == (stream.Kind.ACK, stream.Ack(1, 2, 3))
    assert (ping[0], stream.parse_ping(ping[1])) == (stream.Kind.PING, stream.Ping(4, (5, 6)))
    assert (live[0], stream.parse_json(live[1])) == (stream.Kind.LIVE, {"number": 7})
    assert (committed[0], stream.parse_committed(committed[1])) == (stream.Kind.COMMITTED, (8, 9))


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0",  # no message has no bytes
        b"\xff\xff\xff\xff",  # more than any message has: another protocol's bytes
        b"\1\0\0\0\x7f",  # no kind
    ],
)
def test_what_is_no_message_is_refused(sent: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        stream.StreamReader().receive(sent)


def test_a_message_larger_than_its_sender_may_send_is_refused_before_it_is_there() -> None:
    sent = stream.encode_json(stream.Kind.READY, {"partitions": {}})
    stream.StreamReader(len(sent) - 4).receive(sent)
    with pytest.raises(RemoteProtocolError, match=f"of {len(sent) - 4} bytes, and not of 1 to {len(sent) - 5}"):
        stream.StreamReader(len(sent) - 5).receive(sent[:5])


def test_a_hello_comes_as_it_was_sent() -> None:
    hello = stream.Hello(1, "b", "one", 7, [(3, "x"), (7, "y")])
    assert stream.parse_hello(memoryview(stream.encode_hello(hello))) == hello


@pytest.mark.parametrize(
    "changed",
    [
        *({"set": "none"}, {"epoch": None}, {"epoch": RawJSON("1e999")}, {"node": None, "epochs": [[1, 2, 3]]}),
        *({"epochs": 5}, {"epochs": [[1]]}, {"epochs": [["a", "b"]]}),
    ],
)
def test_a_hello_that_does_not_say_who_asks_is_refused(changed: dict[str, object]) -> None:
    words = stream.Hello(1, "b", "one", 7, [])._asdict() | changed
    with pytest.raises(RemoteProtocolError, match="does not say who asks"):
        stream.parse_hello(memoryview(simplejson.dumps(words).encode()))


def test_a_hello_has_a_bound() -> None:
    hello = stream.encode_hello(stream.Hello(1, "b", "one", 7, [])).ljust(stream.MAX_HELLO_BYTES)
    stream.parse_hello(memoryview(hello))
    with pytest.raises(RemoteProtocolError, match=f"FOLLOW with {stream.MAX_HELLO_BYTES + 1} bytes"):
        stream.parse_hello(memoryview(hello + b" "))


@pytest.mark.parametrize("payload", [b"", b"[]", b"nonsense", b'"text"'])
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        stream.parse_json(memoryview(payload))


@pytest.mark.parametrize("size", [0, 23, 25])
def test_an_acknowledgement_and_a_ping_have_their_sizes(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        stream.parse_ack(memoryview(bytes(size)))
    with pytest.raises(RemoteProtocolError):
        stream.parse_ping(memoryview(bytes(size)))


@pytest.mark.parametrize("size", [0, 3, 4, 30, 47])
def test_a_block_that_is_cut_is_refused(size: int) -> None:
    sent = b"".join(map(bytes, stream.encode_block(7, (5, 3), [stream.StreamEntry(b"t-0", 0, 0, 0, b"", [b"data"])])))
    with pytest.raises(RemoteProtocolError):
        stream.parse_block(memoryview(sent)[5 : 5 + size])


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 40_000, "9" * 5000])
def test_a_hello_that_python_cannot_read_is_refused_as_one_that_is_not_json(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is not JSON"):
        stream.parse_hello(memoryview(text.encode()))


def test_a_refusal_by_a_frame_is_told() -> None:
    refusal = encode_frame(ResponseCode.NO_PERMISSION, 1, {}, flag=RESPONSE, remark="speak TLS " + 200 * ".")
    with pytest.raises(RemoteProtocolError, match="refuses the stream: speak TLS"):
        stream.StreamReader().receive(refusal)
    with pytest.raises(RemoteProtocolError, match="a message of"):
        stream.StreamReader().receive(refusal[:-1])

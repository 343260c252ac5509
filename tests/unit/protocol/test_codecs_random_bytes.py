"""One promise for all readers: parsed, waiting, or RemoteProtocolError; nothing else, whatever the bytes."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.errors import InvalidName, LocalProtocolError, RemoteProtocolError
from metaq.protocol.frames import encode_frame, parse_frame
from metaq.protocol.limits import INT32_MAX, INT32_MIN, check_group, check_topic
from metaq.protocol.message_id import message_id, message_id_list, message_ids_from
from metaq.protocol.record import decode_attribute, encode_attributes
from metaq.protocol.requests import RequestReader
from metaq.protocol.text import AnswerReader, Put, encode_put, parse_put_result
from tests.frames import FrameReader
from tests.unit.protocol.decoding import in_pieces

VERBS = b"put get offset stats version quit sync transaction result value"
TOKENS = b"t 0 -1 5 99999999999 BEGIN TX:a:1 XID:1:0:0:q null  \xff"
WORDS = st.sampled_from(VERBS.split(b" ") + TOKENS.split(b" "))
LINES = st.lists(WORDS, max_size=9).map(lambda words: b" ".join(words) + b"\r\n")
TEXT = st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=6).map(b"".join)
HEADERS = st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode))
FRAMES = HEADERS.map(lambda text: (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
INT32 = st.integers(INT32_MIN, INT32_MAX)


@given(st.one_of(TEXT, FRAMES, st.binary(max_size=200)))
def test_the_brokers_reader_never_raises_and_stops_at_its_failure(data):
    reader = RequestReader()
    requests = reader.receive(data)
    assert reader.failure is None or isinstance(reader.failure, RemoteProtocolError)
    byte_by_byte = RequestReader()
    assert in_pieces(byte_by_byte, [data[at : at + 1] for at in range(len(data))]) == requests
    assert (byte_by_byte.failure is None) == (reader.failure is None)


@given(st.one_of(TEXT, FRAMES, st.binary(max_size=200)))
def test_the_clients_readers_parse_wait_or_raise_remote_protocol_error(data):
    for reader in (AnswerReader(), FrameReader()):
        with suppress(RemoteProtocolError):
            reader.receive(data)


@given(st.text(max_size=60))
def test_names_are_checked_or_refused(name):
    for check in (check_topic, check_group):
        with suppress(InvalidName):
            assert check(name) == name
            assert "/" not in name
            assert name not in ("", ".", "..")


@given(st.text("abc中-_.", min_size=1, max_size=20), INT32, INT32, INT32, INT32, st.binary(max_size=100))
def test_every_put_comes_back(topic, partition, flag, checksum, opaque, body):
    (put,) = RequestReader().receive(encode_put(topic, partition, flag, checksum, opaque, body))
    assert put == Put(topic, partition, flag, checksum, None, opaque, body)


@given(st.dictionaries(st.sampled_from(["a", "b", "topic"]), st.one_of(st.text(max_size=20), INT32)), INT32, st.text())
def test_every_frame_comes_back(ext, opaque, remark):
    raw = encode_frame(1, opaque, ext, remark=remark)
    frame = parse_frame(raw, 0, len(raw))
    assert frame.ext == {name: str(value) for name, value in ext.items()}
    assert (frame.opaque, frame.remark) == (opaque, remark)


@given(
    st.none() | st.text(max_size=10),
    st.none() | st.text(max_size=10),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(
        st.text(max_size=5),
        st.text(max_size=5) | st.integers() | st.floats() | st.booleans() | st.binary(max_size=5),
        max_size=3,
    ),
)
def test_attributes_come_back_or_are_refused(attribute, tag, keys, properties):
    try:
        flag, raw = encode_attributes(attribute, tag, keys, properties)
    except LocalProtocolError:
        return
    except UnicodeEncodeError:
        return  # lone surrogates: no text
    found = decode_attribute(raw if flag else None, flag)
    single = attribute if tag is None else tag
    if flag & 2:
        assert (found.attribute, found.tag, found.keys) == (attribute, tag, tuple(keys))
        assert [(name, type(value), value) for name, value in found.properties.items()] == [
            (name, type(value), value) for name, value in properties.items()
        ]
    else:
        assert (found.attribute, found.tag) == (single, single)


@given(st.integers(0, (1 << 53) - 10_000), st.integers(0, 1023), st.integers(1, 9000))
def test_ids_of_a_batch_are_those_taken_one_by_one(counter, broker_id, count):
    ids = message_ids_from(message_id(counter, broker_id), count)
    for number in (0, count // 2, count - 1):
        assert ids[number] == message_id(counter + number, broker_id)
    assert message_id_list(message_id(counter, broker_id), count) == ids.tolist()


@given(st.text(max_size=40))
def test_put_results_parse_or_raise(text):
    with suppress(RemoteProtocolError):
        assert len(parse_put_result(text)) == 3

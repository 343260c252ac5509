"""Questions about a partition, in both protocols, against replies written by hand."""

from typing import Any

import pytest

from metaq import TopicPartition
from metaq.client.questions.partition_bounds import Bounds, bounds_at, offset_at_time, partition_bounds, read_stats
from metaq.client.questions.stored_records import read_bytes
from metaq.client.transport.connection import Build, Endpoint, Reply
from metaq.protocol import errors
from metaq.protocol.frames import RESPONSE, Frame
from metaq.protocol.record import encode_record
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value
from tests.frames import FrameReader

PLACE = TopicPartition("trades", 2, 3)
RECORD = encode_record(b"payload", 7, 0)


class Peer:
    """A connection whose peer gives the replies in turn; keeps what it was asked."""

    endpoint = Endpoint("host", 8123)
    speaks_frames = takes_where = True
    knows_compressed = False

    def __init__(self, *replies: Reply) -> None:
        self.asked: list[Any] = []
        self._replies = list(replies)

    def call(self, build: Build, timeout: float | None = None) -> Reply:
        raw = b"".join(bytes(part) for part in build(1))
        self.asked.append(FrameReader().receive(raw)[0] if self.speaks_frames else raw)
        return self._replies.pop(0)


class TextPeer(Peer):
    speaks_frames = takes_where = False


def frame(code=ResponseCode.SUCCESS, body=b"", remark="", **ext):
    return Frame(code, 1, RESPONSE, remark, {name: str(value) for name, value in ext.items()}, memoryview(body))


def value(record):
    return Value(1, memoryview(record))


COUNTS = {"total": 10, "before": 4, "minOffset": 100, "maxOffset": 900}
PULLED = {"nextOffset": 927, "minOffset": 100, "maxOffset": 2000, "behind": 0, "sequence": 0, "runs": 0}


def test_frames_bounds_and_counts_come_with_one_request():
    peer = Peer(frame(**COUNTS))
    assert partition_bounds(peer, PLACE) == Bounds(100, 900, 10)
    (asked,) = peer.asked
    assert (asked.code, asked.ext["topic"], asked.ext["partition"]) == (RequestCode.MESSAGE_COUNTS, "trades", "3")


def test_frames_messages_before_an_offset_are_counted_by_the_broker():
    peer = Peer(frame(**COUNTS))
    assert (bounds_at(peer, PLACE, 500)[1], peer.asked[0].ext["offset"]) == (4, "500")


def test_frames_an_offset_is_found_by_time():
    peer = Peer(frame(offset=512))
    assert offset_at_time(peer, PLACE, 1_700_000_000_000) == 512
    assert peer.asked[0].ext["timestamp"] == "1700000000000"


def test_frames_records_come_as_the_body_and_nothing_at_the_end():
    peer = Peer(frame(body=RECORD, **PULLED), frame(ResponseCode.PULL_NOT_FOUND, **PULLED))
    assert bytes(read_bytes(peer, PLACE, 900, 4096)) == RECORD
    assert bytes(read_bytes(peer, PLACE, 2000, 4096)) == b""
    assert peer.asked[0].ext["waitMs"] == "0"


@pytest.mark.parametrize(
    ("offset", "error", "words"),
    [
        (50, errors.OffsetOutOfRange, r"offset 50 is outside \[100, 2000\]"),
        (950, errors.CorruptRecord, "no message begins there, one does at 927"),
    ],
)
def test_frames_an_offset_inside_a_message_is_told_from_one_outside_the_bounds(offset, error, words):
    with pytest.raises(error, match=words):
        read_bytes(Peer(frame(ResponseCode.PULL_OFFSET_MOVED, **PULLED)), PLACE, offset, 4096)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, errors.TopicNotAccepted),
        (ResponseCode.NO_PERMISSION, errors.PartitionClosed),
        (ResponseCode.SYSTEM_ERROR, errors.RequestRefused),
    ],
)
def test_frames_a_refusal_is_an_error(code, error):
    with pytest.raises(error):
        partition_bounds(Peer(frame(code, remark="no")), PLACE)


def test_frames_statistics_are_lines_without_the_brackets():
    peer = Peer(frame(body=b"STATS\r\npid 1\r\nbroker_id 2\r\nEND\r\n"))
    assert read_stats(peer) == ["pid 1", "broker_id 2"]


OFFSETS = "STATS\r\ntrades part 13 min_offset 1 max_offset 2\r\ntrades part 3 min_offset 100 max_offset 900\r\nEND\r\n"


def test_text_bounds_come_from_the_statistics_and_counts_are_unknown():
    peer = TextPeer(Result(Status.SUCCESS, 1, OFFSETS))
    assert bounds_at(peer, PLACE, 500) == (Bounds(100, 900, None), None)
    assert peer.asked == [b"stats offsets 1\r\n"]
    empty = TextPeer(Result(Status.SUCCESS, 1, "STATS\r\nEND\r\n"))
    assert partition_bounds(empty, PLACE) == Bounds(0, 0, None)


def test_text_has_no_index_by_time_and_says_so():
    with pytest.raises(errors.RequestRefused, match="no index by time"):
        offset_at_time(TextPeer(), PLACE, 1)


def test_text_records_come_as_a_value():
    peer = TextPeer(value(RECORD), Result(Status.NOT_FOUND, 1, "none"))
    assert bytes(read_bytes(peer, PLACE, 100, 4096)) == RECORD
    assert peer.asked == [b"get trades Just_for_Browser 3 100 4096 1\r\n"]
    assert bytes(read_bytes(peer, PLACE, 900, 4096)) == b""


def test_text_a_first_message_that_was_cut_is_asked_for_again_with_twice_the_size():
    big = encode_record(b"x" * 5000, 7, 0)
    peer = TextPeer(value(big[:4096]), value(big))
    assert bytes(read_bytes(peer, PLACE, 0, 4096)) == big
    assert [asked.split(b" ")[5] for asked in peer.asked] == [b"4096", b"8192"]


def test_text_a_moved_offset_tells_the_nearer_bound():
    with pytest.raises(errors.OffsetOutOfRange) as moved:
        read_bytes(TextPeer(Result(Status.MOVED, 1, "100")), PLACE, 5, 4096)
    assert (moved.value.offset, moved.value.first) == (5, 100)


def test_text_a_closed_partition_is_an_error():
    with pytest.raises(errors.PartitionClosed):
        read_bytes(TextPeer(Result(Status.FORBIDDEN, 1, "Partition[0-1] has been closed")), PLACE, 5, 4096)


@pytest.mark.parametrize("peer", [TextPeer(value(b"")), Peer(Result(200, 1, ""))])
def test_an_answer_of_the_wrong_kind_is_the_peers_fault(peer):
    with pytest.raises(errors.RemoteProtocolError):
        partition_bounds(peer, PLACE)

"""`get`, `offset`, lookups and transactions where the recording says nothing (the rest: test_broker_golden_wire)."""

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.pulls import PullReply
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
)
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import Result, Value, encode_get, encode_put
from tests.unit.broker.harness import NOW, pull, put


def ask(peer, code, request):
    return peer.ask_frame(encode_frame(code, 1, request.to_ext()))


def offset(peer, code, request):
    frame = ask(peer, code, request)
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    return OffsetReply.from_ext(frame.ext).offset


def test_get_gives_at_most_max_transfer_size(peer):
    peer.send(b"".join(put("t", 0, b"x" * 80) for _ in range(50)))
    peer.received()
    assert len(peer.ask(encode_get("t", "g", 0, 0, 1 << 20, 1)).data) == 1000
    assert len(peer.ask(encode_get("t", "g", 0, 0, 10, 1)).data) == 10


def test_a_record_that_max_transfer_size_would_cut_for_ever_comes_whole_if_asked_for_enough(peer, harness):
    peer.ask(put("t", 0, b"x" * 5000))
    assert len(peer.ask(encode_get("t", "g", 0, 0, 4096, 1)).data) == 1000
    answer = peer.ask(encode_get("t", "g", 0, 0, 8192, 1), work=True)
    assert len(answer.data) == 5020


def test_get_reads_from_the_disk_in_a_thread_and_keeps_its_place(peer, harness, monkeypatch):
    peer.ask(put("t", 0))
    monkeypatch.setattr(type(harness.store.get("t", 0).segments), "read", lambda *_: None)
    peer.send(encode_get("t", "g", 0, 0, 100, 1) + b"version 2\r\n")
    assert peer.received() == b""
    harness.threads.run()
    answers = peer.answers()
    assert isinstance(answers[0], Value)
    assert isinstance(answers[1], Result)


def test_bounds_counts_and_times_of_a_partition(peer, harness):
    for number in range(4):
        harness.time = NOW + number
        peer.ask(put("t", 0))
    place = PartitionRequest("t", 0)
    assert offset(peer, RequestCode.MIN_OFFSET, place) == 0
    assert offset(peer, RequestCode.MAX_OFFSET, place) == 100
    for seconds, expected in ((-10, 0), (0, 0), (0.5, 25), (3, 75), (4, 100)):
        time_ms = int((NOW + seconds) * 1000)
        assert offset(peer, RequestCode.SEARCH_OFFSET_BY_TIME, SearchByTimeRequest("t", 0, time_ms)) == expected
    counts = ask(peer, RequestCode.MESSAGE_COUNTS, MessageCountsRequest("t", 0, 60))
    assert MessageCountsReply.from_ext(counts.ext) == MessageCountsReply(4, 2, 0, 100)


def test_who_knows_the_message_in_front_of_an_offset_is_told_if_it_is_another_one(harness, peer):
    """A partition that has lost its end, and has grown anew, is known by that."""
    ids = [int(peer.ask(put("t", 0)).text.split()[0]) for _ in range(4)]

    def told(offset, last_id):
        frame = ask(peer, RequestCode.MESSAGE_COUNTS, MessageCountsRequest("t", 0, offset, last_id))
        counts = MessageCountsReply.from_ext(frame.ext)
        pulled = peer.ask_frame(pull("t", 0, offset, last_id=last_id), work=True)  # what lies inside of a record
        assert PullReply.from_ext(pulled.ext).id_before == counts.id_before
        assert ("idBefore" in pulled.ext) == (counts.id_before != UNKNOWN_ID)
        return counts.id_before

    assert [told(25 * (number + 1), each) for number, each in enumerate(ids)] == [UNKNOWN_ID] * 4
    assert told(50, ids[0]) == ids[1]
    assert told(60, ids[0]) == ids[1], "inside of a record"
    assert told(1000, ids[3] + 1) == ids[3], "behind the end"
    assert told(0, ids[0]) == UNKNOWN_ID, "there is none"
    assert told(50, UNKNOWN_ID) == UNKNOWN_ID, "nobody asked"


def test_so_many_messages_and_bytes_lead_to_where_a_message_begins(peer):
    for _ in range(4):
        peer.ask(put("t", 0))
    for start, messages, max_bytes, expected in (
        (0, 2, 1000, 50),
        (25, 2, 1000, 75),
        (25, 9, 1000, 100),
        (0, 9, 74, 50),
        (0, 9, 75, 75),
        (0, 9, 24, 0),
        (50, 0, 1000, 50),
        (100, 1, 1000, 100),
    ):
        asked = SearchByCountRequest("t", 0, start, messages, max_bytes)
        assert offset(peer, RequestCode.SEARCH_OFFSET_BY_COUNT, asked) == expected
    assert offset(peer, RequestCode.SEARCH_OFFSET_BY_COUNT, SearchByCountRequest("t", 2, 0, 1, 1)) == 0


def test_a_partition_without_data_begins_and_ends_at_0(peer):
    place = PartitionRequest("t", 2)
    assert offset(peer, RequestCode.MIN_OFFSET, place) == offset(peer, RequestCode.MAX_OFFSET, place) == 0
    assert offset(peer, RequestCode.SEARCH_OFFSET_BY_TIME, SearchByTimeRequest("t", 2, 5)) == 0
    counts = ask(peer, RequestCode.MESSAGE_COUNTS, MessageCountsRequest("t", 2, 0))
    assert MessageCountsReply.from_ext(counts.ext) == MessageCountsReply(0, 0, 0, 0)


@pytest.mark.parametrize("code", [RequestCode.MIN_OFFSET, RequestCode.MAX_OFFSET])
def test_a_partition_that_cannot_be_does_not_exist(peer, code):
    assert ask(peer, code, PartitionRequest("nope", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(peer, code, PartitionRequest("t", 3)).code == ResponseCode.TOPIC_NOT_EXIST


def test_stats_in_a_frame_are_those_of_the_text_command(peer):
    peer.ask(put("t", 0))
    frame = ask(peer, RequestCode.STATS, StatsRequest("offsets"))
    assert bytes(frame.body).decode() == peer.ask(b"stats offsets 1\r\n").text
    assert b"t part 0 min_offset 0 max_offset 25" in bytes(frame.body)


def test_stats_config_is_the_file_every_time(peer, harness):
    for _ in range(2):
        assert peer.ask(b"stats config 5\r\n").text.encode() == harness.config.source


def test_counters_count_as_1_x_counts(peer, harness):
    for request in (put("t", 0, b"12345"), encode_put("t", 0, 0, 1, 1, b"bad"), put("nope", 0), put("quiet", 0)):
        peer.ask(request)
    for partition, at, size in ((0, 0, 100), (0, 25, 100), (0, 0, 0), (2, 0, 1)):
        peer.ask(encode_get("t", "g", partition, at, size, 1))
    peer.ask(b"offset t g 0 0 1\r\n")
    harness.broker.partitions.close("t", 0, 0)
    peer.ask(put("t", 0, b"1"))
    peer.ask(encode_get("t", "g", 0, 0, 100, 1))
    metrics = harness.broker.metrics
    puts, gets = (metrics.cmd_put, metrics.put_failed), (metrics.cmd_get, metrics.get_miss)
    assert (puts, gets, metrics.cmd_offset) == ((5, 2), (5, 2), 1)
    stats = dict(line.split(" ", 1) for line in peer.ask(b"stats t 1\r\n").text.split("\r\n")[2:-2])
    assert stats["message_count"] == "1"
    for name, counted in {
        "put": "Count=3,Value=3,",
        "message_size": "Count=3,Value=9,Value/Count=3,",
        "put_failed": "Count=1,",
        "get": "Count=5,",
        "get_miss": "Count=2,",
    }.items():
        assert stats[f"topic_realtime_{name}"].startswith(counted)
    assert "realtime_put Count=3," in peer.ask(b"stats realtime 1\r\n").text


def test_frames_are_counted_too(peer, harness):
    peer.ask(put("t", 0))
    peer.ask_frame(pull("t", 0, 0))
    peer.ask_frame(pull("t", 0, 25))
    assert (harness.broker.metrics.cmd_get, harness.broker.metrics.get_miss) == (2, 1)

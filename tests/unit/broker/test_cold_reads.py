"""Data and index units that are not in the page cache: read in worker threads, in turn, with the same answers."""

import pytest

from metaq.broker import tuning
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullReply
from metaq.protocol.remoting import MessageCountsRequest, SearchByTimeRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, batch, pull

RECORD = 120


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def harness(disk_path, files, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.tuning.HOT_TAIL_BYTES", RECORD)
    harness = Harness(disk_path, files=files)
    harness.connect().send(batch("t", 0, [b"%0100d" % number for number in range(50)]))
    harness.store.get("t", 0).checkpoint()
    harness.threads.run()
    files.page_cache_empty = True
    yield harness
    harness.threads.run()
    harness.close()


def load_index(files, harness):
    """What a worker has read is in the page cache, except for the data."""
    files.page_cache_empty = False
    nowait, indexes = files.preadv_nowait, {segment.index.file.fd for segment in harness.store.get("t", 0).segments}

    def only_index(fd, buffer, position):
        if fd not in indexes:
            raise BlockingIOError
        return nowait(fd, buffer, position)

    files.preadv_nowait = only_index


@pytest.mark.parametrize("half_closed", [False, True])
def test_a_pull_is_answered_whose_index_is_out_of_the_cache_again_and_again(peer, harness, half_closed):
    """That of a half-closed connection before that ends."""
    peer.send(pull("t", 0, RECORD, 3 * RECORD))
    if half_closed:
        peer.half_close()
        assert not peer.transport.disconnecting
    assert harness.threads.run() < 100
    (frame,) = peer.frames()
    assert len(frame.body) == 3 * RECORD
    assert peer.transport.disconnecting == half_closed


@pytest.mark.parametrize("by_text", [False, True])
def test_a_cold_answer_is_refused_when_unsent_ones_have_taken_all_room_meanwhile(peer, harness, monkeypatch, by_text):
    monkeypatch.setattr("metaq.broker.runtime.account.REFUSED_ANSWER_BYTES", 2 * RECORD)
    peer.send(encode_get("t", "g", 0, RECORD, 3 * RECORD, 1) if by_text else pull("t", 0, RECORD, 3 * RECORD))
    harness.broker.account.unsent.hold("127.0.0.1", harness.broker.account.limits.unsent_bytes)
    harness.threads.run()
    assert [each.code for each in (peer.answers() if by_text else peer.frames())] == [503 if by_text else 2]


def test_a_cold_pull_waits_for_its_index_and_its_data_in_worker_threads(peer, harness, files):
    peer.send(pull("t", 0, RECORD, 3 * RECORD))
    assert peer.received() == b""
    assert len(harness.threads.waiting) == 1
    function, done = harness.threads.waiting.pop()
    result = function()
    load_index(files, harness)
    done(result)
    assert peer.received() == b""  # now for the data
    harness.threads.run()
    (frame,) = peer.frames()
    assert len(frame.body) == 3 * RECORD
    assert bytes(frame.body[20:RECORD]) == b"%0100d" % 1
    assert PullReply.from_ext(frame.ext).behind == 50 - 4


def test_look_ups_load_their_index_in_worker_threads(peer, harness):
    at = SearchByTimeRequest("t", 0, 0).to_ext()
    counts = MessageCountsRequest("t", 0, 10 * RECORD).to_ext()
    peer.send(
        encode_frame(RequestCode.SEARCH_OFFSET_BY_TIME, 1, at) + encode_frame(RequestCode.MESSAGE_COUNTS, 2, counts)
    )
    assert peer.received() == b""
    harness.threads.run()
    answers = {frame.opaque: (frame.code, frame.ext.get("offset"), frame.ext.get("before")) for frame in peer.frames()}
    assert answers == {1: (ResponseCode.SUCCESS, "0", None), 2: (ResponseCode.SUCCESS, None, "10")}


def test_a_group_behind_is_read_for_in_order_until_it_has_caught_up(peer, harness, files):
    log = harness.store.get("t", 0)
    offset = 0
    for _ in range(9):
        peer.send(encode_get("t", "g", 0, offset, 5 * RECORD, 1))
        assert len(harness.threads.waiting) == 1
        harness.threads.run()
        (answer,) = peer.answers()
        assert len(answer.data) == 5 * RECORD
        offset += 5 * RECORD
        files.page_cache_empty = False  # fetched ahead: still read by a worker, which leaves the reactor alone
    assert len(harness.broker.cold_reads._readers) == 1
    answer = peer.ask(encode_get("t", "g", 0, log.visible_end - RECORD, RECORD, 1))
    assert bytes(answer.data[20:]) == b"%0100d" % 49
    assert not harness.broker.cold_reads._readers


def test_groups_take_turns(harness, monkeypatch):
    greedy, modest = harness.connect(), harness.connect()
    greedy.send(b"".join(encode_get("t", "greedy", 0, number * RECORD, RECORD, number) for number in range(20)))
    modest.send(encode_get("t", "modest", 0, 0, RECORD, 99))
    assert len(harness.threads.waiting) == tuning.MAX_COLD_READS
    for _ in range(2 * tuning.MAX_COLD_READS):
        harness.threads.run_one()
    assert [answer.opaque for answer in modest.answers()] == [99]
    harness.threads.run()
    assert [answer.opaque for answer in greedy.answers()] == list(range(20))

"""PULL: whole records, long polling without a busy loop, tag filter, bounds (docs/protocol.md)."""

from dataclasses import replace

import pytest

from metaq.broker import tuning
from metaq.broker.network.session import MAX_PARKED_PULLS
from metaq.broker.reading import reading as reading_module
from metaq.protocol.errors import NotLeader
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullReply
from metaq.protocol.record import iter_headers
from metaq.protocol.sends import split_batch
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.raising import raising
from tests.unit.broker.harness import batch, given, pull, put
from tests.unit.broker.test_slices import step

SUCCESS, NOTHING, MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED


def reply(frame):
    return PullReply.from_ext(frame.ext)


def bodies(data):
    return [bytes(data[header.start + 20 : header.end]) for header in iter_headers(data)]


def woken(peer, harness):
    """The bodies that a pull is answered with in the reactor's next turn."""
    harness.turn()
    (frame,) = peer.frames()
    return bodies(frame.body)


def assert_idle(harness):
    """Nothing but the timer of pulls that have waited."""
    harness.reactor.advance(0.5)
    assert harness.reactor.getDelayedCalls() == []


def test_a_pull_gives_whole_records_and_where_to_go_on(peer):
    peer.send(b"".join(put("t", 0, b"body%d" % number) for number in range(5)))
    peer.received()
    frame = peer.ask_frame(pull("t", 0, 0, 70, sequence=7, opaque=9))
    assert (frame.code, frame.opaque) == (SUCCESS, 9)
    assert bodies(frame.body) == [b"body0", b"body1"]
    assert reply(frame) == PullReply(50, 0, 125, 3, 7, 0)
    assert bodies(peer.ask_frame(pull("t", 0, 50)).body) == [b"body2", b"body3", b"body4"]


def test_a_record_larger_than_asked_for_comes_whole(peer):
    peer.ask(put("t", 0, b"x" * 5000))
    frame = peer.ask_frame(pull("t", 0, 0, 1))
    assert len(frame.body) == 5020


@pytest.mark.parametrize("count", [15, 16, 40])
def test_an_answer_begins_with_the_sizes_of_its_records_if_that_is_wanted_and_worth_it(peer, count):
    peer.send(b"".join(put("t", 0, b"x" * (number % 7)) for number in range(count)))
    peer.received()
    plain, sized = peer.ask_frame(pull("t", 0, 0)), peer.ask_frame(pull("t", 0, 0, sizes=True))
    if count < 16:
        assert (reply(sized), sized.body) == (reply(plain), plain.body)
        return
    assert reply(sized) == replace(reply(plain), records=count)
    sizes, records = split_batch(sized.body, count)
    assert sizes.tolist() == [20 + number % 7 for number in range(count)]
    assert records == plain.body


def test_a_filtered_answer_has_no_sizes(peer):
    peer.send(batch("t", 0, [b"a"] * 20, tag="x"))
    peer.received()
    answer = reply(peer.ask_frame(pull("t", 0, 0, tags=("x",), sizes=True)))
    assert (answer.runs, answer.records) == (1, 0)


def test_a_pull_gives_what_bulk_readers_ask_for_up_to_a_limit(peer, monkeypatch):
    peer.send(b"".join(put("t", 0, b"x" * 80) for _ in range(50)))
    peer.received()
    assert len(peer.ask_frame(pull("t", 0, 0, 1 << 20)).body) == 5000  # max_transfer_size is 1000
    monkeypatch.setattr(reading_module, "MAX_PULL_BYTES", 2000)
    assert len(peer.ask_frame(pull("t", 0, 0, 1 << 20)).body) == 2000


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [
        pytest.param(50, NOTHING, 50, id="at the end"),
        pytest.param(-1, MOVED, 0, id="in front of the log"),
        pytest.param(51, MOVED, 50, id="behind the log"),
        pytest.param((1 << 63) - 1, MOVED, 50, id="far behind the log"),
        pytest.param(30, MOVED, 25, id="inside of a record"),
    ],
)
def test_where_no_record_begins_it_is_told_where_to_go_on(peer, offset, code, following):
    peer.send(put("t", 0) * 2)
    peer.received()
    frame = peer.ask_frame(pull("t", 0, offset), work=True)
    assert (frame.code, reply(frame)) == (code, PullReply(following, 0, 50, (50 - following) // 25))


@pytest.mark.parametrize(("topic", "partition"), [("nope", 0), ("t", 3)])
def test_a_partition_that_cannot_be_is_refused(peer, topic, partition):
    assert peer.ask_frame(pull(topic, partition, 0, wait_ms=1000)).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_closed_partition_is_refused_also_to_pulls_that_wait(peer, harness):
    peer.ask(put("t", 0))
    peer.send(pull("t", 0, 25, wait_ms=1000))
    harness.broker.partitions.close("t", 0, 0)
    assert peer.ask_frame(pull("t", 0, 0)).code == ResponseCode.NO_PERMISSION
    harness.reactor.advance(1)
    (frame,) = peer.frames()
    assert frame.code == ResponseCode.NO_PERMISSION


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_waiting_pull_is_answered_when_data_comes_after_the_put(peer, harness):
    peer.ask(put("t", 0))
    other = harness.connect()
    peer.send(pull("t", 0, 25, wait_ms=1000))
    other.ask(put("t", 1))
    harness.turn()
    assert peer.received() == b""
    assert other.ask(put("t", 0, b"new")).code == 200
    assert peer.received() == b""
    assert woken(peer, harness) == [b"new"]


def test_a_partition_without_data_is_waited_for(peer, harness):
    peer.send(pull("t", 2, 0, wait_ms=500))
    harness.connect().ask(put("t", 2, b"first"))
    assert woken(peer, harness) == [b"first"]
    assert reply(peer.ask_frame(pull("t", 1, 5))).next_offset == 0


def test_safe_data_wakes_pulls_only_once_it_is_synced(peer, harness):
    peer.send(pull("safe", 0, 0, wait_ms=500))
    other = harness.connect()
    other.send(put("safe", 0))
    harness.turn()
    assert peer.received() == b""
    harness.threads.run()
    assert woken(peer, harness) == [b"hello"]


def test_a_waiting_pull_holds_up_nothing_else(peer, harness):
    peer.send(
        pull("t", 0, 0, wait_ms=500) + b"version 1\r\n" + put("t", 1) + encode_frame(RequestCode.HEARTBEAT, 5, {})
    )
    raw = peer.received()
    assert raw.count(b"result 200") == 2
    assert b'"opaque":5' in raw


@pytest.mark.parametrize("why", ["a message", "their time", "the connection's end", "the end of its half"])
def test_very_many_are_resumed_in_several_turns(peer, harness, monkeypatch, why):
    monkeypatch.setattr(tuning, "WAKING_SECONDS", 0.0)
    peer.send(pull("t", 0, 0, wait_ms=500) * 4)
    if why == "a message":
        harness.connect().ask(put("t", 0))
    elif why == "their time":
        harness.reactor.rightNow += 1
        step(harness)
    elif why == "the connection's end":
        peer.lose()
    else:
        peer.half_close()
    left = []
    while [call for call in harness.reactor.getDelayedCalls() if call.getTime() <= harness.reactor.seconds()]:
        step(harness)
        left.append(len(harness.broker.parked))
    assert left == [3, 2, 1, 0]
    assert len(peer.frames()) == (0 if why == "the connection's end" else 4)
    assert_idle(harness)


def test_all_that_wait_have_one_timer_for_the_first_deadline(peer, harness):
    for opaque, wait_ms in enumerate((500, 300, 400, 300)):
        peer.send(pull("t", 0, 0, wait_ms=wait_ms, opaque=opaque))
        assert len(harness.reactor.getDelayedCalls()) == 1
    ended = []
    for _ in range(5):
        harness.reactor.advance(0.1)
        harness.turn()
        ended.append([frame.opaque for frame in peer.frames()])
        assert len(harness.reactor.getDelayedCalls()) <= 1
    assert ended == [[], [], [1, 3], [2], [0]]
    assert harness.reactor.getDelayedCalls() == []


def test_deadlines_of_pulls_that_wait_no_more_are_forgotten(peer, harness):
    other = harness.connect()
    peer.send(pull("t", 1, 0, wait_ms=60_000))
    for number in range(300):
        peer.send(pull("t", 0, 21 * number, wait_ms=60_000))
        other.send(put("t", 0, b"x"))
        harness.turn()
    assert len(peer.frames()) == 300
    assert len(harness.broker.parked) == 1
    assert len(harness.broker.parked._deadlines) < 150
    harness.reactor.advance(60)
    harness.turn()
    assert len(peer.frames()) == 1
    assert harness.reactor.getDelayedCalls() == []


def test_puts_while_very_many_are_resumed_keep_nothing_of_them_twice(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WAKING_SECONDS", 0.0)
    other, parked = harness.connect(), harness.broker.parked
    peer.send(pull("t", 0, 0, wait_ms=500) * 50)
    for left in range(49, -1, -1):
        other.send(put("t", 0))
        step(harness)
        assert len(parked) == left
        assert len(parked._woken) + len(parked._resuming) == left
    assert len(peer.frames()) == 50


def test_one_that_is_dropped_before_its_turn_is_not_resumed(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WAKING_SECONDS", 0.0)
    other = harness.connect()
    peer.send(pull("t", 0, 0, wait_ms=500))
    other.send(pull("t", 0, 0, wait_ms=500))
    harness.connect().ask(put("t", 0))
    other.lose()
    harness.turn()
    assert [len(each.frames()) for each in (peer, other)] == [1, 0]
    assert len(harness.broker.parked) == 0


def test_waiting_pulls_of_a_connection_are_bounded(peer, harness, monkeypatch):
    assert MAX_PARKED_PULLS > 10_240, "a consumer of so many partitions has one waiting for each"
    monkeypatch.setattr("metaq.broker.network.session.MAX_PARKED_PULLS", 500)
    peer.send(pull("t", 0, 0, wait_ms=500) * 502)
    harness.turn()
    frames = peer.frames()
    assert [frame.code for frame in frames] == [ResponseCode.SYSTEM_BUSY] * 2
    assert len(harness.broker.parked) == 500


def test_a_wait_beyond_the_bound_is_refused(peer):
    frame = peer.ask_frame(pull("t", 0, 0, wait_ms=60_001))
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL
    assert "waitMs" in frame.remark


# --- filter -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tagged(peer):
    """a a b a - b, each record with a body of one byte."""
    for tag, body in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4"), (None, b"5"), ("b", b"6")):
        assert peer.ask_frame(batch("t", 0, [body], tag=tag)).code == SUCCESS
    return peer


@pytest.mark.parametrize(
    ("tags", "limit", "found", "runs", "following"),
    [
        pytest.param("a", 1000, {0: b"1", 26: b"2", 78: b"4"}, 2, 151, id="only records with the tag"),
        pytest.param("ab", 1000, {0: b"1", 26: b"2", 52: b"3", 78: b"4", 125: b"6"}, 2, 151, id="any of several tags"),
        pytest.param("a", 60, {0: b"1", 26: b"2"}, 1, 78, id="a full reply goes on at the next match"),
        pytest.param("b", 1, {52: b"3"}, 1, 125, id="the first match whatever its size"),
    ],
)
def test_only_records_with_one_of_the_tags_come_with_their_offsets(tagged, tags, limit, found, runs, following):
    frame = tagged.ask_frame(pull("t", 0, 0, limit, tags=tuple(tags)))
    assert given(frame) == list(found.items())
    assert (reply(frame).runs, reply(frame).next_offset, reply(frame).max_offset) == (runs, following, 151)


def test_without_a_match_the_pull_goes_past_all_and_waits_at_the_end_or_tells_how_far_it_looked(tagged, harness):
    frame = tagged.ask_frame(pull("t", 0, 0, tags=("c",)))
    assert (frame.code, reply(frame).next_offset) == (NOTHING, 151)
    tagged.send(pull("t", 0, 0, tags=("c",), wait_ms=500))
    assert len(harness.broker.parked) == 1
    assert harness.connect().ask(put("t", 0)).code == 200
    harness.turn()
    assert tagged.received() == b""
    harness.connect().ask_frame(batch("t", 0, [b"7"], tag="c"))
    harness.turn()
    (frame,) = tagged.frames()
    assert given(frame) == [(176, b"7")]


def test_a_long_way_without_a_match_is_gone_in_steps_with_others_served_between(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.PULL_SCAN_RECORDS", 10)
    peer.ask_frame(batch("t", 0, [b"x"] * 35, tag="a"))
    peer.ask_frame(batch("t", 0, [b"hit"], tag="b"))
    peer.send(pull("t", 0, 0, tags=("b",), wait_ms=500))
    assert peer.received() == b""
    assert len(peer.ask(b"version 1\r\n").text) > 0
    harness.turn()
    (frame,) = peer.frames()
    assert given(frame) == [(35 * 26, b"hit")]


def test_a_filter_without_a_wait_answers_after_one_step(peer, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.PULL_SCAN_RECORDS", 10)
    peer.ask_frame(batch("t", 0, [b"x"] * 35, tag="a"))
    frame = peer.ask_frame(pull("t", 0, 0, tags=("b",)))
    assert (frame.code, reply(frame).next_offset) == (NOTHING, 260)


def test_a_reply_has_a_bounded_number_of_runs(peer, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.PULL_MAX_RUNS", 3)
    for number in range(10):
        peer.ask_frame(batch("t", 0, [b"%d" % number], tag="ab"[number % 2]))
    frame = peer.ask_frame(pull("t", 0, 0, tags=("a",)))
    assert given(frame) == [(0, b"0"), (52, b"2"), (104, b"4")]
    assert reply(frame).next_offset == 156


def test_runs_far_apart_are_read_one_by_one(tagged, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.SPAN_BYTES", 50)
    assert given(tagged.ask_frame(pull("t", 0, 0, tags=("b",)))) == [(52, b"3"), (125, b"6")]


# --- from the disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [(), ("a",)])
def test_what_is_not_in_the_page_cache_is_read_in_a_thread(tagged, harness, monkeypatch, tags):
    log = harness.store.get("t", 0)
    monkeypatch.setattr(type(log.segments), "read", lambda *_: None)
    tagged.send(pull("t", 0, 0, tags=tags))
    assert tagged.received() == b""
    harness.threads.run()
    (frame,) = tagged.frames()
    assert frame.code == SUCCESS
    assert len(given(frame)) == 3 if tags else len(bodies(frame.body)) == 6


def test_a_failing_disk_is_answered(tagged, harness, monkeypatch):
    monkeypatch.setattr(type(harness.store.get("t", 0).segments), "read", lambda *_: None)
    monkeypatch.setattr(type(harness.store.files), "pread", raising(OSError(5, "Input/output error")))
    frame = tagged.ask_frame(pull("t", 0, 0), work=True)
    assert (frame.code, "cannot be read" in frame.remark) == (ResponseCode.SYSTEM_ERROR, True)


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_pulls_that_wait_are_refused_when_the_node_leads_no_longer(peer, harness):
    peer.send(pull("t", 0, 0, wait_ms=5000, opaque=1) + pull("t", 1, 0, wait_ms=5000, opaque=2))
    assert len(harness.broker.parked) == 2

    harness.gate.check_pull = raising(NotLeader(0, "meta://there:1"))
    harness.broker.parked.wake_all()
    harness.turn()
    refused = peer.frames()
    told = {frame.opaque: (frame.code, frame.ext["leader"]) for frame in refused}
    assert told == dict.fromkeys((1, 2), (ResponseCode.NOT_LEADER, "meta://there:1"))
    assert len(harness.broker.parked) == 0


def test_waking_all_pulls_for_nothing_leaves_them_waiting(peer, harness):
    harness.broker.parked.wake_all()
    peer.send(pull("t", 0, 0, wait_ms=5000))
    harness.broker.parked.wake_all()
    harness.turn()
    assert peer.received() == b""
    assert len(harness.broker.parked) == 1


@pytest.fixture
def behind(peer, harness):
    """Two messages of which this node shows the first; the second begins at 25 and ends at 51."""
    peer.ask(put("t", 0, b"first"))
    harness.store.get("t", 0).limit_visibility()
    peer.send(put("t", 0, b"second"))
    log = harness.store.get("t", 0)
    assert (log.visible_end, log.end_offset) == (25, 51)
    return log


def test_a_pull_from_where_a_follower_shows_nothing_yet_waits_until_it_does(behind, harness):
    reader = harness.connect()
    reader.send(pull("t", 0, 51, wait_ms=5000, follower=True))
    assert len(harness.broker.parked) == 1
    behind.raise_bound(51, behind.durability.count)
    harness.turn()
    assert reader.received() == b""
    assert len(harness.broker.parked) == 1
    assert bodies(harness.connect().ask_frame(pull("t", 0, 25, follower=True)).body) == [b"second"]


def test_a_pull_that_a_follower_cannot_serve_in_time_brings_nothing(behind, harness):
    frame = harness.connect().ask_frame(pull("t", 0, 51, follower=True))
    assert (frame.code, reply(frame).next_offset, reply(frame).max_offset, reply(frame).behind) == (NOTHING, 51, 25, 0)


def test_a_pull_of_nobodys_position_is_moved(behind, harness):
    assert harness.connect().ask_frame(pull("t", 0, 51)).code == MOVED
    assert harness.connect().ask_frame(pull("t", 0, 52, follower=True)).code == MOVED

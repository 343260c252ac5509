"""PULL with a filter by content: what is given, how far a pull gets, and for how long it may work (docs/filters.md)."""

import gc
from typing import Any

import pytest

from metaq.broker import tuning
from metaq.broker.reading.selecting import Selection
from metaq.broker.requests.pull import Pull
from metaq.protocol.frames import Frame
from metaq.protocol.pulls import PullReply
from metaq.protocol.record import encode_record
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import encode_version
from tests.properties import LISTED, body_with
from tests.unit.broker.harness import Harness, filter_module, given, noted, overwrite, pull, raw_batch
from tests.unit.broker.test_slices import step

SUCCESS, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND


def send(peer, several, topic="t"):
    """Messages with these properties, each with its number as payload; where each begins."""
    records = [encode_record(body_with(each, b"%d" % number), 0, LISTED) for number, each in enumerate(several)]
    peer.ask_frame(raw_batch(topic, 0, records))
    offsets, end = [], 0
    for each in records:
        offsets.append(end)
        end += len(each)
    return [*offsets, end]


def reply(frame):
    return PullReply.from_ext(frame.ext)


def answer(harness, peer, data=b"", most=1000):
    """To what is asked, or is under way, which goes on until then."""
    peer.send(data)
    for _ in range(most):
        if frames := peer.frames():
            (frame,) = frames
            return frame
        harness.threads.run()
        harness.turn()
    raise AssertionError("no answer")


SOME = [{"TAGS": "ab"[number > 4], "region": "EU", "n": number} for number in range(9)]


@pytest.mark.parametrize(
    ("more", "numbers", "runs"),
    [
        pytest.param({"where": "region = 'EU' AND n BETWEEN 3 AND 4"}, [3, 4], 1, id="for which the filter holds"),
        pytest.param({"where": "n NOT IN (1, 4, 7)"}, [0, 2, 3, 5, 6, 8], 4, id="as runs, as of tags"),
        pytest.param({"tags": ("b",), "where": "n > 6 OR TAGS = 'a'"}, [7, 8], 1, id="that have the tag, too"),
    ],
)
def test_only_messages_are_given(peer, more, numbers, runs):
    offsets = send(peer, SOME)
    frame = peer.ask_frame(pull("t", 0, 0, **more))
    assert (frame.code, given(frame)) == (SUCCESS, [(offsets[number], b"%d" % number) for number in numbers])
    assert (reply(frame).runs, reply(frame).next_offset, reply(frame).behind) == (runs, offsets[-1], 0)


def test_a_filter_that_rejects_everything_moves_the_position(peer, harness):
    offsets = send(peer, [{"n": number} for number in range(9)])
    frame = peer.ask_frame(pull("t", 0, 0, where="n > 100"))
    assert (frame.code, reply(frame).next_offset) == (NOTHING, offsets[-1])


def test_a_pull_waits_for_a_message_that_is_wanted(peer, harness):
    send(peer, [{"n": 1}])
    peer.send(pull("t", 0, 0, where="n = 2", wait_ms=1000))
    assert peer.frames() == []
    other = harness.connect()
    send(other, [{"n": 1}])
    harness.turn()
    assert peer.frames() == []
    send(other, [{"n": 2}])
    harness.turn()
    frame = answer(harness, peer)
    assert [payload for _, payload in given(frame)] == [b"0"]


def test_a_long_stretch_is_looked_at_step_by_step(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WHERE_STEP_BYTES", 200)
    judged = noted(monkeypatch, Selection, "judge")
    offsets = send(peer, [{"n": number} for number in range(100)])
    peer.send(pull("t", 0, 0, where="n = 98", wait_ms=1000))
    assert peer.frames() == []
    while not (frames := peer.frames()):
        harness.turn()
    assert len(judged) == 17  # six records of 32 bytes or so each time
    assert given(frames[0]) == [(offsets[98], b"98")]
    assert reply(frames[0]).next_offset == offsets[-1]


def test_a_pull_that_may_not_wait_looks_at_more_than_one_step(peer, harness, monkeypatch):
    """Else each of many answers would say nothing but how far it came."""
    monkeypatch.setattr(tuning, "WHERE_STEP_BYTES", 200)
    offsets = send(peer, [{"n": number} for number in range(20)])
    assert given(answer(harness, peer, pull("t", 0, 0, where="n = 19"))) == [(offsets[19], b"19")]


def test_a_pull_whose_time_is_over_says_how_far_it_came(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WHERE_STEP_BYTES", 200)
    offsets = send(peer, [{"n": number} for number in range(100)])
    peer.send(pull("t", 0, 0, where="n = 99", wait_ms=1))
    harness.reactor.advance(0.5)
    (frame,) = peer.frames()
    assert frame.code == NOTHING
    assert reply(frame).next_offset in offsets[2:20]


def test_what_was_chosen_is_given_after_a_while_though_there_is_more_to_look_at(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WHERE_STEP_BYTES", 200)
    offsets = send(peer, [{"n": number} for number in range(100)])
    peer.send(pull("t", 0, 0, where="n = 1", wait_ms=60_000))
    assert peer.frames() == []
    harness.reactor.advance(tuning.WHERE_GATHER_SECONDS)
    (frame,) = peer.frames()
    assert given(frame) == [(offsets[1], b"1")]
    assert reply(frame).next_offset < offsets[-1]


def test_an_answer_has_no_more_than_was_asked_for_but_one_message_at_least(peer, harness):
    offsets = send(peer, [{"n": number} for number in range(10)])
    size = offsets[1]
    frame = answer(harness, peer, pull("t", 0, 0, 2 * size + 5, where="n >= 0"))
    assert (given(frame), reply(frame).next_offset) == ([(0, b"0"), (size, b"1")], offsets[2])
    frame = answer(harness, peer, pull("t", 0, 0, 1, where="n > 3"))
    assert (given(frame), reply(frame).next_offset) == ([(offsets[4], b"4")], offsets[5])


def test_chunks_after_each_other_give_everything_once(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WHERE_STEP_BYTES", 300)
    monkeypatch.setattr(tuning, "PULL_MAX_RUNS", 2)
    offsets = send(peer, [{"n": number % 7} for number in range(200)])
    position, found = 0, []
    while position < offsets[-1]:
        frame = answer(harness, peer, pull("t", 0, position, 150, where="n IN (1, 4, 5)"))
        assert reply(frame).next_offset > position
        found += given(frame)
        position = reply(frame).next_offset
    assert found == [(offsets[n], b"%d" % n) for n in range(200) if n % 7 in (1, 4, 5)]


def test_records_far_from_each_other_are_read_apart(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "WHERE_GAP_BYTES", 0)
    monkeypatch.setattr(tuning, "WHERE_STEP_READS", 3)
    offsets = send(peer, [{"TAGS": "a" if number % 2 else "b", "n": number} for number in range(40)])
    frame = answer(harness, peer, pull("t", 0, 0, tags=("a",), where="n > 20", wait_ms=1000))
    assert [offset for offset, _ in given(frame)] == [offsets[n] for n in range(21, 40, 2)]


def test_a_damaged_record_is_given_to_whoever_finds_that(peer, tmp_path):
    offsets = send(peer, [{"n": number} for number in range(30)])
    overwrite(tmp_path / "data" / "t-0" / f"{0:020d}.meta", offsets[7] + 30, b"?")
    frame = peer.ask_frame(pull("t", 0, 0, where="n = 3"))
    assert [offset for offset, _ in given(frame)] == [offsets[3], offsets[7]]


def test_what_is_no_filter_is_refused_with_the_place(peer):
    frame = peer.ask_frame(pull("t", 0, 0, where="n = = 5"))
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL
    assert frame.remark == "where: at character 5: expected a literal ('text', a number, TRUE or FALSE), found '='"


def test_the_version_says_that_pulls_are_filtered(peer):
    assert "where/1" in peer.ask(encode_version(1)).text.split()


def test_a_groups_own_filter_sees_what_is_left(tmp_path, monkeypatch):
    module = filter_module(monkeypatch, even=lambda group, message: int(message.payload) % 2 == 0)
    asked = noted(monkeypatch, module, "even", lambda group, message: message.payload)
    harness = Harness(tmp_path, topics="[topic=orders]\nnumPartitions=1\ngroup.g=my_filters:even\n")
    peer = harness.connect()
    offsets = send(peer, [{"n": number} for number in range(10)], "orders")
    frame = answer(harness, peer, pull("orders", 0, 0, group="g", where="n > 5"))
    assert given(frame) == [(offsets[6], b"6"), (offsets[8], b"8")]
    assert asked == [b"6", b"7", b"8", b"9"]
    frame = answer(harness, peer, pull("orders", 0, 0, group="g", where="n = 5"))
    assert (frame.code, reply(frame).next_offset) == (NOTHING, offsets[-1])
    harness.close()


# --- what pulls hold --------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(peer, harness, monkeypatch):
    """How many pulls hold messages. A slice is one of 100 messages, and takes more than a millisecond."""
    time = 0.0

    def seconds():
        nonlocal time
        time += 0.0005
        return time

    monkeypatch.setattr(tuning, "WHERE_SLICE_RECORDS", 1)
    monkeypatch.setattr(tuning, "WHERE_LEAST_SLICE", 1)
    send(peer, [{"n": number} for number in range(100)])
    monkeypatch.setattr(harness.reactor, "seconds", seconds)
    peer.session.seconds = seconds

    def holding():
        pulls: list[Any] = [
            each for each in gc.get_objects() if type(each) is Pull and each._reading is harness.broker.reading
        ]
        assert pulls
        return sum(each._stretch is not None or bool(each._selection.chosen.runs) for each in pulls)

    gc.freeze()  # what was there before is not looked through at each step
    yield holding
    gc.unfreeze()


def most_held(harness, peer, holding):
    most = 0
    for _ in range(200):
        most = max(most, holding())
        if not harness.reactor.getDelayedCalls():
            break
        step(harness)
    return most


@pytest.mark.parametrize("where", ["n < 0", "n >= 0", "n = 1"])
def test_pulls_that_wait_for_a_turn_hold_no_records(peer, harness, slow, where):
    peer.send(b"".join(pull("t", 0, 0, where=where, wait_ms=60_000, opaque=number) for number in range(40)))
    assert most_held(harness, peer, slow) <= 6


def test_pulls_that_wait_for_a_turn_come_to_the_end(peer, harness, slow):
    peer.send(b"".join(pull("t", 0, 0, where="n = 99", opaque=number) for number in range(10)))
    frames: list[Frame] = []
    while len(frames) < 10:
        step(harness)
        frames += peer.frames()
    assert {frame.code for frame in frames} == {SUCCESS}


def test_pulls_that_wait_for_the_time_to_judge_are_bounded(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.network.session.MAX_PARKED_PULLS", 5)
    send(peer, [{"n": number} for number in range(100)])
    time = harness.broker.reading.where_time
    time.used_until(time.deadline() - 1)
    peer.send(b"".join(pull("t", 0, 0, where="n = 99", opaque=number) for number in range(8)))
    refused = peer.frames()
    assert [(frame.opaque, frame.code) for frame in refused] == [(n, ResponseCode.SYSTEM_BUSY) for n in (5, 6, 7)]
    assert "too many pulls wait on this connection" in refused[0].remark
    harness.turn()
    assert [frame.code for frame in peer.frames()] == [SUCCESS] * 5

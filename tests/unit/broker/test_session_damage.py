"""PULL where stored bytes are damaged: the client is led behind them, once, whatever it asks for."""

import os
import random
from typing import Any

import pytest

from metaq.broker.http.metrics import exposition
from metaq.broker.http.sheets import encoded
from metaq.broker.store.store import TopicStoreConfig
from metaq.protocol.pulls import PullReply, decode_runs
from metaq.protocol.record import checksum, iter_headers
from metaq.protocol.statuses import ResponseCode
from tests.raising import raising
from tests.unit.broker.harness import Harness, batch, overwrite, pull

SUCCESS, NOTHING, MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
SIZE = 50
COUNT = 20
TOPIC = f"[topic=damaged]\nnumPartitions=1\ngroup.g={__name__}:everything\n"


def everything(group, message):
    """A filter."""
    return True


def records(start, end):
    return batch("damaged", 0, [b"%05d" % number * 5 for number in range(start, end)], tag="x")


class SmallSegments(Harness):
    """Ten records fill a segment."""

    def store_config(self, name):
        return TopicStoreConfig(10 * SIZE, 1000, 10_000)


@pytest.fixture(params=["indexed", "unindexed", "rebuilt"])
def opened(request, tmp_path):
    """A broker that was started again on 20 records in two closed segments, after `damage` of the first one's file.

    unindexed: its index is not made again yet; rebuilt: it was, over the damage.
    """
    started = []

    def open_again(*damage, kind=request.param):
        first = SmallSegments(tmp_path, topics=TOPIC)
        for start in (0, 10):
            first.connect().send(records(start, start + 10))
        first.threads.run()
        assert len(first.store.get("damaged", 0).segments) == 3
        first.close()
        path = tmp_path / "data" / "damaged-0" / f"{0:020d}.meta"
        if kind != "indexed":
            os.unlink(path.with_suffix(".index"))
        for position, data in damage:
            overwrite(path, position, data)
        harness = SmallSegments(tmp_path, topics=TOPIC)
        if kind == "rebuilt":
            harness.threads.run()
        started.append(harness)
        return harness

    yield open_again
    for harness in started:
        harness.threads.run()
        harness.close()


def ask(harness, peer, *arguments, **more):
    """The answer to a pull, whatever worker threads have to do first; an index that is not there stays away."""
    peer.send(pull("damaged", 0, *arguments, **more))
    for _ in range(20):
        if frames := peer.frames():
            (frame,) = frames
            return frame
        waiting = harness.threads.waiting
        waiting.sort(key=lambda job: "rebuild_index" in repr(job[0]))
        if waiting and "rebuild_index" not in repr(waiting[0][0]):
            harness.threads.run_one()
        harness.turn()
    raise AssertionError("no answer came")


def consume(harness, peer, *, checks=True, **more):
    """Offsets of the records, and the damaged ranges, as a client meets them that checks what it gets, or does not."""
    offset, good, ranges, verify = 0, [], [], False
    for _ in range(200):
        frame = ask(harness, peer, offset, 7 * SIZE, verify=verify, **more)
        reply = PullReply.from_ext(frame.ext)
        verify = False
        if frame.code == MOVED:
            assert reply.damaged_from >= 0
            assert reply.next_offset > offset
            ranges.append((reply.damaged_from, reply.next_offset))
        elif frame.code == SUCCESS:
            runs = decode_runs(frame.body, reply.runs) if reply.runs else [(offset, frame.body)]
            for start, data in runs:
                for at in range(0, len(data), SIZE):
                    if checks and not is_good(data[at : at + SIZE]):
                        offset, verify = start + at, True
                        break
                    good.append(start + at)
                if verify:
                    break
        elif reply.next_offset == COUNT * SIZE:
            return good, ranges
        if not verify:
            offset = reply.next_offset
    raise AssertionError("the end is never reached")


def is_good(data):
    try:
        (header,) = iter_headers(data)
    except Exception:
        return False
    body = bytes(data[20:])
    return len(body) == header.length and checksum(body) == header.checksum


WAYS: dict[str, dict[str, Any]] = {"all": {}, "tags": {"tags": ("x",)}, "filter": {"group": "g"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("damage", "ranges"),
    [
        ([], []),
        ([(3 * SIZE + 40, b"?")], [(3, 4)]),
        ([(3 * SIZE, b"\x7f")], [(3, 4)]),
        ([(3 * SIZE, b"\xff")], [(3, 4)]),
        ([(3 * SIZE, bytes(SIZE))], [(3, 4)]),
        ([(3 * SIZE, bytes(3 * SIZE))], [(3, 6)]),
        ([(0, b"\x01")], [(0, 1)]),
        ([(9 * SIZE + 30, b"?")], [(9, 10)]),
        ([(8 * SIZE + 30, bytes(2 * SIZE - 30))], [(8, 10)]),
        ([(2 * SIZE + 2, b"\x02"), (5 * SIZE + 30, b"?"), (7 * SIZE + 4, b"??")], [(2, 3), (5, 6), (7, 8)]),
        ([(0, b"?" * 10 * SIZE)], [(0, 10)]),
    ],
)
def test_everything_outside_the_damage_comes_once_and_the_damage_is_told(opened, way, damage, ranges, caplog):
    harness = opened(*damage)
    peer = harness.connect()
    good, found = consume(harness, peer, **WAYS[way])
    assert found == [(start * SIZE, end * SIZE) for start, end in ranges]
    bad = {number for start, end in ranges for number in range(start, end)}
    assert good == [number * SIZE for number in range(COUNT) if number not in bad]
    assert consume(harness, peer, **WAYS[way]) == (good, found)
    assert consume(harness, peer, checks=False, **WAYS[way]) == (good, found), "what is known is given to nobody"
    assert caplog.text.count("is damaged in") == len(ranges)
    metrics = encoded(exposition(harness.broker)).decode()
    assert f"metaq_damaged_ranges_total {len(ranges)}.0" in metrics
    assert f"metaq_damaged_bytes_total {len(bad) * SIZE}.0" in metrics


def test_inside_a_record_its_start_is_told(opened):
    harness = opened((3 * SIZE + 40, b"?"))
    peer = harness.connect()
    for offset, expected in ((SIZE + 1, SIZE), (2 * SIZE + 49, 2 * SIZE), (15 * SIZE + 7, 15 * SIZE)):
        frame = ask(harness, peer, offset)
        assert (frame.code, PullReply.from_ext(frame.ext).next_offset) == (MOVED, expected)
        assert "damagedFrom" not in frame.ext


def test_a_search_is_made_once_for_all_who_ask(opened):
    harness = opened((3 * SIZE, b"?" * 5 * SIZE), kind="unindexed")
    peers = [harness.connect() for _ in range(5)]
    harness.threads.waiting.clear()  # the index stays away
    for peer in peers:
        peer.send(pull("damaged", 0, 3 * SIZE))
        assert peer.received() == b""
    assert harness.threads.run() == 1
    for peer in peers:
        (frame,) = peer.frames()
        assert PullReply.from_ext(frame.ext).damaged_from == 3 * SIZE
    peers[0].send(pull("damaged", 0, 4 * SIZE))
    assert len(peers[0].frames()) == 1
    assert not harness.threads.waiting


def test_a_record_that_is_good_after_all_is_given(opened):
    harness = opened()
    frame = ask(harness, harness.connect(), 3 * SIZE, SIZE, verify=True)
    assert (frame.code, len(frame.body)) == (SUCCESS, SIZE)


def test_a_record_larger_than_what_is_walked_at_once_is_given_whole(opened, monkeypatch):
    harness = opened(kind="unindexed")
    monkeypatch.setattr("metaq.broker.store.lookup.MAX_RECORD_BODY_BYTES", 1)
    monkeypatch.setattr("metaq.broker.store.tuning.WALKED_BYTES", 10)
    frame = ask(harness, harness.connect(), 3 * SIZE)
    assert (frame.code, len(frame.body)) == (SUCCESS, SIZE)


def test_a_file_that_cannot_be_read_is_an_error_and_no_damage(opened, monkeypatch, caplog):
    harness = opened((3 * SIZE, b"?" * 60), kind="unindexed")
    monkeypatch.setattr("metaq.broker.store.scan.find_record", raising(OSError(5, "broken disk")))
    frame = ask(harness, harness.connect(), 3 * SIZE)
    assert (frame.code, "broken disk" in frame.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert "is damaged in" not in caplog.text


def test_what_a_filter_cannot_read_is_an_error_for_its_group(opened, monkeypatch):
    harness = opened((3 * SIZE + 40, b"?"), kind="indexed")
    monkeypatch.setattr("metaq.broker.store.lookup.place_by_units", raising(OSError(5, "broken disk")))
    frame = ask(harness, harness.connect(), 3 * SIZE, group="g")
    assert (frame.code, "broken disk" in frame.remark) == (ResponseCode.SYSTEM_ERROR, True)


def test_damage_of_the_active_segment_that_came_after_the_start(opened, tmp_path):
    harness = opened(kind="indexed")
    peer = harness.connect()
    peer.send(records(20, 23))
    peer.received()
    overwrite(tmp_path / "data" / "damaged-0" / f"{COUNT * SIZE:020d}.meta", SIZE, bytes(2 * SIZE))
    frame = ask(harness, peer, 21 * SIZE, verify=True)
    assert PullReply.from_ext(frame.ext) == PullReply(23 * SIZE, 0, 23 * SIZE, 0, damaged_from=21 * SIZE)
    assert ask(harness, peer, 23 * SIZE).code == NOTHING


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(8))
def test_nothing_false_is_read_and_nothing_good_is_lost_whatever_bytes_change(opened, way, seed):
    """Flips and zeros anywhere. Ids and flags have no checksum: of a record where they change nothing is claimed."""
    rng = random.Random(seed)
    damage = []
    for _ in range(rng.randint(1, 5)):
        size = rng.choice((1, 1, 4, 30, 120))
        position = rng.randrange(10 * SIZE - size)
        damage.append((position, bytes(size) if rng.random() < 0.5 else rng.randbytes(size)))
    harness = opened(*damage)
    log = harness.store.get("damaged", 0)
    stored = b"".join(bytes(log.segments.snapshot().read(start, 10 * SIZE)) for start in (0, 10 * SIZE))
    sound, unclear = [], set()
    for number in range(COUNT):
        record = stored[number * SIZE : (number + 1) * SIZE]
        whole = record[:4] == (SIZE - 20).to_bytes(4, "big") and record[25:] == b"%05d" % number * 5
        if whole and checksum(record[20:]) == int.from_bytes(record[4:8], "big"):
            if record[16:20] == (1).to_bytes(4, "big"):
                sound.append(number * SIZE)
            else:
                unclear.add(number * SIZE)
    good, ranges = consume(harness, harness.connect(), **WAYS[way])
    assert [offset for offset in good if offset not in unclear] == sound
    told = {offset for start, end in ranges for offset in range(start, end)}
    assert not told & set(good)
    assert len(ranges) == len(set(ranges))

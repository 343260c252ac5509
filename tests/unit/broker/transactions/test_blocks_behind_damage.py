"""A committed block in a partition with damage in it, in a segment that recovery believes: what consumers get is there
once, and each committed message is."""

import os
from collections import Counter

import pytest

from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index_rebuilding import rebuild_index
from metaq.broker.store.scan import scan_bytes
from metaq.broker.transactions.commands import StoredPut
from metaq.broker.transactions.open_transactions import Block
from metaq.broker.transactions.placing import Placed, complete, find, is_at
from metaq.broker.transactions.redo import Location
from metaq.protocol.pulls import PullReply
from metaq.protocol.record import HEADER_BYTES, checksum, encode_record
from metaq.protocol.statuses import ResponseCode
from tests.doubles.redo import read_redo
from tests.unit.broker.harness import NOW, Harness, pull
from tests.unit.broker.transactions.killed import BEFORE, MESSAGES, data_file, killed_after_a_commit, records, stop

LOST = b"lost" * 11
"""Lies where the commit's record names the block, and is damaged in most tests."""
PLACE = HEADER_BYTES + len(BEFORE)
AFTER, LATER = b"after", b"later"
TOPIC = "t"
DAMAGE = {
    "a body": (HEADER_BYTES + 5, b"?"),
    "a checksum": (4, b"\x55"),
    "a length too small": (3, b"\x02"),
    "a length over what follows": (3, b"\x47"),
    "a length over everything": (0, b"\x7f"),
    "a negative length": (0, b"\xff"),
}
INDEXES = ["no index", "an index from before the damage", "an index made over the damage"]


def overwritten(data, position, new):
    return data[:position] + new + data[position + len(new) :]


def leave(tmp_path, data, damaged=None, index="no index", topic=TOPIC):
    """The first segment has these bytes behind its first message, and is not the one that grows.

    damaged: what it has in their place after the index `index` was made, or before.
    """
    path = data_file(tmp_path, topic)
    start = path.read_bytes()[:PLACE]
    path.with_suffix(".index").unlink(missing_ok=True)
    end = PLACE + len(data)
    contents = [start + data, start + (data if damaged is None else damaged)]
    if index == "an index made over the damage":
        contents.reverse()
    for content in contents:
        path.write_bytes(content)
        if index != "no index" and content is contents[0]:
            os.utime(path, (NOW, NOW))
            rebuild_index(REAL_FILES, str(path), 0, end)
    path.write_bytes(start + (data if damaged is None else damaged))
    path.with_name(f"{end:020d}.meta").write_bytes(encode_record(LATER, -8, 0))
    long_ago = path.stat().st_mtime - 3600
    os.utime(path, (long_ago, long_ago))  # so recovery believes it without a checkpoint


def consumed(harness):
    """The bodies of all records that a client gets that checks them, and is led past damage."""
    peer = harness.connect()
    end = harness.store.find(TOPIC, 0).visible_end
    found, offset, verify = [], 0, False
    for _ in range(100):
        peer.send(pull(TOPIC, 0, offset, verify=verify))
        while not (frames := peer.frames()):
            assert harness.threads.run(), "no answer"
        (frame,) = frames
        reply = PullReply.from_ext(frame.ext)
        verify = False
        if frame.code != ResponseCode.SUCCESS:
            offset = reply.next_offset
        else:
            scan = scan_bytes(frame.body, offset)
            at = [unit["offset"] - offset + HEADER_BYTES for unit in scan.units]
            sizes = scan.units["size"] - HEADER_BYTES
            found += [bytes(frame.body[start : start + size]) for start, size in zip(at, sizes, strict=True)]
            verify = scan.end < len(frame.body)
            offset += scan.end
        if offset == end:
            return found
    raise AssertionError("the end is never reached")


def started(tmp_path):
    harness = Harness(tmp_path)
    return consumed(harness), harness


def start_twice(tmp_path):
    """What consumers get at the second start after a kill, which must be what they got at the first."""
    seen, harness = started(tmp_path)
    harness.store.close()  # as if killed: nothing is settled
    (tmp_path / "data" / "transactions" / "metaq.json").unlink(missing_ok=True)
    again, harness = started(tmp_path)
    assert again == seen
    stop(harness)
    return seen


def location(tmp_path):
    (found,) = read_redo(REAL_FILES, str(tmp_path / "data" / "transactions" / "redo.1")).entries[-1].locations
    return found


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_block_behind_damage_is_not_appended_again(tmp_path, damage, index):
    block = killed_after_a_commit(tmp_path, TOPIC)
    lost = encode_record(LOST, -7, 0)
    rest = block + encode_record(AFTER, -9, 0)
    leave(tmp_path, lost + rest, overwritten(lost, *DAMAGE[damage]) + rest, index)
    assert start_twice(tmp_path) == [BEFORE, *MESSAGES, AFTER, LATER]
    assert (location(tmp_path).offset, location(tmp_path).size) == (PLACE + len(lost), len(block))


def test_a_block_behind_much_damage_in_many_places(tmp_path):
    block = killed_after_a_commit(tmp_path, TOPIC)
    lost = overwritten(encode_record(LOST, -7, 0), *DAMAGE["a body"])
    between = encode_record(AFTER, -9, 0)
    leave(tmp_path, lost * 3 + between + bytes(5 << 20) + between + lost + block)
    assert start_twice(tmp_path) == [BEFORE, AFTER, AFTER, *MESSAGES, LATER]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_of_a_block_with_damage_only_the_damaged_message_is_appended(tmp_path, number, index):
    """Where the record names it, and behind other damage."""
    block = killed_after_a_commit(tmp_path, TOPIC)
    parts = records(block)
    parts[number] = overwritten(parts[number], 4, b"\x55")
    kept = [body for each, body in enumerate(MESSAGES) if each != number]
    leave(tmp_path, block, b"".join(parts), index)
    assert start_twice(tmp_path) == [BEFORE, *kept, LATER, MESSAGES[number]]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", ["a body", "a length too small", "a length over everything"])
def test_a_damaged_block_behind_damage(tmp_path, damage, index):
    block = killed_after_a_commit(tmp_path, TOPIC)
    lost = encode_record(LOST, -7, 0)
    parts = records(block)
    parts[2] = overwritten(parts[2], *DAMAGE[damage])
    leave(tmp_path, lost + block, overwritten(lost, *DAMAGE[damage]) + b"".join(parts), index)
    assert start_twice(tmp_path) == [BEFORE, *MESSAGES[:2], *MESSAGES[3:], LATER, MESSAGES[2]]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("kept", range(len(MESSAGES) + 1))
def test_a_part_of_a_block_behind_damage_is_continued(tmp_path, kept, index):
    block = killed_after_a_commit(tmp_path, TOPIC)
    lost = encode_record(LOST, -7, 0)
    part = b"".join(records(block)[:kept])
    leave(tmp_path, lost + part, overwritten(lost, *DAMAGE["a body"]) + part, index)
    assert start_twice(tmp_path) == [BEFORE, *MESSAGES[:kept], LATER, *MESSAGES[kept:]]


@pytest.mark.parametrize("kept", range(1, len(MESSAGES)))
def test_a_block_over_a_segment_boundary_behind_damage(tmp_path, kept):
    block = killed_after_a_commit(tmp_path, TOPIC)
    lost = overwritten(encode_record(LOST, -7, 0), *DAMAGE["a body"])
    parts = records(block)
    leave(tmp_path, lost + b"".join(parts[:kept]))
    end = data_file(tmp_path, TOPIC).stat().st_size
    following = data_file(tmp_path, TOPIC).with_name(f"{end:020d}.meta")
    following.write_bytes(b"".join(parts[kept:]) + following.read_bytes())
    assert start_twice(tmp_path) == [BEFORE, *MESSAGES, LATER]


@pytest.mark.parametrize("index", INDEXES)
def test_a_damaged_flag_makes_another_message_and_a_damaged_id_does_not(tmp_path, index, caplog):
    """No checksum of 1.x covers them, so consumers get the record as it is. With another flag its body says something
    else, and the committed message has to come; with another id it is all there.
    """
    block = killed_after_a_commit(tmp_path, TOPIC)
    parts = records(block)
    parts[0] = overwritten(parts[0], 15, b"\x55")
    parts[3] = overwritten(parts[3], 16, b"\x55")
    leave(tmp_path, block, b"".join(parts), index)
    assert Counter(start_twice(tmp_path)) == Counter([BEFORE, LATER, *MESSAGES, MESSAGES[3]])
    assert f"the message at byte {PLACE} has lost its id" in caplog.text


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_block_over_two_segments_is_settled_when_its_last_message_is_synced(tmp_path, topic):
    """What an earlier start has appended to the next segment, and not synced when it was killed."""
    block = killed_after_a_commit(tmp_path, topic)
    path = data_file(tmp_path, topic)
    parts = records(block)
    leave(tmp_path, b"".join(parts[:2]), topic=topic)
    following = path.with_name(f"{path.stat().st_size:020d}.meta")
    following.write_bytes(following.read_bytes() + b"".join(parts[2:]))
    harness = Harness(tmp_path)
    log = harness.store.get(topic, 0)
    puts = read_redo(REAL_FILES, str(tmp_path / "data" / "transactions" / "redo.1")).entries[:-1]
    committed = Block(log)
    for put in (entry.command for entry in puts):
        assert isinstance(put, StoredPut)
        committed.add(put.message_id, put.flag, checksum(put.body), put.body)
    placed = find(committed, None, int(NOW * 1000), believed=False)
    assert isinstance(placed, Placed)
    found, appended = complete(placed, int(NOW * 1000))
    assert (appended, found.location.offset, found.end) == (0, PLACE, log.end_offset)
    stop(harness)


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_place_that_spans_much_more_than_the_block_is_named_right(tmp_path, topic):
    """Its checksum is made piece by piece; the messages in between are others'."""
    block = killed_after_a_commit(tmp_path, topic)
    parts = records(block)
    others = encode_record(b"o" * (5 << 20), -9, 0)
    path = data_file(tmp_path, topic)
    path.write_bytes(path.read_bytes()[:PLACE] + parts[0] + others + b"".join(parts[1:]))
    path.with_suffix(".index").unlink(missing_ok=True)
    stop(Harness(tmp_path))
    named = location(tmp_path)
    data = path.read_bytes()[named.offset : named.offset + named.size]
    assert (named.offset, named.size) == (PLACE, len(block) + len(others))
    assert named.checksum == checksum(data)


def test_a_location_of_no_bytes_is_nowhere(tmp_path):
    killed_after_a_commit(tmp_path, TOPIC)
    harness = Harness(tmp_path)
    log = harness.store.get(TOPIC, 0)
    assert not is_at(log, Location("t-0", 0, 0, 0))
    stop(harness)

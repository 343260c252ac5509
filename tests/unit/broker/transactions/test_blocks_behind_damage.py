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
from tests.unit.broker.transactions.killed import BEFORE, MESSAGES, PLACE, Killed

LOST = encode_record(b"lost" * 11, -7, 0)
"""Lies where the commit's record names the block, and is damaged in most tests."""
AFTER, LATER = b"after", b"later"
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


class Behind(Killed):
    """Read by clients that check what they get, and are led past damage."""

    def leave_segment(self, data, damaged=None, index="no index"):
        """The first segment has these bytes behind its first message, and is not the one that grows.

        damaged: what it has in their place after the index `index` was made, or before.
        """
        path = self.path
        start = path.read_bytes()[:PLACE]
        path.with_suffix(".index").unlink(missing_ok=True)
        end = PLACE + len(data)
        contents = [start + data, start + (data if damaged is None else damaged)]
        last = contents[1]
        if index == "an index made over the damage":
            contents.reverse()
        for content in contents:
            path.write_bytes(content)
            if index != "no index" and content is contents[0]:
                os.utime(path, (NOW, NOW))
                rebuild_index(REAL_FILES, str(path), 0, end)
        path.write_bytes(last)
        self.following = path.with_name(f"{end:020d}.meta")
        self.following.write_bytes(encode_record(LATER, -8, 0))
        long_ago = path.stat().st_mtime - 3600
        os.utime(path, (long_ago, long_ago))  # so recovery believes it without a checkpoint

    def read(self, harness):
        peer = harness.connect()
        end = harness.store.find("t", 0).visible_end
        found, offset, verify = [], 0, False
        for _ in range(100):
            peer.send(pull("t", 0, offset, verify=verify))
            while not (frames := peer.frames()):
                assert harness.threads.run(), "no answer"
            (frame,) = frames
            verify = False
            if frame.code != ResponseCode.SUCCESS:
                offset = PullReply.from_ext(frame.ext).next_offset
            else:
                scan = scan_bytes(frame.body, offset)
                places = [(unit["offset"] - offset, unit["size"]) for unit in scan.units]
                found += [bytes(frame.body[start + HEADER_BYTES : start + size]) for start, size in places]
                verify = scan.end < len(frame.body)
                offset += scan.end
            if offset == end:
                return found
        raise AssertionError("the end is never reached")


@pytest.fixture
def killed(tmp_path):
    return Behind(tmp_path)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_block_behind_damage_is_not_appended_again(killed, damage, index):
    rest = killed.block + encode_record(AFTER, -9, 0)
    killed.leave_segment(LOST + rest, overwritten(LOST, *DAMAGE[damage]) + rest, index)
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES, AFTER, LATER]
    assert (killed.location().offset, killed.location().size) == (PLACE + len(LOST), len(killed.block))


def test_a_block_behind_much_damage_in_many_places(killed):
    lost, between = overwritten(LOST, *DAMAGE["a body"]), encode_record(AFTER, -9, 0)
    killed.leave_segment(lost * 3 + between + bytes(5 << 20) + between + lost + killed.block)
    assert killed.seen(starts=2) == [BEFORE, AFTER, AFTER, *MESSAGES, LATER]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_of_a_block_with_damage_only_the_damaged_message_is_appended(killed, number, index):
    """Where the record names it."""
    killed.parts[number] = overwritten(killed.parts[number], 4, b"\x55")
    kept = [body for each, body in enumerate(MESSAGES) if each != number]
    killed.leave_segment(killed.block, b"".join(killed.parts), index)
    assert killed.seen(starts=2) == [BEFORE, *kept, LATER, MESSAGES[number]]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", ["a body", "a length too small", "a length over everything"])
def test_a_damaged_block_behind_damage(killed, damage, index):
    killed.parts[2] = overwritten(killed.parts[2], *DAMAGE[damage])
    damaged = overwritten(LOST, *DAMAGE[damage]) + b"".join(killed.parts)
    killed.leave_segment(LOST + killed.block, damaged, index)
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES[:2], *MESSAGES[3:], LATER, MESSAGES[2]]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("kept", range(len(MESSAGES) + 1))
def test_a_part_of_a_block_behind_damage_is_continued(killed, kept, index):
    part = b"".join(killed.parts[:kept])
    killed.leave_segment(LOST + part, overwritten(LOST, *DAMAGE["a body"]) + part, index)
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES[:kept], LATER, *MESSAGES[kept:]]


@pytest.mark.parametrize("kept", range(1, len(MESSAGES)))
def test_a_block_over_a_segment_boundary_behind_damage(killed, kept):
    killed.leave_segment(overwritten(LOST, *DAMAGE["a body"]) + b"".join(killed.parts[:kept]))
    killed.following.write_bytes(b"".join(killed.parts[kept:]) + killed.following.read_bytes())
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES, LATER]


@pytest.mark.parametrize("index", INDEXES)
def test_a_damaged_flag_makes_another_message_and_a_damaged_id_does_not(killed, index, caplog):
    """No checksum of 1.x covers them, so consumers get the record as it is. With another flag its body says something
    else, and the committed message has to come; with another id it is all there.
    """
    for number, position in ((0, 15), (3, 16)):
        killed.parts[number] = overwritten(killed.parts[number], position, b"\x55")
    killed.leave_segment(killed.block, b"".join(killed.parts), index)
    assert Counter(killed.seen(starts=2)) == Counter([BEFORE, LATER, *MESSAGES, MESSAGES[3]])
    assert f"the message at byte {PLACE} has lost its id" in caplog.text


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_block_over_two_segments_is_settled_when_its_last_message_is_synced(tmp_path, topic):
    """What an earlier start has appended to the next segment, and not synced when it was killed."""
    killed = Behind(tmp_path, topic)
    killed.leave_segment(b"".join(killed.parts[:2]))
    killed.following.write_bytes(killed.following.read_bytes() + b"".join(killed.parts[2:]))
    harness = Harness(tmp_path)
    log = harness.store.get(topic, 0)
    committed = Block(log)
    for entry in read_redo(REAL_FILES, str(killed.redo)).entries[:-1]:
        put = entry.command
        assert isinstance(put, StoredPut)
        committed.add(put.message_id, put.flag, checksum(put.body), put.body)
    placed = find(committed, None, int(NOW * 1000), believed=False)
    assert isinstance(placed, Placed)
    found, appended = complete(placed, int(NOW * 1000))
    assert (appended, found.location.offset, found.end) == (0, PLACE, log.end_offset)
    harness.threads.run()
    harness.close()


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_place_that_spans_much_more_than_the_block_is_named_right(tmp_path, topic):
    """Its checksum is made piece by piece; the messages in between are others'."""
    killed = Killed(tmp_path, topic)
    others = encode_record(b"o" * (5 << 20), -9, 0)
    killed.leave(killed.parts[0] + others + b"".join(killed.parts[1:]))
    harness = Harness(tmp_path)
    harness.threads.run()
    harness.close()
    named = killed.location()
    data = killed.path.read_bytes()[named.offset : named.offset + named.size]
    assert (named.offset, named.size) == (PLACE, len(killed.block) + len(others))
    assert named.checksum == checksum(data)


def test_a_location_of_no_bytes_is_nowhere(harness):
    assert not is_at(harness.store.get_or_create("t", 0), Location("t-0", 0, 0, 0))

"""A committed block of which a part is in its partition when the broker starts: the part is continued, not repeated."""

import pytest

from metaq.protocol.record import encode_record
from tests.unit.broker.transactions.killed import BEFORE, BLOCK, MESSAGES, PLACE, Killed

OTHER = encode_record(b"other", -7, 0)


@pytest.fixture
def killed(tmp_path):
    return Killed(tmp_path)


@pytest.mark.parametrize("topic", ["t", "safe"])
@pytest.mark.parametrize("left", range(0, BLOCK + 1, 3))
def test_what_is_there_of_a_block_is_continued(tmp_path, topic, left):
    killed = Killed(tmp_path, topic)
    killed.leave(killed.block[:left])
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES]
    assert (killed.location().offset, killed.location().size) == (PLACE, BLOCK)


@pytest.mark.parametrize("kept", range(len(MESSAGES) + 1))
def test_what_is_missing_follows_at_the_end_if_others_lie_behind_the_part(killed, kept):
    killed.leave(b"".join(killed.parts[:kept]) + OTHER)
    assert killed.seen(starts=3) == [BEFORE, *MESSAGES[:kept], b"other", *MESSAGES[kept:]]


def test_a_block_that_an_earlier_broker_has_appended_again_is_left_as_it_is(killed):
    killed.leave(b"".join(killed.parts[:2]) + killed.block)
    assert killed.seen() == [BEFORE, *MESSAGES[:2], *MESSAGES]


@pytest.mark.parametrize("scattered", [[1, 3], [4, 0], [2], [3, 2, 1, 0]])
def test_each_message_is_there_once_whatever_lies_there(killed, scattered):
    killed.leave(b"".join(killed.parts[number] + OTHER for number in scattered))
    there = [body for number in scattered for body in (MESSAGES[number], b"other")]
    missing = [body for number, body in enumerate(MESSAGES) if number not in scattered]
    assert killed.seen(starts=2) == [BEFORE, *there, *missing]


def test_a_record_with_the_id_of_a_message_and_other_bytes_is_not_taken_for_it(killed):
    killed.leave(encode_record(b"ono", int.from_bytes(killed.block[8:16], "big"), 0))
    assert killed.seen() == [BEFORE, b"ono", *MESSAGES]


def test_a_part_in_a_segment_before_the_place_that_the_record_names(killed):
    """The record names the place that was foreseen; after a power cut the block may lie before it, segments ago."""
    foreseen, end = PLACE.to_bytes(8, "big"), PLACE + BLOCK
    data = killed.redo.read_bytes()
    assert data.count(foreseen) == 1
    killed.path.with_name(f"{end:020d}.meta").write_bytes(encode_record(b"later", -8, 0))
    killed.redo.write_bytes(data.replace(foreseen, end.to_bytes(8, "big")))
    assert killed.seen() == [BEFORE, *MESSAGES, b"later"]


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_part_is_continued_before_another_commit_is_appended_behind_it(tmp_path, topic):
    """The log's files are read one after another, so a commit of an older file may have come later."""
    first = [b"first", b"transaction"]
    killed = Killed(tmp_path, topic, first)
    killed.leave(b"".join(killed.parts[:2]) + b"torn")
    assert killed.seen(starts=2) == [BEFORE, *MESSAGES, *first]

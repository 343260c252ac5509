"""A committed block of which a part is in its partition when the broker starts: the part is continued, not repeated."""

import pytest

from metaq.broker.store.files import REAL_FILES
from metaq.protocol.record import HEADER_BYTES, encode_record
from tests.doubles.redo import read_redo
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import XID, Asker, tx, tx_put
from tests.unit.broker.transactions.killed import (
    BEFORE,
    BLOCK,
    MESSAGES,
    data_file,
    kill,
    killed_after_a_commit,
    records,
    started,
    stop,
)

OTHER_XID = "XID:100:0a0b:0d:host"


def leave(tmp_path, topic, data):
    """The partition has this behind its first message, and no index."""
    path = data_file(tmp_path, topic)
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + len(BEFORE)] + data)
    path.with_suffix(".index").unlink(missing_ok=True)


@pytest.mark.parametrize("topic", ["t", "safe"])
@pytest.mark.parametrize("left", range(0, BLOCK + 1, 3))
def test_what_is_there_of_a_block_is_continued(tmp_path, topic, left):
    block = killed_after_a_commit(tmp_path, topic)
    leave(tmp_path, topic, block[:left])
    for _ in range(2):
        seen, harness = started(tmp_path, topic)
        assert seen == [BEFORE, *MESSAGES]
        harness.store.close()  # as if killed: nothing is settled
    (location,) = read_redo(REAL_FILES, str(tmp_path / "data" / "transactions" / "redo.1")).entries[-1].locations
    assert (location.offset, location.size) == (HEADER_BYTES + len(BEFORE), BLOCK)


@pytest.mark.parametrize("kept", range(len(MESSAGES) + 1))
def test_what_is_missing_follows_at_the_end_if_others_lie_behind_the_part(tmp_path, kept):
    block = killed_after_a_commit(tmp_path, "t")
    part = b"".join(records(block)[:kept])
    leave(tmp_path, "t", part + encode_record(b"other", -7, 0))
    for _ in range(3):
        seen, harness = started(tmp_path, "t")
        assert seen == [BEFORE, *MESSAGES[:kept], b"other", *MESSAGES[kept:]]
        (harness.store.close if _ else lambda harness=harness: stop(harness))()
        (tmp_path / "data" / "transactions" / "metaq.json").unlink(missing_ok=True)


def test_a_block_that_an_earlier_broker_has_appended_again_is_left_as_it_is(tmp_path):
    block = killed_after_a_commit(tmp_path, "t")
    parts = records(block)
    leave(tmp_path, "t", b"".join(parts[:2]) + block)
    seen, harness = started(tmp_path, "t")
    assert seen == [BEFORE, *MESSAGES[:2], *MESSAGES]
    stop(harness)


@pytest.mark.parametrize("scattered", [[1, 3], [4, 0], [2], [3, 2, 1, 0]])
def test_each_message_is_there_once_whatever_lies_there(tmp_path, scattered):
    block = killed_after_a_commit(tmp_path, "t")
    parts = records(block)
    leave(tmp_path, "t", b"".join(parts[number] + encode_record(b"other", -7, 0) for number in scattered))
    for _ in range(2):
        seen, harness = started(tmp_path, "t")
        assert sorted(body for body in seen if body not in (BEFORE, b"other")) == sorted(MESSAGES)
        missing = [body for number, body in enumerate(MESSAGES) if number not in scattered]
        assert seen[1 + 2 * len(scattered) :] == missing
        harness.store.close()


def test_a_record_with_the_id_of_a_message_and_other_bytes_is_not_taken_for_it(tmp_path):
    block = killed_after_a_commit(tmp_path, "t")
    message_id = int.from_bytes(block[8:16], "big")
    leave(tmp_path, "t", encode_record(b"ono", message_id, 0))
    seen, harness = started(tmp_path, "t")
    assert seen == [BEFORE, b"ono", *MESSAGES]
    stop(harness)


def test_a_part_in_a_segment_before_the_place_that_the_record_names(tmp_path):
    """The record names the place that was foreseen; after a power cut the block may lie before it, segments ago."""
    killed_after_a_commit(tmp_path, "t")
    directory = tmp_path / "data" / "t-0"
    end = HEADER_BYTES + len(BEFORE) + BLOCK
    path = tmp_path / "data" / "transactions" / "redo.1"
    foreseen = (HEADER_BYTES + len(BEFORE)).to_bytes(8, "big")
    data = path.read_bytes()
    assert data.count(foreseen) == 1
    (directory / f"{end:020d}.meta").write_bytes(encode_record(b"later", -8, 0))
    at = data.index(foreseen)
    attachment = end.to_bytes(8, "big") + data[at + 8 :]
    path.write_bytes(_reattached(data[:at], attachment))
    seen, harness = started(tmp_path, "t")
    assert seen == [BEFORE, *MESSAGES, b"later"]
    stop(harness)


def _reattached(record, attachment):
    return record + attachment


@pytest.mark.parametrize("topic", ["t", "safe"])
def test_a_part_is_continued_before_another_commit_is_appended_behind_it(tmp_path, topic):
    """The log's files are read one after another, so a commit of an older file may have come later."""
    first = [b"first", b"transaction"]
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(put(topic, 0, BEFORE), *(tx(xid, "BEGIN") for xid in (XID, OTHER_XID)))
    ask.ok(*(tx_put(OTHER_XID, topic, 0, body) for body in first), tx(OTHER_XID, "COMMIT_ONE_PHASE"))
    ask.ok(*(tx_put(XID, topic, 0, body) for body in MESSAGES), tx(XID, "COMMIT_ONE_PHASE"))
    block = data_file(tmp_path, topic).read_bytes()[-BLOCK:]
    kill(tmp_path, files)
    leave(tmp_path, topic, b"".join(records(block)[:2]) + b"torn")
    for _ in range(2):
        seen, harness = started(tmp_path, topic)
        assert seen == [BEFORE, *MESSAGES, *first]
        harness.store.close()

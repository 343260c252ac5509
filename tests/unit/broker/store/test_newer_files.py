"""Files that a newer broker has written, in a version that this one does not know: nothing is guessed from them."""

import pytest

from metaq.broker.memory import sequence_rows
from metaq.broker.store import index, key_index
from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index import Checkpoint, pack_header, unpack_header
from metaq.broker.store.key_index import read_blocks
from metaq.protocol.errors import StoreError
from tests.unit.broker.store.test_key_index import Segment, record


def test_an_index_of_another_version_is_none(monkeypatch):
    checkpoint = Checkpoint(*range(1, len(Checkpoint._fields) + 1))
    assert unpack_header(pack_header(checkpoint)) == checkpoint
    monkeypatch.setattr(index, "_VERSION", 99)
    newer = pack_header(checkpoint)
    monkeypatch.undo()
    assert unpack_header(newer) is None


def test_a_key_file_of_another_version_has_no_blocks(tmp_path, monkeypatch):
    segment = Segment(tmp_path, [record(1, "a"), record(2, "b")])
    monkeypatch.setattr(key_index, "_VERSION", 99)
    block = segment.write(0, 2)
    assert read_blocks(REAL_FILES, segment.keys, segment.path, block.start, block.end) == (block,)
    monkeypatch.undo()
    assert read_blocks(REAL_FILES, segment.keys, segment.path, block.start, block.end) == ()


def test_rows_of_another_version_are_refused_with_who_wrote_them():
    body = sequence_rows._HEAD.pack(sequence_rows._VERSION + 1, 0)
    with pytest.raises(StoreError, match=r"a newer broker has written them"):
        sequence_rows._head(body)

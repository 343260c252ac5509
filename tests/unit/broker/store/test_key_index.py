"""The key file's format: every key is found, whatever the hashes; what is torn, foreign or stale is not believed."""

import os
from collections import defaultdict
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index import UnitArray
from metaq.broker.store.key_index import (
    Covered,
    Entries,
    KeyBlock,
    append_block,
    entries_around,
    positions_of,
    read_blocks,
    scan_keys,
)
from metaq.broker.store.scan import scan_bytes
from metaq.protocol import record as record_module
from metaq.protocol.limits import MAX_KEY_CHARACTERS
from metaq.protocol.record import (
    decode_attribute,
    encode_attributes,
    encode_body,
    encode_record,
    key_hash,
    key_hashes,
    keys_of_attribute,
    long_key_hashes,
)
from tests.doubles.store import FaultyFiles
from tests.doubles.store_harness import flip

FIRST = 1000
"""Where the segment of these tests begins in its partition."""


def record(number: int, *keys: str, payload: bytes = b"x") -> bytes:
    flag, attribute = encode_attributes(tag="t", keys=keys)
    return encode_record(encode_body(payload, flag, attribute), number, flag)


class Segment:
    """A data file of these records and its key file."""

    def __init__(self, directory: Path, records: list[bytes]) -> None:
        self.path, self.keys = str(directory / "d.meta"), str(directory / "d.keys")
        self.data = b"".join(records)
        Path(self.path).write_bytes(self.data)
        Path(self.keys).unlink(missing_ok=True)
        self.units: UnitArray = scan_bytes(self.data, FIRST).units
        self.fd = os.open(self.path, os.O_RDONLY)

    def entries(self, units: UnitArray) -> Entries:
        return scan_keys(REAL_FILES, self.fd, units, FIRST, lambda seconds: None)

    def write(self, start: int, stop: int, position: int = 0) -> KeyBlock:
        """A block of the records start … stop-1."""
        units = self.units[start:stop]
        ends = np.append(FIRST, self.units["offset"] + self.units["size"])
        covered = Covered(int(ends[start]), int(ends[stop]), units)
        return append_block(REAL_FILES, self.keys, self.fd, covered, self.entries(units), FIRST, position)

    def blocks(self) -> tuple[KeyBlock, ...]:
        return read_blocks(REAL_FILES, self.keys, self.path, FIRST, FIRST + os.path.getsize(self.path))

    def positions(self, block: KeyBlock, hashed: int, low: int = 0, high: int = 1 << 31) -> list[int]:
        with open(self.keys, "rb") as file:
            return positions_of(entries_around(REAL_FILES, file.fileno(), block, hashed), hashed, low, high)


@given(st.binary() | st.lists(st.sampled_from(["KEYS", "TAGS", "\x01", "\x02", "a b", " c", "XKEYS"])).map("".join))
@settings(max_examples=300)
def test_keys_are_those_that_a_decoded_attribute_has(attribute):
    raw = attribute.encode() if isinstance(attribute, str) else attribute
    keys = decode_attribute(raw, 3).keys
    assert tuple(chain.from_iterable(keys_of_attribute(raw))) == keys
    assert key_hashes(b"\x02KEYS\x01z\x02" + raw + b"x\x02", 8, 8 + len(raw)) == [key_hash(key) for key in keys]


@given(st.text("aé\u2003 \udcff", max_size=60), st.integers(1, 9))
def test_long_lists_of_keys_are_taken_apart_bit_by_bit(text, piece):
    raw = b"KEYS\x01" + text.encode("utf-8", "surrogateescape") + b"\x02"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_module, "_KEYS_PIECE_BYTES", piece)
        pieces = [*keys_of_attribute(raw)]
        hashes = [*long_key_hashes(b"." + raw, 1, 1 + len(raw))]
    keys = decode_attribute(raw, 3).keys
    assert tuple(chain.from_iterable(pieces)) == keys
    assert all(len(each) <= piece + 1 for each in pieces)
    assert {*chain.from_iterable(each.tolist() for each in hashes)} == {*map(key_hash, keys)}


def test_a_key_that_is_longer_than_any_that_is_searched_for_is_not_gathered():
    pieces = [*keys_of_attribute(b"KEYS\x01" + b"x" * 300_000 + b" y\x02")]
    longest, last = [len(key) for keys in pieces for key in keys]
    assert MAX_KEY_CHARACTERS < longest <= MAX_KEY_CHARACTERS + 1 + (16 << 10)
    assert last == 1


def test_a_record_with_millions_of_keys_is_scanned_with_pauses_and_found_once(tmp_path):
    segment = Segment(tmp_path, [record(1, *["k"] * 100_000, "last"), record(2, "k")])
    pauses: list[float] = []
    entries = scan_keys(REAL_FILES, segment.fd, segment.units, FIRST, pauses.append)
    assert len(pauses) == 13  # 16 KiB each
    assert len(entries) < 20
    block = segment.write(0, 2)
    places = (segment.units["offset"] - FIRST).tolist()
    assert segment.positions(block, key_hash("k")) == places
    assert segment.positions(block, key_hash("last")) == places[:1]


words = st.text("abcé\u2003x", min_size=1, max_size=3).filter(lambda word: not any(c.isspace() for c in word))


@given(st.lists(st.lists(words, max_size=4), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_key_of_every_record_is_found(tmp_path_factory, keys):
    segment = Segment(tmp_path_factory.mktemp("k"), [record(n + 1, *each) for n, each in enumerate(keys)])
    block = segment.write(0, len(keys))
    expected = defaultdict(set)
    for unit, each in zip(segment.units, keys, strict=True):
        for key in each:
            expected[key_hash(key)].add(int(unit["offset"]) - FIRST)
    for hashed, positions in expected.items():
        found = segment.positions(block, hashed)
        assert set(found) == positions
        assert found == sorted(found)
        middle = found[len(found) // 2]
        assert segment.positions(block, hashed, low=middle) == [each for each in found if each >= middle]
        assert segment.positions(block, hashed, high=middle) == [each for each in found if each < middle]
    os.close(segment.fd)


@given(st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 7, 2**32 - 1]), max_size=3000), st.randoms())
@settings(max_examples=40, deadline=None)
def test_any_distribution_of_hashes_is_searched_rightly(tmp_path_factory, hashes, random):
    hashes += [7] * 2000  # one key that half of the records have
    entries = np.array([hashed << 32 | place for place, hashed in enumerate(hashes)], np.uint64)
    path = tmp_path_factory.mktemp("h") / "file"
    path.write_bytes(np.sort(entries).tobytes())
    block = KeyBlock(0, 1, len(hashes), 0, 0, True, 0)
    with path.open("rb") as file:
        for hashed in {*hashes[:50], 0, 7, 8, 2**32 - 1}:
            found = positions_of(entries_around(REAL_FILES, file.fileno(), block, hashed), hashed, 0, 1 << 31)
            assert found == [n for n, each in enumerate(hashes) if each == hashed]


def test_the_entries_are_on_the_disk_before_the_header_that_vouches_for_them(tmp_path):
    class Watched(FaultyFiles):
        synced: bytes | None = None

        def pwritev(self, fd, buffers, position):
            if position == 0:
                self.synced = self.on_disk(segment.keys)
            return super().pwritev(fd, buffers, position)

    segment, files = Segment(tmp_path, [record(1, "a"), record(2, "b")]), Watched()
    covered = Covered(FIRST, FIRST + len(segment.data), segment.units)
    entries = segment.entries(segment.units)
    block = append_block(files, segment.keys, segment.fd, covered, entries, FIRST, 0)
    assert files.synced is not None
    assert files.synced[block.position :] == np.sort(entries).tobytes()


def test_a_file_that_lost_its_end_since_it_was_looked_at_is_no_answer(tmp_path):
    segment = Segment(tmp_path, [record(1, "a"), record(2, "b")])
    block = segment.write(0, 2)
    os.truncate(segment.keys, block.position + 12)
    with pytest.raises(OSError, match=r"the key file ends before byte"):
        segment.positions(block, key_hash("a"))


def test_a_record_beyond_the_window_is_looked_at_too(tmp_path):
    segment = Segment(tmp_path, [record(1, "a"), record(2, "big", payload=bytes(6 << 20)), record(3, "b", "c")])
    places = [
        (key, segment.units["offset"][number] - FIRST) for number, key in ((0, "a"), (1, "big"), (2, "b"), (2, "c"))
    ]
    found = sorted(segment.entries(segment.units).tolist())
    assert [entry & 0xFFFFFFFF for entry in found] == [
        at for _, at in sorted((key_hash(key), at) for key, at in places)
    ]


def test_blocks_are_read_back_as_they_were_written(tmp_path):
    segment = Segment(tmp_path, [record(n, f"k{n}") for n in (1, 2, 9, 4, 5)])
    first = segment.write(0, 3)
    second = segment.write(3, 5, first.next_position)
    assert segment.blocks() == (first, second)
    assert (first.start, second.end) == (FIRST, FIRST + len(segment.data))
    assert (first.lowest_id, first.highest_id, first.ascending) == (1, 9, True)
    assert (second.lowest_id, second.highest_id, second.ascending) == (4, 5, True)
    assert not segment.write(1, 4).ascending


OLD = [record(n, f"k{n}") for n in range(1, 5)]


@pytest.fixture
def blocks(tmp_path):
    """A segment of the records OLD and its first block; the second one is written, too."""
    segment = Segment(tmp_path, OLD)
    first = segment.write(0, 2)
    assert segment.write(2, 4, first.next_position).next_position == os.path.getsize(segment.keys) == 224
    return segment, first


@pytest.mark.parametrize("cut", [1, 8, 95, 96, 100, 104, 150, 200, 207])
def test_a_torn_block_is_not_there(blocks, cut):
    segment, first = blocks
    os.truncate(segment.keys, cut)
    assert segment.blocks() == ((first,) if cut >= first.next_position else ())


def test_a_damaged_header_ends_the_file(blocks):
    segment, first = blocks
    flip(Path(segment.keys), first.next_position + 20)
    assert segment.blocks() == (first,)


def test_a_block_for_records_that_another_broker_has_replaced_is_not_believed(blocks):
    segment, first = blocks
    Path(segment.path).write_bytes(b"".join(OLD[:3]) + record(77, "k9"))  # cut by one record, and written on
    assert segment.blocks() == (first,)
    Path(segment.path).write_bytes(OLD[0])
    assert segment.blocks() == ()


def test_a_key_file_that_was_deleted_is_not_begun_in_the_middle(blocks):
    segment, first = blocks
    os.unlink(segment.keys)
    with pytest.raises(FileNotFoundError):
        segment.write(2, 4, first.next_position)


def test_units_without_keys_make_a_block_without_entries(tmp_path):
    segment = Segment(tmp_path, [record(1), encode_record(b"plain", 2, 0)])
    block = segment.write(0, 2)
    assert block.entries == 0
    assert segment.blocks() == (block,)
    assert segment.positions(block, key_hash("a")) == []

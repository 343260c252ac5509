"""The next good record behind damaged bytes, and the header that is none."""

import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol import resync
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import blank_headers, encode_record, header_dtype, is_blank, iter_headers
from metaq.protocol.resync import RecordSearch, next_record


def found(data, start=0):
    return next_record(lambda size, position: data[position : position + size], start, len(data))


def test_behind_a_body_that_changed_the_record_comes_that_its_length_announces():
    inner = encode_record(b"a record in the body of another one", 3, 0)
    first = bytearray(encode_record(b"outer" + inner, 1, 0))
    first[20] ^= 1
    assert found(bytes(first) + encode_record(b"next", 2, 0)) == len(first)


@pytest.mark.parametrize("length", [0, -1, 5, 1 << 20, 1 << 30])
def test_behind_a_wrong_length_every_position_is_tried(length):
    first = bytearray(encode_record(os.urandom(300), 1, 0))
    first[:4] = length.to_bytes(4, "big", signed=True)
    assert found(bytes(first) + encode_record(b"next", 2, 0)) == len(first)


def test_a_good_record_between_two_damaged_ones_is_found():
    bad = bytearray(encode_record(random.Random(5).randbytes(9000), 1, 0))
    bad[1] ^= 0x40
    assert found(bytes(bad) + encode_record(b"x" * 5000, 2, 0) + bytes(bad)) == len(bad)


@pytest.mark.parametrize("empty", [1, 3])
def test_empty_records_count_only_where_the_damaged_one_announces_them(empty):
    bad = bytearray(encode_record(b"changed", 1, 0))
    bad[-1] ^= 1
    empties, good = encode_record(b"", 7 << 56, 0) * empty, encode_record(b"good", 8, 0)
    assert found(bytes(bad) + empties + good) == len(bad)
    assert found(bytes(bad) + empties) == len(bad)
    assert found(bytes(bad) + empties + b"\xff" * 30) is None
    bad[0] ^= 0x80
    assert found(bytes(bad) + empties + good) == len(bad + empties)


def test_zeros_and_what_is_cut_are_passed_or_end_the_search():
    good = encode_record(b"good", 8, 0)
    assert found(bytes(1000) + good) == 1000
    assert found(bytes(1000)) is None
    assert found(bytes(1000) + good[:-1]) is None


@given(junk=st.binary(min_size=1, max_size=300), window=st.integers(1, 400), block=st.integers(24, 400))
def test_what_is_found_does_not_depend_on_how_much_is_looked_at_together(junk, window, block):
    data = junk + b"".join(encode_record(b"%d" % number * number, number, 0) for number in range(1, 9))
    expected = found(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resync, "_WINDOW_BYTES", window)
        patch.setattr(resync, "_BLOCK_BYTES", block)
        patch.setattr(resync, "_MAX_BLOCKS", 2)
        patch.setattr(resync, "_SMALL_BYTES", 4)
        assert found(data) == expected


def test_a_search_that_costs_too_much_goes_on_with_small_records():
    like_lengths = (1000).to_bytes(4, "big") * 3000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resync, "_CRC_BYTES", 10_000)
        patch.setattr(resync, "_SMALL_BYTES", 100)
        assert found(like_lengths + encode_record(b"small", 1, 0)) == len(like_lengths)


def test_a_search_goes_on_step_by_step(monkeypatch):
    monkeypatch.setattr(resync, "_WINDOW_BYTES", 100)
    data = bytes(450) + encode_record(b"good", 8, 0)
    search = RecordSearch(lambda size, position: data[position : position + size], 0, len(data))
    steps = 1
    while not search.step():
        steps += 1
    assert (steps, search.found) == (5, 450)


def test_twenty_zero_bytes_are_no_stored_record_but_a_legal_one_on_its_way_to_a_broker():
    empty, stored = encode_record(b"", 0, 0), encode_record(b"", 7 << 56, 0)
    assert all(is_blank(*header) for header in ((0, 0, 0), (0, 0, 1), (0, 0, (1 << 56) - 1)))
    assert not any(is_blank(*header) for header in ((1, 0, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1 << 56)))
    assert [header.id for header in iter_headers(stored + stored)] == [7 << 56] * 2
    with pytest.raises(RemoteProtocolError, match="zero"):
        list(iter_headers(stored + empty))
    assert len(list(iter_headers(stored + empty, stored=False))) == 2
    headers = np.frombuffer(stored + empty + encode_record(b"", 0, 1), header_dtype())
    assert blank_headers(headers).tolist() == [False, True, True]

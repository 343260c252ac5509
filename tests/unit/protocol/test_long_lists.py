"""Property lists and tags of megabytes: looked through once, bit by bit, for what a broker wants to know."""

import zlib
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol import record
from metaq.protocol.delays import due_of
from metaq.protocol.half_messages import HalfTerms, half_of, is_half
from metaq.protocol.limits import MAX_FRAME_HEADER_BYTES
from metaq.protocol.previews import PREVIEW_KEYS, encode_preview

WAITING = 3 | record.DELAYED_FLAG
PADDING = b"a\x01b\x02" * 5000


ITEMS = st.lists(
    st.sampled_from(
        ["metaq.half", "metaq.due", "metaq.", "xmetaq.due", "TAGS", "\x01", "\x01", "\x02", "\x02", "a", "1", "é" * 9]
    ),
    max_size=40,
).map(lambda items: "".join(items).encode())


@given(ITEMS)
def test_a_list_without_the_properties_of_users_says_the_same_of_metaqs_own(attribute):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_PIECE_BYTES", 13)
        whole = record.own_list(attribute)
        patch.setattr(record, "LONG_LIST_BYTES", 60)
        own = record.own_list(attribute)
        for name in (b"metaq.half", b"metaq.due", b"metaq."):
            value = record.property_of(whole, name)
            assert record.property_of(own, name) == (None if value is None else value[: 60 - len(name) - 1])
        for flag in (1, 3):
            assert record.tag_of_attribute(attribute, flag) == record.decode_attribute(attribute, flag).tag


@pytest.mark.parametrize("place", ["front", "middle", "end"])
def test_what_a_broker_looks_for_may_stand_anywhere_in_a_long_list(place):
    front, end = {"front": (b"", PADDING), "middle": (PADDING, PADDING), "end": (PADDING, b"")}[place]
    delayed = record.encode_body(b"pay", WAITING, front + b"metaq.delay\x0160000\x02" + end)
    assert due_of(WAITING, delayed, 1_700_000_000_000) == 1_700_000_060_000
    own = record.own_body(delayed, WAITING)
    assert len(own) < 100
    assert due_of(WAITING, own, 1_700_000_000_000) == 1_700_000_060_000
    half = record.encode_body(b"pay", WAITING, front + b"metaq.half\x01bank\x02metaq.check-after\x015\x02" + end)
    assert is_half(WAITING, half)
    assert half_of(WAITING, half) == HalfTerms("bank", 5, "")


def test_so_many_properties_of_metaqs_own_are_looked_at():
    others = b"metaq.other\x01\x02"
    for count, found in ((record.MAX_OWN_PROPERTIES - 1, b"1"), (record.MAX_OWN_PROPERTIES, None)):
        attribute = PADDING + others * count + b"metaq.due\x011\x02"
        assert record.property_of(record.own_list(attribute), b"metaq.due") == found
    assert len(record.own_list(PADDING + b"metaq.due\x01" + b"1" * 1_000_000)) <= record.LONG_LIST_BYTES + 1


BYTES = st.lists(st.sampled_from([b"a", b"\x01", b"\x02", b"\xc3\xa9", b"\xc3", b"\xff"]), max_size=40).map(b"".join)


@given(BYTES, st.integers(1, 9))
def test_a_list_that_is_decoded_in_pieces_has_the_same_properties(attribute, piece):
    whole = record.decode_attribute(attribute, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_PIECE_BYTES", piece)
        assert record.decode_attribute(attribute, 3) == whole
        texts = [*record._texts_of(attribute)]
    assert "\x02".join(texts) == attribute.decode("utf-8", "replace")


def test_a_tag_is_hashed_without_being_decoded_if_it_is_ascii_or_longer_than_a_request_can_name():
    for tag in (b"a" * 100, "é".encode(), b"\xff\xfe", b"\x02TAGS"):
        assert record.tag_hash_of_attribute(tag, 1) == record.tag_hash(tag.decode("utf-8", "replace"))
        assert record.tag_hash_of_attribute(b"TAGS\x01" + tag, 3) == record.tag_hash(
            tag.split(b"\x02")[0].decode("utf-8", "replace")
        )
    assert record.tag_hash_of_attribute(None, 1) == record.tag_hash_of_attribute(b"a\x01b\x02", 3) == 0
    longest = b"\xff" * (MAX_FRAME_HEADER_BYTES + 1)
    assert record.tag_hash_of_attribute(longest, 1) == zlib.crc32(longest)


def test_a_preview_has_the_first_keys_of_millions():
    keys = b"KEYS\x01" + b" ".join(b"%d" % number for number in range(1_000_000)) + b"\x02"
    shown = encode_preview(3, record.encode_body(b"payload", 3, PADDING + keys))
    assert shown["keys"][:3] == ["0", "1", "2"]
    assert PREVIEW_KEYS - 3 <= sum(map(len, shown["keys"])) <= PREVIEW_KEYS
    assert b64decode(shown["payload"]) == b"payload"
    assert encode_preview(1, record.encode_body(b"", 1, b"KEYS\x01k"))["keys"] == []

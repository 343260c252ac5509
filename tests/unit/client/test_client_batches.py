"""Cutting payloads into batches."""

from hypothesis import given
from hypothesis import strategies as st

from metaq.client.batches import split_batches


def test_a_batch_ends_at_its_number_of_records():
    assert list(split_batches([b"a", b"b", b"c"], 2)) == [[b"a", b"b"], [b"c"]]


def test_a_batch_ends_before_it_would_be_too_large():
    assert list(split_batches([b"aaa", b"bb", b"c", b"dd"], 100, max_bytes=5)) == [[b"aaa", b"bb"], [b"c", b"dd"]]


def test_a_payload_above_the_limit_goes_alone():
    assert list(split_batches([b"a", b"xxxxxx", b"b"], 100, max_bytes=5)) == [[b"a"], [b"xxxxxx"], [b"b"]]


@given(st.lists(st.binary(max_size=10)), st.integers(1, 5), st.integers(1, 20))
def test_nothing_is_lost_or_moved_and_both_limits_hold(payloads, records, size):
    batches = list(split_batches(payloads, records, size))
    assert [payload for batch in batches for payload in batch] == payloads
    assert all(1 <= len(batch) <= records for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= size for batch in batches)

"""Admission control: what one micro-batch takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.records.results import TopicPartition
from metaq.spark_connector.offsets import admit, shares
from metaq.spark_connector.options import BatchLimits

SIZE = 10
"""Bytes of every message here."""


def place(number):
    return TopicPartition("t", 0, number)


def count(_, span):
    return (span[1] - span[0]) // SIZE


def after(_, offset, messages, max_bytes):
    return offset + SIZE * min(messages, max_bytes // SIZE)


def batch(limits, *spans, may_wait=True):
    ends = admit(limits, {place(number): span for number, span in enumerate(spans)}, count, after, may_wait=may_wait)
    return None if ends is None else [ends[place(number)] for number in range(len(spans))]


@pytest.mark.parametrize(
    ("limits", "spans", "ends"),
    [
        pytest.param({}, [(0, 100), (50, 50)], [100, 50], id="without limits"),
        pytest.param({"max_messages": 4}, [(0, 300), (100, 200), (70, 70)], [30, 110, 70], id="in proportion"),
        pytest.param({"max_bytes": 59}, [(0, 100), (0, 100)], [30, 20], id="bytes end at message boundaries"),
        pytest.param({"max_messages": 6, "max_bytes": 20}, [(0, 100), (0, 100)], [10, 10], id="both limits hold"),
        pytest.param({"max_bytes": 5}, [(0, 100), (0, 200)], [0, 10], id="a message larger than the limit goes alone"),
    ],
)
def test_a_batch_takes_what_its_limits_allow(limits, spans, ends):
    assert batch(BatchLimits(**limits), *spans) == ends


def test_a_minimum_waits_until_it_may_not():
    limits = BatchLimits(min_messages=11)
    assert batch(limits, (0, 100)) is None
    assert batch(limits, (0, 110)) == [110]
    assert batch(limits, (0, 100), may_wait=False) == [100]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(0, 200))
def test_shares_use_the_whole_limit_and_never_more_than_waits(sizes, limit):
    waiting = {place(number): size for number, size in enumerate(sizes)}
    found = shares(waiting, limit)
    assert sum(found.values()) == min(limit, sum(sizes))
    assert all(found[each] <= size for each, size in waiting.items())


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 400),
)
def test_a_batch_keeps_its_limits_and_always_goes_on(spans, max_messages, max_bytes):
    waiting = [(start * SIZE, (start + size) * SIZE) for start, size in spans]
    ends = batch(BatchLimits(max_messages=max_messages, max_bytes=max_bytes), *waiting)
    taken = sum(end - start for (start, _), end in zip(waiting, ends, strict=True))
    assert all(start <= end <= last for (start, last), end in zip(waiting, ends, strict=True))
    assert taken <= max(SIZE, min(max_bytes, max_messages * SIZE))
    assert taken > 0 or all(start == last for start, last in waiting)

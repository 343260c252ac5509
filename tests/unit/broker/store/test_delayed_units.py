"""The index units of delayed messages and of transactions are the same, packed one by one or made by columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.batch import packed_units, units_of
from metaq.broker.store.index import UNIT_DTYPE

ROWS = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(20, 2**31 - 1)), min_size=1, max_size=2 * tuning.FEW_PUTS
)


@given(ROWS, st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 2**45))
def test_few_units_are_packed_as_many(rows, offset, tag, now_ms):
    ids, sizes = zip(*rows, strict=True)
    expected = units_of(offset, np.array(ids, np.int64), np.array(sizes, np.int64), tag, now_ms).tobytes()
    assert packed_units(offset, ids, sizes, tag, now_ms) == expected
    assert packed_units(offset, ids, sizes, [tag] * len(ids), now_ms) == expected


@given(ROWS, st.data())
def test_each_unit_has_its_tag(rows, data):
    ids, sizes = zip(*rows, strict=True)
    tags = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(ids), max_size=len(ids)))
    units = np.frombuffer(packed_units(7, ids, sizes, tags, 5), UNIT_DTYPE)
    assert units["tag"].tolist() == tags
    assert units["offset"].tolist() == [7 + sum(sizes[:number]) for number in range(len(ids))]

"""The index units of delayed messages and of transactions are the same, packed one by one or made by columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.batch import packed_units, units_of

ROWS = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(20, 2**31 - 1)), min_size=1, max_size=2 * tuning.FEW_PUTS
)


@given(ROWS, st.integers(0, 2**40), st.integers(0, 2**45), st.data())
def test_few_units_are_packed_as_many(rows, offset, now_ms, data):
    ids, sizes = zip(*rows, strict=True)
    tag = st.integers(0, 2**32 - 1)
    one, each = data.draw(tag), data.draw(st.lists(tag, min_size=len(ids), max_size=len(ids)))
    units = units_of(offset, np.array(ids, np.int64), np.array(sizes, np.int64), one, now_ms)
    assert packed_units(offset, ids, sizes, one, now_ms) == units.tobytes()
    assert packed_units(offset, ids, sizes, [one] * len(ids), now_ms) == units.tobytes()
    assert units["offset"].tolist() == [offset + sum(sizes[:number]) for number in range(len(ids))]
    units["tag"] = each
    assert packed_units(offset, ids, sizes, each, now_ms) == units.tobytes()

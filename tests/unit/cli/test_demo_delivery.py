"""The checker of deliveries, with histories written by hand."""

import numpy as np
import pytest

from metaq.cli.demo.delivery import ROW, Delivery, check_delivery, read_history


def history(*rows):
    """Rows (time, sequence, offset, partition); broker 0."""
    return np.array([(time, sequence, offset, 0, partition) for time, sequence, offset, partition in rows], dtype=ROW)


def found(ok, sent, received, again=0, stored=0, lost=0, unexpected=0, disorder=0, first_lost=()):
    return ok, Delivery(sent, received, again, stored, lost, unexpected, disorder, list(first_lost))


RUNS = {
    "all once and in order": ([[(1, 0, 0, 0), (2, 2, 50, 0)], [(1, 1, 0, 1), (3, 3, 50, 1)]], found(True, 4, 4)),
    "one in no history": ([[(1, 0, 0, 0), (2, 2, 100, 0)]], found(False, 3, 2, lost=1, first_lost=[1])),
    "nothing at all": ([], found(False, 3, 0, lost=3, first_lost=[0, 1, 2])),
    "the same record twice, behind a crash": (
        [[(1, 0, 0, 0), (2, 1, 50, 0)], [(5, 1, 50, 0), (6, 2, 100, 0)]],
        found(True, 3, 4, again=1),
    ),
    "stored at two offsets": ([[(1, 0, 0, 0), (2, 0, 0, 1)]], found(True, 1, 2, stored=1)),
    "a repeated delivery hides no lost message": (
        [[(1, 0, 0, 0), (2, 0, 0, 0)]],
        found(False, 2, 2, again=1, lost=1, first_lost=[1]),
    ),
    "a number that was never sent": ([[(1, 0, 0, 0), (2, 7, 50, 0)]], found(False, 1, 2, unexpected=1)),
    "first deliveries that do not rise": (
        [[(1, 0, 0, 0), (2, 2, 100, 0), (3, 1, 50, 0)]],
        found(False, 3, 3, disorder=1),
    ),
    "going back after a rebalance": (
        [[(1, 0, 0, 0), (2, 1, 50, 0), (3, 0, 0, 0), (4, 1, 50, 0), (5, 2, 100, 0)]],
        found(True, 3, 5, again=2),
    ),
    "in order of time across consumers": ([[(9, 1, 50, 0)], [(1, 0, 0, 0)]], found(True, 2, 2)),
    "out of order of time across consumers": ([[(1, 1, 50, 0)], [(9, 0, 0, 0)]], found(False, 2, 2, disorder=1)),
    "partitions are independent": ([[(1, 0, 500, 0), (2, 1, 10, 1)]], found(True, 2, 2)),
}


@pytest.mark.parametrize(("histories", "expected"), RUNS.values(), ids=RUNS)
def test_deliveries_are_counted_and_judged(histories, expected):
    delivery = check_delivery(expected[1].sent, [history(*rows) for rows in histories])
    assert (delivery.ok, delivery) == expected
    assert delivery.duplicates == delivery.delivered_again + delivery.stored_again


def test_a_row_cut_by_a_crash_counts_as_not_received(tmp_path):
    rows = history((1, 0, 0, 0), (2, 1, 50, 0))
    (tmp_path / "a.rows").write_bytes(rows.tobytes()[:-5])
    assert read_history(tmp_path / "a.rows")["sequence"].tolist() == [0]

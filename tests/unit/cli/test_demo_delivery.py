"""The checker of deliveries, with histories written by hand."""

import numpy as np

from metaq.cli.demo.delivery import ROW, check_delivery, read_history


def history(*rows):
    """Rows (time, sequence, offset, partition); broker 0."""
    return np.array([(time, sequence, offset, 0, partition) for time, sequence, offset, partition in rows], dtype=ROW)


def test_everything_once_and_in_order_is_ok():
    found = check_delivery(4, [history((1, 0, 0, 0), (2, 2, 50, 0)), history((1, 1, 0, 1), (3, 3, 50, 1))])
    assert found.ok
    assert (found.received, found.duplicates, found.lost) == (4, 0, 0)


def test_a_message_in_no_history_is_lost():
    found = check_delivery(3, [history((1, 0, 0, 0), (2, 2, 100, 0))])
    assert not found.ok
    assert found.lost == 1
    assert found.first_lost == [1]


def test_nothing_received_at_all_is_everything_lost():
    found = check_delivery(3, [])
    assert (found.received, found.lost) == (0, 3)


def test_the_same_record_twice_is_a_duplicate_and_still_ok():
    before = history((1, 0, 0, 0), (2, 1, 50, 0))
    after_the_crash = history((5, 1, 50, 0), (6, 2, 100, 0))
    found = check_delivery(3, [before, after_the_crash])
    assert found.ok
    assert (found.delivered_again, found.stored_again, found.duplicates) == (1, 0, 1)


def test_a_message_stored_at_two_offsets_is_told_from_a_repeated_delivery():
    found = check_delivery(1, [history((1, 0, 0, 0), (2, 0, 0, 1))])
    assert found.ok
    assert (found.delivered_again, found.stored_again) == (0, 1)


def test_a_repeated_delivery_does_not_hide_a_lost_message():
    found = check_delivery(2, [history((1, 0, 0, 0), (2, 0, 0, 0))])
    assert (found.received, found.lost, found.duplicates) == (2, 1, 1)


def test_a_number_that_was_never_sent_is_unexpected():
    found = check_delivery(1, [history((1, 0, 0, 0), (2, 7, 50, 0))])
    assert not found.ok
    assert (found.unexpected, found.lost) == (1, 0)


def test_first_deliveries_of_one_partition_must_rise():
    found = check_delivery(3, [history((1, 0, 0, 0), (2, 2, 100, 0), (3, 1, 50, 0))])
    assert not found.ok
    assert found.out_of_order == 1


def test_going_back_after_a_rebalance_is_not_out_of_order():
    rows = history((1, 0, 0, 0), (2, 1, 50, 0), (3, 0, 0, 0), (4, 1, 50, 0), (5, 2, 100, 0))
    assert check_delivery(3, [rows]).out_of_order == 0


def test_order_is_that_of_time_across_consumers():
    late_owner, early_owner = history((9, 1, 50, 0)), history((1, 0, 0, 0))
    assert check_delivery(2, [late_owner, early_owner]).ok
    assert check_delivery(2, [history((1, 1, 50, 0)), history((9, 0, 0, 0))]).out_of_order == 1


def test_partitions_are_independent_of_each_other():
    assert check_delivery(2, [history((1, 0, 500, 0), (2, 1, 10, 1))]).ok


def test_a_row_cut_by_a_crash_counts_as_not_received(tmp_path):
    rows = history((1, 0, 0, 0), (2, 1, 50, 0))
    (tmp_path / "a.rows").write_bytes(rows.tobytes()[:-5])
    assert read_history(tmp_path / "a.rows")["sequence"].tolist() == [0]

"""Store times never decrease within a segment, so that a search by time skips nothing, whatever the clock does."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store.index import UNIT_DTYPE, UnitArray, order_times
from metaq.broker.store.scan import bound_java_times
from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import counter_at, message_id, store_time_ms
from metaq.protocol.record import encode_record
from tests.doubles.store_harness import NOW_MS, StoreHarness
from tests.raising import raising

RECORD = 25


def times(harness: StoreHarness) -> list[int]:
    return [int(each) for each in harness.log.lookup.units(0, 1 << 20)["time_ms"]]


def test_a_clock_that_steps_back_skips_nothing(harness):
    for time_ms in (1000, 5000, 2000, 3000, 6000):
        harness.append(b"12345", now_ms=time_ms)
    assert times(harness) == [1000, 5000, 5000, 5000, 6000]
    # a message of each time is at or behind the place found, whatever the clock said when it was stored
    places = {1000: 0, 2000: RECORD, 3000: RECORD, 5000: RECORD, 6000: 4 * RECORD, 6001: 5 * RECORD}
    assert {time_ms: harness.log.lookup.offset_at_time(time_ms) for time_ms in places} == places


@pytest.mark.parametrize("again", ["restart", "kill"])
def test_a_clock_behind_the_log_after_a_start(harness, again):
    harness.append(b"12345", now_ms=NOW_MS)
    getattr(harness, again)()
    harness.append(b"12345", b"12345", now_ms=NOW_MS - 3_600_000)
    assert times(harness) == [NOW_MS] * 3
    assert harness.log.lookup.offset_at_time(NOW_MS - 1) == 0


def test_a_clock_behind_a_directory_of_javas(harness):
    harness.append(b"12345")
    harness.store.close()
    harness.data_file().write_bytes(encode_record(b"java!", -5, 0) * 2)
    os.utime(harness.data_file(), (2000.0, 2000.0))
    harness.index_file().unlink()
    harness.open()
    harness.append(b"12345", now_ms=1_000_000)
    assert [abs(each) for each in times(harness)] == [2_000_000] * 3


def test_the_log_goes_on_if_its_last_unit_cannot_be_read(harness, monkeypatch, caplog):
    harness.append(b"12345")
    log = harness.restart()

    monkeypatch.setattr(type(log.segments[0].index), "unit", raising(StoreError("the index cannot be read")))
    harness.log.append(*_packed(harness))
    assert "the index cannot be read" in caplog.text


def _packed(harness: StoreHarness) -> tuple[list[bytes], bytes]:
    units = np.zeros(1, UNIT_DTYPE)
    units["offset"], units["size"] = harness.log.end_offset, RECORD
    return [encode_record(b"12345", 7, 0)], units.tobytes()


def units_of(*pairs: tuple[int, int]) -> UnitArray:
    units = np.zeros(len(pairs), UNIT_DTYPE)
    units["id"], units["time_ms"] = zip(*pairs, strict=True)
    return units


OWN, FOREIGN = message_id(counter_at(NOW_MS), 0), (1 << 63) - 1


@pytest.mark.parametrize(
    ("ids_and_times", "of_file", "bounded"),
    [
        pytest.param([(0, 0), (0, 500), (0, 0), (0, 0)], 900, [-500, 500, -900, -900], id="by ours behind them"),
        pytest.param([(10, 500), (9, 300), (-5, 0), (11, 400)], 900, [500, 500, -500, 500], id="not before the ids"),
        pytest.param(
            [(10, 500), (FOREIGN, store_time_ms(FOREIGN)), (11, 600)], 900, [500, -600, 600], id="beyond all clocks"
        ),
        pytest.param([(OWN, NOW_MS)], -1, [NOW_MS], id="our own beside a file without a date"),
    ],
)
def test_times_of_java_records_are_bounded_by_ours_and_by_their_file(ids_and_times, of_file, bounded):
    assert store_time_ms(OWN) == NOW_MS
    units = units_of(*ids_and_times)
    bound_java_times(units, of_file)
    assert units["time_ms"].tolist() == bounded


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1), st.integers(0, 10**15))
def test_ordered_times_never_decrease_and_are_never_earlier(stamped, floor):
    units = units_of(*((0, each) for each in stamped))
    order_times(units, floor)
    found = np.abs(units["time_ms"])
    assert (np.diff(found) >= 0).all()
    assert (found >= np.abs(stamped)).all()
    assert int(found[0]) == max(floor, abs(stamped[0]))
    assert all(int(now) < 0 for now, before in zip(units["time_ms"], stamped, strict=True) if before < 0)

"""The table of delayed messages beside a dictionary, through random changes; and what it costs."""

import numpy as np
import pytest

from metaq.broker.delays import waiting_table as module
from metaq.broker.delays.waiting_table import NOWHERE, WaitingTable


@pytest.fixture(params=[(8, 16, 4), (4096, 1 << 14, 512)], ids=["small leaves", "as it is"])
def table(request, monkeypatch):
    for name, value in zip(("_LEAF", "_RECENT", "_UNSORTED"), request.param, strict=True):
        monkeypatch.setattr(module, name, value)
    return WaitingTable()


def array(numbers):
    return np.array(list(numbers), np.int64)


@pytest.mark.parametrize("spread", [1 << 50, 3000])
def test_it_says_what_a_dictionary_would_say(table, spread):
    rng = np.random.default_rng(spread)
    known: dict[int, int] = {}
    for _ in range(40):
        ids = array(each for each in np.unique(rng.integers(1, spread, 60)).tolist() if each not in known)
        rng.shuffle(ids)
        offsets = rng.integers(0, 1 << 40, len(ids))
        table.insert(ids, offsets)
        known.update(zip(ids.tolist(), offsets.tolist(), strict=True))
        asked = np.append(rng.choice(list(known), min(len(known), 40), replace=False), [spread + 1, spread + 2])
        assert table.find(asked).tolist() == [known.get(each, NOWHERE) for each in asked.tolist()]
        gone, moved = asked[:15], asked[15:25]
        assert table.remove(gone).tolist() == [known.pop(each) for each in gone.tolist()]
        assert table.remove(gone).tolist() == [NOWHERE] * len(gone)
        assert table.move(moved, moved + 7).tolist() == [known.get(each, NOWHERE) for each in moved.tolist()]
        known.update((each, each + 7) for each in moved.tolist() if each in known)
        ordered = sorted(known)
        assert (len(table), table.first) == (len(known), ordered[0])
        middle = ordered[len(ordered) // 3]
        for most in (7, 10_000):
            first, places = table.until(middle, most)
            assert first.tolist() == ordered[: len(ordered) // 3][:most]
            assert places.tolist() == [known[each] for each in first.tolist()]
            behind, _ = table.after(middle, most)
            assert behind.tolist() == ordered[len(ordered) // 3 + 1 :][:most]
        low = [each for ids, _ in table.lying_before(1 << 39) for each in ids.tolist()]
        assert sorted(low) == sorted(each for each, offset in known.items() if offset < 1 << 39)


def test_it_can_be_emptied_from_the_front_and_filled_again(table):
    ids = array(range(1, 500))
    for _ in range(3):
        table.insert(ids[::-1].copy(), ids[::-1] * 10)
        taken = []
        while table.first is not None:
            first, offsets = table.until(1 << 62, 37)
            assert table.remove(first).tolist() == offsets.tolist()
            taken += first.tolist()
        assert taken == ids.tolist()
    table.insert(ids, ids)
    table.clear()
    assert (len(table), table.first) == (0, None)
    assert table.until(1 << 62, 10)[0].tolist() == []


def test_a_leaf_is_never_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(module, "_LEAF", 16)
    monkeypatch.setattr(module, "_RECENT", 32)
    monkeypatch.setattr(module, "_UNSORTED", 4)
    table = WaitingTable()
    rng = np.random.default_rng(1)
    for start in range(0, 5000, 100):
        table.insert(rng.permutation(array(range(start, start + 100))) * 1000 + 1, array(range(100)))
    assert len(table._leaves) > 200
    assert max(len(leaf) for leaf in table._leaves) <= 16
    assert len(table) == 5000

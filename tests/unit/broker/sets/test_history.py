from pathlib import Path

import pytest

from metaq.broker.sets import history
from metaq.broker.sets.history import EpochHistory, NodeFile
from metaq.broker.store.files import REAL_FILES
from metaq.protocol.errors import StoreError


def test_an_epoch_ends_where_the_next_one_began() -> None:
    found = EpochHistory().begin(1, {"t-0": 0}).begin(2, {"t-0": 100, "t-1": 50}).begin(5, {"t-0": 100, "t-1": 80})
    now = {"t-0": 130, "t-1": 80, "t-2": 10}
    assert found.epochs == [1, 2, 5]
    assert found.ends_of(1, now) == {"t-0": 100, "t-1": 50, "t-2": 0}
    assert found.ends_of(2, now) == {"t-0": 100, "t-1": 80, "t-2": 0}
    assert found.ends_of(5, now) == now


def test_a_node_that_has_lost_its_end_does_not_claim_it() -> None:
    """Epoch 3 began at 70, because a power cut took what epoch 2 is said to have had up to 100."""
    found = EpochHistory().begin(1, {}).begin(2, {"t-0": 100}).begin(3, {"t-0": 70})
    assert found.ends_of(1, {"t-0": 200}) == {"t-0": 70}


def test_what_has_not_changed_costs_nothing() -> None:
    found = EpochHistory().begin(1, {"t-0": 10, "t-1": 20}).begin(2, {"t-0": 10, "t-1": 25}).begin(3, {"t-0": 10})
    assert found.to_json() == [[1, {"t-0": 10, "t-1": 20}], [2, {"t-1": 25}], [3, {"t-1": 0}]]
    assert EpochHistory.from_json(found.to_json()).changes == found.changes


def test_old_epochs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_EPOCHS", 3)
    found = EpochHistory()
    for epoch in range(1, 7):
        found = found.begin(epoch, {"t-0": 10 * epoch, "t-1": 5})
    assert found.epochs == [4, 5, 6]
    assert found.ends_of(4, {"t-0": 99, "t-1": 5}) == {"t-0": 50, "t-1": 5}


@pytest.mark.parametrize("value", [None, {}, [[1]], [[1, {}], [1, {}]], [["1", {}]], [[1, {"t-0": -1}]], [[1, []]]])
def test_what_is_no_history_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        EpochHistory.from_json(value)


def test_a_node_finds_what_it_wrote(tmp_path: Path) -> None:
    file = NodeFile(REAL_FILES, str(tmp_path))
    file.read()  # nothing yet
    file.write(3, EpochHistory().begin(3, {"t-0": 7}))
    again = NodeFile(REAL_FILES, str(tmp_path))
    again.read()
    assert (again.instance, again.epoch, again.history.changes) == (file.instance, 3, file.history.changes)
    assert NodeFile(REAL_FILES, str(tmp_path)).instance != file.instance


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", None])
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path, damage: bytes | None) -> None:
    file = NodeFile(REAL_FILES, str(tmp_path))
    file.write(3, EpochHistory().begin(3, {"t-0": 7}))
    path = Path(file.path)
    path.write_bytes(path.read_bytes().replace(b"7", b"8") if damage is None else damage)
    with pytest.raises(StoreError, match=r"damaged .* move the node's data directories away"):
        NodeFile(REAL_FILES, str(tmp_path)).read()

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.sets import history
from metaq.broker.sets.history import EpochHistory, NodeFile
from metaq.broker.sets.rules import common_epoch
from metaq.broker.store.files import REAL_FILES, Files
from metaq.protocol.errors import StoreError
from tests.doubles.store import FaultyFiles


def test_an_epoch_ends_where_the_next_one_began() -> None:
    found = EpochHistory().begin(1, {"t-0": 0}).begin(2, {"t-0": 100, "t-1": 50}).begin(5, {"t-0": 100, "t-1": 80})
    now = {"t-0": 130, "t-1": 80, "t-2": 10}
    assert [number for number, _ in found.epochs] == [1, 2, 5]
    first, second, last = found.epochs
    assert found.ends_of(first, now) == {"t-0": 100, "t-1": 50, "t-2": 0}
    assert found.ends_of(second, now) == {"t-0": 100, "t-1": 80, "t-2": 0}
    assert found.ends_of(last, now) == now


def test_a_node_that_has_lost_its_end_does_not_claim_it() -> None:
    """Epoch 3 began at 70, because a power cut took what epoch 2 is said to have had up to 100."""
    found = EpochHistory().begin(1, {}).begin(2, {"t-0": 100}).begin(3, {"t-0": 70})
    assert found.ends_of(found.epochs[0], {"t-0": 200}) == {"t-0": 70}


def test_what_has_not_changed_costs_nothing() -> None:
    found = EpochHistory().begin(1, {"t-0": 10, "t-1": 20}).begin(2, {"t-0": 10, "t-1": 25}).begin(3, {"t-0": 10})
    assert [[epoch, ends] for epoch, _, ends in found.to_json()] == [
        [1, {"t-0": 10, "t-1": 20}],
        [2, {"t-1": 25}],
        [3, {"t-1": 0}],
    ]
    assert EpochHistory.from_json(found.to_json()).changes == found.changes


def test_old_epochs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_EPOCHS", 3)
    found = EpochHistory()
    for epoch in range(1, 7):
        found = found.begin(epoch, {"t-0": 10 * epoch, "t-1": 5})
    assert [number for number, _ in found.epochs] == [4, 5, 6]
    assert found.ends_of(found.epochs[0], {"t-0": 99, "t-1": 5}) == {"t-0": 50, "t-1": 5}


def test_the_ends_that_are_kept_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_ENDS", 10)
    found = EpochHistory()
    for epoch in range(1, 7):
        found = found.begin(epoch, {f"t-{number}": 10 * epoch for number in range(4)})
    assert [number for number, _ in found.epochs] == [5, 6]
    found = found.begin(7, {f"t-{number}": 70 for number in range(40)})
    assert [number for number, _ in found.epochs] == [7], "the newest one is always kept"
    assert found.ends_of(found.epochs[0], {"t-0": 99}) == {"t-0": 99}


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3),
)
def test_an_epoch_ends_where_a_later_one_began_with_least(begun: list[dict[str, int]], now: dict[str, int]) -> None:
    found = EpochHistory()
    for number, ends in enumerate(begun, start=1):
        found = found.begin(number, ends)
    for number, epoch in enumerate(found.epochs):
        later = begun[number + 1 :]
        assert found.ends_of(epoch, now) == {
            name: min([end, *(ends.get(name, 0) for ends in later)]) for name, end in now.items()
        }
        again = found.up_to(epoch).followed_by(EpochHistory.from_json(found.behind(epoch).to_json()))
        assert again.changes == found.changes


def test_only_later_epochs_follow() -> None:
    found = EpochHistory().begin(1, {}).begin(2, {})
    with pytest.raises(ValueError, match="epoch 2 behind 2"):
        found.followed_by(found.behind(found.epochs[0]))


LISTS = [[[1]], [[1, {}]], [[1, "x", {}], [1, "y", {}]], [["1", "x", {}]], [[1, 2, {}]]]


@pytest.mark.parametrize("value", [None, {}, *LISTS, [[1, "x", {"t-0": -1}]], [[1, "x", []]]])
def test_what_is_no_history_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        EpochHistory.from_json(value)


def read(directory: Path) -> NodeFile:
    file = NodeFile(REAL_FILES, str(directory))
    file.read()
    return file


def written(directory: Path, files: Files = REAL_FILES) -> NodeFile:
    """Of a node in its third epoch."""
    directory.mkdir()
    file = NodeFile(files, str(directory))
    file.read()  # nothing yet
    file.write(3, EpochHistory().begin(3, {"t-0": 7}), {"t-0": 7})
    return file


def test_a_node_finds_what_it_wrote(tmp_path: Path) -> None:
    directory = tmp_path / "meta"
    file, again = written(directory), read(directory)
    assert (again.instance, again.epoch, again.history.changes) == (file.instance, 3, file.history.changes)
    assert NodeFile(REAL_FILES, str(directory)).instance != file.instance


def test_a_power_cut_does_not_take_the_first_epoch_that_a_node_has_told(tmp_path: Path) -> None:
    files = FaultyFiles()
    file = written(tmp_path / "meta", files)
    files.lose_power()
    again = read(tmp_path / "meta")
    assert (again.instance, again.epoch) == (file.instance, 3)


def test_epochs_of_one_number_are_told_apart() -> None:
    """Those of a set whose state was lost, and of the one that began in its place."""
    one, other = EpochHistory().begin(1, {}), EpochHistory().begin(1, {})
    assert common_epoch(one.epochs, one.begin(2, {}).epochs) == one.epochs[0]
    assert common_epoch(one.epochs, other.epochs) is None


def test_an_epoch_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="epoch 3 behind 3"):
        EpochHistory().begin(3, {}).begin(3, {})


def test_a_copy_of_a_directory_is_another_instance(tmp_path: Path) -> None:
    file = written(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    copy, moved = read(tmp_path / "b"), read(tmp_path / "moved")
    assert copy.copied
    assert copy.instance != file.instance
    assert copy.history.epochs == file.history.epochs  # it says what the data have
    assert (moved.copied, moved.instance) == (False, file.instance)
    copy.remember({})
    again = read(tmp_path / "b")
    assert (again.copied, again.instance) == (False, copy.instance)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", None])
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path, damage: bytes | None) -> None:
    path = Path(written(tmp_path / "a").path)
    path.write_bytes(path.read_bytes().replace(b"7", b"8") if damage is None else damage)
    with pytest.raises(StoreError, match=r"damaged .* move the node's data directories away"):
        read(tmp_path / "a")

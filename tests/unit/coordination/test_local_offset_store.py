"""The file of broadcast consumers' offsets (storage.md §8)."""

import json
import os
from pathlib import Path

import pytest

from metaq.coordination.offsets.offset_store import LocalOffsetStore, Offset
from metaq.protocol.errors import CoordinationError
from tests.raising import raising

JAVA_FILE = (
    '{"g-172-17-0-1":[{"offset":44,"topic":"orders","partition":{"partition":0,"brokerId":0},"modified":true,'
    '"messageId":-1},{"offset":31,"topic":"orders","partition":{"partition":10,"brokerId":2},"modified":true,'
    '"messageId":7}],"other":[{"offset":1,"topic":"x","partition":{"partition":0,"brokerId":0},"modified":true,'
    '"messageId":-1}]}'
)
GROUP = "g-172-17-0-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".meta_offsets"


def test_a_file_written_by_java_is_read(path: Path):
    path.write_text(JAVA_FILE)
    store = LocalOffsetStore(path)
    assert store.load(GROUP, "orders", "0-0") == Offset(-1, 44)
    assert store.load_many(GROUP, [("orders", "2-10"), ("orders", "2-1")]) == [Offset(7, 31), None]


def test_a_commit_writes_the_entry_that_java_reads(path: Path):
    LocalOffsetStore(path).commit("g", {("orders", "0-3"): Offset(-5, 44)}, fence=1)
    assert json.loads(path.read_text()) == {
        "g": [
            {
                "offset": 44,
                "topic": "orders",
                "partition": {"partition": 3, "brokerId": 0},
                "modified": True,
                "messageId": -5,
            }
        ]
    }


def test_a_commit_changes_its_own_entries_only(path: Path):
    path.write_text(JAVA_FILE)
    LocalOffsetStore(path).commit(GROUP, {("orders", "0-0"): Offset(9, 100)}, None)
    again = LocalOffsetStore(path)
    assert again.load(GROUP, "orders", "0-0") == Offset(9, 100)
    assert again.load(GROUP, "orders", "2-10") == Offset(7, 31)
    assert again.load("other", "x", "0-0") == Offset(-1, 1)


def test_two_stores_on_one_file_keep_each_others_groups(path: Path):
    first, second = LocalOffsetStore(path), LocalOffsetStore(path)
    first.commit("a", {("t", "0-0"): Offset(1, 10)}, None)
    second.commit("b", {("t", "0-0"): Offset(2, 20)}, None)
    first.commit("a", {("t", "0-0"): Offset(3, 30)}, None)
    assert first.load("b", "t", "0-0") == Offset(2, 20)
    assert second.load("a", "t", "0-0") == Offset(3, 30)


@pytest.mark.parametrize("content", [None, "", " \n", "{}"])
def test_without_a_file_or_with_an_empty_one_there_are_no_offsets(path: Path, content: str | None):
    if content is not None:
        path.write_text(content)
    assert LocalOffsetStore(path).load("g", "t", "0-0") is None


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"g":[{"offset":1}]}', '{"g":[1]}', '{"g":[{"offset":"x","topic":"t",']
)
def test_a_damaged_file_is_reported_and_left_as_it_is(path: Path, content: str):
    path.write_text(content)
    store = LocalOffsetStore(path)
    with pytest.raises(CoordinationError, match=str(path)):
        store.load("g", "t", "0-0")
    with pytest.raises(CoordinationError, match=str(path)):
        store.commit("g", {("t", "0-0"): Offset(1, 2)}, None)
    assert path.read_text() == content


def test_an_unwritable_place_is_reported_with_the_path(tmp_path: Path):
    path = tmp_path / "missing" / "offsets"
    with pytest.raises(CoordinationError, match=f"{path}.*choose a writable path"):
        LocalOffsetStore(path).commit("g", {("t", "0-0"): Offset(1, 2)}, None)


def test_a_failed_rename_keeps_the_old_offsets(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalOffsetStore(path)
    store.commit("g", {("t", "0-0"): Offset(1, 2)}, None)

    monkeypatch.setattr(Path, "replace", raising(OSError(28, "No space left on device")))
    with pytest.raises(CoordinationError, match="No space left"):
        store.commit("g", {("t", "0-0"): Offset(3, 4)}, None)
    assert store.load("g", "t", "0-0") == Offset(1, 2)


def test_an_empty_commit_writes_nothing(path: Path):
    LocalOffsetStore(path).commit("g", {}, None)
    assert not path.exists()


def test_the_new_offsets_are_on_the_disk_before_they_take_the_place_of_the_old_ones(path, monkeypatch):
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def synced(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").resolve().read_text())
        fsync(fd)

    def replaced(self: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    LocalOffsetStore(path).commit("g", {("orders", "0-3"): Offset(-5, 44)}, fence=1)
    assert done == [path.read_text(), "replaced"]

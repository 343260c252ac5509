"""A follower's copy of the transaction log: what it does with its leader's changes, with copies, and when it dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from metaq.broker.sets.transaction_mirror import BEGIN, END, NAME_PREFIX, SAME, WRITTEN, TransactionMirror
from metaq.broker.store.files import REAL_FILES, Files
from metaq.broker.transactions.changes import REMOVED, REPLACED
from metaq.protocol.errors import DiskFull, MetaqError, RemoteProtocolError, StoreError
from metaq.protocol.replication_stream import Lane, StreamEntry
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Threads
from tests.unit.broker.transactions.dying import Died, DyingFiles


def entry(kind: int, name: str = "", data: bytes = b"", position: int = 0) -> StreamEntry:
    return StreamEntry(NAME_PREFIX + name.encode(), position, kind, Lane.DISK, b"", [data])


def written(name: str, data: bytes, position: int = 0) -> StreamEntry:
    return entry(WRITTEN, name, data, position)


def copy(**files: bytes) -> list[StreamEntry]:
    """Of a folder with these files; redo_1 is redo.1."""
    named = {name.replace("_", "."): data for name, data in files.items()}
    return [entry(BEGIN), *(written(name, data) for name, data in named.items()), entry(END)]


class Node:
    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        self.folder = directory / "transactions"
        self.threads = Threads()
        self.told: list[MetaqError | None] = []
        directory.mkdir(exist_ok=True)
        self.mirror = TransactionMirror(files, str(self.folder), lambda: [str(directory)], self.threads)

    def ready(self) -> None:
        ready = self.mirror.ready()
        self.threads.run()
        assert ready.called
        assert ready.result is None

    def take(self, entries: Sequence[StreamEntry]) -> None:
        for each in entries:
            self.mirror.take(each)

    def safe(self) -> MetaqError | None:
        """Wait until everything is on the disk, or what keeps it from there."""
        self.mirror.when_safe(self.told.append)
        self.threads.run()
        return self.told[-1]

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()} if self.folder.is_dir() else {}

    def follow(self, **files: bytes) -> None:
        """Join a leader that has these."""
        self.ready()
        self.take(copy(**files))
        assert self.safe() is None


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def node(tmp_path: Path, files: FaultyFiles) -> Node:
    return Node(tmp_path / "node", files)


def test_bytes_are_in_the_file_at_once_and_safe_when_a_worker_has_synced_them(node: Node) -> None:
    node.follow()
    node.take([written("redo.1", b"first"), written("redo.1", b"second", 5), written("redo.1", b"F", 0)])
    assert node.files() == {"redo.1": b"Firstsecond"}
    node.mirror.when_safe(node.told.append)
    assert node.told == [None]  # of the copy
    node.threads.run()
    assert node.told == [None, None]


def test_files_are_replaced_and_removed_behind_what_came_before(node: Node) -> None:
    node.follow()
    node.take([written("redo.1", b"1"), entry(REPLACED - 1, "metaq.json", b"{}"), entry(REMOVED - 1, "redo.1")])
    node.take([written("redo.2", b"2"), entry(REPLACED - 1, "metaq.json", b"{ }"), entry(REMOVED - 1, "checkpoint.1")])
    assert node.safe() is None
    assert node.files() == {"redo.2": b"2", "metaq.json": b"{ }"}


@pytest.mark.parametrize("name", ["../x", "redo.1/x", "heuristic.log", "damaged-redo.1-5", "", "redo.", "redo.x"])
def test_other_files_are_refused(node: Node, name: str) -> None:
    node.follow()
    with pytest.raises(RemoteProtocolError, match="no file of the transaction log"):
        node.mirror.take(written(name, b"x"))


def test_a_copy_takes_the_place_of_the_old_folder_when_it_is_complete(node: Node) -> None:
    node.follow(redo_1=b"old", metaq_json=b"{}")
    (node.folder / "heuristic.log").write_bytes(b"this node's own")
    node.ready()
    *begun, end = copy(redo_2=b"new", checkpoint_3=b"c")
    node.take(begun)
    assert node.files()["redo.1"] == b"old"
    node.take([end])
    node.take([written("redo.2", b"er", 3), written("redo.3", b"later")])  # while the old one still has its place
    assert node.files()["redo.1"] == b"old"
    assert node.safe() is None
    own = {"heuristic.log": b"this node's own"}
    assert node.files() == {"redo.2": b"newer", "redo.3": b"later", "checkpoint.3": b"c"} | own
    assert [path.name for path in node.folder.parent.iterdir()] == ["transactions"]


def test_what_follows_a_copy_is_safe_only_when_the_copy_is(node: Node) -> None:
    node.follow(redo_1=b"old")
    node.ready()
    node.take(copy(redo_1=b"old"))
    node.take([written("redo.1", b"+", 3)])
    node.mirror.when_safe(node.told.append)
    function, done = node.threads.waiting.pop(0)
    done(function())  # the exchange
    assert node.files() == {"redo.1": b"old+"}
    assert node.told == [None]  # of the first copy
    node.threads.run()
    assert node.told == [None, None]


@pytest.mark.parametrize(
    ("ours", "theirs", "kept"),
    [
        (b"common, and a tail", b"common", {"damaged-redo.1-6": b", and a tail"}),
        (b"common, and ours", b"common, and theirs", {"damaged-redo.1-12": b"ours"}),
        (b"common", b"common, and more", {}),
        (b"same", b"same", {}),
        (b"x" * (3 << 20) + b"a", b"x" * (3 << 20) + b"b", {f"damaged-redo.1-{3 << 20}": b"a"}),
    ],
)
def test_what_the_leader_does_not_have_is_kept(node: Node, ours: bytes, theirs: bytes, kept: dict[str, bytes]) -> None:
    node.follow(redo_1=ours, redo_2=b"gone")
    for _ in range(2):
        node.follow(redo_1=theirs)
        assert node.files() == {"redo.1": theirs, **kept}


def test_a_copy_without_its_end_is_forgotten(node: Node) -> None:
    node.follow(redo_1=b"old")
    node.ready()
    node.take(copy(redo_1=b"new", redo_2=b"new")[:-1])
    node.ready()
    assert node.files() == {"redo.1": b"old"}
    node.follow(redo_1=b"newest")
    assert node.files() == {"redo.1": b"newest", "damaged-redo.1-0": b"old"}


def test_a_node_that_dies_at_any_change_has_the_old_log_or_the_new_one(tmp_path: Path) -> None:
    """What it has acknowledged as safe is there in any case."""
    old = {"redo.1": b"old, with a tail", "metaq.json": b"{}"}
    new = {"redo.1": b"old", "redo.2": b"new", "checkpoint.1": b"c"}
    seen = set()
    for number in range(1, 100):
        directory = tmp_path / str(number)
        before = Node(directory)
        before.follow(**old)
        (before.folder / "damaged-redo.0-0").write_bytes(b"own")
        files = DyingFiles()
        dying = Node(directory, files)
        dying.ready()
        files.fail_at = files.changes + number
        with suppress(Died):
            dying.take(copy(**new))
            dying.safe()
        after = Node(directory)
        after.ready()
        found = after.files()
        assert found.pop("damaged-redo.0-0") == b"own"
        kept = found.pop("damaged-redo.1-3", None)
        assert found in (old, new)
        assert (kept is not None) == (found == new)
        assert [path.name for path in directory.iterdir()] == ["transactions"]
        seen.add(found == new)
        if dying.told:
            assert (dying.told, found) == ([None], new)
            break
    else:
        pytest.fail("it never ended")
    assert seen == {False, True}


def fail_sync(node: Node, files: FaultyFiles) -> None:
    node.take([written("redo.1", b"x", 3)])
    files.fail_at = files.changes + 1


def fail_write(node: Node, files: FaultyFiles) -> None:
    files.fail_at = files.changes + 1
    with pytest.raises(StoreError, match="cannot be written"):
        node.take([written("redo.1", b"x", 3)])


def fail_exchange(node: Node, files: FaultyFiles) -> None:
    node.ready()
    node.take(copy(redo_1=b"new"))
    files.fail_at = files.changes + 3


def fail_sync_of_a_copy(node: Node, files: FaultyFiles) -> None:
    """The sync of a file system does not tell of bytes that the disk did not take: those of its files do."""
    node.ready()
    files.fail("fdatasync")
    node.take(copy(redo_1=b"old, and new"))  # there is no tail to be kept, which would be synced, too


def fail_sync_of_the_same(node: Node, files: FaultyFiles) -> None:
    node.ready()
    files.fail("fdatasync")
    node.take([entry(SAME)])


def fail_writing_back(node: Node, files: FaultyFiles) -> None:
    """Which leaves the failure to the sync that counts."""
    syncs, descriptors = files.calls["sync_filesystem"], files.open_descriptors
    node.mirror.write_back()
    assert (files.calls["sync_filesystem"], files.open_descriptors) == (syncs + 1, descriptors)
    files.fail("sync_filesystem")
    with pytest.raises(OSError, match="Input/output error"):
        node.mirror.write_back()
    node.ready()
    node.take([entry(SAME)])


@pytest.mark.parametrize(
    "fail", [fail_sync, fail_write, fail_exchange, fail_sync_of_a_copy, fail_sync_of_the_same, fail_writing_back]
)
def test_a_failed_disk_is_told_and_only_a_new_copy_is_believed(node, files, fail) -> None:
    node.follow(redo_1=b"old")
    fail(node, files)
    assert [type(node.safe()) for _ in range(2)] == [StoreError] * 2
    with pytest.raises(StoreError):
        node.take([written("redo.1", b"x", 9)])
    files.heal()
    node.follow(redo_1=b"old and new")
    assert node.files()["redo.1"] == b"old and new"


@pytest.mark.parametrize(("call", "lacking"), [("pwritev", DiskFull), ("open", DiskFull), ("fdatasync", StoreError)])
def test_only_a_write_without_room_is_a_full_disk(tmp_path: Path, call: str, lacking: type[StoreError]) -> None:
    """A node waits for room after the one; a sync that failed may have lost what it was to cover."""
    files = FaultyFiles(error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    node = Node(tmp_path / "node", files)
    node.follow(redo_1=b"old")
    files.fail(call)
    with suppress(StoreError):
        node.take([written("redo.2", b"x")])
    assert type(node.safe()) is lacking
    files.heal()
    node.follow(redo_1=b"old", redo_2=b"x")
    assert node.files()["redo.2"] == b"x"


def test_nobody_is_told_that_the_files_are_free_while_a_worker_uses_them(node: Node) -> None:
    node.follow(redo_1=b"old")
    node.take([written("redo.1", b"x", 3)])
    node.mirror.when_safe(node.told.append)
    first, second = node.mirror.ready(), node.mirror.ready()
    assert not first.called
    node.threads.run()
    assert (first.called, second.called) == (True, True)
    node.mirror.hold()  # the node leads
    third = node.mirror.ready()
    node.threads.run()
    assert not third.called
    node.mirror.release()
    node.threads.run()
    assert third.called


def test_a_log_of_the_same_bytes_stays_and_is_synced_before_it_counts(node: Node) -> None:
    node.follow(redo_1=b"12345678", metaq_json=b"{}")
    before = node.mirror.describe()
    node.ready()
    assert node.mirror.describe() == before
    node.take([entry(SAME), written("redo.1", b"9", 8)])
    assert node.files()["redo.1"] == b"12345678"  # what follows waits for the sync
    assert node.safe() is None
    assert node.files() == {"redo.1": b"123456789", "metaq.json": b"{}"}
    assert node.mirror.describe() != before


@pytest.mark.parametrize(
    "change",
    [copy(redo_1=b"5678"), [entry(REPLACED - 1, "redo.1", b"5678")], [entry(REMOVED - 1, "redo.1")]],
    ids=["by a copy", "by another file", "by the end of its file"],
)
def test_what_the_partitions_have_is_on_the_disk_before_a_replay_passes_it_over(node, files, change) -> None:
    """The leader's log says nothing any more of what the leader's partitions have on their disk."""
    node.follow(redo_1=b"1234")
    node.ready()
    message = node.folder.parent / "00000000000000000000.meta"
    fd = files.open(str(message), os.O_RDWR | os.O_CREAT)
    files.pwritev(fd, [b"committed"], 0)
    files.close(fd)
    node.take(change)
    assert node.safe() is None
    files.lose_power()
    assert message.read_bytes() == b"committed"

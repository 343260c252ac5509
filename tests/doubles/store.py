"""Doubles for tests of the store and of what uses it: worker threads run by hand, a disk that fails and loses power."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import numpy as np

from metaq.broker.store.files import FailedSync, Files, FileStatus
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.record import Buffer

__all__ = ["BadSector", "FaultyFiles", "ManualThreads", "check_invariants", "run_inline"]


_SYNCS = frozenset(("fdatasync", "fsync_directory", "sync_filesystem"))


def run_inline(function: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """A `run_in_thread` that has finished before it returns."""
    try:
        result = function()
    except Exception as error:  # handed on, as the real one does
        result = error
    done(result)


class ManualThreads:
    """A `run_in_thread` whose calls wait until the test lets them run."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._calls.append((function, done))

    def __len__(self) -> int:
        """Calls that wait."""
        return len(self._calls)

    def run_one(self) -> None:
        """Run the oldest call and report its result."""
        function, done = self._calls.popleft()
        run_inline(function, done)

    def run_unreported(self) -> Callable[[], None]:
        """Run the oldest call but keep its result back: the returned function reports it."""
        function, done = self._calls.popleft()
        results: list[Any] = []
        run_inline(function, results.append)
        return lambda: done(results[0])

    def run_all(self) -> None:
        """Run calls, also those that are made meanwhile, until none waits."""
        while self._calls:
            self.run_one()


class FaultyFiles(Files):
    """The real files below a test's directory, with faults at will and a memory of what has been synced.

    `fail_at`: the n-th change of the disk (write, sync, truncate, create, rename, unlink; from 1) raises `error`; a
    write then leaves half of its bytes behind. `fail(name)`: every call of that kind raises until `heal`.
    `kill()` forgets all descriptors, as the end of the process does. `lose_power()` does that and then puts every file
    back to its last successful sync; files in directories that were never synced since are gone, and those that were
    removed or renamed since are back under their old names. So are directories that were made in one that was never
    synced since. A renamed directory stays so.
    """

    def __init__(self, fail_at: int | None = None, error: OSError | None = None) -> None:
        self.fail_at = fail_at
        self.error = error or OSError(errno.EIO, os.strerror(errno.EIO))
        self.changes = 0
        self.calls: Counter[str] = Counter()
        self.nowait_supported = True
        self.page_cache_empty = False
        self.cached = False
        """What `is_cached` says: what is read comes from the disk."""
        self.unused_memory = 0.0
        """What `unused_memory_part` says: none is spare, so that readers give back what they brought."""
        self.free: int | None = None
        """What `space` says of a file system of 100 GB; None: of the real one."""
        self._failing: set[str] = set()
        self._paths: dict[int, str] = {}
        self._synced: dict[str, bytes] = {}
        self._entries: set[str] = set()
        self._created: set[str] = set()
        self._moved: dict[str, bytes] = {}
        self._made: set[str] = set()

    @property
    def open_descriptors(self) -> int:
        """Descriptors opened and not closed."""
        return len(self._paths)

    def is_cached(self, fd: int, position: int, size: int) -> bool:
        return self.cached

    def unused_memory_part(self) -> float:
        return self.unused_memory

    def fail(self, name: str) -> None:
        """Let every call of the method `name` fail from now on."""
        self._failing.add(name)

    def heal(self) -> None:
        """No more faults."""
        self._failing.clear()
        self.fail_at = None

    @contextmanager
    def failing(self, *names: str, cause: int = errno.EIO) -> Iterator[None]:
        """These fail meanwhile, with this errno."""
        self.error = OSError(cause, os.strerror(cause))
        self._failing.update(names)
        yield
        self.heal()

    def kill(self) -> None:
        """What the kernel does when the process dies: descriptors and locks are gone, the page cache stays."""
        for fd in list(self._paths):
            self.close(fd)

    def next_life(self) -> FaultyFiles:
        """The same disk and page cache, after a kill, without faults."""
        files = FaultyFiles()
        files._synced, files._entries, files._created = self._synced, self._entries, self._created
        files._moved, files._made = self._moved, self._made
        return files

    def lose_power(self, kept: Collection[str] = ()) -> None:
        """Kill, then forget everything that no sync has covered, but for the names `kept`, there by chance."""
        self.kill()
        for path in self._created | set(self._synced):
            if not os.path.isdir(os.path.dirname(path)):
                continue  # that was removed
            if path in self._entries or path in kept:
                with open(path, "wb") as file:
                    file.write(self._synced.get(path, b""))
            elif os.path.exists(path):
                os.unlink(path)
        for path in self._made:
            shutil.rmtree(path, ignore_errors=True)

    def on_disk(self, path: str) -> bytes:
        """What the last sync has left of a file; its name may not be there yet."""
        return self._synced.get(path, b"")

    # --- Files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._change("open")
            if flags & os.O_TRUNC or not os.path.exists(path):
                self._created.add(path)
        elif path not in self._created and path not in self._synced and os.path.isfile(path):
            self._remember(path)  # it was there before this double: taken as synced
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self._paths[fd]
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        try:
            self._change("pwritev")
        except OSError:
            data = b"".join(buffers)
            os.pwrite(fd, data[: len(data) // 2], position)
            raise
        return os.pwritev(fd, buffers, position)

    def preadv_nowait(self, fd: int, buffer: memoryview, position: int) -> int:
        self.calls["preadv_nowait"] += 1
        if not self.nowait_supported:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if self.page_cache_empty:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return super().preadv_nowait(fd, buffer, position)

    def fdatasync(self, fd: int) -> None:
        self._change("fdatasync")
        self._moved.pop(self._paths[fd], None)
        with suppress(FileNotFoundError), open(self._paths[fd], "rb") as file:  # it may have no name any more
            self._synced[self._paths[fd]] = file.read()

    def fsync_directory(self, path: str) -> None:
        self._change("fsync_directory")
        self._entries = {entry for entry in self._entries if os.path.dirname(entry) != path}
        self._entries.update(os.path.join(path, name) for name in os.listdir(path))
        self._made = {made for made in self._made if os.path.dirname(made) != path}
        for target in [each for each in self._moved if os.path.dirname(each) == path]:
            self._synced[target] = self._moved.pop(target)

    def sync_filesystem_of(self, fd: int) -> None:
        self._change("sync_filesystem")
        self._made.clear()
        for known in [each for each in self._created | set(self._synced) if os.path.exists(each)]:
            self._remember(known)

    def truncate(self, fd: int, size: int) -> None:
        self._change("truncate")
        os.ftruncate(fd, size)

    def make_directory(self, path: str) -> None:
        self._change("make_directory")
        if not os.path.isdir(path):
            self._made.add(path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._change("rename")
        os.rename(source, target)
        if os.path.isdir(target):
            self._moved_below(f"{source}/", f"{target}/")
            return
        self._created.add(target)
        if source in self._synced:
            self._moved[target] = self._synced[source]

    def unlink(self, path: str) -> None:
        self._change("unlink")
        os.unlink(path)

    def space(self, path: str) -> tuple[int, int]:
        return super().space(path) if self.free is None else (self.free, 100 * 10**9)

    def status(self, path: str) -> FileStatus:
        self.calls["status"] += 1
        return super().status(path)

    def lock(self, path: str) -> int:
        fd = super().lock(path)
        self._paths[fd] = path
        return fd

    def _moved_below(self, source: str, target: str) -> None:
        """A directory has another name; the files in it are as safe as before."""

        def new(path: str) -> str:
            return target + path.removeprefix(source) if path.startswith(source) else path

        self._created = {new(path) for path in self._created}
        self._made = {new(path) for path in self._made if path + "/" != source}
        self._entries = {new(path) for path in self._entries}
        self._synced = {new(path): data for path, data in self._synced.items()}
        self._paths = {fd: new(path) for fd, path in self._paths.items()}

    def _remember(self, path: str) -> None:
        self._entries.add(path)
        with open(path, "rb") as file:
            self._synced[path] = file.read()

    def _change(self, name: str) -> None:
        self.changes += 1
        self.calls[name] += 1
        if name in self._failing or self.changes == self.fail_at:
            if name in _SYNCS:
                raise FailedSync(*self.error.args)
            raise self.error


def check_invariants(log: PartitionLog) -> None:
    """Raise AssertionError if an invariant from the top of partition_log.py does not hold. O(messages)."""
    segments = log.segments
    for before, after in pairwise(segments):
        assert before.end == after.first_offset
        assert before.size > 0
    assert log.first_offset == segments[0].first_offset
    assert log.first_offset <= log.visible_end <= log.end_offset == segments[-1].end
    safe = log.durability.safe_end, log.durability.safe_count
    shown = (log.visible_end, segments.counted)
    assert shown == (safe if log.bound is None else min(safe, log.bound))
    for segment in segments:
        assert segment.first_offset <= segment.synced <= segment.end
        assert segment.first_offset <= segment.checkpointed <= segment.end
        assert os.path.getsize(segment.path) >= segment.size
        if segment.index is not None:
            units = segment.index.units(0, len(segment.index))
            starts = np.append(units["offset"], segment.end)
            assert starts[0] == segment.first_offset
            assert (units["offset"] + units["size"] == starts[1:]).all()
            assert (np.diff(np.abs(units["time_ms"])) >= 0).all()
    indexed = [segment.index for segment in segments if segment.index is not None]
    assert log.segments.message_count == sum(index.ending_by(log.visible_end) for index in indexed)
    assert log.lookup.count_before(log.visible_end) == log.segments.message_count
    assert log.lookup.count_before(log.first_offset) == 0


class BadSector(FaultyFiles):
    """Calls of one kind fail for one file or directory, as Linux has them fail: without its name."""

    def __init__(self, call: str, path: str) -> None:
        super().__init__()
        self._bad = call, os.path.realpath(path)

    def _fail_for(self, call: str, path: str | None) -> None:
        if (call, path) == self._bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._fail_for("pread", self._paths.get(fd))
        return super().pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        self._fail_for("fdatasync", self._paths.get(fd))
        super().fdatasync(fd)

    def fsync_directory(self, path: str) -> None:
        self._fail_for("fsync_directory", path)
        super().fsync_directory(path)

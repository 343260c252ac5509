"""What a crash may leave of a file system, computed from a trace.

Data. A write changes the page cache. The kernel may write any page back at any time, and a disk writes sectors: so
after a crash each 512-byte sector of a file has its synced content or that of any later moment, whatever its neighbours
have. A successful sync makes durable what was in the page cache when it began.

Size. It is that of any moment since the last sync, or, in the middle of a write that grew the file, the end of any
page. What lies below the size and was not written is zeros (delayed allocation).

A failed sync. Linux marks the pages clean and keeps their content in the cache: later syncs of the file succeed and do
not write them. To write to such a page again does not help: ext4 believes that its blocks are converted and reads
zeros once the page is gone (seen on 6.18). So what is in such a page stays uncertain until it has left the cache: from
then on everybody reads what the disk has.

Names. In the model `MINIMAL`, all that POSIX promises and a rename's atomicity: a directory's own sync makes its names
durable, and of the changes behind it any may be there, but a change of a name only if earlier ones of that name are. In
the model `ORDERED`, what ext4 and XFS do: changes of names become durable in the order in which they were made, and a
successful sync of any file or directory makes all before it durable.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .trace import Kind, Operation, SyncKind

__all__ = ["PAGE", "SECTOR", "Disk", "Names", "State", "Style"]

SECTOR = 512
PAGE = 4096


class Names(Enum):
    """Which changes of names a crash may lose; see above."""

    MINIMAL = "minimal"
    ORDERED = "ordered"


class Style(Enum):
    """How a state is drawn. NOTHING of what is not synced, ALL of it; TORN: each sector by itself; PREFIX: each file up
    to some place; HOLES: all but a few pages; NEWEST: all data, and of names and sizes anything; DROPPED: all but what
    failed syncs have left in the cache only, as when the kernel drops it and writes the rest.
    """

    NOTHING = "nothing"
    ALL = "all"
    TORN = "torn"
    PREFIX = "prefix"
    HOLES = "holes"
    NEWEST = "newest"
    DROPPED = "dropped"


class State(NamedTuple):
    """What is on the disk: the directories, and the files' contents, by path relative to the root."""

    directories: tuple[str, ...]
    files: Mapping[str, bytes]


class _Snapshot(NamedTuple):
    """A sector after operation number `at`; cut: a truncation made it so."""

    at: int
    data: bytes
    cut: bool


class _Resized(NamedTuple):
    at: int
    size: int
    cut: bool


class _File:
    """`cache`: what processes see. `disk`, `disk_size`: what is durable. What may be there beside it: `sectors` has the
    contents since then by number, oldest first, and `sizes` the sizes. `dirty`: the operations since the last sync,
    good or bad, that wrote to a page. `lost`: pages that a failed sync has left in the cache only.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.cache = bytearray(content)
        self.disk = bytearray(content)
        self.disk_size = len(content)
        self.sectors: dict[int, list[_Snapshot]] = {}
        self.sizes: list[_Resized] = []
        self.dirty: dict[int, list[int]] = {}
        self.lost: set[int] = set()

    def write(self, index: int, position: int, data: bytes) -> None:
        end = position + len(data)
        grows = end > len(self.cache)
        if grows:
            self.cache.extend(bytes(end - len(self.cache)))
            self.sizes.append(_Resized(index, end, False))
        self.cache[position:end] = data
        self._snap(index, position, end, cut=False)
        for page in range(position // PAGE, (end + PAGE - 1) // PAGE):
            self.dirty.setdefault(page, []).append(index)

    def resize(self, index: int, size: int) -> None:
        old = len(self.cache)
        if size < old:
            del self.cache[size:]
            self.lost = {page for page in self.lost if page * PAGE < size}
            self._snap(index, size, old, cut=True)
        else:
            self.cache.extend(bytes(size - old))
        if size != old:
            self.sizes.append(_Resized(index, size, size < old))

    def _snap(self, index: int, start: int, end: int, *, cut: bool) -> None:
        for number in range(start // SECTOR, (end + SECTOR - 1) // SECTOR):
            at = number * SECTOR
            self.sectors.setdefault(number, []).append(
                _Snapshot(index, bytes(self.cache[at : at + SECTOR]).ljust(SECTOR, b"\0"), cut)
            )

    def dropped(self, position: int, data: bytes) -> None:
        """A lost page has left the cache, and this is what the disk has."""
        self.cache[position : position + len(data)] = data
        page = position // PAGE
        self.lost.discard(page)
        self.dirty.pop(page, None)
        for number in range(page * PAGE // SECTOR, (page + 1) * PAGE // SECTOR):
            self.sectors.pop(number, None)
        end = position + len(data)
        if len(self.disk) < end:
            self.disk.extend(bytes(end - len(self.disk)))
        self.disk[position:end] = data

    def lost_pages(self, rng: random.Random) -> Iterator[tuple[int, bytes]]:
        """Position of each lost page, and what the disk may have there."""
        content = self.draw(rng, rng.choice((Style.DROPPED, Style.TORN))).ljust(len(self.cache), b"\0")
        for page in sorted(self.lost):
            yield page * PAGE, content[page * PAGE : min((page + 1) * PAGE, len(self.cache))]

    def resized_before(self, begun: int) -> bool:
        return bool(self.sizes) and self.sizes[0].at < begun

    # --- syncs --------------------------------------------------------------------------------------------------------

    def synced(self, begun: int) -> None:
        """What was written before operation `begun` and has not failed before is durable."""
        pages = set()
        for page, indexes in list(self.dirty.items()):
            if indexes[0] < begun and page not in self.lost:
                pages.add(page)
            self._clean(page, begun)
        for number, snapshots in list(self.sectors.items()):
            page = number * SECTOR // PAGE
            if page in pages or (page not in self.lost and all(each.cut for each in snapshots if each.at < begun)):
                self._settle(number, begun)
        self._settle_size(begun, max(pages, default=-1))

    def sync_failed(self, begun: int) -> None:
        """The pages that were dirty are clean now, and only the cache has them."""
        for page, indexes in list(self.dirty.items()):
            if indexes[0] < begun:
                self.lost.add(page)
            self._clean(page, begun)

    def _clean(self, page: int, begun: int) -> None:
        left = [index for index in self.dirty[page] if index >= begun]
        if left:
            self.dirty[page] = left
        else:
            del self.dirty[page]

    def _settle(self, number: int, begun: int) -> None:
        snapshots = self.sectors[number]
        durable = [each for each in snapshots if each.at < begun]
        if not durable:
            return
        at = number * SECTOR
        if len(self.disk) < at + SECTOR:
            self.disk.extend(bytes(at + SECTOR - len(self.disk)))
        self.disk[at : at + SECTOR] = durable[-1].data
        later = snapshots[len(durable) :]
        if later:
            self.sectors[number] = later
        else:
            del self.sectors[number]

    def _settle_size(self, begun: int, last_page: int) -> None:
        known = [each for each in self.sizes if each.at < begun]
        if not known:
            return
        final = known[-1].size
        size = final
        if any(each.at < begun for snapshots in self.sectors.values() for each in snapshots):
            # pages were lost: the size is as large only if something that was written back needs it to be
            size = self.disk_size
            for each in known:
                size = min(size, each.size) if each.cut else size
            size = max(size, min(final, (last_page + 1) * PAGE))
        rest = self.sizes[len(known) :]
        self.sizes = rest if size == final else [_Resized(begun - 1, final, False), *rest]
        self.disk_size = size

    # --- drawing ------------------------------------------------------------------------------------------------------

    def draw(self, rng: random.Random, style: Style) -> bytes:
        if style is Style.ALL:
            return bytes(self.cache)
        if style is Style.NOTHING or not (self.sectors or self.sizes):
            return bytes(self.disk[: self.disk_size]).ljust(self.disk_size, b"\0")
        size, resized = self._draw_size(rng, style)
        content = bytearray(self.disk[: self.disk_size])
        whole = -(-max(size, len(content)) // SECTOR) * SECTOR
        content.extend(bytes(whole - len(content)))
        choose = self._chooser(rng, style)
        for number, snapshots in self.sectors.items():
            at = number * SECTOR
            if at < size:
                chosen = self._choose(snapshots, choose(number, len(snapshots)), resized)
                if chosen is not None:
                    content[at : at + SECTOR] = chosen.data
        return bytes(content[:size])

    def _draw_size(self, rng: random.Random, style: Style) -> tuple[int, int]:
        """A size, and the number of the operation that the file's metadata are as of."""
        if style is Style.DROPPED and self.sizes:
            return self.sizes[-1].size, self.sizes[-1].at
        taken = rng.choice((0, len(self.sizes), rng.randint(0, len(self.sizes))))
        if not taken:
            return self.disk_size, -1
        before = self.sizes[taken - 2].size if taken > 1 else self.disk_size
        last = self.sizes[taken - 1]
        size = last.size
        if size > before and rng.random() < 0.3:
            ends = range(before // PAGE * PAGE + PAGE, size, PAGE)
            size = rng.choice(ends) if len(ends) else size
        return size, last.at

    def _chooser(self, rng: random.Random, style: Style) -> Callable[[int, int], int]:
        """number of a sector, number of its contents since the sync -> how many of them have reached the disk."""
        if style is Style.NEWEST:
            return lambda number, count: count
        if style is Style.DROPPED:
            return lambda number, count: 0 if number * SECTOR // PAGE in self.lost else count
        if style is Style.PREFIX:
            numbers = sorted(self.sectors) or [0]
            border = rng.choice(numbers) + rng.randint(0, 1)
            return lambda number, count: count if number < border else 0
        if style is Style.HOLES:
            pages = sorted({number * SECTOR // PAGE for number in self.sectors})
            unit = rng.choice((SECTOR, PAGE))
            holes = {(rng.choice(pages) * PAGE + rng.randrange(PAGE)) // unit for _ in range(2)} if pages else set()
            return lambda number, count: 0 if number * SECTOR // unit in holes else count
        return lambda number, count: rng.choice((0, count, rng.randint(0, count)))

    @staticmethod
    def _choose(snapshots: list[_Snapshot], taken: int, resized: int) -> _Snapshot | None:
        """Of the contents since the sync the `taken`-th, but none from before a truncation that has happened, and none
        made by one that has not.
        """
        least = max((n for n, each in enumerate(snapshots, 1) if each.cut and each.at <= resized), default=0)
        taken = max(taken, least)
        while taken and snapshots[taken - 1].cut and snapshots[taken - 1].at > resized:
            taken -= 1
        return snapshots[taken - 1] if taken else None


class _Change(NamedTuple):
    """Of a directory: `bindings` are name -> file or directory, None if the name goes."""

    at: int
    bindings: dict[str, _File | _Directory | None]


class _Directory:
    def __init__(self) -> None:
        self.cache: dict[str, _File | _Directory] = {}
        self.disk: dict[str, _File | _Directory] = {}
        self.changes: list[_Change] = []

    def change(self, index: int, bindings: dict[str, _File | _Directory | None]) -> None:
        _bind(self.cache, bindings)
        self.changes.append(_Change(index, bindings))

    def synced(self, begun: int) -> None:
        for each in self.changes:
            if each.at < begun:
                _bind(self.disk, each.bindings)
        self.changes = [each for each in self.changes if each.at >= begun]


def _bind(names: dict[str, _File | _Directory], bindings: Mapping[str, _File | _Directory | None]) -> None:
    for name, node in bindings.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(slots=True)
class _Sync:
    begun: int
    kind: SyncKind
    node: _File | _Directory


@dataclass(slots=True)
class _NameDraw:
    """How the names of one state are drawn. until: in order, up to this operation; None: each by itself."""

    rng: random.Random
    until: int | None
    chance: float


class Disk:
    """Apply the operations of one trace after the other; `draw` a state at any moment. Files that exist are durable."""

    def __init__(self, start: State | None = None) -> None:
        self.index = 0
        self.root = _Directory()
        self._handles: dict[int, _File | _Directory] = {}
        self._syncs: dict[int, _Sync] = {}
        self._committed = 0
        """Changes of names before this operation are durable in the model ORDERED."""
        self.marks: list[bytes] = []
        if start is not None:
            for path in sorted(start.directories):
                self._bind_durable(path, _Directory())
            for path, content in start.files.items():
                self._bind_durable(path, _File(content))

    def _bind_durable(self, path: str, node: _File | _Directory) -> None:
        directory, name = self._parent(path)
        directory.cache[name] = directory.disk[name] = node

    def new_process(self) -> None:
        """The process has ended (kill -9, or by itself) and another one begins: the page cache stays."""
        self._handles.clear()
        self._syncs.clear()

    # --- operations ---------------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> None:
        """The next operation of the trace."""
        index, self.index = self.index, self.index + 1
        match operation.kind:
            case Kind.OPEN:
                self._open(index, operation)
            case Kind.WRITE:
                self._file(operation.handle).write(index, operation.a, operation.payload)
            case Kind.TRUNCATE:
                self._file(operation.handle).resize(index, operation.a)
            case Kind.RENAME:
                source, target = (part.decode() for part in operation.payload.split(b"\0"))
                directory, name = self._parent(source)
                other, new_name = self._parent(target)
                if directory is not other:
                    raise NotImplementedError(f"{source} moves into another directory")
                directory.change(index, {name: None, new_name: directory.cache[name]})
            case Kind.UNLINK | Kind.RMDIR:
                directory, name = self._parent(operation.path)
                directory.change(index, {name: None})
            case Kind.MKDIR:
                directory, name = self._parent(operation.path)
                directory.change(index, {name: _Directory()})
            case Kind.SYNC_BEGIN:
                self._syncs[operation.b] = _Sync(index, SyncKind(operation.a), self._handles[operation.handle])
            case Kind.SYNC_END:
                self._sync_ended(self._syncs.pop(operation.b), operation.a)
            case Kind.DROP:
                self._file(operation.handle).dropped(operation.a, operation.payload)
            case Kind.MARK:
                self.marks.append(operation.payload)
            case _:
                pass

    def _open(self, index: int, operation: Operation) -> None:
        if operation.path == ".":
            self._handles[operation.handle] = self.root
            return
        directory, name = self._parent(operation.path)
        if operation.b:
            directory.change(index, {name: _File()})
        node = self._handles[operation.handle] = directory.cache[name]
        if isinstance(node, _File) and operation.a & os.O_TRUNC and node.cache:
            node.resize(index, 0)

    def _sync_ended(self, sync: _Sync, error: int) -> None:
        nodes = list(self._nodes()) if sync.kind is SyncKind.SYNCFS else [sync.node]
        if error:
            for node in nodes:
                if isinstance(node, _File):
                    node.sync_failed(sync.begun)
            return
        # ext4's fdatasync commits its journal only for a file whose size has changed
        if sync.kind is not SyncKind.FDATASYNC or (
            isinstance(sync.node, _File) and sync.node.resized_before(sync.begun)
        ):
            self._committed = max(self._committed, sync.begun)
        for node in nodes:
            node.synced(sync.begun)

    def _nodes(self) -> Iterator[_File | _Directory]:
        """Everything that has a name in the cache or on the disk, or is open."""
        seen: set[int] = set()
        todo: list[_File | _Directory] = [self.root, *self._handles.values()]
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if isinstance(node, _Directory):
                todo += [*node.cache.values(), *node.disk.values()]
                todo += [each for change in node.changes for each in change.bindings.values() if each is not None]

    def _file(self, handle: int) -> _File:
        node = self._handles[handle]
        assert isinstance(node, _File)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *folders, name = path.split("/")
        directory = self.root
        for folder in folders:
            found = directory.cache[folder]
            assert isinstance(found, _Directory)
            directory = found
        return directory, name

    # --- states -------------------------------------------------------------------------------------------------------

    def cached(self) -> State:
        """What processes see."""
        return self.draw(random.Random(0), Style.ALL)

    def draw(self, rng: random.Random, style: Style, names: Names = Names.MINIMAL) -> State:
        """A state that a crash now may leave."""
        if style in (Style.ALL, Style.DROPPED):
            how = _NameDraw(rng, self.index, 1.0)
        elif names is Names.ORDERED:
            latest = self._committed if style is Style.NOTHING else rng.choice(self._moments())
            how = _NameDraw(rng, latest, 1.0)
        else:
            how = _NameDraw(rng, None, 0.0 if style is Style.NOTHING else rng.choice((0.0, 0.5, 0.9, 1.0)))
        directories: list[str] = []
        files: dict[str, bytes] = {}
        contents: dict[int, bytes] = {}
        self._draw_directory(self.root, "", how, style, directories, files, contents)
        return State(tuple(directories), files)

    @property
    def doomed(self) -> bool:
        """Whether a failed sync has left something in the cache that no later sync will write."""
        return any(node.lost for node in self._nodes() if isinstance(node, _File))

    def lost_pages(self, rng: random.Random) -> Iterator[tuple[str, int, bytes]]:
        """Path and position of each page that only the cache has, and what the disk may have there."""
        todo: list[tuple[str, _Directory]] = [("", self.root)]
        while todo:
            path, directory = todo.pop()
            for name, node in sorted(directory.cache.items()):
                if isinstance(node, _Directory):
                    todo.append((f"{path}{name}/", node))
                else:
                    for position, data in node.lost_pages(rng):
                        yield f"{path}{name}", position, data

    def _moments(self) -> list[int]:
        """From the last commit on: every number of names' changes that may be durable."""
        changes = sorted(
            change.at + 1 for node in self._nodes() if isinstance(node, _Directory) for change in node.changes
        )
        return [self._committed, *(each for each in changes if each > self._committed)]

    def _draw_directory(
        self,
        directory: _Directory,
        path: str,
        how: _NameDraw,
        style: Style,
        directories: list[str],
        files: dict[str, bytes],
        contents: dict[int, bytes],
    ) -> None:
        for name, node in sorted(_draw_names(directory, how).items()):
            below = f"{path}{name}"
            if isinstance(node, _Directory):
                directories.append(below)
                self._draw_directory(node, f"{below}/", how, style, directories, files, contents)
            else:
                if id(node) not in contents:
                    contents[id(node)] = node.draw(how.rng, style)
                files[below] = contents[id(node)]


def _draw_names(directory: _Directory, how: _NameDraw) -> dict[str, _File | _Directory]:
    found = dict(directory.disk)
    lost: set[str] = set()
    for change in directory.changes:
        if how.until is not None:
            there = change.at < how.until
        else:
            there = lost.isdisjoint(change.bindings) and how.rng.random() < how.chance
        if there:
            _bind(found, change.bindings)
        else:
            lost.update(change.bindings)
    return found

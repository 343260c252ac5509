"""The watches that clients have set. There are two tables: one for watches of the data and the existence of znodes, the
other for watches of their children.

The classes behave like WatchManager and DataTree of ZooKeeper 3.9.5. A watcher is a connection. When an event occurs,
the watchers are notified in the order in which they set their watches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import IntEnum
from typing import Generic, TypeVar

__all__ = ["WatchMode", "WatchTable", "WatcherKind", "Watches"]

WatcherT = TypeVar("WatcherT", bound=Hashable)

_FORGOTTEN_AT_ONCE = 256


class WatchMode(IntEnum):
    """The modes of watches. The value of each mode is one bit, because a watcher may have watches of several modes at
    the same path.
    """

    ONCE = 1
    PERSISTENT = 2
    RECURSIVE = 4


class WatcherKind(IntEnum):
    """The kinds of watches in the requests checkWatches and removeWatches."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 5


class WatchTable(Generic[WatcherT]):
    """A table of watches, which can be searched by path and by watcher."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[WatcherT, int]] = {}
        self.by_watcher: dict[WatcherT, dict[str, None]] = {}
        self._recursive = 0

    def __len__(self) -> int:
        return sum(map(len, self.by_watcher.values()))

    def add(self, path: str, watcher: WatcherT, mode: WatchMode) -> None:
        modes = self.by_path.setdefault(path, {})
        old = modes.get(watcher, 0)
        modes[watcher] = old | mode
        self.by_watcher.setdefault(watcher, {})[path] = None
        if mode is WatchMode.RECURSIVE and not old & mode:
            self._recursive += 1

    def has(self, path: str, watcher: WatcherT, mode: WatchMode | None) -> bool:
        """Return whether the watcher has a watch at this path. mode: the mode of the watch; None for any mode."""
        modes = self.by_path.get(path, {}).get(watcher, 0)
        return bool(modes if mode is None else modes & mode)

    def remove(self, path: str, watcher: WatcherT, mode: WatchMode | None) -> bool:
        """Remove the watcher's watch at this path. Return whether there was one. mode: the mode of the watch; None for
        the watches of all modes.
        """
        modes = self.by_path.get(path, {}).get(watcher, 0)
        removed = modes if mode is None else modes & mode
        if removed:
            self._leave(path, watcher, modes & ~removed)
            self._recursive -= bool(removed & WatchMode.RECURSIVE)
        return bool(removed)

    def forget(self, watcher: WatcherT) -> Iterator[int]:
        """Remove all watches of a watcher, in steps. Yield the number of watches that each step has removed."""
        while paths := self.by_watcher.get(watcher):
            step = [path for path, _ in zip(paths, range(_FORGOTTEN_AT_ONCE), strict=False)]
            for path in step:
                self.remove(path, watcher, None)
            yield len(step)

    def triggered(self, path: str) -> dict[WatcherT, None]:
        """Return the watchers that must be notified of an event at `path`. The result contains each watcher only once.
        Also remove these watchers' watches of the mode ONCE at this path, because such a watch reports only one event.
        """
        watchers: dict[WatcherT, None] = {}
        if at_path := self.by_path.get(path):
            watchers.update(dict.fromkeys(at_path))
            for watcher, modes in list(at_path.items()):
                if modes & WatchMode.ONCE:
                    self._leave(path, watcher, modes & ~WatchMode.ONCE)
        if self._recursive:
            for above in _ancestors(path):
                for watcher, modes in self.by_path.get(above, {}).items():
                    if modes & WatchMode.RECURSIVE:
                        watchers[watcher] = None
        return watchers

    def _leave(self, path: str, watcher: WatcherT, modes: int) -> None:
        at_path = self.by_path[path]
        if modes:
            at_path[watcher] = modes
            return
        del at_path[watcher]
        if not at_path:
            del self.by_path[path]
        paths = self.by_watcher[watcher]
        del paths[path]
        if not paths:
            del self.by_watcher[watcher]


def _ancestors(path: str) -> Iterator[str]:
    while path not in ("/", ""):
        path = path[: max(path.rfind("/"), 0)] or "/"
        yield path


class Watches(Generic[WatcherT]):
    """The two tables of watches, for data and for children. The methods execute the requests addWatch, checkWatches and
    removeWatches.
    """

    def __init__(self) -> None:
        self.data: WatchTable[WatcherT] = WatchTable()
        self.children: WatchTable[WatcherT] = WatchTable()

    def __len__(self) -> int:
        return len(self.data) + len(self.children)

    def add(self, path: str, watcher: WatcherT, mode: WatchMode) -> None:
        """Add a persistent watch."""
        self.data.add(path, watcher, mode)
        if mode is WatchMode.PERSISTENT:
            self.children.add(path, watcher, mode)

    def has(self, path: str, watcher: WatcherT, kind: WatcherKind) -> bool:
        match kind:
            case WatcherKind.CHILDREN:
                return self.children.has(path, watcher, WatchMode.ONCE)
            case WatcherKind.ANY:
                return self.children.has(path, watcher, None) or self.data.has(path, watcher, None)
        return self.data.has(path, watcher, _MODES[kind])

    def remove(self, path: str, watcher: WatcherT, kind: WatcherKind) -> bool:
        """Remove a watch. Return whether there was one."""
        match kind:
            case WatcherKind.CHILDREN:
                return self.children.remove(path, watcher, WatchMode.ONCE)
            case WatcherKind.ANY:
                return self.children.remove(path, watcher, None) | self.data.remove(path, watcher, None)
            case WatcherKind.PERSISTENT:
                mode = WatchMode.PERSISTENT
                return self.children.remove(path, watcher, mode) | self.data.remove(path, watcher, mode)
        return self.data.remove(path, watcher, _MODES[kind])

    def forget(self, watcher: WatcherT) -> Iterator[int]:
        """Remove all watches of a watcher, in steps."""
        yield from self.data.forget(watcher)
        yield from self.children.forget(watcher)


_MODES = {
    WatcherKind.DATA: WatchMode.ONCE,
    WatcherKind.PERSISTENT: WatchMode.PERSISTENT,
    WatcherKind.RECURSIVE: WatchMode.RECURSIVE,
}

"""Record what groups do according to ZooKeeper, which is read several times a second."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat

from metaq.coordination.records.paths import Paths
from metaq.coordination.records.payloads import parse_offset
from tests.kills.journal import Journal, Line

from .facts import Commit

__all__ = ["UNANSWERED", "CommitWatcher", "Watcher", "commits_in"]

UNANSWERED = (KazooException, KazooTimeoutError)
_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 10.0
_LAST_LOOK_SECONDS = 120.0


class Watcher(ABC):
    """Base of watchers that look from start() to close(), on a thread of their own. missed: looks that ZooKeeper did
    not answer."""

    def __init__(self, connect: str, pause_seconds: float) -> None:
        # the last look comes soon after the last fault, so a pause of up to a minute before the next try would be too
        # long
        self.zk = KazooClient(connect, timeout=30.0, connection_retry={"max_tries": -1, "max_delay": 1.0})
        self.paths = Paths("/meta")
        self.missed = 0
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)

    def start(self) -> None:
        """Start to look. Raises KazooTimeoutError if it cannot connect in time."""
        self.zk.start(60.0)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.zk.stop()
        self.zk.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_seconds):
            self._look()

    @abstractmethod
    def _look(self) -> None: ...

    def _children_of(self, path: str) -> list[tuple[str, bytes, ZnodeStat]]:
        """Return name, data and stat of a node's children, requested together; those that vanish meanwhile are left
        out."""
        try:
            names = self.zk.get_children_async(path).get(timeout=_ANSWER_SECONDS)
        except NoNodeError:
            return []
        found = []
        for name, answer in [(name, self.zk.get_async(f"{path}/{name}")) for name in names]:
            try:
                found.append((name, *answer.get(timeout=_ANSWER_SECONDS)))
            except NoNodeError:
                continue
        return found


class CommitWatcher(Watcher):
    """Watcher that records the commits of groups."""

    def __init__(self, connect: str, groups: Sequence[str], topics: Sequence[str], journal: Path) -> None:
        super().__init__(connect, _LOOK_SECONDS)
        self._places = [(group, topic) for group in groups for topic in topics]
        self._journal = Journal(journal)
        self._known: dict[str, int] = {}
        self._has_seen_the_end = False

    def close(self) -> None:
        """Look for the last time, and end. Raises RuntimeError if ZooKeeper does not answer that look: then the last
        commits of the groups are unknown."""
        super().close()
        if self._thread.ident is not None and not self._has_seen_the_end:
            raise RuntimeError(f"ZooKeeper did not answer the last look at the offsets for {_LAST_LOOK_SECONDS:.0f} s")

    def owner_of(self, path: str) -> int | None:
        """Return the session of an ephemeral node, 0 if there is no node; None if ZooKeeper does not answer."""
        try:
            stat = self.zk.exists_async(path).get(timeout=1.0)
        except UNANSWERED:
            return None
        return stat.ephemeralOwner if stat else 0

    def set_back(self) -> None:
        """Note that ZooKeeper, which is down, will come back with older data. Later commits belong to a new era, and a
        client that reports the last seen zxid would be refused."""
        self.zk.last_zxid = 0
        self._journal.write("set back")

    def members(self, group: str) -> int | None:
        """Return the number of consumers in the group; None if ZooKeeper does not answer."""
        return self._count([self.paths.group_ids(group)])

    def owned(self, group: str, topics: Sequence[str]) -> int | None:
        """Return the number of partitions with an owner in the group; None if ZooKeeper does not answer."""
        return self._count([self.paths.owners(group, topic) for topic in topics])

    def _count(self, paths: Iterable[str]) -> int | None:
        try:
            return sum(len(self.zk.get_children_async(path).get(timeout=1.0)) for path in paths)
        except UNANSWERED:
            return None

    def _run(self) -> None:
        super()._run()
        end = time.monotonic() + _LAST_LOOK_SECONDS
        left = self._look_at(self._places)
        while left and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            left = self._look_at(left)
        self._has_seen_the_end = not left

    def _look(self) -> None:
        self._look_at(self._places)

    def _look_at(self, places: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Look at these places; return those about which ZooKeeper did not answer."""
        missed = []
        for group, topic in places:
            try:
                self._note(group, topic)
            except UNANSWERED:
                missed.append((group, topic))
        self.missed += len(missed)
        return missed

    def _note(self, group: str, topic: str) -> None:
        path = self.paths.offsets(group, topic)
        for name, data, stat in self._children_of(path):
            place = f"{path}/{name}"
            if self._known.get(place) != stat.mzxid:
                self._known[place] = stat.mzxid
                offset = parse_offset(place, data)
                if offset is not None:
                    self._journal.write("offset", group, f"{topic} {name}", offset.offset, stat.mzxid)


def commits_in(lines: Iterable[Line]) -> list[Commit]:
    commits, era = [], 0
    for kind, seen, *fields in lines:
        if kind == "set back":
            era += 1
        else:
            group, partition, offset, zxid = fields
            commits.append(Commit(group, partition, offset, zxid, seen, era))
    return commits

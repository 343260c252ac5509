"""What the groups commit: ZooKeeper is looked at several times a second."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from metaq.coordination.paths import Paths
from metaq.coordination.records import parse_offset

from .facts import Commit
from .journal import Journal, Line

__all__ = ["CommitWatcher", "commits_in"]

_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 10.0


class CommitWatcher:
    """Looks from start() to close() on a thread of its own. missed: looks that ZooKeeper did not answer."""

    def __init__(self, connect: str, groups: Sequence[str], topics: Sequence[str], journal: Path) -> None:
        self.zk = KazooClient(connect, timeout=30.0)
        self.paths = Paths("/meta")
        self.missed = 0
        self._places = [(group, topic) for group in groups for topic in topics]
        self._journal = Journal(journal)
        self._known: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)

    def start(self) -> None:
        self.zk.start(60.0)
        self._thread.start()

    def close(self) -> None:
        """Look for the last time, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.zk.stop()
        self.zk.close()

    def owner_of(self, path: str) -> int | None:
        """The session of an ephemeral node; None if there is none, or ZooKeeper does not answer."""
        try:
            stat = self.zk.exists_async(path).get(timeout=1.0)
        except (KazooException, KazooTimeoutError):
            return None
        return stat.ephemeralOwner if stat else None

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(_LOOK_SECONDS)
            for group, topic in self._places:
                try:
                    self._look(group, topic)
                except (KazooException, KazooTimeoutError):
                    self.missed += 1

    def _look(self, group: str, topic: str) -> None:
        path = self.paths.offsets(group, topic)
        try:
            names = self.zk.get_children_async(path).get(timeout=_ANSWER_SECONDS)
        except NoNodeError:
            return
        asked = [(name, self.zk.get_async(f"{path}/{name}")) for name in names]
        for name, answer in asked:
            data, stat = answer.get(timeout=_ANSWER_SECONDS)
            place = f"{path}/{name}"
            if self._known.get(place) != stat.mzxid:
                self._known[place] = stat.mzxid
                offset = parse_offset(place, data)
                if offset is not None:
                    self._journal.write("offset", group, f"{topic} {name}", offset.offset, stat.mzxid)


def commits_in(lines: Iterable[Line]) -> list[Commit]:
    return [Commit(group, partition, offset, zxid, seen) for _, seen, group, partition, offset, zxid in lines]

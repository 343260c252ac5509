"""Who owned which partition when, and what was committed: ZooKeeper looked at many times a second.

A claim's begin and a commit's time are the node's own, written by the server; a claim's end is the last look that still
saw it. So what is reported as owned was owned without doubt, at any load of the machine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat

from metaq.coordination.paths import Paths

from .history import Claim, Commit, Window

__all__ = ["GroupLog", "GroupWatcher", "Look", "Node", "without_owner"]

LOOK_SECONDS = 0.1
ANSWER_SECONDS = 10.0
NEIGHBOUR_SECONDS = 5 * LOOK_SECONDS


@dataclass(frozen=True, slots=True)
class Node:
    """One znode. created, modified: seconds of the wall clock; claim: its creation's transaction, unique."""

    text: str
    created: float
    modified: float
    claim: int


@dataclass(frozen=True, slots=True)
class Look:
    """What there was at one moment. offered: partitions of registered masters; owners, offsets: by partition."""

    time: float
    offered: frozenset[str]
    owners: Mapping[str, Node]
    offsets: Mapping[str, Node]


class GroupLog:
    """Turns looks, in order of time, into claims, commits and spans without owner."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.commits: list[Commit] = []
        self.unowned: dict[str, list[Window]] = {}
        self._last = 0.0
        self._held: dict[str, tuple[Node, float]] = {}
        self._idle: dict[str, float] = {}
        self._committed: dict[str, Node] = {}

    def add(self, look: Look) -> None:
        """Take in the next look."""
        self._last = look.time
        for partition in look.offered | look.owners.keys() | self._held.keys() | self._idle.keys():
            self._add_owner(partition, look)
        for partition, node in look.offsets.items():
            if self._committed.get(partition) != node:
                self._committed[partition] = node
                self.commits.append(Commit(node.modified, partition, int(node.text.rpartition("-")[2])))

    def finish(self) -> None:
        """Close what is open; the last look is the end."""
        for partition, (node, seen) in self._held.items():
            self.claims.append(Claim(partition, node.text, node.created, seen))
        for partition in self._idle:
            self.unowned.setdefault(partition, []).append(Window(self._idle[partition], self._last))
        self._held, self._idle = {}, {}

    def _add_owner(self, partition: str, look: Look) -> None:
        owner, held = look.owners.get(partition), self._held.get(partition)
        if held and (owner is None or owner.claim != held[0].claim):
            self.claims.append(Claim(partition, held[0].text, held[0].created, held[1]))
            del self._held[partition]
        if owner:
            self._held[partition] = owner, look.time
        if owner or partition not in look.offered:
            if (began := self._idle.pop(partition, None)) is not None:
                end = max(began, min(look.time, owner.created) if owner else look.time)
                self.unowned.setdefault(partition, []).append(Window(began, end))
        else:
            self._idle.setdefault(partition, look.time)


class GroupWatcher:
    """Looks at one group and topic from start() to stop() on a thread of its own.

    missed: looks that ZooKeeper did not answer. Raises KazooTimeoutError if it cannot connect in time.
    """

    def __init__(self, zookeeper: str, group: str, topic: str, root: str = "/meta") -> None:
        self.log = GroupLog()
        self.missed = 0
        self._paths = Paths(root)
        self._group, self._topic = group, topic
        self._zk = KazooClient(zookeeper, timeout=30.0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group watcher", daemon=True)

    def __enter__(self) -> GroupWatcher:
        self._zk.start(ANSWER_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> GroupLog:
        """End the looking; what was found. May be called again."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            self._zk.stop()
            self._zk.close()
            self.log.finish()
        return self.log

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.log.add(self._look())
            except (KazooException, KazooTimeoutError):
                self.missed += 1

    def _look(self) -> Look:
        paths, group, topic = self._paths, self._group, self._topic
        now = time.time()
        owners = self._children_of(paths.owners(group, topic))
        replicas = self._children_of(paths.topic_sub(topic))
        return Look(
            now,
            frozenset(_partitions(replicas)),
            {name: node for name, node in owners.items() if node.text},
            {name: node for name, node in self._children_of(paths.offsets(group, topic)).items() if node.text},
        )

    def _children_of(self, path: str) -> dict[str, Node]:
        """The children of a node, asked for together; those that vanish meanwhile are left out."""
        try:
            names = self._zk.get_children_async(path).get(timeout=ANSWER_SECONDS)
        except NoNodeError:
            return {}
        asked = [(name, self._zk.get_async(f"{path}/{name}")) for name in names]
        found = ((name, _answer(answer)) for name, answer in asked)
        return {name: node for name, node in found if node is not None}


def without_owner(log: GroupLog, deaths: Mapping[str, float]) -> dict[str, list[Window]]:
    """The spans without a living owner, by partition: ZooKeeper names a killed consumer until its session is over.

    deaths: time by consumer id.
    """
    found = {partition: list(windows) for partition, windows in log.unowned.items()}
    for claim in log.claims:
        death = deaths.get(claim.consumer)
        if death is not None and death < claim.end:
            found.setdefault(claim.partition, []).append(Window(max(death, claim.begin), claim.end))
    return {partition: _joined(windows) for partition, windows in found.items()}


def _joined(windows: Iterable[Window]) -> list[Window]:
    """Windows in order, those that are not more than a few looks apart made one."""
    joined: list[Window] = []
    for window in sorted(windows, key=lambda window: window.begin):
        if joined and window.begin <= joined[-1].end + NEIGHBOUR_SECONDS:
            joined[-1] = Window(joined[-1].begin, max(joined[-1].end, window.end))
        else:
            joined.append(window)
    return joined


def _answer(asked: Any) -> Node | None:
    try:
        data, stat = asked.get(timeout=ANSWER_SECONDS)
    except NoNodeError:
        return None
    return _node(data, stat)


def _node(data: bytes | None, stat: ZnodeStat) -> Node:
    return Node((data or b"").decode(), stat.ctime / 1000, stat.mtime / 1000, stat.czxid)


def _partitions(replicas: Mapping[str, Node]) -> Iterable[str]:
    for name, node in replicas.items():
        broker, _, role = name.partition("-")
        if role == "m":
            yield from (f"{broker}-{number}" for number in range(int(json.loads(node.text)["numParts"])))

"""Record the owners of partitions and the commits: ZooKeeper is read many times a second.

A claim's begin and a commit's time are the node's own, written by the server; a claim's end is the last look that still
saw it. So a reported ownership is certain, at any load of the machine. A claim that is shorter than the time between
two looks is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.history.watcher import UNANSWERED, Watcher
from tests.kills.journal import clock

from .facts import Claim, Committed, Window, monotonic

__all__ = ["GroupLog", "GroupWatcher", "Look", "Node", "without_owner"]

LOOK_SECONDS = 0.1
NEIGHBOUR_SECONDS = 5 * LOOK_SECONDS


class Node(NamedTuple):
    """One znode. claim: the transaction that created it, unique."""

    text: str
    created: float
    modified: float
    claim: int


class Look(NamedTuple):
    """The state at one moment. offered: partitions of registered masters; owners, offsets: by partition."""

    time: float
    offered: frozenset[str]
    owners: Mapping[str, Node]
    offsets: Mapping[str, Node]


class GroupLog:
    """Log that turns looks, in order of time, into claims, commits and time spans without owner."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.commits: list[Committed] = []
        self.unowned: dict[str, list[Window]] = {}
        self._last = 0.0
        self._held: dict[str, tuple[Node, float]] = {}
        self._idle: dict[str, float] = {}
        self._committed: dict[str, Node] = {}

    def add(self, look: Look) -> None:
        """Add the next look."""
        self._last = look.time
        for partition in look.offered | look.owners.keys() | self._held.keys() | self._idle.keys():
            self._add_owner(partition, look)
        for partition, node in look.offsets.items():
            if self._committed.get(partition) != node:
                self._committed[partition] = node
                self.commits.append(Committed(node.modified, partition, int(node.text.rpartition("-")[2])))

    def finish(self) -> None:
        """Close open claims and spans; they end with the last look."""
        for partition, (node, seen) in self._held.items():
            self.claims.append(Claim(partition, node.text, node.created, seen))
        for partition in self._idle:
            self.unowned.setdefault(partition, []).append(Window(self._idle[partition], self._last))
        self._held, self._idle = {}, {}

    def _add_owner(self, partition: str, look: Look) -> None:
        owner, held = look.owners.get(partition), self._held.get(partition)
        if held and (owner is None or owner.claim != held[0].claim):
            self.claims.append(Claim(partition, held[0].text, held[0].created, held[1], look.time))
            del self._held[partition]
        if owner:
            self._held[partition] = owner, look.time
        if owner or partition not in look.offered:
            if (began := self._idle.pop(partition, None)) is not None:
                end = max(began, min(look.time, owner.created) if owner else look.time)
                self.unowned.setdefault(partition, []).append(Window(began, end))
        else:
            self._idle.setdefault(partition, look.time)


class GroupWatcher(Watcher):
    """Watcher of one group and topic."""

    def __init__(self, zookeeper: str, group: str, topic: str) -> None:
        super().__init__(zookeeper, LOOK_SECONDS)
        self.log = GroupLog()
        self._group, self._topic = group, topic

    def close(self) -> None:
        """End; the log is complete then. May be called again."""
        if not self._stopping.is_set():
            super().close()
            self.log.finish()

    def _look(self) -> None:
        now, paths = clock(), self.paths
        try:
            owners = self._nodes(paths.owners(self._group, self._topic))
            replicas = self._children_of(paths.topic_sub(self._topic))
            offered = frozenset(
                f"{self._topic} {broker}-{number}"
                for name, data, _ in replicas
                for broker, _, role in [name.partition("-")]
                if role == "m"
                for number in range(int(json.loads(data)["numParts"]))
            )
            self.log.add(Look(now, offered, owners, self._nodes(paths.offsets(self._group, self._topic))))
        except UNANSWERED:
            self.missed += 1

    def _nodes(self, path: str) -> dict[str, Node]:
        """Return the nodes with content, by partition."""
        return {
            f"{self._topic} {name}": Node(
                data.decode(), monotonic(stat.ctime / 1000), monotonic(stat.mtime / 1000), stat.czxid
            )
            for name, data, stat in self._children_of(path)
            if data
        }


def without_owner(log: GroupLog, deaths: Mapping[str, float]) -> dict[str, list[Window]]:
    """Return the time spans without a living owner, by partition. ZooKeeper names a killed consumer until its session
    is over.

    deaths: time of death by consumer id.
    """
    found = {partition: list(windows) for partition, windows in log.unowned.items()}
    for claim in log.claims:
        death = deaths.get(claim.consumer)
        if death is not None and death < claim.end:
            found.setdefault(claim.partition, []).append(Window(max(death, claim.begin), claim.end))
    return {partition: _joined(windows) for partition, windows in found.items()}


def _joined(windows: Iterable[Window]) -> list[Window]:
    """Return time spans in order; spans that are at most a few looks apart are joined."""
    joined: list[Window] = []
    for window in sorted(windows):
        if joined and window.begin <= joined[-1].end + NEIGHBOUR_SECONDS:
            joined[-1] = Window(joined[-1].begin, max(joined[-1].end, window.end))
        else:
            joined.append(window)
    return joined

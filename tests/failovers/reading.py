"""From the journals, logs and files of a run to the facts that the checkers read."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from metaq.broker.configuration.settings import SET_DIRECTORY
from tests.history.facts import Call, History, Name, Owner, Place
from tests.history.reading import owned_in, sends_in, stored_in
from tests.history.watcher import commits_in
from tests.kills.journal import clock, read_journal

from .cluster import GROUP, MEMBER_SECONDS, READ_TOPICS, Cluster
from .facts import Failover, Failovers, Got, Lead, Put, Transaction
from .nodes import NodePlace
from .sender import MEANT, SAFE_TOPICS
from .sets import Sets

__all__ = ["digests", "errors_in", "leads_in", "logs_of_leaders", "read_history"]

_LEADS = re.compile(r"^(\S+ \S+) WARNING \S+: leads epoch (\d+);", re.MULTILINE)
_READER = "spark"
"""A group of its own, whose only member reads ranges; it commits nothing."""


def logs_of_leaders(sets: Sets) -> dict[str, bytes]:
    """The bytes of all partitions, by `<topic> <set>-<number>`. Raises AssertionError if segments do not join."""
    logs: dict[str, bytes] = {}
    for set_id, nodes in sets.sets.items():
        logs |= _logs_of(nodes[sets.watcher.leader(set_id)[1]])
    return logs


def _logs_of(node: NodePlace) -> dict[str, bytes]:
    parts: dict[str, list[bytes]] = defaultdict(list)
    for path, content in node.segments().items():
        directory, _, file = path.partition("/")
        topic, _, number = directory.rpartition("-")
        partition = f"{topic} {node.set_id}-{number}"
        end = sum(map(len, parts[partition]))
        assert int(file.removesuffix(".meta")) == end, f"{node.name}: {path} follows byte {end}"
        parts[partition].append(content)
    return {partition: b"".join(found) for partition, found in parts.items()}


def digests(node: NodePlace) -> dict[str, str]:
    """By path, of all partition files."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in node.segments().items()}


def leads_in(text: str, node: str, behind: float) -> list[Lead]:
    """What a node's log tells. behind: the wall clock's time at 0 of the monotonic one."""
    return [
        Lead(datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp() - behind, node, int(epoch))
        for stamp, epoch in _LEADS.findall(text)
    ]


def _starts(node: NodePlace) -> list[tuple[int, Mapping[str, int]]]:
    """Only what differs from the epoch before is written down (metaq.broker.sets.history)."""
    saved = json.loads((node.data / SET_DIRECTORY / "history.json").read_text())
    ends: dict[str, int] = {}
    found: list[tuple[int, Mapping[str, int]]] = []
    for epoch, _, changed in saved["history"]:
        ends = {**ends, **changed}
        found.append((epoch, ends))
    return found


def read_history(cluster: Cluster, logs: Mapping[str, bytes], faults: Sequence[Failover], settled: bool) -> Failovers:
    """What is left of a run. logs: of all sets' leaders, read while nobody wrote any more."""
    behind = time.time() - clock()
    nodes = [node for nodes in cluster.sets.values() for node in nodes.values()]
    history = Failovers(faults=list(faults), logs=logs)
    for node in nodes:
        for child in node.children:
            history.leads += leads_in(child.log.read_text("utf-8", "replace"), node.name, behind)
    history.cut_files = sum(len(node.kept()) for node in nodes)
    history.files = {
        set_id: {name: digests(node) for name, node in found.items()} for set_id, found in cluster.sets.items()
    }
    history.starts = {
        set_id: _starts(found[cluster.watcher.leader(set_id)[1]]) for set_id, found in cluster.sets.items()
    }
    history.sends = list(sends_in(read_journal(cluster.sends)))
    for kind, at, *values in read_journal(cluster.sends):
        if kind in ("commit", "rollback", "doubt"):
            begun, names, _ = values
            history.transactions.append(Transaction(begun, at, kind, [Name.parse(name) for name in names]))
    for kind, at, begun, *values in read_journal(cluster.probes):
        if kind == "put":
            history.puts.append(Put(begun, at, *values))
        elif kind == "get":
            history.gets.append(Got(at, *values))
    acks = [each.ack for each in history.sends if each.ack is not None]
    history.groups = History(
        stored=stored_in(logs, READ_TOPICS),
        acks=[each for each in acks if each.partition.partition(" ")[0] in SAFE_TOPICS],
        owners=[*owned_in(cluster.events), *_rows(cluster.rows)],
        commits=commits_in(read_journal(cluster.commits)),
        groups=[GROUP],
        settled=settled,
        session_seconds=MEMBER_SECONDS,
        failed_sends=len(history.sends) - len(acks),
    )
    return history


def errors_in(cluster: Cluster) -> list[tuple[float, str]]:
    """What clients of ours were told instead of an answer, and when."""
    found = []
    for line in read_journal(cluster.sends):
        kind, at, *values = line
        if kind == "fail" or (kind in ("rollback", "doubt") and values[-1] != MEANT):
            found.append((at, f"{kind}: {values[1]}: {values[-1]}"))
    found += [(line[1], f"a query: {line[2]}") for line in read_journal(cluster.rows) if line[0] == "again"]
    return found


def _rows(path: Path) -> list[Owner]:
    """What the reader of ranges got: one ownership of each partition, which a query that failed ends."""
    owners: list[Owner] = []
    held: dict[str, Owner] = {}
    for line in read_journal(path):
        if line[0] == "again":
            held.clear()
            continue
        _, at, partition, offset, message_id, name = line
        if partition not in held:
            held[partition] = Owner(_READER, _READER, partition, at)
            owners.append(held[partition])
        held[partition].calls.append(Call(at, at, [Place(offset, message_id, Name.parse(name))]))
    return owners

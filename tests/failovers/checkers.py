"""What the history of failovers must not show. Each checker reads the whole history and names what is wrong in it.

    lost          acknowledged by every in-sync node, and not there in the end with that offset and id
    twice         one message lies in the partitions more than once
    torn          a transaction is not there as a whole, or not gone as a whole, as its outcome says
    vanished      bytes that a node has shown are not those that lie there in the end
    two-leaders   two nodes lead in one epoch; or a message lies in an epoch and another node has acknowledged it
    stale         a node acknowledged what was sent after a node of a newer epoch had acknowledged something
    differ        the files of a set's nodes are not identical in the end

What groups were handed is judged by tests.history.checkers: `false` (handed out, and not what lies there), `unseen`
(never handed out), `reordered` (also the producers' order), `skipped`, `regressed`, `double-owned`, `uncommitted`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from zlib import crc32

from metaq.protocol.record import HEADER, HEADER_BYTES
from tests.history import checkers as of_groups
from tests.kills.outcome import Problem

from .facts import Failovers, Lead, Put

__all__ = ["CHECKERS", "GROUP_CHECKERS", "judge"]

GROUP_CHECKERS = of_groups.CHECKERS
_SUCCESS = 200
_PROMISED = "asked"
"""The prober's topic with ack=in-sync; the other one promises nothing after a failover."""
_AT_ONCE = 3


def judge(history: Failovers) -> list[Problem]:
    """All problems, by kind."""
    found = of_groups.judge(history.groups)
    return found + [problem for checker in CHECKERS.values() for problem in checker(history)]


def lost(history: Failovers) -> Iterator[Problem]:
    """What the prober was promised; the producers' messages are judged with the groups."""
    for put in _acknowledged(history):
        if put.topic != _PROMISED:
            continue
        partition = f"{put.topic} {put.node[:-1]}-0"
        data = history.logs.get(partition, b"")
        found = HEADER.unpack_from(data, put.offset)[2] if put.offset + HEADER_BYTES <= len(data) else 0
        if found != put.id:
            text = f"{put.node} acknowledged number {put.number} @{put.offset} with id {put.id}; there lies id {found}"
            yield Problem("lost", text, partition, put.time)


def twice(history: Failovers) -> Iterator[Problem]:
    places: dict[str, list[str]] = defaultdict(list)
    for partition, records in history.groups.stored.items():
        for record in records:
            places[str(record.name)].append(f"{partition} @{record.offset}")
    for name, found in places.items():
        if len(found) > 1:
            yield Problem("twice", f"{name} lies at {', '.join(found)}", found[0].rpartition(" ")[0])


def torn(history: Failovers) -> Iterator[Problem]:
    there = {record.name for records in history.groups.stored.values() for record in records}
    for each in history.transactions:
        found = sum(name in there for name in each.names)
        allowed = {"commit": {len(each.names)}, "rollback": {0}, "doubt": {0, len(each.names)}}[each.outcome]
        if found not in allowed:
            first = each.names[0]
            text = f"{found} of {len(each.names)} messages of the transaction of {first} are there: {each.outcome}"
            yield Problem("torn", text, "-", each.time)


def vanished(history: Failovers) -> Iterator[Problem]:
    for got in history.gets:
        data = memoryview(history.logs.get(got.partition, b""))[got.offset : got.offset + got.size]
        if len(data) != got.size or crc32(data) != got.checksum:
            there = "other bytes lie there" if len(data) == got.size else f"only {len(data)} bytes are there"
            text = f"{got.node} showed {got.size} bytes @{got.offset}; {there}"
            yield Problem("vanished", text, got.partition, got.time)


def two_leaders(history: Failovers) -> Iterator[Problem]:
    leaders: dict[tuple[str, int], set[str]] = defaultdict(set)
    for lead in history.leads:
        leaders[lead.node[:-1], lead.epoch].add(lead.node)
    for (set_id, epoch), nodes in sorted(leaders.items()):
        if len(nodes) > 1:
            yield Problem("two-leaders", f"{', '.join(sorted(nodes))} lead epoch {epoch} of set {set_id}", "-")
    for put in _acknowledged(history):
        if put.topic != _PROMISED:
            continue
        set_id = put.node[:-1]
        epoch = _epoch_of(history, int(set_id), f"{put.topic}-0", put.offset)
        if put.node not in leaders[set_id, epoch]:
            text = f"{put.node} acknowledged number {put.number} @{put.offset}, which lies in epoch {epoch} of "
            text += ", ".join(sorted(leaders[set_id, epoch])) or "nobody"
            yield Problem("two-leaders", text, f"{put.topic} {set_id}-0", put.time)


def _epoch_of(history: Failovers, set_id: int, partition: str, offset: int) -> int:
    """The last epoch that began at or in front of `offset`."""
    return max((epoch for epoch, ends in history.starts.get(set_id, ()) if ends.get(partition, 0) <= offset), default=0)


def stale(history: Failovers) -> Iterator[Problem]:
    """A node's epoch at an acknowledgement is the last one that its log tells of until then: if in doubt, the newer."""
    leads: dict[str, list[Lead]] = defaultdict(list)
    for lead in sorted(history.leads):
        leads[lead.node].append(lead)
    first: dict[tuple[str, int], Put] = {}
    dated: list[tuple[int, Put]] = []
    for put in _acknowledged(history):
        own = leads[put.node]
        index = bisect_right([lead.time for lead in own], put.time)
        if not index:
            yield Problem("stale", f"{put.node} acknowledged number {put.number} and never led before", "-", put.time)
            continue
        epoch = own[index - 1].epoch
        dated.append((epoch, put))
        # the earliest epoch that it may have been in: one that began while it was under way is not certain
        certain = bisect_right([lead.time for lead in own], put.begun)
        if certain == index:
            key = put.node[:-1], epoch
            if key not in first or put.time < first[key].time:
                first[key] = put
    for epoch, put in dated:
        newer = [each for (set_id, other), each in first.items() if set_id == put.node[:-1] and other > epoch]
        earliest = min(newer, key=lambda each: each.time, default=None)
        if earliest is not None and put.begun > earliest.time:
            text = f"{put.node} acknowledged number {put.number} of {put.topic} in epoch {epoch}, sent "
            text += f"{put.begun - earliest.time:.3f} s after {earliest.node} had acknowledged in a newer one"
            yield Problem("stale", text, "-", put.time)


def differ(history: Failovers) -> Iterator[Problem]:
    for set_id, nodes in history.files.items():
        names = sorted(nodes)
        for name in names[1:]:
            paths = sorted(
                path
                for path in nodes[names[0]].keys() | nodes[name].keys()
                if nodes[names[0]].get(path) != nodes[name].get(path)
            )
            if paths:
                shown = ", ".join(paths[:_AT_ONCE]) + (", …" if len(paths) > _AT_ONCE else "")
                yield Problem(
                    "differ", f"{names[0]} and {name} of set {set_id} differ in {len(paths)} files: {shown}", "-"
                )


def _acknowledged(history: Failovers) -> list[Put]:
    return [put for put in history.puts if put.code == _SUCCESS]


def outcomes(history: Failovers) -> Counter[str]:
    """How the transactions ended."""
    return Counter(each.outcome for each in history.transactions)


CHECKERS: Mapping[str, Callable[[Failovers], Iterator[Problem]]] = {
    "lost": lost,
    "twice": twice,
    "torn": torn,
    "vanished": vanished,
    "two-leaders": two_leaders,
    "stale": stale,
    "differ": differ,
}

"""Check a run's history for violations. Each checker reads the whole history and yields the violations of its kind.

    lost          acknowledged, and in no partition; or not at the place, or with the id, of the acknowledgement
    false         delivered, but not stored there in the partition, or without a tag that the member takes
    unseen        in a partition at the end, and never delivered to a group
    reordered     an ownership goes back, or delivers an offset twice; or the producer's order does not hold: in each
                  partition the first copies of messages sent with one key, or to that partition, are in the order of
                  sending, and so are the acknowledged messages of a thread that waits for each of them. Acknowledged
                  messages of one key are stored in that order across partitions, too, by the times in the ids
    skipped       an offset is delivered while an earlier one has not been delivered to any member of the group
    regressed     a committed offset goes back; or an ownership that was announced after a commit was seen begins
                  before that commit
    double-owned  two members get messages of one partition in turns: a call that began after another member's first
                  and ended before that one's last call began, within one ownership of that other. Or two handlers of
                  one member are in one partition at once
    uncommitted   all members left properly, and consumed messages are not committed

Allowed: a message is delivered again by an owner that follows one that did not commit it (`duplicates` counts these). A
member whose session is ended on the server does not know this at once: without its connection it may deliver fetched
messages for a third of its session time (docs/client.md, Groups), so its calls in that time own nothing. A session that
expires by itself gives no such time: its member has stopped when a third of it had passed. Committed offsets may go
back with a ZooKeeper that is set back. But a former owner of a partition continues at its position, so no ownership may
begin before earlier commits, except ownerships of members that owned nothing at that moment. A call that was frozen
(SIGSTOP) in the middle counts from the moment at which it began. A message may reach no member of a group whose members
filter differently, if an owner of its partition does not take it. Neither need it reach a group that begins at
"latest", if it is before the position where the first owner of the partition was to begin (`required`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from metaq.protocol.message_id import store_time_ms
from tests.kills.outcome import Problem

from .facts import GRACE_SECONDS, Ack, Call, Commit, History, Name, Owner, Stored, required

__all__ = ["CHECKERS", "KEPT_IN_ORDER", "duplicates", "judge"]

KEPT_IN_ORDER = ("keyed", "fixed")
"""Prefixes of the names of producers whose first copies are in order, by key."""
ACKNOWLEDGED_IN_ORDER = (*KEPT_IN_ORDER, "sequential", "java")
"""Prefixes of the names of producers whose acknowledged messages are in order."""

SESSION_KILLED = "session"
"""The kind of fault that ends a session on the server."""

_AT_ONCE = 3
"""Most names listed in one problem."""


def judge(history: History) -> list[Problem]:
    """Return all problems of all checkers."""
    return [problem for checker in CHECKERS.values() for problem in checker(history)]


def lost(history: History) -> Iterator[Problem]:
    anywhere: dict[Name, list[Stored]] = defaultdict(list)
    for records in history.stored.values():
        for record in records:
            anywhere[record.name].append(record)
    for ack in history.acks:
        copies = anywhere[ack.name]
        if any((each.partition, each.offset, each.id) == (ack.partition, ack.offset, ack.id) for each in copies):
            continue
        where = ", ".join(f"{each.partition} @{each.offset} id {each.id}" for each in copies)
        told = f"{ack.name}, acknowledged @{ack.offset} with id {ack.id}"
        yield Problem("lost", f"{told}, is {f'only in {where}' if where else 'in no partition'}", ack.partition)


def false(history: History) -> Iterator[Problem]:
    there = {(each.partition, each.offset): each for records in history.stored.values() for each in records}
    for owner in history.owners:
        for call in owner.calls:
            for place in call.places:
                record = there.get((owner.partition, place.offset))
                if record is None or (record.id, record.name) != (place.id, place.name):
                    text = f"{owner.group}.{owner.member} was handed {place.name} @{place.offset} id {place.id}; "
                    text += f"there lies {f'{record.name} id {record.id}' if record else 'nothing'}"
                    yield Problem("false", text, owner.partition, call.time)
                elif not owner.takes(place.name):
                    text = (
                        f"{owner.group}.{owner.member} takes {', '.join(owner.tags)}, and was handed {place.name} of "
                    )
                    yield Problem("false", f"{text}{place.name.tag}", owner.partition, call.time)


def unseen(history: History) -> Iterator[Problem]:
    acknowledged = {(ack.partition, ack.offset) for ack in history.acks}
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for owner in history.owners:
        for call in owner.calls:
            seen[owner.group, owner.partition].update(place.offset for place in call.places)
    owners = _owners(history.owners)
    for group in history.groups:
        for partition, records in history.stored.items():
            wanted = required(owners[group, partition], records)
            missing = [each for each in wanted if each.offset not in seen[group, partition]]
            if missing:
                known = sum((partition, each.offset) in acknowledged for each in missing)
                text = f"{group} was never handed {len(missing)} messages ({known} acknowledged): {_records(missing)}"
                yield Problem("unseen", text, partition)


def reordered(history: History) -> Iterator[Problem]:
    for owner in history.owners:
        last = -1
        for call in owner.calls:
            for place in call.places:
                if place.offset <= last:
                    text = f"{owner.group}.{owner.member} was handed @{place.offset} ({place.name}) after @{last}"
                    yield Problem("reordered", text, owner.partition, call.time)
                last = place.offset
    for partition, records in history.stored.items():
        yield from _first_copies(partition, records)
    yield from _acknowledged(history)


def _first_copies(partition: str, records: Iterable[Stored]) -> Iterator[Problem]:
    highest: dict[tuple[str, str], Stored] = {}
    known: set[Name] = set()
    for record in records:
        name = record.name
        if name in known or not name.producer.startswith(KEPT_IN_ORDER):
            continue
        known.add(name)
        before = highest.get(name[:2])
        if before is not None and name.number < before.name.number:
            text = f"{name} @{record.offset} lies behind {before.name} @{before.offset}, which was sent later"
            yield Problem("reordered", text, partition)
        else:
            highest[name[:2]] = record


def _acknowledged(history: History) -> Iterator[Problem]:
    """Yield problems of the acknowledged messages: in the order of their numbers, offsets must rise in each partition,
    and times must not fall."""
    furthest: dict[tuple[str, str, str], Ack] = {}
    latest: dict[tuple[str, str], Ack] = {}
    for ack in sorted(history.acks, key=lambda each: (each.name.producer, each.name.number)):
        name = ack.name
        if not name.producer.startswith(ACKNOWLEDGED_IN_ORDER):
            continue
        here = (*name[:2], ack.partition)
        before = furthest.get(here)
        if before is not None and ack.offset <= before.offset:
            text = f"{name} was acknowledged @{ack.offset}, {before.name}, which was sent earlier, @{before.offset}"
            yield Problem("reordered", text, ack.partition)
        furthest[here] = ack
        last = latest.get(name[:2])
        if last is not None and not history.has_java_brokers and _stored_at(ack) < _stored_at(last):
            text = f"{name} was stored before {last.name} (in {last.partition}), which was sent earlier"
            yield Problem("reordered", text, ack.partition)
        latest[name[:2]] = ack


def _stored_at(ack: Ack) -> int:
    return store_time_ms(ack.id) or 0


def skipped(history: History) -> Iterator[Problem]:
    owners = _owners(history.owners)
    for (group, partition), calls in _calls(history.owners).items():
        records = required(owners[group, partition], history.stored.get(partition, ()))
        offsets = [each.offset for each in records]
        seen = [False] * len(records)
        frontier = 0
        for owner, call in calls:
            for place in call.places:
                index = bisect_left(offsets, place.offset)
                if index == len(offsets) or offsets[index] != place.offset:
                    continue  # no member must get it, or `false` reports it
                while frontier < index and seen[frontier]:
                    frontier += 1
                if frontier < index and owner.proves:
                    passed = [records[each] for each in range(frontier, index) if not seen[each]]
                    text = f"{group}.{owner.member} was handed @{place.offset}, and nobody of {group} had been given "
                    yield Problem("skipped", f"{text}{len(passed)} in front: {_records(passed)}", partition, call.time)
                    for each in range(frontier, index):
                        seen[each] = True  # reported once
                seen[index] = True
    for owner in history.owners:
        # run() reports a loss late, so handlers of the next claim may seem to belong to the former one
        if not (owner.calls_handlers and owner.end < math.inf):
            records = history.stored.get(owner.partition, [])
            yield from _gaps(owner, [each for each in records if owner.takes(each.name)])


def _gaps(owner: Owner, records: Sequence[Stored]) -> Iterator[Problem]:
    """Yield problems of one ownership: it must deliver one message after the other, including those that other members
    had before."""
    follows = {before.offset: after.offset for before, after in pairwise(records)}
    last = None
    for call in owner.calls:
        for place in call.places:
            if last is not None and place.offset > last and follows.get(last) != place.offset:
                text = f"{owner.group}.{owner.member} was handed @{place.offset} right after @{last}"
                yield Problem("skipped", text, owner.partition, call.time)
            last = place.offset


def regressed(history: History) -> Iterator[Problem]:
    commits: dict[tuple[str, str], list[Commit]] = defaultdict(list)
    for commit in sorted(history.commits, key=lambda each: each.order):
        here = commits[commit.group, commit.partition]
        if here and commit.era == here[-1].era and commit.offset < here[-1].offset:
            text = f"the offset of {commit.group} went from {here[-1].offset} back to {commit.offset} (zxid "
            yield Problem("regressed", f"{text}{commit.zxid:x})", commit.partition, commit.seen)
        here.append(commit)
    for owner in history.owners:
        if not (owner.announced and owner.calls):
            continue
        first = owner.calls[0]
        known = [each for each in commits[owner.group, owner.partition] if each.seen < owner.begin]
        furthest = max(known, key=lambda each: each.offset, default=None)
        if furthest is None or first.places[0].offset >= furthest.offset:
            continue
        if not _is_new_to(owner, furthest, known, history.owners):
            text = (
                f"{owner.group}.{owner.member} began @{first.places[0].offset} although {furthest.offset} was committed"
            )
            yield Problem("regressed", text, owner.partition, first.time)


def _is_new_to(owner: Owner, furthest: Commit, known: Sequence[Commit], owners: Iterable[Owner]) -> bool:
    """Return whether ZooKeeper was set back since `furthest` was committed, and the member owned nothing at that
    moment. Then it cannot notice the set-back, and does not wait for members that did (docs/reliability.md)."""
    if furthest.era == known[-1].era:
        return False
    moment = max(each.seen for each in known if each.era < known[-1].era)
    mine = (each for each in owners if (each.group, each.member) == (owner.group, owner.member))
    return not any(each.begin <= moment <= each.end for each in mine)


def double_owned(history: History) -> Iterator[Problem]:
    spans: dict[tuple[str, str], list[tuple[Owner, list[Call]]]] = defaultdict(list)
    for owner in history.owners:
        calls = [call for call in owner.calls if not _is_excused(owner, call, history)]
        if calls:
            spans[owner.group, owner.partition].append((owner, calls))
    for (group, partition), owners in spans.items():
        for other, theirs in owners:
            begin, end = theirs[0].time, theirs[-1].began
            for owner, calls in owners:
                inside = [call for call in calls if begin <= call.began and call.time <= end]
                if owner.member != other.member and inside:
                    text = (
                        f"{group}.{owner.member} was handed {sum(len(call.places) for call in inside)} messages from "
                    )
                    text += f"@{inside[0].places[0].offset} on between two calls of {group}.{other.member}"
                    yield Problem("double-owned", text, partition, inside[0].time)
    yield from _handlers_at_once(history.owners)


def _is_excused(owner: Owner, call: Call, history: History) -> bool:
    allowed = history.session_seconds / 3 + GRACE_SECONDS
    return any(
        fault.kind == SESSION_KILLED
        and fault.victim == f"{owner.group}.{owner.member}"
        and fault.begin <= call.time
        and call.began <= fault.end + allowed
        for fault in history.faults
    )


def _handlers_at_once(owners: Iterable[Owner]) -> Iterator[Problem]:
    lanes: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    for owner in owners:
        if owner.calls_handlers:
            lanes[owner.group, owner.member, owner.partition] += owner.calls
    for (group, member, partition), calls in lanes.items():
        ordered = sorted(calls, key=lambda each: each.time)
        for before, after in pairwise(ordered):
            if before.done is not None and after.time < before.done:
                text = f"a handler of {group}.{member} got @{after.places[0].offset} while another was at "
                yield Problem("double-owned", f"{text}@{before.places[0].offset}", partition, after.time)


def uncommitted(history: History) -> Iterator[Problem]:
    if not history.settled:
        return
    owners = _owners(history.owners)
    last: dict[tuple[str, str], Commit] = {}
    for commit in sorted(history.commits, key=lambda each: each.order):
        last[commit.group, commit.partition] = commit
    for group in history.groups:
        for partition, records in history.stored.items():
            reached = last[group, partition].offset if (group, partition) in last else 0
            wanted = required(owners[group, partition], records)
            # messages that a filter omits count when a pull ends, and nobody waits for that
            if wanted and not wanted[-1].end <= reached <= records[-1].end:
                text = f"{group} has consumed up to {wanted[-1].end} and committed {reached}"
                yield Problem("uncommitted", text, partition)


def duplicates(history: History) -> int:
    """Return the number of messages that were delivered to a group again."""
    count = 0
    for calls in _calls(history.owners).values():
        offsets = [place.offset for _, call in calls for place in call.places]
        count += len(offsets) - len(set(offsets))
    return count


def _owners(owners: Iterable[Owner]) -> Mapping[tuple[str, str], list[Owner]]:
    """Return the ownerships by group and partition."""
    found: dict[tuple[str, str], list[Owner]] = defaultdict(list)
    for each in owners:
        found[each.group, each.partition].append(each)
    return found


def _calls(owners: Iterable[Owner]) -> Mapping[tuple[str, str], list[tuple[Owner, Call]]]:
    """Return the calls by group and partition, in the order of time."""
    found: dict[tuple[str, str], list[tuple[Owner, Call]]] = defaultdict(list)
    for owner in owners:
        found[owner.group, owner.partition] += ((owner, call) for call in owner.calls)
    for calls in found.values():
        calls.sort(key=lambda each: each[1].time)
    return found


def _records(records: Sequence[Stored]) -> str:
    shown = ", ".join(f"{each.name} @{each.offset}" for each in records[:_AT_ONCE])
    return f"{shown}, …" if len(records) > _AT_ONCE else shown


CHECKERS: Mapping[str, Callable[[History], Iterator[Problem]]] = {
    "lost": lost,
    "false": false,
    "unseen": unseen,
    "reordered": reordered,
    "skipped": skipped,
    "regressed": regressed,
    "double-owned": double_owned,
    "uncommitted": uncommitted,
}

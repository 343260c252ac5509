"""One run: start a cluster, do the faults of the seed to it, heal it, drain it, and read its history."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from tests.kills.journal import Journal, read_journal
from tests.kills.outcome import Outcome, Problem, Say

from .checkers import judge
from .cluster import SESSION_SECONDS, TOPICS, Cluster, Shape
from .ending import drain, stuck
from .facts import Done, History, Stored
from .injuries import Injuries
from .reading import browsed, member_files, member_name, owners_in, sends_in
from .report import explain, figures
from .watcher import commits_in

__all__ = ["read_history", "run"]

_LEAVE_SECONDS = 120.0
_DRAIN_SECONDS = 300.0


def run(directory: Path, seed: int, say: Say, *, seconds: float = 60.0, brokers: int = 0, rate: float = 0.0) -> Outcome:
    """Consumer groups while everything fails in turn: check delivered messages and committed offsets.

    seconds: how long faults come; then the run is drained. brokers: else 2 or 3, as the seed says. rate: messages a
    second of each of four producers; else the seed says it. All files that are needed to understand the run stay in its
    directory. Raises AssertionError if the cluster cannot be started or healed, MetaqError if its partitions cannot be
    read.
    """
    drawn = Shape.drawn(seed)
    shape = Shape(brokers or drawn.brokers, drawn.groups, rate or drawn.per_second)
    say(f"{shape.brokers} brokers, {shape.groups}, in {directory}")
    problems: list[Problem] = []
    notes = Journal(directory / "faults.journal")
    with Cluster(directory, seed, shape) as cluster:
        say("faults")
        injuries = Injuries(cluster, notes)
        injuries.run(seed, seconds)
        say("healing")
        notes.write("healing")
        problems += _heal(cluster)
        stored = browsed(cluster.ensemble.connect_string, TOPICS)
        say("draining")
        notes.write("draining")
        drained = drain(cluster.events, cluster.shape.groups, stored, _DRAIN_SECONDS)
        notes.write("leaving")
        staying = _leave(cluster)
        cluster.watcher.close()
        problems += staying
        problems += [Problem("crashed", text) for text in cluster.crashed()]
    settled = drained and not staying
    history = read_history(directory, stored, injuries.done, list(shape.groups), settled)
    problems += judge(history)
    (directory / "history.pickle").write_bytes(pickle.dumps((history, problems)))
    return Outcome(problems, figures(history, injuries.missed), explanation=explain(history, problems))


def _heal(cluster: Cluster) -> list[Problem]:
    """Wait until everything runs, and end the producers."""
    for index in range(len(cluster.ensemble.servers)):
        cluster.ensemble.restart(index)
    cluster.ensemble.await_health()
    for broker in cluster.brokers:
        cluster.start_broker(broker)
    cluster.await_brokers()
    for member in cluster.members:
        if not member.running:
            cluster.start_member(member)
    cluster.terminate(cluster.sender)
    bursts = [("a process with members that come and go", each) for each in cluster.bursts]
    return stuck([("the sender", cluster.sender), *bursts], _LEAVE_SECONDS)


def _leave(cluster: Cluster) -> list[Problem]:
    """Make all members leave properly; return a problem for each that does not."""
    children = [(member.name, member.child) for member in cluster.members if member.child is not None]
    for _, child in children:
        cluster.terminate(child)
    return stuck(children, _LEAVE_SECONDS)


def read_history(
    directory: Path, stored: dict[str, list[Stored]], done: Sequence[Done], groups: Sequence[str], settled: bool
) -> History:
    """Return the history that the journals of a run record."""
    sends = list(sends_in(read_journal(directory / "acks.journal")))
    acks = [each.ack for each in sends if each.ack is not None]
    owners = []
    for path in member_files(directory / "events"):
        group, name = member_name(path)
        frozen = [(each.begin, each.end) for each in done if each[2:] == ("member-freeze", f"{group}.{name}")]
        owners += owners_in(read_journal(path), group, name, frozen)
    commits = commits_in(read_journal(directory / "commits.journal"))
    return History(stored, acks, owners, commits, list(done), groups, settled, SESSION_SECONDS, len(sends) - len(acks))

"""One run: start a cluster, do the faults of the seed to it, let everything come to rest, and read its history."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.history.ending import drain, stuck
from tests.history.reading import stored_in
from tests.kills.children import Child, wait_until
from tests.kills.journal import Journal
from tests.kills.outcome import Outcome, Problem, Say

from .checkers import judge
from .cluster import GROUP, READ_TOPICS, Cluster, Shape
from .facts import Failover
from .faults import LEADER_KINDS, kinds_for, plan
from .injuries import Injuries, Unhealed
from .isolation import can_isolate, enter_isolation, is_isolated
from .java_clients import judge_java
from .nodes import NodePlace
from .reading import digests, errors_in, logs_of_leaders, read_history
from .report import outcome, table
from .sets import Sets

__all__ = ["are_equal", "begin", "observe", "rest", "run", "table"]

_LEAVE_SECONDS = 180.0
_REST_SECONDS = 60.0
_QUIET_SECONDS = 60.0
_LOOK_SECONDS = 1.0


def begin(words: Sequence[str], plain: bool) -> None:
    """Go on in namespaces of our own, with all kinds of faults, as root. words: of this program, behind `python -m`."""
    if not plain and not is_isolated() and can_isolate():
        enter_isolation(words[0], words[1:])


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    failovers: int = 5,
    sets: int = 2,
    nodes: int = 0,
    min_in_sync: int = 0,
    rate: float = 10.0,
    transactions: bool = True,
    kinds: str = "",
    plain: bool = False,
) -> Outcome:
    """Broker sets under load while their leaders fail, by faults that the seed draws.

    As root the run has namespaces of its own and does all kinds of faults; else, and if it is plain, those of processes
    and syncs only. nodes: of each set; else 2 and 3 in turn. min_in_sync: else 1, and 2 in every other run with three
    nodes. rate: calls a second of each of seven producers. kinds: of faults, with commas between them; else all that
    can be done. Raises AssertionError if the cluster cannot be started, MetaqError and OSError if its files cannot be
    read.
    """
    nodes = nodes or 2 + seed % 2
    least = min_in_sync or (2 if nodes > 2 and seed % 4 == 1 else 1)
    chosen = kinds.split(",") if kinds else ()
    assert {*chosen} <= LEADER_KINDS.keys(), f"kinds of faults: {', '.join(LEADER_KINDS)}"
    return observe(directory, seed, failovers, Shape(sets, nodes, least, rate, transactions, chosen), say)


def observe(directory: Path, seed: int, count: int, shape: Shape, say: Say) -> Outcome:
    """`count` faults of leaders, or rolling restarts. What is needed to understand the run stays in `directory`."""
    say(f"{shape}, in {directory}")
    problems: list[Problem] = []
    notes = Journal(directory / "faults.journal")
    with Cluster(directory, seed, shape) as cluster:
        injuries = Injuries(cluster, notes)
        try:
            for done in _strike(injuries, cluster, count):
                led = f"epoch {done.before} -> {done.after}"
                said = f"{done.kind} of {done.victim}{f' with {done.second}' if done.second else ''}, {led}"
                again = f", started again: {', '.join(done.restarted)}" if done.restarted else ""
                say(f"{said}, {done.moved - done.begin:.1f} s, in sync {done.settled - done.healed:.1f} s later{again}")
            time.sleep(_LOOK_SECONDS)
        except Unhealed as error:
            problems.append(Problem("stuck", str(error)))
        say("coming to rest")
        notes.write("ending")
        problems += _end(cluster, [("the sender", cluster.sender), ("the prober", cluster.prober)])
        if cluster.java is not None:
            cluster.java.finish(_QUIET_SECONDS)
        problems += rest(cluster)
        logs = logs_of_leaders(cluster)
        drained = drain(cluster.events, [GROUP], stored_in(logs, READ_TOPICS))
        staying = _end(cluster, [*cluster.members, ("the reader of ranges", cluster.reader)])
        cluster.commit_watcher.close()
        problems += staying
        problems += [Problem("crashed", text) for text in cluster.crashed()]
        history = read_history(cluster, logs, injuries.done, drained and not staying)
        problems += judge(history)
        if shape.rolling:
            problems += [Problem("refused", text, "-", at) for at, text in errors_in(cluster)]
        java = None if cluster.java is None else judge_java(cluster.java, logs)
        problems += java.problems if java else ()
        if problems:
            _keep_files(cluster)
    return outcome(shape, history, problems, java)


def _strike(injuries: Injuries, cluster: Cluster, count: int) -> Iterator[Failover]:
    shape = cluster.shape
    if shape.rolling:
        for _ in range(count):
            yield from injuries.roll()
    else:
        kinds = shape.kinds or kinds_for(cluster.able)
        yield from map(injuries.do, plan(cluster.seed, count, shape.sets, shape.nodes, kinds))


def rest(cluster: Sets) -> list[Problem]:
    """Until all sets are in sync and their files equal, which checkers.differ says then."""
    problems = []
    for set_id, nodes in cluster.sets.items():
        if not cluster.watcher.wait_healthy(set_id, list(nodes), _REST_SECONDS):
            problems.append(Problem("stuck", f"set {set_id} is not in sync: {cluster.watcher.views[set_id]}"))
        wait_until(partial(are_equal, nodes), _REST_SECONDS, _LOOK_SECONDS)
    return problems


def are_equal(nodes: Mapping[str, NodePlace]) -> bool:
    """Whether the partition files of a set's nodes are the same."""
    first, *others = nodes.values()
    return all(digests(node) == digests(first) for node in others)


def _end(cluster: Cluster, children: Iterable[tuple[str, Child]]) -> list[Problem]:
    """One after the other; those that do not."""
    problems = []
    for each in children:
        cluster.terminate(each[1])
        problems += stuck([each], _LEAVE_SECONDS)
    return problems


def _keep_files(cluster: Cluster) -> None:
    for nodes in cluster.sets.values():
        for node in nodes.values():
            shutil.copytree(node.data, node.directory / "kept", dirs_exist_ok=True)

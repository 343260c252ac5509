"""Models that lack one rule each. Every one of them must break an invariant, or the rule would not be needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from metaq.broker.sets import leading, life
from metaq.broker.sets.life import LEADERS, RESTING, TABLE, NodeAction, NodeEvent
from metaq.broker.sets.life import NodeState as Life

from .model import Model, Step
from .states import (
    ANSWER_TOO_LATE,
    ENDED,
    GIVEN,
    HELD,
    HELD_TOO_LONG,
    NO_GRANT,
    Core,
    Grants,
    Names,
    Node,
    Office,
    replaced,
)


class GrantsWhileItJoins(Model):
    """A node answers pings from its first moment on a connection, before it has compared the epochs."""

    def gives(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, int]]:
        yield from super().gives(core, name, node)
        if node.role in RESTING:
            for other, leader in zip(self.names, core.nodes, strict=True):
                if leader.role in LEADERS:
                    yield ("give", name, other), self._grant(other, name)


class AStartForgetsPromises(Model):
    def grants_after_crash(self, grants: Grants, name: str) -> Grants:
        left = list(self._grants_without(grants, name))
        for leader in self.names:
            at = self._grant(leader, name)
            forgotten = {GIVEN: ANSWER_TOO_LATE, HELD: HELD_TOO_LONG, ENDED: NO_GRANT}
            left[at] = forgotten.get(left[at], left[at])
        return tuple(left)


class _WrongOrder(Model):
    """The follower's promise may end before the leader's part."""

    early: dict[int, int]

    def lose_order(self, grants: Grants, leader: str, follower: str) -> Iterator[tuple[Step, Grants]]:
        at = self._grant(leader, follower)
        grant = grants[at]
        if grant in self.early:
            yield ("release", follower, leader), replaced(grants, at, self.early[grant])
        if grant == ANSWER_TOO_LATE:
            yield ("hold", leader, follower), replaced(grants, at, HELD_TOO_LONG)
        if grant in (ANSWER_TOO_LATE, HELD_TOO_LONG):
            yield ("end", leader, follower), replaced(grants, at, NO_GRANT)


class CountsFromTheAnswer(_WrongOrder):
    """The leader's part begins when the answer comes, however long that was under way."""

    early = {GIVEN: ANSWER_TOO_LATE}  # noqa: RUF012


class CountsAsLongAsPromised(_WrongOrder):
    """The leader counts the whole time, and its clock is the slower one."""

    early = {HELD: HELD_TOO_LONG}  # noqa: RUF012


class LetsGoBeforeItStops(_WrongOrder):
    """A hand-over releases the follower while the leader still acknowledges."""

    early = {}  # noqa: RUF012

    def lose_order(self, grants: Grants, leader: str, follower: str) -> Iterator[tuple[Step, Grants]]:
        at = self._grant(leader, follower)
        if grants[at] == HELD:
            yield ("let go", leader, follower), replaced(grants, at, HELD_TOO_LONG)
        yield from super().lose_order(grants, leader, follower)


class DoubtIsFailure(Model):
    def doubt(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        office = node.office
        assert office
        believed = node._replace(office=office._replace(pending=None))
        if office.pending is not None and core.znode.in_sync == office.in_sync:
            for forgotten in self._forgotten(core, name, node):
                yield ("doubt", name, ""), self._with(forgotten, name, believed)


@dataclass(frozen=True)
class Mutant:
    """without: the rule that is missing; broken: the number of the invariant that it breaks."""

    without: str
    broken: str
    model: Model


def mutant(without: str, broken: str, model: Model, **instead: Callable[..., Any]) -> Mutant:
    """instead: what is in the place of rules of the model, by their names."""
    for name, rule in instead.items():
        assert hasattr(model, name)
        setattr(model, name, rule)
    return Mutant(without, broken, model)


def product(without: str, broken: str, model: Model, module: object, **instead: object) -> Mutant:
    """instead: what is in the place of names of a module of the product."""
    model.instead = tuple((module, name, other) for name, other in instead.items())
    return Mutant(without, broken, model)


def with_row(state: Life, event: NodeEvent, after: Life, *actions: NodeAction) -> dict[Any, Any]:
    """The table of a node's life with another row."""
    return {**TABLE, (state, event): (after, actions)}


def commits_with_the_majority(own: int, acked: dict[str, int], needed: Names, name: str) -> int:
    ends = sorted([own, *(acked[other] for other in needed - {name})])
    return ends[(len(ends) - 1) // 2]


def trusts_the_next_start(later_starts: Iterable[int], log_end: int) -> int:
    """An epoch ends where the next one began, even if a later one began further in front."""
    return min(log_end, next(iter(later_starts), log_end))


def ignored_by(change: str) -> Callable[[Office, str], bool]:
    """The version of the znode, by one kind of change."""
    return lambda office, what: office.current or what == change


RIGHT = Model()
"""With every rule."""


MUTANTS = (
    mutant(
        "only in-sync nodes stand",
        "2",
        Model(2, 1, 2, outside="b"),
        may_stand=lambda name, _, *more: RIGHT.may_stand(name, frozenset({name}), *more),
    ),
    mutant(
        "a forgetful node leaves the election to others",
        "2",
        Model(2, 1, 2, memory=True),
        may_stand=lambda name, in_sync, _, run_out: RIGHT.may_stand(name, in_sync, frozenset(), run_out),
    ),
    mutant(
        "a forgetful node stands when it has caught up", "2", Model(2, 1, 2, memory=True), may_remind=lambda *_: True
    ),
    mutant(
        "each election raises the epoch",
        "1",
        Model(2, 1, 2),
        elected=lambda epoch, *more: (epoch, RIGHT.elected(epoch, *more)[1]),
    ),
    mutant(
        "a node stands when its promises have run out",
        "5",
        Model(2, 1, 2),
        may_stand=lambda name, in_sync, forgetful, _: RIGHT.may_stand(name, in_sync, forgetful, True),
    ),
    # it may yet have promised: to an old leader, after it was elected in vain
    mutant(
        "promises wait even for the only in-sync node",
        "5",
        Model(2, 1, 3),
        may_stand=lambda name, in_sync, forgetful, run_out: RIGHT.may_stand(
            name, in_sync, forgetful, run_out or in_sync == {name}
        ),
    ),
    product("a candidate gives no grants", "5", Model(2, 1, 2), life, CANDIDATES=frozenset({Life.ELECTED})),
    Mutant("a node that joins gives no grants", "5", GrantsWhileItJoins(2, 1, 2)),
    product(
        "only a candidate that waited for the outcome serves",
        "5",
        Model(2, 1, 2),
        life,
        TABLE=with_row(Life.FOLLOWING, NodeEvent.WON, Life.ELECTED, NodeAction.RECORD),
    ),
    Mutant("a node that starts has promised", "5", AStartForgetsPromises(2, 1, 2)),
    product("an acknowledgement needs grants", "5", Model(2, 1, 2), leading, may_acknowledge=lambda *_: True),
    Mutant("a grant counts from the sending of the ping", "5", CountsFromTheAnswer(2, 1, 2)),
    Mutant("a grant counts for less than is promised", "5", CountsAsLongAsPromised(2, 1, 2)),
    Mutant("a hand-over stops the leader first", "5", LetsGoBeforeItStops(2, 1, 2)),
    mutant("elections compare the version", "2", Model(2, 1, 3), version_fits=ignored_by("election")),
    mutant(
        "changes of the in-sync set compare the version", "2", Model(2, 1, 3), version_fits=ignored_by("in-sync set")
    ),
    product("a commit needs another node", "2", Model(2, 1, 2), leading, committed_position=lambda own, *_: own),
    product(
        "a commit needs all in-sync nodes",
        "2",
        Model(3, 1, 2),
        leading,
        committed_position=commits_with_the_majority,
    ),
    product(
        "a node is dropped in the znode first",
        "2",
        Model(2, 1, 2),
        leading,
        counted=lambda in_sync, pending: in_sync if pending is None or pending > in_sync else pending,
    ),
    product(
        "a node is counted before it is taken in",
        "2",
        Model(2, 1, 2, outside="b"),
        leading,
        counted=lambda in_sync, pending: in_sync if pending is None or pending > in_sync else in_sync | pending,
    ),
    Mutant("a write in doubt counts both ways", "2", DoubtIsFailure(2, 1, 2, outside="b")),
    mutant("a node is taken in when it has caught up", "2", Model(2, 1, 2, outside="b"), is_caught_up=lambda *_: True),
    mutant(
        "catching up means the epoch's start, too",
        "2",
        Model(3, 1, 2, outside="c"),
        is_caught_up=lambda acked, committed, _: acked >= committed,
    ),
    mutant("a follower refuses older epochs", "2", Model(2, 1, 3), accepts=lambda *_: True),
    mutant("a follower keeps the epoch", "4", Model(3, 1, 2), epoch_after_joining=lambda node, _: node.epoch),
    product(
        "a leader keeps the epoch before it serves",
        "2",
        Model(2, 1, 3),
        life,
        TABLE=with_row(Life.STANDING, NodeEvent.WON, Life.LEADING, NodeAction.LEAD),
    ),
    mutant("a node that joins cuts", "6", Model(2, 1, 2), cut_end=lambda *_: 10**9),
    # the ends of the logs are compared, whatever the epochs
    mutant("the cut is at the end of the common epoch", "6", Model(2, 1, 2), epoch_end=lambda _, log_end: log_end),
    mutant(
        "an epoch ends at the least of all later starts",
        "6",
        Model(2, 2, 3, power=True),
        epoch_end=trusts_the_next_start,
    ),
    mutant(
        "the cut is on the disk before the history",
        "6",
        Model(2, 1, 2),
        torn=lambda node, _, leader: node._replace(history=leader.history),
    ),
    mutant(
        "readers see only what is committed",
        "3",
        Model(2, 1, 2),
        shown=lambda node: len(node.log) if node.role in LEADERS else RIGHT.shown(node),
    ),
    mutant("followers show only what they were told", "3", Model(2, 1, 2), visible_end=lambda own, _: own),
    mutant(
        "a follower acknowledges what is on its disk",
        "2",
        Model(2, 1, 2, power=True),
        acknowledged_end=lambda node: len(node.log),
    ),
)

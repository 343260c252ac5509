"""Models that lack one rule each. Every one of them must break an invariant, or the rule would not be needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metaq.broker.sets import rules

from .model import Model, Step
from .states import (
    ANSWER_TOO_LATE,
    ELECTED,
    ENDED,
    FOLLOWER,
    GIVEN,
    HELD,
    HELD_TOO_LONG,
    IDLE,
    LEADER,
    NO_GRANT,
    Core,
    Grants,
    Names,
    Node,
    Office,
    replaced,
)


class AnyoneStands(Model):
    def may_stand(self, name: str, in_sync: Names, forgetful: Names, promises_run_out: bool) -> bool:
        return super().may_stand(name, frozenset({name}), forgetful, promises_run_out)


class PromisesDoNotWait(Model):
    def may_stand(self, name: str, in_sync: Names, forgetful: Names, promises_run_out: bool) -> bool:
        return super().may_stand(name, in_sync, forgetful, True)


class AloneDoesNotWait(Model):
    """A node that is alone in the in-sync set may yet have promised: to an old leader, after it was elected in vain."""

    def may_stand(self, name: str, in_sync: Names, forgetful: Names, promises_run_out: bool) -> bool:
        return super().may_stand(name, in_sync, forgetful, promises_run_out or in_sync == {name})


class TheForgetfulStand(Model):
    def may_stand(self, name: str, in_sync: Names, forgetful: Names, promises_run_out: bool) -> bool:
        return super().may_stand(name, in_sync, frozenset(), promises_run_out)


class RemindsTooEarly(Model):
    def may_remind(self, acked: int, committed: int, epoch_start: int) -> bool:
        return True


class EpochsStay(Model):
    def elected(self, epoch: int, in_sync: Names, name: str, present: Iterable[str]) -> tuple[int, Names]:
        return epoch, super().elected(epoch, in_sync, name, present)[1]


class CandidatesGrant(Model):
    def may_grant(self, node: Node) -> bool:
        return rules.may_grant(node.epoch, node.stream, standing=False)


class GrantsWhileItJoins(Model):
    """A node answers pings from its first moment on a connection, before it has compared the epochs."""

    def gives(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, int]]:
        yield from super().gives(core, name, node)
        if node.role in (IDLE, FOLLOWER):
            for other, leader in zip(self.names, core.nodes, strict=True):
                if leader.role == LEADER:
                    yield ("give", name, other), self._grant(other, name)


class AStartForgetsPromises(Model):
    def grants_after_crash(self, grants: Grants, name: str) -> Grants:
        left = list(self._grants_without(grants, name))
        for leader in self.names:
            at = self._grant(leader, name)
            forgotten = {GIVEN: ANSWER_TOO_LATE, HELD: HELD_TOO_LONG, ENDED: NO_GRANT}
            left[at] = forgotten.get(left[at], left[at])
        return tuple(left)


class NoGrants(Model):
    def may_acknowledge(self, held: Names, needed: Names, name: str) -> bool:
        return True


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


class ElectionsIgnoreTheVersion(Model):
    def version_fits(self, office: Office, what: str) -> bool:
        return office.current or what == "election"


class InSyncIgnoresTheVersion(Model):
    def version_fits(self, office: Office, what: str) -> bool:
        return office.current or what == "in-sync set"


class CommitsAlone(Model):
    def committed_position(self, own: int, acked: dict[str, int], needed: Names, name: str) -> int:
        return own


class CommitsWithTheMajority(Model):
    def committed_position(self, own: int, acked: dict[str, int], needed: Names, name: str) -> int:
        ends = sorted([own, *(acked[other] for other in needed - {name})])
        return ends[(len(ends) - 1) // 2]


class DropsBeforeItWrites(Model):
    def counted(self, in_sync: Names, pending: Names | None) -> Names:
        return in_sync if pending is None or pending > in_sync else pending


class CountsAfterItTookIn(Model):
    def counted(self, in_sync: Names, pending: Names | None) -> Names:
        return in_sync if pending is None or pending > in_sync else in_sync | pending


class DoubtIsFailure(Model):
    def doubt(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        office = node.office
        assert office
        believed = node._replace(office=office._replace(pending=None))
        if office.pending is not None and core.znode.in_sync == office.in_sync:
            for forgotten in self._forgotten(core, name, node):
                yield ("doubt", name, ""), self._with(forgotten, name, believed)


class ServesWhatItForgot(Model):
    def find_elected(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        znode = core.znode
        if node.role in (IDLE, FOLLOWER) and znode.leader == name and znode.epoch > node.epoch:
            zeros = (0,) * self.nodes
            office = Office(znode.epoch, True, znode.in_sync, acked=zeros, flying=zeros)
            yield ("find elected", name, ""), self._with(core, name, node._replace(role=ELECTED, office=office))


class TakesInWhoHasTheCommitted(Model):
    def is_caught_up(self, acked: int, committed: int, epoch_start: int) -> bool:
        return acked >= committed


class TakesInAnybody(Model):
    def is_caught_up(self, acked: int, committed: int, epoch_start: int) -> bool:
        return True


class FollowsOldEpochs(Model):
    def accepts(self, own_epoch: int, stream_epoch: int) -> bool:
        return True


class FollowersForgetTheEpoch(Model):
    def epoch_after_joining(self, node: Node, stream: int) -> int:
        return node.epoch


class LeadersForgetTheEpoch(Model):
    def kept(self, node: Node) -> Node:
        if node.role != LEADER:
            return node
        return node._replace(history=node.history[:-1], epoch=node.history[-2][0] if node.history[1:] else 1)


class JoinsUncut(Model):
    def cut_end(self, own_epoch_end: int, leaders_epoch_end: int) -> int:
        return 10**9


class CutsToTheShorterLog(Model):
    """The ends of the logs are compared, whatever the epochs."""

    def epoch_end(self, later_starts: Iterable[int], log_end: int) -> int:
        return log_end


class TrustsTheNextStart(Model):
    """An epoch ends where the next one began, even if a later one began further in front."""

    def epoch_end(self, later_starts: Iterable[int], log_end: int) -> int:
        starts = list(later_starts)
        return min(log_end, starts[0]) if starts else log_end


class HistoryBeforeTheCut(Model):
    def torn(self, node: Node, cut: int, leader: Node) -> Node:
        return node._replace(history=leader.history)


class ReadersSeeEverything(Model):
    def shown(self, node: Node) -> int:
        return len(node.log) if node.role == LEADER else super().shown(node)


class FollowersShowEverything(Model):
    def visible_end(self, own: int, told: int) -> int:
        return own


class AcknowledgesUnsynced(Model):
    def acknowledged_end(self, node: Node) -> int:
        return len(node.log)


@dataclass(frozen=True)
class Mutant:
    """without: the rule that is missing; broken: the number of the invariant that it breaks."""

    without: str
    model: Model
    broken: str


MUTANTS = (
    Mutant("only in-sync nodes stand", AnyoneStands(2, 1, 2, outside="b"), "2"),
    Mutant("a forgetful node leaves the election to others", TheForgetfulStand(2, 1, 2, memory=True), "2"),
    Mutant("a forgetful node stands when it has caught up", RemindsTooEarly(2, 1, 2, memory=True), "2"),
    Mutant("each election raises the epoch", EpochsStay(2, 1, 2), "1"),
    Mutant("a node stands when its promises have run out", PromisesDoNotWait(2, 1, 2), "5"),
    Mutant("promises wait even for the only in-sync node", AloneDoesNotWait(2, 1, 3), "5"),
    Mutant("a candidate gives no grants", CandidatesGrant(2, 1, 2), "5"),
    Mutant("a node that joins gives no grants", GrantsWhileItJoins(2, 1, 2), "5"),
    Mutant("only a candidate that waited for the outcome serves", ServesWhatItForgot(2, 1, 2), "5"),
    Mutant("a node that starts has promised", AStartForgetsPromises(2, 1, 2), "5"),
    Mutant("an acknowledgement needs grants", NoGrants(2, 1, 2), "5"),
    Mutant("a grant counts from the sending of the ping", CountsFromTheAnswer(2, 1, 2), "5"),
    Mutant("a grant counts for less than is promised", CountsAsLongAsPromised(2, 1, 2), "5"),
    Mutant("a hand-over stops the leader first", LetsGoBeforeItStops(2, 1, 2), "5"),
    Mutant("elections compare the version", ElectionsIgnoreTheVersion(2, 1, 3), "2"),
    Mutant("changes of the in-sync set compare the version", InSyncIgnoresTheVersion(2, 1, 3), "2"),
    Mutant("a commit needs another node", CommitsAlone(2, 1, 2), "2"),
    Mutant("a commit needs all in-sync nodes", CommitsWithTheMajority(3, 1, 2), "2"),
    Mutant("a node is dropped in the znode first", DropsBeforeItWrites(2, 1, 2), "2"),
    Mutant("a node is counted before it is taken in", CountsAfterItTookIn(2, 1, 2, outside="b"), "2"),
    Mutant("a write in doubt counts both ways", DoubtIsFailure(2, 1, 2, outside="b"), "2"),
    Mutant("a node is taken in when it has caught up", TakesInAnybody(2, 1, 2, outside="b"), "2"),
    Mutant("catching up means the epoch's start, too", TakesInWhoHasTheCommitted(3, 1, 2, outside="c"), "2"),
    Mutant("a follower refuses older epochs", FollowsOldEpochs(2, 1, 3), "2"),
    Mutant("a follower keeps the epoch", FollowersForgetTheEpoch(3, 1, 2), "4"),
    Mutant("a leader keeps the epoch before it serves", LeadersForgetTheEpoch(2, 1, 3), "2"),
    Mutant("a node that joins cuts", JoinsUncut(2, 1, 2), "6"),
    Mutant("the cut is at the end of the common epoch", CutsToTheShorterLog(2, 1, 2), "6"),
    Mutant("an epoch ends at the least of all later starts", TrustsTheNextStart(2, 2, 3, power=True), "6"),
    Mutant("the cut is on the disk before the history", HistoryBeforeTheCut(2, 1, 2), "6"),
    Mutant("readers see only what is committed", ReadersSeeEverything(2, 1, 2), "3"),
    Mutant("followers show only what they were told", FollowersShowEverything(2, 1, 2), "3"),
    Mutant("a follower acknowledges what is on its disk", AcknowledgesUnsynced(2, 1, 2, power=True), "2"),
)

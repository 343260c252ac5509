"""The steps of a broker set, and what must hold in every state.

The product decides: a node's life is the table of `metaq.broker.sets.life`, what a leader commits and acknowledges is
decided by `Leading`, and both ask `metaq.broker.sets.rules`. A mutant (mutants.py) puts something else in the place of
a function or row of the product, or of one of the methods below "rules", which say what the rest of a node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, combinations
from typing import NamedTuple
from unittest.mock import patch

from metaq.broker.sets import life, rules
from metaq.broker.sets.leading import Leading, Mark
from metaq.broker.sets.life import LEADERS, RESTING, NodeEvent
from metaq.broker.sets.life import NodeState as Life
from metaq.protocol.replication_stream import Ack, Lane

from .states import (
    COUNTED,
    ENDED,
    GIVEN,
    HELD,
    NAMES,
    NO_GRANT,
    PLACES,
    PROMISED,
    Core,
    Entry,
    Grants,
    Leader,
    Names,
    Node,
    Office,
    State,
    Znode,
    replaced,
)

Step = tuple[str, str, str]
"""What is done, by whom, and to whom or with whom; "" if there is nobody."""

WORDS = {
    "append": "{0} appends a message",
    "send": "{0} sends a block to {1}",
    "receive": "{0} receives a block from {1} and acknowledges it",
    "sync": "{0} syncs its log",
    "hear": "{0} hears an acknowledgement of {1}",
    "commit": "{0} commits",
    "give": "{0} answers a ping of {1} with a grant",
    "hold": "{0} receives a grant of {1}",
    "end": "{0} no longer counts the grant of {1}",
    "release": "the promise that {0} made to {1} runs out",
    "stand": "{0} reads the znode and becomes a candidate",
    "win": "{0} wins the election, with the in-sync set {1}",
    "withdraw": "{0} is a candidate no more",
    "find elected": "{0} finds itself in the znode as the leader",
    "serve": "{0} writes its history and serves",
    "resign": "{0} stops leading",
    "crash": "{0} crashes and starts again",
    "join": "{0} connects to {1}, cuts its log and takes over the history",
    "torn join": "{0} connects to {1}, and crashes between the cut and the history",
    "lose power": "the machine of {0} restarts, and {0} starts again",
    "remind": "{0} tells {1} that it has caught up since its machine restarted",
    "grow": "{0} begins to take {1} in",
    "shrink": "{0} begins to drop {1}",
    "write": "ZooKeeper applies a write of {0}",
    "learn": "{0} learns that its write succeeded",
    "doubt": "{0} believes that its write failed, because the version is the old one",
    "write late": "ZooKeeper applies a write of {0} that its sender has forgotten",
    "let go": "{0} tells {1} that it may stand, before it has stopped leading",
}


def in_words(step: Step) -> str:
    return WORDS[step[0]].format(*step[1:])


class Moves(NamedTuple):
    """What can be done in a core."""

    steps: tuple[tuple[Step, Core, dict[Grants, Grants] | None], ...]  # and what becomes of the grants
    stands: tuple[tuple[Step, Core, int, bool], ...]  # the candidate's place, and whether its promises have run out
    gives: tuple[tuple[Step, int], ...]  # the place of a grant that a follower may give


class _Remembering(dict[Grants, Grants]):
    """What `change` makes of grants."""

    def __init__(self, change: Callable[[Grants], Grants]) -> None:
        self._change = change

    def __missing__(self, grants: Grants) -> Grants:
        self[grants] = self._change(grants)
        return self[grants]


class Model:
    """Sets of `nodes` nodes, with at most `entries` messages in a log and `epochs` elections, the first included."""

    def __init__(
        self,
        nodes: int = 2,
        entries: int = 2,
        epochs: int = 3,
        *,
        wire: int = 1,
        power: bool = False,
        memory: bool = False,
        outside: str = "",
    ) -> None:
        """wire: most blocks under way to one node. power: crashes lose what is not on the disk, and all topics have
        `ack=disk`. memory: machines restart, too, but topics have `ack=in-sync`. outside: nodes that are not in-sync at
        first."""
        self.nodes, self.entries, self.epochs, self.wire, self.power = nodes, entries, epochs, wire, power
        self.memory = memory
        self.outside = frozenset(outside)
        self.names = NAMES[:nodes]
        self.instead: tuple[tuple[object, str, object], ...] = ()
        """What a mutant has in the place of attributes of the product's modules: module, name, and that."""

        self.forget()

    @contextmanager
    def mutated(self) -> Iterator[None]:
        """Put what the mutant has in the place of the product's."""
        with ExitStack() as stack:
            for module, name, other in self.instead:
                stack.enter_context(patch.object(module, name, other))
            yield

    def forget(self) -> None:
        """Drop what was worked out for the states of an exploration, which is most of its memory."""
        self._cores: dict[tuple, Core] = {}
        self._moves: dict[Core, Moves] = {}
        self._broken: dict[Core, str] = {}
        self._ends: dict[Grants, tuple[tuple[Step, Grants], ...]] = {}
        self._telling: dict[tuple[tuple[Leader, ...], Grants], tuple[tuple[int, str], ...]] = {}
        self._after_crash = {name: _Remembering(partial(self.grants_after_crash, name=name)) for name in self.names}
        self._after_resigning = {name: _Remembering(partial(self._grants_without, name=name)) for name in self.names}

    def first(self) -> State:
        """All nodes follow "a", the leader of epoch 1, with empty logs."""
        in_sync = frozenset(self.names) - self.outside
        office = Office(1, True, in_sync, acked=(0,) * self.nodes, flying=(0,) * self.nodes)
        leader = Node(role=Life.LEADING, office=office)
        nodes = (leader, *[Node(role=Life.FOLLOWING, leader="a", stream=1)] * (self.nodes - 1))
        core = self._core(nodes, Znode(1, "a", in_sync), None, (), "")
        return self._told(core, (NO_GRANT,) * self.nodes * self.nodes, (0, ""))

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        core, grants, acknowledged = state
        if (moves := self._moves.get(core)) is None:
            moves = self._moves[core] = self._moves_of(core)
        for step, reached, change in moves.steps:
            yield step, self._told(reached, change[grants] if change is not None else grants, acknowledged)
        for step, reached, at, free in moves.stands:
            if any(grant in PROMISED for grant in grants[at :: self.nodes]) != free:
                yield step, self._told(reached, grants, acknowledged)
        for step, at in moves.gives:
            if grants[at] == NO_GRANT:
                yield step, self._told(core, replaced(grants, at, GIVEN), acknowledged)
        if moves.steps:  # at least a crash, unless all is lost
            if (ends := self._ends.get(grants)) is None:
                ends = self._ends[grants] = tuple(self._let_grants_end(grants))
            for step, changed in ends:
                yield step, self._told(core, changed, acknowledged)

    def broken(self, state: State) -> str:
        """The invariant that does not hold in this state, or "". Numbers as in docs/replication.md."""
        if (wrong := self._broken.get(state.core)) is None:
            wrong = self._broken[state.core] = self._broken_in(state.core)
        return wrong

    def _moves_of(self, core: Core) -> Moves:
        if self.memory and all(self._node(core, name).forgetful for name in core.znode.in_sync):
            return Moves((), (), ())  # what was in memory alone is lost, as is known of it
        steps: list[tuple[Step, Core, dict[Grants, Grants] | None]] = []
        stands: list[tuple[Step, Core, int, bool]] = []
        gives: list[tuple[Step, int]] = []
        for at, (name, node) in enumerate(zip(self.names, core.nodes, strict=True)):
            unchanged: list[tuple[Step, Core]] = []
            if node.role in LEADERS:
                unchanged += self._lead(core, name, node)
                steps += ((*step, self._after_resigning[name]) for step in self._resign(core, name, node))
                unchanged += self._change_in_sync(core, name, node)
            elif node.role is Life.STANDING:
                unchanged += self._be_elected(core, name, node)
            elif node.role is Life.ELECTED:
                unchanged.append((("serve", name, ""), self._serve(core, name, node)))
            else:
                for free in (False, True):
                    stands += ((*step, at, free) for step in self._stand(core, name, node, free))
                steps += ((*step, self._after_crash[name]) for step in self._join_and_crash(core, name, node))
                unchanged += self._join(core, name, node)
            if node.leader:
                unchanged += self._follow(core, name, node)
            gives += self.gives(core, name, node)
            if (self.power or self.memory) and node.safe < len(node.log):
                unchanged.append(
                    (("sync", name, ""), self._acknowledging(core, name, node._replace(safe=len(node.log))))
                )
            steps += ((*step, self._after_crash[name]) for step in self._crash(core, name, node))
            if node.role in RESTING:
                unchanged += self._find_elected(core, name, node)
            steps += ((*step, None) for step in unchanged)
        if core.orphan:
            steps.append((("write late", core.orphan.leader, ""), self._written(core, "", core.orphan), None))
        return Moves(tuple(steps), tuple(stands), tuple(gives))

    # --- rules: a mutant overrides one of them ------------------------------------------------------------------------

    def may_stand(self, name: str, in_sync: Names, forgetful: Names, promises_run_out: bool) -> bool:
        """Whoever wants to believe that the leader is gone does."""
        return rules.may_stand(
            name,
            in_sync,
            forgetful=forgetful,
            master_present=False,
            leader_gone=True,
            promises_run_out=promises_run_out,
        )

    def elected(self, epoch: int, in_sync: Names, name: str, present: Iterable[str]) -> tuple[int, Names]:
        epoch, names = rules.elected(epoch, in_sync, name, frozenset(present))
        return epoch, frozenset(names)

    def may_grant(self, node: Node) -> bool:
        return rules.may_grant(node.epoch, node.stream, standing=node.role in life.CANDIDATES)

    def is_caught_up(self, acked: int, committed: int, epoch_start: int) -> bool:
        return rules.is_caught_up(acked, committed, epoch_start)

    def may_remind(self, acked: int, committed: int, epoch_start: int) -> bool:
        return rules.is_caught_up(acked, committed, epoch_start)

    def visible_end(self, own: int, told: int) -> int:
        return rules.visible_end(own, told)

    def accepts(self, own_epoch: int, stream_epoch: int) -> bool:
        return rules.accepts(own_epoch, stream_epoch)

    def epoch_end(self, later_starts: Iterable[int], log_end: int) -> int:
        return rules.epoch_end(later_starts, log_end)

    def cut_end(self, own_epoch_end: int, leaders_epoch_end: int) -> int:
        return rules.cut_end(own_epoch_end, leaders_epoch_end)

    def shown(self, node: Node) -> int:
        """Up to where readers see the node's log."""
        return node.told if node.role in LEADERS else self.visible_end(len(node.log), node.told)

    def version_fits(self, office: Office, what: str) -> bool:
        """Whether ZooKeeper applies a change ("election", "in-sync set") that was made for the version in `office`."""
        return office.current

    def acknowledged_end(self, node: Node) -> int:
        return node.safe if self.power else len(node.log)

    def epoch_after_joining(self, node: Node, stream: int) -> int:
        return stream

    def kept(self, node: Node) -> Node:
        """What of history and epoch is still there after a crash."""
        return node

    def torn(self, node: Node, cut: int, leader: Node) -> Node:
        """A node that crashed while it joined."""
        return node._replace(log=node.log[:cut], safe=min(node.safe, cut))

    def gives(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, int]]:
        """The places of the grants that the node may give."""
        if node.leader and self._connected(core, node, node.leader) and self.may_grant(node):
            yield ("give", name, node.leader), self._grant(node.leader, name)

    def grants_after_crash(self, grants: Grants, name: str) -> Grants:
        """A node that starts has promised, so what it had promised goes on; what it held is gone."""
        return self._grants_without(grants, name)

    def doubt(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        """A leader in doubt about a write writes the same again, which is the same as waiting."""
        return iter(())

    def lose_order(self, grants: Grants, leader: str, follower: str) -> Iterator[tuple[Step, Grants]]:
        """The follower's promise never ends before the leader's part of it."""
        return iter(())

    # --- a leader -----------------------------------------------------------------------------------------------------

    def _lead(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        office = node.office
        assert office
        if len(node.log) < self.entries:
            entry = 10 * office.term + PLACES[name]
            yield ("append", name, ""), self._with(core, name, node._replace(log=(*node.log, entry)))
        leading = self._leading((office.term, name, office.in_sync, office.pending), node, office.acked)
        leading.advance(0.0)
        committed = leading.committed[Lane.DISK if self.power else Lane.MEMORY]
        if committed > node.told:
            yield ("commit", name, ""), self._with(core, name, node._replace(told=committed))
        for other, follower in zip(self.names, core.nodes, strict=True):
            at = PLACES[other]
            if office.flying[at] > office.acked[at]:
                heard = office._replace(acked=replaced(office.acked, at, office.flying[at]))
                yield ("hear", name, other), self._with(core, name, node._replace(office=heard))
            if self._connected(core, follower, name) and len(follower.wire) < self.wire:
                sent = len(follower.log) + sum(entry is not None for entry, _ in follower.wire)
                told = follower.wire[-1][1] if follower.wire else follower.told
                entry_or_none = node.log[sent] if sent < len(node.log) else None
                if entry_or_none is not None or node.told > told:
                    wire = (*follower.wire, (entry_or_none, node.told))
                    yield ("send", name, other), self._with(core, other, follower._replace(wire=wire))
            reminded = follower.forgetful and self._connected(core, follower, name)
            if reminded and self.may_remind(office.acked[at], node.told, node.history[-1][1]):
                yield ("remind", name, other), self._with(core, other, follower._replace(forgetful=False))

    def _leading(self, leader: Leader, node: Node | None = None, acked: tuple[int, ...] = ()) -> Leading:
        """The product's leader. node, acked: with this log, and these ends of the others', who all have granted."""
        term, name, in_sync, pending = leader
        leading = Leading(name, term, in_sync)
        leading.changing_to = pending
        for other in self.names:
            if other != name:
                leading.connected(other)
        if node is not None:
            for end in range(1, len(node.log) + 1):
                leading.next_block(*[[Mark("log", end, end)]] * len(Lane))
            leading.own_safe = self.acknowledged_end(node)
            for other in self.names:
                if other != name:
                    end = acked[PLACES[other]]
                    leading.went_live(other)
                    leading.granted(other, 1.0)
                    leading.acknowledged(other, Ack(end, end, 0))
        return leading

    def _resign(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        for forgotten in self._forgotten(core, name, node):
            idle = node._replace(role=self._after(node, NodeEvent.DEPOSED), office=None)
            yield ("resign", name, ""), self._with(forgotten, name, idle)

    def _change_in_sync(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        office = node.office
        assert office
        if office.pending is None:
            start = node.history[-1][1]
            for at, other in enumerate(self.names):
                if other == name:
                    continue
                if other in office.in_sync:
                    what, names = "shrink", office.in_sync - {other}
                elif self.is_caught_up(office.acked[at], node.told, start):
                    what, names = "grow", office.in_sync | {other}
                else:
                    continue
                writing = node._replace(office=office._replace(pending=names))
                yield (what, name, other), self._with(core, name, writing)
        elif core.znode.in_sync != office.pending:
            if self.version_fits(office, "in-sync set"):
                written = core.znode._replace(in_sync=office.pending)
                yield ("write", name, ""), self._written(core, name, written)
        elif office.current:
            known = office._replace(in_sync=office.pending, pending=None)
            yield ("learn", name, ""), self._with(core, name, node._replace(office=known))
        yield from self.doubt(core, name, node)

    # --- a follower ---------------------------------------------------------------------------------------------------

    def _follow(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        if node.wire:
            (entry, told), *later = node.wire
            log = node.log if entry is None else (*node.log, entry)
            received = node._replace(log=log, told=max(node.told, min(told, len(log))), wire=tuple(later))
            yield ("receive", name, node.leader), self._acknowledging(core, name, received)

    def _acknowledging(self, core: Core, name: str, node: Node) -> Core:
        """With `node`, and with its acknowledgement under way to the leader, if that is still there."""
        core = self._with(core, name, node)
        if not node.leader or not self._connected(core, node, node.leader):
            return core
        leader = core.nodes[PLACES[node.leader]]
        assert leader.office
        flying = replaced(leader.office.flying, PLACES[name], self.acknowledged_end(node))
        return self._with(core, node.leader, leader._replace(office=leader.office._replace(flying=flying)))

    def _join(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        for other, leader, office, cut in self._cuts(core, node):
            joined = Node(
                log=node.log[:cut],
                safe=min(node.safe, cut),
                history=leader.history,
                epoch=self.epoch_after_joining(node, office.term),
                forgetful=node.forgetful,
                role=self._after(node, NodeEvent.LEADER),
                leader=other,
                stream=office.term,
                told=node.told,
            )
            at, end = PLACES[name], self.acknowledged_end(joined)
            heard = office._replace(acked=replaced(office.acked, at, end), flying=replaced(office.flying, at, end))
            joining = self._with(core, other, leader._replace(office=heard))
            yield ("join", name, other), self._with(joining, name, joined)

    def _join_and_crash(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        for other, leader, _, cut in self._cuts(core, node):
            if cut < len(node.log):
                torn = self._started(self.torn(node, cut, leader))
                yield ("torn join", name, other), self._with(core, name, torn)

    def _cuts(self, core: Core, node: Node) -> Iterator[tuple[str, Node, Office, int]]:
        """The leaders that the node may join, and where it cuts its log for each.

        Any leader will do, also one that was deposed and does not know it: what ZooKeeper shows may be old.
        """
        for other, leader in zip(self.names, core.nodes, strict=True):
            if leader.role not in LEADERS or leader.office is None or not self.accepts(node.epoch, leader.office.term):
                continue
            common = rules.common_epoch((each[0] for each in node.history), (each[0] for each in leader.history))
            if common is not None:
                yield other, leader, leader.office, self.cut_end(self._end(node, common), self._end(leader, common))

    def _end(self, node: Node, epoch: int) -> int:
        return self.epoch_end((start for later, start in node.history if later > epoch), len(node.log))

    # --- an election --------------------------------------------------------------------------------------------------

    def _stand(self, core: Core, name: str, node: Node, promises_run_out: bool) -> Iterator[tuple[Step, Core]]:
        in_sync = core.znode.in_sync
        forgetful = frozenset(other for other in self.names if self._node(core, other).forgetful)
        if core.znode.epoch < self.epochs and self.may_stand(name, in_sync, forgetful, promises_run_out):
            office = Office(core.znode.epoch + 1, True, in_sync)
            standing = node._replace(role=self._after(node, NodeEvent.CHANCE), office=office)
            yield ("stand", name, ""), self._with(core, name, standing)

    def _be_elected(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        """A candidate gives no grants, so that the znode may be changed long after it has looked at its promises."""
        office = node.office
        assert office
        if self.version_fits(office, "election"):
            zeros = (0,) * self.nodes
            for znode in self._candidacies(name, office):
                won = Office(znode.epoch, True, znode.in_sync, acked=zeros, flying=zeros)
                elected = self._with(core, name, node._replace(role=self._after(node, NodeEvent.WON), office=won))
                yield ("win", name, "".join(sorted(znode.in_sync))), self._written(elected, name, znode)
        withdrawn = node._replace(role=self._after(node, NodeEvent.LOST), office=None)
        for forgotten in self._forgotten(core, name, node):
            yield ("withdraw", name, ""), self._with(forgotten, name, withdrawn)

    def _find_elected(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        """A node that has no candidate's memory finds itself elected. By the table it stands again."""
        znode = core.znode
        if (node.role, NodeEvent.WON) in life.TABLE and znode.leader == name and znode.epoch > node.epoch:
            zeros = (0,) * self.nodes
            office = Office(znode.epoch, True, znode.in_sync, acked=zeros, flying=zeros)
            elected = node._replace(role=self._after(node, NodeEvent.WON), office=office)
            yield ("find elected", name, ""), self._with(core, name, elected)

    def _serve(self, core: Core, name: str, node: Node) -> Core:
        assert node.office
        term = node.office.term
        history = (*node.history, (term, len(node.log)))
        serving = node._replace(
            role=self._after(node, NodeEvent.RECORDED), epoch=term, history=history, leader="", stream=0, wire=()
        )
        served = self._with(core, name, serving)
        missing = term == core.znode.epoch and node.log[: len(core.seen)] != core.seen
        return self._wrong(served, "2: a leader lacks what was seen or acknowledged") if missing else served

    # --- crashes, the znode, grants -----------------------------------------------------------------------------------

    def _crash(self, core: Core, name: str, node: Node) -> Iterator[tuple[Step, Core]]:
        kept = self.kept(node)
        lives = [("crash", kept)]
        if self.power:
            lives = [("lose power", self._without_tail(kept, end)) for end in range(kept.safe, len(kept.log) + 1)]
        elif self.memory:
            tails = range(kept.safe, len(kept.log) + 1)
            lives += [("lose power", self._without_tail(kept, end)._replace(forgetful=True)) for end in tails]
        for what, left in lives:
            for forgotten in self._forgotten(core, name, node):
                yield (what, name, ""), self._with(forgotten, name, self._started(left))

    def _without_tail(self, node: Node, end: int) -> Node:
        return node._replace(log=node.log[:end], safe=end)

    def _started(self, node: Node) -> Node:
        """What is on the disk, and nothing else."""
        return Node(node.log, node.safe, node.history, node.epoch, node.forgetful)

    def _grants_without(self, grants: Grants, name: str) -> Grants:
        """The grants when `name` counts none any more."""
        first = self._grant(name, "a")
        own = (ENDED if each in PROMISED else NO_GRANT for each in grants[first : first + self.nodes])
        return (*grants[:first], *own, *grants[first + self.nodes :])

    def _written(self, core: Core, name: str, znode: Znode) -> Core:
        """The znode is changed, by `name`: what others know of it is old, and forgotten writes can only fail."""
        nodes = tuple(
            node._replace(office=node.office._replace(current=False))
            if node.office and node.office.current and other != name
            else node
            for other, node in zip(self.names, core.nodes, strict=True)
        )
        return self._core(nodes, znode, None, core.seen, core.wrong)

    def _forgotten(self, core: Core, name: str, node: Node) -> Iterator[Core]:
        """The sender forgets what it is writing: that it never arrives, and that it may still do."""
        yield core
        office = node.office
        if office is None or not office.current or core.orphan:
            return
        if node.role is Life.STANDING:
            for znode in self._candidacies(name, office):
                yield self._core(core.nodes, core.znode, znode, core.seen, core.wrong)
        elif office.pending is not None and office.pending != core.znode.in_sync:
            znode = core.znode._replace(in_sync=office.pending)
            yield self._core(core.nodes, core.znode, znode, core.seen, core.wrong)

    def _candidacies(self, name: str, office: Office) -> Iterator[Znode]:
        """What a candidate may write: any of the others may seem to be absent."""
        others = sorted(office.in_sync - {name})
        for present in chain.from_iterable(combinations(others, count) for count in range(len(others) + 1)):
            epoch, in_sync = self.elected(office.term - 1, office.in_sync, name, present)
            yield Znode(epoch, name, in_sync)

    def _let_grants_end(self, grants: Grants) -> Iterator[tuple[Step, Grants]]:
        for at, grant in enumerate(grants):
            if grant != NO_GRANT:
                leader, follower = self.names[at // self.nodes], self.names[at % self.nodes]
                if grant == GIVEN:
                    yield ("hold", leader, follower), replaced(grants, at, HELD)
                if grant in (GIVEN, HELD):
                    yield ("end", leader, follower), replaced(grants, at, ENDED)
                if grant == ENDED:
                    yield ("release", follower, leader), replaced(grants, at, NO_GRANT)
                yield from self.lose_order(grants, leader, follower)

    def _grant(self, leader: str, follower: str) -> int:
        """The place of a grant in State.grants."""
        return PLACES[leader] * self.nodes + PLACES[follower]

    def _after(self, node: Node, event: NodeEvent) -> Life:
        return life.next_state(node.role, event)[0]

    def _connected(self, core: Core, node: Node, leader: str) -> bool:
        """Whether `node` has a stream of what `leader` is now, not of what it was before a crash or an election."""
        if node.leader != leader:
            return False
        sender = core.nodes[PLACES[leader]]
        return sender.role in LEADERS and sender.office is not None and sender.office.term == node.stream

    def _node(self, core: Core, name: str) -> Node:
        return core.nodes[PLACES[name]]

    def _with(self, core: Core, name: str, node: Node) -> Core:
        """With `node` in the place of `name`, after readers have looked at it."""
        seen, wrong = core.seen, core.wrong
        shown = node.log[: self.shown(node)]
        if shown != seen[: len(shown)]:
            if shown[: len(seen)] == seen:
                seen = shown
            else:
                wrong = "3: a reader sees something else than another saw"
        return self._core(replaced(core.nodes, PLACES[name], node), core.znode, core.orphan, seen, wrong)

    def _wrong(self, core: Core, wrong: str) -> Core:
        return self._core(core.nodes, core.znode, core.orphan, core.seen, wrong)

    def _core(
        self, nodes: tuple[Node, ...], znode: Znode, orphan: Znode | None, seen: tuple[Entry, ...], wrong: str
    ) -> Core:
        key = (nodes, znode, orphan, seen, wrong)
        if (core := self._cores.get(key)) is None:
            leaders = tuple(
                (node.office.term, name, node.office.in_sync, node.office.pending)
                for name, node in zip(self.names, nodes, strict=True)
                if node.role in LEADERS and node.office
            )
            core = self._cores[key] = Core(*key, leaders)
        return core

    def _told(self, core: Core, grants: Grants, acknowledged: tuple[int, str]) -> State:
        """After each leader that may has told a client that its message is stored."""
        if core.leaders:
            if (tell := self._telling.get((core.leaders, grants))) is None:
                tell = self._telling[core.leaders, grants] = tuple(self._acknowledge(core.leaders, grants))
            newest = max((acknowledged, *tell), key=lambda each: each[0])
            for each in tell:
                if each[0] < newest[0]:
                    core = self._wrong(core, "5: an older leader acknowledges")
                elif each != newest:
                    core = self._wrong(core, "1: two nodes acknowledge in one epoch")
            acknowledged = newest
        return State(core, grants, acknowledged)

    def _acknowledge(self, leaders: Iterable[Leader], grants: Grants) -> Iterator[tuple[int, str]]:
        for leader in leaders:
            term, name, *_ = leader
            leading = self._leading(leader)
            for other in self.names:
                if grants[self._grant(name, other)] in COUNTED:
                    leading.granted(other, 1.0)
            if leading.may_acknowledge(0.0):
                yield term, name

    # --- invariants ---------------------------------------------------------------------------------------------------

    def _broken_in(self, core: Core) -> str:
        if core.wrong:
            return core.wrong
        seen = core.seen
        terms = []
        for name, node in zip(self.names, core.nodes, strict=True):
            if name in core.znode.in_sync and not node.forgetful and node.log[: len(seen)] != seen:
                return "2: a node that can be elected lacks what was seen or acknowledged"
            if node.told > len(node.log) or node.log[: node.told] != seen[: node.told]:
                return "4: logs differ below the committed end"
            if node.role in LEADERS and node.office:
                terms.append(node.office.term)
            elif node.leader and self._connected(core, node, node.leader):
                coming = node.log + tuple(entry for entry, _ in node.wire if entry is not None)
                if coming != core.nodes[PLACES[node.leader]].log[: len(coming)]:
                    return "6: a follower has what its leader has not"
        return "1: two nodes lead in one epoch" if len(set(terms)) < len(terms) else ""

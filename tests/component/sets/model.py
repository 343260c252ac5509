"""The steps of a broker set, each allowed by the rules of `metaq.broker.sets.rules`, and what must hold in every state.

The methods below "rules" are the guards; each mutant (mutants.py) overrides one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, combinations

from metaq.broker.sets import rules

from .states import (
    CANDIDATE,
    COUNTED,
    ELECTED,
    ENDED,
    FOLLOWER,
    GIVEN,
    HELD,
    IDLE,
    LEADER,
    NAMES,
    NO_GRANT,
    PLACES,
    PROMISED,
    Names,
    Node,
    Office,
    State,
    Znode,
    following,
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
    "acknowledge": "{0} tells a client that its message is stored",
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


@cache
def _without(grants: tuple[int, ...], first: int, count: int) -> tuple[int, ...]:
    """When those from `first` on are counted no more."""
    own = (ENDED if each in PROMISED else NO_GRANT for each in grants[first : first + count])
    return (*grants[:first], *own, *grants[first + count :])


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

    def first(self) -> State:
        return following(self.nodes, frozenset(self.names) - self.outside)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if self.memory and all(self._node(state, name).forgetful for name in state.znode.in_sync):
            return  # what was in memory alone is lost, as is known of it
        for name, node in zip(self.names, state.nodes, strict=True):
            if node.role == LEADER:
                yield from self._lead(state, name, node)
                yield from self._change_in_sync(state, name, node)
            elif node.role == CANDIDATE:
                yield from self._be_elected(state, name, node)
            elif node.role == ELECTED:
                yield ("serve", name, ""), self._serve(state, name, node)
            else:
                yield from self._stand(state, name, node)
                yield from self._join(state, name, node)
            if node.leader:
                yield from self._follow(state, name, node)
            if (self.power or self.memory) and node.safe < len(node.log):
                yield ("sync", name, ""), self._acknowledging(state, name, node._replace(safe=len(node.log)))
            yield from self._crash(state, name, node)
            yield from self.find_elected(state, name, node)
        yield from self._let_grants_end(state)
        if state.orphan:
            yield ("write late", state.orphan.leader, ""), self._written(state, "", state.orphan)

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
        return rules.may_grant(node.epoch, node.stream, standing=node.role in (CANDIDATE, ELECTED))

    def counted(self, in_sync: Names, pending: Names | None) -> Names:
        return rules.counted(in_sync, pending)

    def committed_position(self, own: int, acked: dict[str, int], needed: Names, name: str) -> int:
        return rules.committed_position(own, acked, needed, name)

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

    def may_acknowledge(self, held: Names, needed: Names, name: str) -> bool:
        """held: the nodes whose grants the leader counts. The rule itself is asked, at time 0."""
        return rules.may_acknowledge(0, dict.fromkeys(held, 1.0), needed, name)

    def shown(self, node: Node) -> int:
        """Up to where readers see the node's log."""
        return node.told if node.role == LEADER else self.visible_end(len(node.log), node.told)

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

    def grants_after_crash(self, state: State, name: str) -> tuple[int, ...]:
        """A node that starts has promised, so what it had promised goes on; what it held is gone."""
        return self._grants_without(state, name)

    def doubt(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        """A leader in doubt about a write writes the same again, which is the same as waiting."""
        return iter(())

    def find_elected(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        """Only a candidate that has waited for the outcome serves; a node that finds itself elected stands again."""
        return iter(())

    def lose_order(self, state: State, leader: str, follower: str) -> Iterator[tuple[Step, State]]:
        """The follower's promise never ends before the leader's part of it."""
        return iter(())

    # --- a leader -----------------------------------------------------------------------------------------------------

    def _lead(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        office = node.office
        assert office
        if len(node.log) < self.entries:
            entry = 10 * office.term + PLACES[name]
            yield ("append", name, ""), self._with(state, name, node._replace(log=(*node.log, entry)))
        needed = self.counted(office.in_sync, office.pending)
        acked = dict(zip(self.names, office.acked, strict=True))
        committed = self.committed_position(self.acknowledged_end(node), acked, needed, name)
        if committed > node.told:
            yield ("commit", name, ""), self._with(state, name, node._replace(told=committed))
        yield from self._acknowledge(state, name, office, needed)
        for other, follower in zip(self.names, state.nodes, strict=True):
            at = PLACES[other]
            if office.flying[at] > office.acked[at]:
                heard = office._replace(acked=replaced(office.acked, at, office.flying[at]))
                yield ("hear", name, other), self._with(state, name, node._replace(office=heard))
            if self._connected(state, follower, name) and len(follower.wire) < self.wire:
                sent = len(follower.log) + sum(entry is not None for entry, _ in follower.wire)
                told = follower.wire[-1][1] if follower.wire else follower.told
                entry_or_none = node.log[sent] if sent < len(node.log) else None
                if entry_or_none is not None or node.told > told:
                    wire = (*follower.wire, (entry_or_none, node.told))
                    yield ("send", name, other), self._with(state, other, follower._replace(wire=wire))
            reminded = follower.forgetful and self._connected(state, follower, name)
            if reminded and self.may_remind(office.acked[at], node.told, node.history[-1][1]):
                yield ("remind", name, other), self._with(state, other, follower._replace(forgetful=False))
        for forgotten in self._forgotten(state._replace(grants=self._grants_without(state, name)), name, node):
            yield ("resign", name, ""), self._with(forgotten, name, node._replace(role=IDLE, office=None))

    def _acknowledge(self, state: State, name: str, office: Office, needed: Names) -> Iterator[tuple[Step, State]]:
        newest = (office.term, name)
        if newest == state.acknowledged:
            return
        held = frozenset(other for other in self.names if state.grants[self._grant(name, other)] in COUNTED)
        if self.may_acknowledge(held, needed, name):
            epoch = state.acknowledged[0]
            wrong = "5: an older leader acknowledges" if office.term < epoch else ""
            wrong = "1: two nodes acknowledge in one epoch" if office.term == epoch else wrong
            yield ("acknowledge", name, ""), state._replace(acknowledged=newest, wrong=wrong)

    def _change_in_sync(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
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
                yield (what, name, other), self._with(state, name, writing)
        elif state.znode.in_sync != office.pending:
            if self.version_fits(office, "in-sync set"):
                written = state.znode._replace(in_sync=office.pending)
                yield ("write", name, ""), self._written(state, name, written)
        elif office.current:
            known = office._replace(in_sync=office.pending, pending=None)
            yield ("learn", name, ""), self._with(state, name, node._replace(office=known))
        yield from self.doubt(state, name, node)

    # --- a follower ---------------------------------------------------------------------------------------------------

    def _follow(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        if node.wire:
            (entry, told), *later = node.wire
            log = node.log if entry is None else (*node.log, entry)
            received = node._replace(log=log, told=max(node.told, min(told, len(log))), wire=tuple(later))
            yield ("receive", name, node.leader), self._acknowledging(state, name, received)
        if self._connected(state, node, node.leader):
            at = self._grant(node.leader, name)
            if state.grants[at] == NO_GRANT and self.may_grant(node):
                yield ("give", name, node.leader), state._replace(grants=replaced(state.grants, at, GIVEN))

    def _acknowledging(self, state: State, name: str, node: Node) -> State:
        """With `node`, and with its acknowledgement under way to the leader, if that is still there."""
        state = self._with(state, name, node)
        if not node.leader or not self._connected(state, node, node.leader):
            return state
        leader = state.nodes[PLACES[node.leader]]
        assert leader.office
        flying = replaced(leader.office.flying, PLACES[name], self.acknowledged_end(node))
        return self._with(state, node.leader, leader._replace(office=leader.office._replace(flying=flying)))

    def _join(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        """Any leader will do, also one that was deposed and does not know it: what ZooKeeper shows may be old."""
        for other, leader in zip(self.names, state.nodes, strict=True):
            if leader.role != LEADER or leader.office is None or not self.accepts(node.epoch, leader.office.term):
                continue
            common = rules.common_epoch((each[0] for each in node.history), (each[0] for each in leader.history))
            if common is None:
                continue
            cut = self.cut_end(self._end(node, common), self._end(leader, common))
            if cut < len(node.log):
                torn = self._started(self.torn(node, cut, leader))
                yield (
                    ("torn join", name, other),
                    self._with(state._replace(grants=self.grants_after_crash(state, name)), name, torn),
                )
            joined = Node(
                log=node.log[:cut],
                safe=min(node.safe, cut),
                history=leader.history,
                epoch=self.epoch_after_joining(node, leader.office.term),
                forgetful=node.forgetful,
                role=FOLLOWER,
                leader=other,
                stream=leader.office.term,
                told=node.told,
            )
            at, end = PLACES[name], self.acknowledged_end(joined)
            office = leader.office._replace(
                acked=replaced(leader.office.acked, at, end), flying=replaced(leader.office.flying, at, end)
            )
            joining = self._with(state, other, leader._replace(office=office))
            yield ("join", name, other), self._with(joining, name, joined)

    def _end(self, node: Node, epoch: int) -> int:
        return self.epoch_end((start for later, start in node.history if later > epoch), len(node.log))

    # --- an election --------------------------------------------------------------------------------------------------

    def _stand(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        if state.znode.epoch == self.epochs:
            return
        promised = any(state.grants[self._grant(other, name)] in PROMISED for other in self.names)
        in_sync = state.znode.in_sync
        forgetful = frozenset(other for other in self.names if self._node(state, other).forgetful)
        if self.may_stand(name, in_sync, forgetful, not promised):
            office = Office(state.znode.epoch + 1, True, in_sync)
            yield ("stand", name, ""), self._with(state, name, node._replace(role=CANDIDATE, office=office))

    def _be_elected(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        """A candidate gives no grants, so that the znode may be changed long after it has looked at its promises."""
        office = node.office
        assert office
        if self.version_fits(office, "election"):
            zeros = (0,) * self.nodes
            for znode in self._candidacies(name, office):
                won = Office(znode.epoch, True, znode.in_sync, acked=zeros, flying=zeros)
                elected = self._with(state, name, node._replace(role=ELECTED, office=won))
                yield ("win", name, "".join(sorted(znode.in_sync))), self._written(elected, name, znode)
        withdrawn = node._replace(role=FOLLOWER if node.leader else IDLE, office=None)
        for forgotten in self._forgotten(state, name, node):
            yield ("withdraw", name, ""), self._with(forgotten, name, withdrawn)

    def _serve(self, state: State, name: str, node: Node) -> State:
        assert node.office
        term = node.office.term
        history = (*node.history, (term, len(node.log)))
        serving = node._replace(role=LEADER, epoch=term, history=history, leader="", stream=0, wire=())
        served = self._with(state, name, serving)
        missing = term == state.znode.epoch and node.log[: len(state.seen)] != state.seen
        return served._replace(wrong="2: a leader lacks what was seen or acknowledged") if missing else served

    # --- crashes, the znode, grants -----------------------------------------------------------------------------------

    def _crash(self, state: State, name: str, node: Node) -> Iterator[tuple[Step, State]]:
        without = state._replace(grants=self.grants_after_crash(state, name))
        kept = self.kept(node)
        lives = [("crash", kept)]
        if self.power:
            lives = [("lose power", self._without_tail(kept, end)) for end in range(kept.safe, len(kept.log) + 1)]
        elif self.memory:
            tails = range(kept.safe, len(kept.log) + 1)
            lives += [("lose power", self._without_tail(kept, end)._replace(forgetful=True)) for end in tails]
        for what, life in lives:
            for forgotten in self._forgotten(without, name, node):
                yield (what, name, ""), self._with(forgotten, name, self._started(life))

    def _without_tail(self, node: Node, end: int) -> Node:
        return node._replace(log=node.log[:end], safe=end)

    def _started(self, node: Node) -> Node:
        """What is on the disk, and nothing else."""
        return Node(node.log, node.safe, node.history, node.epoch, node.forgetful)

    def _grants_without(self, state: State, name: str) -> tuple[int, ...]:
        """The grants when `name` counts none any more."""
        return _without(state.grants, self._grant(name, "a"), self.nodes)

    def _written(self, state: State, name: str, znode: Znode) -> State:
        """The znode is changed, by `name`: what others know of it is old, and forgotten writes can only fail."""
        nodes = tuple(
            node._replace(office=node.office._replace(current=False))
            if node.office and node.office.current and other != name
            else node
            for other, node in zip(self.names, state.nodes, strict=True)
        )
        return state._replace(nodes=nodes, znode=znode, orphan=None)

    def _forgotten(self, state: State, name: str, node: Node) -> Iterator[State]:
        """The sender forgets what it is writing: that it never arrives, and that it may still do."""
        yield state
        office = node.office
        if office is None or not office.current or state.orphan:
            return
        if node.role == CANDIDATE:
            for znode in self._candidacies(name, office):
                yield state._replace(orphan=znode)
        elif office.pending is not None and office.pending != state.znode.in_sync:
            yield state._replace(orphan=state.znode._replace(in_sync=office.pending))

    def _candidacies(self, name: str, office: Office) -> Iterator[Znode]:
        """What a candidate may write: any of the others may seem to be absent."""
        others = sorted(office.in_sync - {name})
        for present in chain.from_iterable(combinations(others, count) for count in range(len(others) + 1)):
            epoch, in_sync = self.elected(office.term - 1, office.in_sync, name, present)
            yield Znode(epoch, name, in_sync)

    def _let_grants_end(self, state: State) -> Iterator[tuple[Step, State]]:
        for at, grant in enumerate(state.grants):
            if grant != NO_GRANT:
                leader, follower = self.names[at // self.nodes], self.names[at % self.nodes]
                if grant == GIVEN:
                    yield ("hold", leader, follower), state._replace(grants=replaced(state.grants, at, HELD))
                if grant in (GIVEN, HELD):
                    yield ("end", leader, follower), state._replace(grants=replaced(state.grants, at, ENDED))
                if grant == ENDED:
                    yield ("release", follower, leader), state._replace(grants=replaced(state.grants, at, NO_GRANT))
                yield from self.lose_order(state, leader, follower)

    def _grant(self, leader: str, follower: str) -> int:
        """The place of a grant in State.grants."""
        return PLACES[leader] * self.nodes + PLACES[follower]

    def _connected(self, state: State, node: Node, leader: str) -> bool:
        """Whether `node` has a stream of what `leader` is now, not of what it was before a crash or an election."""
        if node.leader != leader:
            return False
        sender = state.nodes[PLACES[leader]]
        return sender.role == LEADER and sender.office is not None and sender.office.term == node.stream

    def _node(self, state: State, name: str) -> Node:
        return state.nodes[PLACES[name]]

    def _with(self, state: State, name: str, node: Node) -> State:
        """With `node` in the place of `name`, after readers have looked at it."""
        nodes = replaced(state.nodes, PLACES[name], node)
        _, znode, grants, orphan, acknowledged, seen, wrong = state  # _replace would take a third of the exploration
        shown = node.log[: self.shown(node)]
        if shown != seen[: len(shown)]:
            if shown[: len(seen)] == seen:
                seen = shown
            else:
                wrong = "3: a reader sees something else than another saw"
        return State(nodes, znode, grants, orphan, acknowledged, seen, wrong)

    # --- invariants ---------------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str:
        """The invariant that does not hold in this state, or "". Numbers as in docs/replication.md."""
        if state.wrong:
            return state.wrong
        seen = state.seen
        terms = []
        for name, node in zip(self.names, state.nodes, strict=True):
            if name in state.znode.in_sync and not node.forgetful and node.log[: len(seen)] != seen:
                return "2: a node that can be elected lacks what was seen or acknowledged"
            if node.told > len(node.log) or node.log[: node.told] != seen[: node.told]:
                return "4: logs differ below the committed end"
            if node.role == LEADER and node.office:
                terms.append(node.office.term)
            elif node.leader and self._connected(state, node, node.leader):
                coming = node.log + tuple(entry for entry, _ in node.wire if entry is not None)
                if coming != state.nodes[PLACES[node.leader]].log[: len(coming)]:
                    return "6: a follower has what its leader has not"
        return "1: two nodes lead in one epoch" if len(set(terms)) < len(terms) else ""

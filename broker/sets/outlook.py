"""Collect the facts that a broker set's node knows, and derive from them which event of life.py happens next. The code
does no I/O, reads no clock and starts no thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaq.coordination.records.set_payloads import SetState
from metaq.coordination.sets.set_view import SetView

from .life import LEADERS, RESTING, NodeEvent, NodeState
from .rules import accepts, may_stand

__all__ = ["Outlook"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The facts that one node knows at one moment.

    name: the node's name. instance: the id of the node's data. epoch: the highest epoch that the node has seen.
    has_data: whether the node has ever led or followed. view: the set's state and nodes as last read from ZooKeeper.
    present: whether this node's znode exists in the set. session_id: the id of the node's ZooKeeper session. gone:
    epoch and name of a leader that hands over to this node or whose process has ended. It is None if there is no such
    leader.
    promised: whether a promise of this node to a leader not to stand for election is still in force. stopping: whether
    the node's process is about to stop. led: the epoch in which the node leads, or None if it does not lead.
    """

    broker_id: int
    name: str
    instance: str
    epoch: int
    has_data: bool
    view: SetView
    present: bool
    session_id: int
    gone: tuple[int, str] | None
    promised: bool
    led: int | None
    diverged: bool
    """Whether the node takes no part in the set because its data differ from the leader's data."""
    stopping: bool

    def due(self, state: NodeState) -> NodeEvent | None:
        """Return the event of life.py that happens now if the node is in `state`, or None if the node has to wait."""
        if state in LEADERS:
            return NodeEvent.DEPOSED if self.deposed_by else None
        if self.stopping:
            return None
        if state is NodeState.OUT:
            return (
                NodeEvent.TRUSTED if self.diverged and self.is_alone else None
            )  # an operator has chosen this node's data
        if state not in RESTING:
            return None
        found = self.view.state
        if found is None:
            return NodeEvent.NO_SET if self.may_create else None
        if self._may_stand(found, promised=self.promised):
            return NodeEvent.CHANCE
        return NodeEvent.LEADER if found.leader not in ("", self.name) else None

    # --- predicates ---------------------------------------------------------------------------------------------------

    @property
    def is_in_sync(self) -> bool:
        """Whether the in-sync set in ZooKeeper contains this node with the instance id of its present data."""
        state = self.view.state
        return state is not None and state.has_in_sync(self.name, self.instance)

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only node in the in-sync set."""
        state = self.view.state
        return state is not None and list(state.in_sync) == [self.name] and self.is_in_sync

    @property
    def owns_broker_id(self) -> bool:
        """Whether this node's ZooKeeper session has created the ephemeral znode of the broker id, by which clients find
        the leader.
        """
        return self.view.master is not None and self.view.master.owner == self.session_id

    @property
    def is_set_back(self) -> bool:
        """Whether the set's state in ZooKeeper is older than a state that one of the nodes now present in ZooKeeper has
        seen. After that older state was written, nodes may have been removed from the in-sync set. So a node that the
        older state lists as in sync can lack data. A state without a leader does not count as older, because it does
        not come from an old backup: it was written when an operator chose a leader by hand, or when a leader resigned.
        """
        view, state = self.view, self.view.state
        if state is None:
            return False
        return view.set_back or (bool(state.leader) and any(each.epoch > state.epoch for each in view.nodes.values()))

    @property
    def deposed_by(self) -> str:
        """The reason why this node, which was the leader, is no longer the leader, or "" if it still is."""
        state = self.view.state
        if state is None or (state.epoch, state.leader) != (self.led, self.name):
            known = state is not None and not state.is_revoked
            return f"epoch {state.epoch} has begun" if state and known else "ZooKeeper was set back"
        return "" if self.owns_broker_id else "its ZooKeeper session has ended"

    @property
    def may_create(self) -> bool:
        """Whether this node is allowed to create the set's state, if ZooKeeper has none. A node that has been in the
        set before is not allowed to: the state must have been lost, and only an operator can find out which nodes have
        all acknowledged data. A new node is not allowed to either if a node is present that has been in the set before.
        Of several new nodes, only the first by name creates the state.
        """
        nodes = self.view.nodes
        return (
            not self.has_data
            and not any(node.epoch for node in nodes.values())
            and min([self.name, *nodes]) == self.name
        )

    @property
    def waits_for_promises(self) -> bool:
        """Whether this node could stand for election now if it had not given a grant that is still valid. A grant is
        the node's promise to a leader not to stand for some time.
        """
        state = self.view.state
        return state is not None and self.promised and self._may_stand(state, promised=False)

    def _may_stand(self, state: SetState, *, promised: bool) -> bool:
        view = self.view
        gone = self.gone == (state.epoch, state.leader) or state.leader in ("", self.name)
        if not (self.present and self.is_in_sync) or not accepts(self.epoch, state.epoch) or self.is_set_back:
            return False
        # a node alone in sync has granted nothing, unless a forgotten election of its own has made the epoch
        alone = self.is_alone and self.epoch == state.epoch
        return may_stand(
            self.name,
            state.in_sync,
            forgetful={name for name in view.in_sync_present if view.nodes[name].forgetful},
            master_present=view.master is not None,
            leader_gone=gone,
            promises_run_out=alone or not promised,
        )

    # --- for an operator ----------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """The reason why the node waits until an operator decides which node's data are right, or "" if the node does
        not wait for an operator.
        """
        name, state, broker_id = self.name, self.view.state, self.broker_id
        if state is None:
            if not self.has_data:
                return ""
            return (
                f"ZooKeeper has no state of broker set {broker_id}, which has had epoch {self.epoch}: choose a node "
                "with `metaq brokers elect --unclean`"
            )
        if self.view.master is not None and not state.is_revoked:
            return ""
        remedy = f"if they are the ones that are to be kept: `metaq brokers elect {broker_id} --unclean --node {name}`"
        if not accepts(self.epoch, state.epoch):
            return (
                f"ZooKeeper has a state of broker set {broker_id} of epoch {state.epoch}, and the data of {name} have "
                f"seen epoch {self.epoch}: ZooKeeper was set back; {remedy}"
            )
        if state.is_revoked:
            return (
                f"ZooKeeper was set back to an older state of broker set {broker_id}, so nobody leads: start all "
                "nodes, and choose the one that led last, which has the most: "
                f"`metaq brokers elect {broker_id} --unclean --node NODE`"
            )
        if self.is_set_back:
            return (
                f"ZooKeeper has an older state of broker set {broker_id}, of epoch {state.epoch}: it was set back, and "
                f"who is in sync by it may lack messages; choose a node, and {remedy}"
            )
        if name in state.in_sync and not self.is_in_sync:
            return (
                f"{name} was in sync in epoch {state.epoch} with other data than these, which are new, "
                f"copied, restored or incomplete: start the node with those; {self._other_remedy() or remedy}"
            )
        return ""

    def _other_remedy(self) -> str:
        """If this node has no data, return a text that tells the operator how a node with data can become the leader.
        This text replaces the usual advice, which is to let this node lead. Return "" if this node has data.
        """
        if self.has_data:
            return ""
        others = [each for each in self.view.nodes.values() if each.epoch and each.name != self.name]
        if not others:
            return "or start a node that has data: this one has none"
        newest = max(others, key=lambda each: each.epoch).name
        command = f"metaq brokers elect {self.broker_id} --unclean --node {newest}"
        return f"or, if they are lost, have {newest} lead with what it has: `{command}`"

"""The state of a broker set's node at one moment."""

from __future__ import annotations

from typing import NamedTuple

from metaq.coordination.records.set_payloads import SetState

__all__ = ["ROLES", "MemberState"]

ROLES = ("leader", "taking-over", "handing-over", "follower", "joining", "candidate", "waiting", "stopped")
"""The roles of a node; see SetReport."""


class MemberState(NamedTuple):
    """The state of one node. present: names of the nodes that ZooKeeper shows."""

    state: SetState | None
    present: frozenset[str]
    epoch: int
    """The highest epoch that the node has seen."""
    last_epoch: int
    """The last epoch in the node's history, whose data it has; 0 for none."""
    leader_url: str
    error: str
    """Why the node does not take part or does not follow; "" if it does."""
    busy: bool
    """Whether the node stands for election or creates the set's state."""
    stopping: bool
    established: bool
    """Whether the node leads and serves clients."""
    following: bool
    """Whether the node follows a leader or tries to."""
    live: bool
    """Whether the node receives the leader's blocks when the leader makes them."""
    elections: int
    """Elections that the node has won since its start."""
    hand_overs: int
    """Hand-overs that the node has made since its start."""
    set_back: bool
    """Whether the state in ZooKeeper is older than states that the nodes have seen. Then no node stands for
    election.
    """

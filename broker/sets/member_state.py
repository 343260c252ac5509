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
    """The number of the last epoch in the node's history; 0 if the history is empty. The node has data of this
    epoch.
    """
    leader_url: str
    error: str
    """The reason why the node takes no part in the set or does not follow; "" if there is no such reason."""
    busy: bool
    """Whether the node stands for election or creates the set's state."""
    stopping: bool
    established: bool
    """Whether the node leads and serves clients."""
    following: bool
    """Whether the node follows a leader or tries to."""
    live: bool
    """Whether the node has caught up and receives each new block as soon as the leader makes it."""
    elections: int
    """Elections that the node has won since its start."""
    hand_overs: int
    """Hand-overs that the node has made since its start."""
    set_back: bool
    """Whether the set's state in ZooKeeper is older than a state that a node has seen before. If True, no node stands
    for election.
    """

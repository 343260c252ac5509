"""The state of a broker set's node at one moment."""

from __future__ import annotations

from typing import NamedTuple

from metaq.coordination.records.set_payloads import SetState

__all__ = ["ROLES", "MemberState"]

ROLES = ("leader", "taking-over", "handing-over", "follower", "joining", "candidate", "waiting", "stopped")
"""The roles of a node; the docstring of SetReport (status.py) explains each of them."""


class MemberState(NamedTuple):
    """The state of one node. present: the names of the nodes that have a znode in ZooKeeper now."""

    state: SetState | None
    present: frozenset[str]
    epoch: int
    """The highest epoch that the node has seen."""
    last_epoch: int
    """The number of the newest epoch from which the node has data, or 0 if there is none.
    """
    leader_url: str
    error: str
    """The reason why the node takes no part in the set, or why it does not follow its leader now, or "" if there is no
    such reason.
    """
    busy: bool
    """Whether the node is standing for election or creating the set's state in ZooKeeper."""
    stopping: bool
    established: bool
    """Whether the node leads and serves clients."""
    following: bool
    """Whether the node follows a leader or tries to connect to one."""
    live: bool
    """Whether the node, as a follower, has caught up and receives each new block as soon as the leader makes it."""
    elections: int
    """How many elections the node has won since its start."""
    hand_overs: int
    """How many times the node, as a leader, has handed over to another node since its start."""
    set_back: bool
    """Whether the set's state in ZooKeeper is older than a state that a node of the set saw there before, for example
    because ZooKeeper was restored from a backup. If True, no node stands for election.
    """

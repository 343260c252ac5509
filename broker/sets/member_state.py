"""The state of a broker set's node at one moment, as a value."""

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
    """The highest epoch that it has seen."""
    last_epoch: int
    """The last epoch of its history, whose data it has; 0 for none."""
    leader_url: str
    error: str
    """Why it does not take part or does not follow; "" if it does."""
    busy: bool
    """Whether it stands for election or asks ZooKeeper."""
    stopping: bool
    established: bool
    """Whether it leads and serves clients."""
    following: bool
    """Whether it follows a leader or tries to."""
    live: bool
    """Whether it gets the leader's blocks as they are made."""
    elections: int
    """Elections won since its start."""
    hand_overs: int
    """Hand-overs made since its start."""
    set_back: bool
    """Whether ZooKeeper has an older state than the nodes have seen; nobody stands for election by it."""

"""What a node of a broker set is at one moment, as a value."""

from __future__ import annotations

from typing import NamedTuple

from metaq.coordination.set_records import SetState

__all__ = ["ROLES", "MemberState"]

ROLES = ("leader", "taking-over", "handing-over", "follower", "joining", "candidate", "waiting", "stopped")
"""What a node may be; see SetReport."""


class MemberState(NamedTuple):
    """Of one node. present: names of the nodes that ZooKeeper shows."""

    state: SetState | None
    present: frozenset[str]
    epoch: int
    """The highest one that it has seen."""
    last_epoch: int
    """The last one of its history, 0 for none: whose data it has."""
    leader_url: str
    error: str
    """Why it does not take part, or does not follow; "" if it does."""
    busy: bool
    """It stands for election, or asks ZooKeeper."""
    stopping: bool
    established: bool
    """Of a leader: clients are served."""
    following: bool
    """It follows a leader, or tries to."""
    live: bool
    """It gets the leader's blocks as they are made."""
    elections: int
    """That it won since its start."""
    hand_overs: int
    """That it made since its start."""
    set_back: bool
    """ZooKeeper has an older state than the nodes have seen: nobody stands by it."""

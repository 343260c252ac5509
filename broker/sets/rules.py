"""The decisions of a broker set's node: pure functions without I/O, clock or thread.

The product calls these functions. The model of the protocol (tests/component/sets) also calls them, and explores every
order of events for small sets. The numbers in brackets name invariants of docs/replication.md. If a rule is removed,
its invariant is violated; a test of the model shows this for each rule.

Names are names of the set's nodes. Positions and ends are byte offsets of one partition, or any other numbers that
grow with its log. Times are seconds of one node's monotonic clock and never leave that node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

E = TypeVar("E", int, tuple[int, str])

__all__ = [
    "COUNTED_SHARE",
    "GRANT_SECONDS",
    "accepts",
    "committed_position",
    "common_epoch",
    "counted",
    "counted_until",
    "cut_end",
    "elected",
    "epoch_end",
    "in_time",
    "is_caught_up",
    "may_acknowledge",
    "may_cut",
    "may_grant",
    "may_stand",
    "promised_until",
    "visible_end",
]

GRANT_SECONDS = 1.0
"""How long a follower does not stand for election after it has answered a ping."""

COUNTED_SHARE = 0.9
"""The part of GRANT_SECONDS on which the leader relies. It is less than 1 because the rates of the nodes' clocks may
differ by 10 %.
"""


# --- election ---------------------------------------------------------------------------------------------------------


def may_stand(
    me: str,
    in_sync: Collection[str],
    *,
    forgetful: Collection[str] = (),
    master_present: bool,
    leader_gone: bool,
    promises_run_out: bool,
) -> bool:
    """Return whether a node may become a candidate in an election. (2, 5)

    in_sync: the in-sync set in the state that the election will replace, if that state still has the same version.
    In-sync status belongs to a copy of the data, not to a node name: a node with a new or copied directory is not in
    sync. master_present and leader_gone only avoid needless elections, so both may be wrong. promises_run_out: see
    promised_until().

    forgetful: the present nodes whose machine has restarted since they last led or had caught up (see is_caught_up()).
    Such a node may lack data that it acknowledged when they were only in memory. So it may not stand while an in-sync
    node whose machine has not restarted is present. If all in-sync nodes are forgetful, data that were only in memory
    are lost anyway, and each of these nodes may stand.
    """
    remembered = me not in forgetful or all(name in forgetful for name in in_sync)
    return me in in_sync and remembered and promises_run_out and (leader_gone or not master_present)


def elected(epoch: int, in_sync: Collection[str], me: str, present: Collection[str]) -> tuple[int, tuple[str, ...]]:
    """Return the epoch and the in-sync set that a candidate writes. (1, 2)

    Absent nodes are left out, so that commits need not wait for them. No node is added, because only the leader knows
    whether a node has caught up.
    """
    return epoch + 1, tuple(sorted(name for name in in_sync if name == me or name in present))


# --- grants -----------------------------------------------------------------------------------------------------------


def may_grant(own_epoch: int, stream_epoch: int, *, standing: bool) -> bool:
    """Return whether a follower may answer the leader's ping with a grant. (5)

    own_epoch: the highest epoch that the follower has seen; it is on the disk. stream_epoch: the epoch of the leader
    whose history the follower has taken over; 0 before it has done so; therefore a node that is still joining grants
    nothing.
    standing: whether the follower is a candidate. A node becomes a candidate before it checks its promises. It stays
    one until it knows for certain that its transaction has failed, however long that takes.
    """
    return not standing and own_epoch == stream_epoch


def promised_until(now: float) -> float:
    """Return the time until which a follower does not stand for election if it grants now. (5)

    A starting node must also act as if it had just granted, because it does not know what it granted before.
    """
    return now + GRANT_SECONDS


def counted_until(sent_at: float) -> float:
    """Return the time until which the leader may rely on a grant. sent_at: the time when the leader sent the ping, not
    the time when it got the answer. (5)
    """
    return sent_at + GRANT_SECONDS * COUNTED_SHARE


def in_time(now: float, until: float) -> bool:
    """Return whether a grant or promise is still in force."""
    return now < until


def may_acknowledge(now: float, granted_until: Mapping[str, float], needed: Collection[str], me: str) -> bool:
    """Return whether the leader may tell a client that a message is stored. (1, 5)

    granted_until: counted_until() of the last answered ping, by name. needed: the result of counted(). This function's
    result is valid only at `now`, so call it immediately before the bytes of the client's answer are sent.
    """
    return all(name == me or in_time(now, granted_until.get(name, now)) for name in needed)


# --- in-sync set ------------------------------------------------------------------------------------------------------


def counted(in_sync: Collection[str], pending: Collection[str] | None) -> frozenset[str]:
    """Return the nodes that count: commits need their copies, and acknowledgements need their grants. (2, 5)

    in_sync: the set in the znode, as far as the leader knows. pending: the set that the leader is writing; else None.
    The leader gives `pending` from before it sends the write request until it knows the outcome. If the znode still has
    its old version, the outcome is still unknown, because the request may arrive later. If the leader does not know the
    outcome, it writes the same set again.
    """
    return frozenset(in_sync) if pending is None else frozenset(in_sync) | frozenset(pending)


def is_caught_up(acknowledged: int, committed: int, epoch_start: int) -> bool:
    """Return whether, for this partition, the leader may add a follower to the in-sync set and tell it that it is no
    longer forgetful. (2)

    acknowledged: the follower's acknowledged position. Before the leader tells the follower that it is no longer
    forgetful, only acknowledgements on the same connection count.
    epoch_start: the leader's end at its election. All data that the former leader committed lie below it. The new
    leader does not know how much of its data was committed, so `committed` alone is not enough.
    """
    return acknowledged >= max(committed, epoch_start)


def committed_position(own: int, acknowledged: Mapping[str, int], needed: Collection[str], me: str) -> int:
    """Return the position up to which this node and all needed nodes have the log. (2, 3)

    own and acknowledged: the positions on the disk for topics with `ack=disk`, else the positions in memory. The
    leader's committed position is the largest value that this function has returned, so it never goes back.
    """
    return min([own, *(acknowledged.get(name, 0) for name in needed if name != me)])


def visible_end(own: int, told: int) -> int:
    """Return the position up to which a follower shows its log to readers: `told`, which the leader has reported as
    committed, but at most the follower's own end. (3, 4)

    A node that has just started has no such report from a leader yet. A reader may ask for a position between the
    returned one and the log's end, because another node showed it more data. Such a position is not out of range; the
    reader waits.
    """
    return min(own, told)


# --- joining ----------------------------------------------------------------------------------------------------------


def accepts(own_epoch: int, epoch: int) -> bool:
    """Return whether a node may follow a stream of this epoch, or stand for election after it. (1, 2, 5)

    own_epoch: the highest epoch that the node has seen. The node writes an epoch to its disk before it acknowledges or
    grants anything in this epoch. If the state in ZooKeeper has a smaller epoch, this state is old or ZooKeeper was set
    back; then nobody knows which nodes are in sync.
    """
    return epoch >= own_epoch


def common_epoch(own: Iterable[E], leaders: Iterable[E]) -> E | None:
    """Return the largest epoch that both histories contain. Return None if there is none: then the node must not join.
    (6)

    An epoch is a number and an id. The id distinguishes epochs of the same number, which exist if the set's state was
    lost or set back.
    """
    return max(set(own) & set(leaders), default=None)


def epoch_end(later_starts: Iterable[int], log_end: int) -> int:
    """Return where an epoch ends in a node's log. (6)

    later_starts: where each later epoch of the node's history began; 0 for a partition that did not exist then. The
    result depends on the smallest of these starts, not on the first one. A node that lost its unsynced last data has
    less data than its history says, and its next epoch then began at that lower end.
    """
    return min([log_end, *later_starts])


def cut_end(own_epoch_end: int, leaders_epoch_end: int) -> int:
    """Return where a joining node cuts its log. Both ends are epoch_end() of the common epoch. (2, 6)

    The cut must be on the disk before the leader's history replaces the node's own history.
    """
    return min(own_epoch_end, leaders_epoch_end)


def may_cut(kept: int, told: int, own_epoch: int, chosen: int) -> bool:
    """Return whether a joining node may cut a partition down to `kept`. (2, 4)

    told: the end up to which a leader has told this process that all data are committed. Because of invariant 4, only
    two kinds of leaders can have less data: one that an operator has chosen, and one that was elected with an old state
    because ZooKeeper was set back. chosen: see SetState.
    own_epoch: the epoch of the node's data.
    """
    return kept >= told or chosen >= own_epoch

"""The decisions of a broker set's node: pure functions without I/O, clock or thread.

The broker calls these functions. The model of the protocol (tests/component/sets) also calls them, and explores every
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
"""The part of GRANT_SECONDS on which the leader relies, as a fraction. The fraction is less than 1 because the rates of
the nodes' clocks may differ by 10 %.
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
    """Return whether a node may become a candidate in an election. (Invariants 2 and 5.)

    in_sync: the in-sync set in the set's present state. The election replaces this state only if its version has not
    changed meanwhile. In-sync status belongs to a copy of the data, not to a node name: a node with a new or copied
    directory is not in sync. master_present and leader_gone only avoid needless elections, so both may be wrong.
    promises_run_out: see promised_until().

    forgetful: the present nodes whose machine has restarted since they last led or had caught up (see is_caught_up()).
    A forgetful node may lack data that it acknowledged when they were only in memory. So a forgetful node may not stand
    while another in-sync node is present that is not forgetful. If all in-sync nodes are forgetful, data that were only
    in memory are lost anyway, and each of these nodes may stand.
    """
    remembered = me not in forgetful or all(name in forgetful for name in in_sync)
    return me in in_sync and remembered and promises_run_out and (leader_gone or not master_present)


def elected(epoch: int, in_sync: Collection[str], me: str, present: Collection[str]) -> tuple[int, tuple[str, ...]]:
    """Return the epoch and the in-sync set that a candidate writes. (Invariants 1 and 2.)

    Absent nodes are left out, so that commits need not wait for them. No node is added, because only the leader knows
    whether a node has caught up.
    """
    return epoch + 1, tuple(sorted(name for name in in_sync if name == me or name in present))


# --- grants -----------------------------------------------------------------------------------------------------------


def may_grant(own_epoch: int, stream_epoch: int, *, standing: bool) -> bool:
    """Return whether a follower may answer the leader's ping with a grant. (Invariant 5.)

    own_epoch: the highest epoch that the follower has seen and written to its disk. stream_epoch: the epoch of the
    leader whose epoch history the follower has taken over; 0 if the follower has not done so yet. A node that is still
    joining has stream_epoch 0, so it grants nothing.
    standing: whether the follower is a candidate. A node becomes a candidate before it checks its promises. The node
    stays a candidate until it knows for certain that its ZooKeeper transaction has failed, however long that takes.
    """
    return not standing and own_epoch == stream_epoch


def promised_until(now: float) -> float:
    """Return the time until which a follower does not stand for election if it grants now. (Invariant 5.)

    A starting node must also act as if it had just granted, because it does not know what it granted before.
    """
    return now + GRANT_SECONDS


def counted_until(sent_at: float) -> float:
    """Return the time until which the leader may rely on a grant. sent_at: the time when the leader sent the ping, not
    the time when the answer arrived. (Invariant 5.)
    """
    return sent_at + GRANT_SECONDS * COUNTED_SHARE


def in_time(now: float, until: float) -> bool:
    """Return whether a grant or promise is still in force."""
    return now < until


def may_acknowledge(now: float, granted_until: Mapping[str, float], needed: Collection[str], me: str) -> bool:
    """Return whether the leader may tell a client that a message is stored. (Invariants 1 and 5.)

    granted_until: counted_until() of the last answered ping, by name. needed: the result of counted(). The result is
    valid only at the time `now`, so call this function immediately before the bytes of the client's answer are sent.
    """
    return all(name == me or in_time(now, granted_until.get(name, now)) for name in needed)


# --- in-sync set ------------------------------------------------------------------------------------------------------


def counted(in_sync: Collection[str], pending: Collection[str] | None) -> frozenset[str]:
    """Return the nodes that count. A block is committed only if all these nodes have a copy, and the leader
    acknowledges a message only with grants of all these nodes. (Invariants 2 and 5.)

    in_sync: the set in the znode, as far as the leader knows. pending: the set that the leader is writing; else None.
    The leader passes `pending` from before it sends the write request until it knows the outcome of the write. If the
    znode still has its old version, the outcome is still unknown, because ZooKeeper may receive the request later.
    While the outcome is unknown, the leader writes the same set again.
    """
    return frozenset(in_sync) if pending is None else frozenset(in_sync) | frozenset(pending)


def is_caught_up(acknowledged: int, committed: int, epoch_start: int) -> bool:
    """Return whether, for this partition, the leader may add a follower to the in-sync set and tell it that it is no
    longer forgetful (see may_stand()). (Invariant 2.)

    acknowledged: the position that the follower has acknowledged. For the decision whether the follower is still
    forgetful, only acknowledgements on the present connection count.
    epoch_start: the leader's end at its election. All data that the former leader committed lie below this position.
    The new leader does not know how much of its data was committed, so `committed` alone is not enough.
    """
    return acknowledged >= max(committed, epoch_start)


def committed_position(own: int, acknowledged: Mapping[str, int], needed: Collection[str], me: str) -> int:
    """Return the lowest end of the log on this node and all needed nodes. All these nodes have the log's data below
    that position. (Invariants 2 and 3.)

    own and acknowledged: the positions on the disk for topics with `ack=disk`, else the positions in memory. The
    leader's committed position is the largest value that this function has returned, so it never goes back.
    """
    return min([own, *(acknowledged.get(name, 0) for name in needed if name != me)])


def visible_end(own: int, told: int) -> int:
    """Return the position where the log ends for a follower's readers: `told`, but at most the follower's own end. The
    leader has reported that all data before `told` are committed. (Invariants 3 and 4.)

    A node that has just started has no such report from a leader yet. A reader may ask for a position between the
    returned one and the log's end, because another node showed it more data. A request for such a position is not
    refused as out of range; the reader waits.
    """
    return min(own, told)


# --- joining ----------------------------------------------------------------------------------------------------------


def accepts(own_epoch: int, epoch: int) -> bool:
    """Return whether a node may follow a stream of this epoch, or stand for election after it. (Invariants 1, 2 and 5.)

    own_epoch: the highest epoch that the node has seen. The node writes an epoch to its disk before it acknowledges or
    grants anything in this epoch. If the state in ZooKeeper has a smaller epoch, the node has read an old state, or
    ZooKeeper's data were restored from an old backup. In both cases the state does not say which nodes are in sync now.
    """
    return epoch >= own_epoch


def common_epoch(own: Iterable[E], leaders: Iterable[E]) -> E | None:
    """Return the largest epoch that both histories contain. Return None if they have no epoch in common; in this case
    the node must not join. (Invariant 6.)

    An epoch is a number and an id. If the set's state was lost or set back, two epochs may have the same number. The id
    distinguishes these epochs.
    """
    return max(set(own) & set(leaders), default=None)


def epoch_end(later_starts: Iterable[int], log_end: int) -> int:
    """Return where an epoch ends in a node's log. (Invariant 6.)

    later_starts: where each later epoch of the node's history began; 0 for a partition that did not exist then. The
    result depends on the smallest of these starts, not on the first one. A node that lost its unsynced last data has
    less data than its history says, and its next epoch then began at that lower end.
    """
    return min([log_end, *later_starts])


def cut_end(own_epoch_end: int, leaders_epoch_end: int) -> int:
    """Return where a joining node cuts its log. Both arguments are the result of epoch_end() for the common epoch:
    own_epoch_end for the node's log, leaders_epoch_end for the leader's log. (Invariants 2 and 6.)

    The cut must be on the disk before the leader's history replaces the node's own history.
    """
    return min(own_epoch_end, leaders_epoch_end)


def may_cut(kept: int, told: int, own_epoch: int, chosen: int) -> bool:
    """Return whether a joining node may cut a partition down to `kept`. (Invariants 2 and 4.)

    told: a leader has told this process that all data before this end are committed. Because of invariant 4, only two
    kinds of leaders can lack data before `told`: a leader that an operator has chosen, and a leader that was elected
    with an old state because ZooKeeper was set back. chosen: the highest epoch that was known when an operator last
    chose a leader (SetState.chosen).
    own_epoch: the epoch of the node's data.
    """
    return kept >= told or chosen >= own_epoch

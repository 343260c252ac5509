"""The decisions of a broker set's node: pure functions without I/O, clock or thread.

The broker calls these functions. The model of the protocol (tests/component/sets) also calls them, and explores every
order of events for small sets. The numbers in brackets name invariants of docs/replication.md. If a rule is removed,
its invariant is violated; a test of the model shows this for each rule.

Where a function gets a name or names, they are names of the set's nodes. Positions and ends are byte offsets in one
partition's log, or any other numbers that grow with the log, such as block numbers. Times are seconds of one node's
monotonic clock and never leave that node.
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
"""The leader relies on a follower's grant only for this fraction of GRANT_SECONDS. The fraction is less than 1 because
the rates of the nodes' clocks may differ by 10 %.
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
    """Return whether the node `me` is allowed to become a candidate in an election. (Invariants 2 and 5.)

    in_sync: the in-sync set in the set's present state. The election replaces this state only if its version has not
    changed meanwhile. In-sync status belongs to a copy of the data, not to a node name: a node with a new or copied
    directory is not in sync. master_present: whether a leader's znode exists. leader_gone: whether the leader's process
    is known to have ended. `master_present` and `leader_gone` only prevent needless elections, so a wrong value of them
    does no harm to data.
    promises_run_out: whether the time of the node's last grant is over (promised_until()).

    forgetful: the present nodes whose machine has restarted since they last led or had caught up (see is_caught_up()).
    A forgetful node may lack data that it acknowledged when they were only in its memory. So a forgetful node is not
    allowed to stand for election unless all in-sync nodes are forgetful. If all of them are, data that were only in
    memory are lost anyway, and each of these nodes is allowed to stand.
    """
    remembered = me not in forgetful or all(name in forgetful for name in in_sync)
    return me in in_sync and remembered and promises_run_out and (leader_gone or not master_present)


def elected(epoch: int, in_sync: Collection[str], me: str, present: Collection[str]) -> tuple[int, tuple[str, ...]]:
    """Return the new epoch and the new in-sync set, which a candidate writes to ZooKeeper to become the leader.
    (Invariants 1 and 2.)

    epoch, in_sync: the values in ZooKeeper until now. In-sync nodes that have no znode now are left out, so that
    commits need not wait for them. No node is added, because only a leader can know whether a node has caught up.
    """
    return epoch + 1, tuple(sorted(name for name in in_sync if name == me or name in present))


# --- grants -----------------------------------------------------------------------------------------------------------


def may_grant(own_epoch: int, stream_epoch: int, *, standing: bool) -> bool:
    """Return whether a follower is allowed to answer the leader's ping with a grant, the promise not to stand for
    election for some time. (Invariant 5.)

    own_epoch: the highest epoch that the follower has seen and written to its disk. stream_epoch: the epoch of the
    leader whose epoch history the follower has taken over, or 0 if the follower has not done so yet. A node that is
    still joining has stream_epoch 0, so it grants nothing.
    standing: whether the follower is a candidate. A node becomes a candidate before it checks whether its own grants
    are over, so it gives no grant in between. It stays a candidate, however long that takes, until it knows for certain
    that its election has failed in ZooKeeper.
    """
    return not standing and own_epoch == stream_epoch


def promised_until(now: float) -> float:
    """Return the time until which a follower does not stand for election if it grants now. (Invariant 5.)

    A node that starts must also act as if it had just given a grant, because it may have given one before its restart.
    """
    return now + GRANT_SECONDS


def counted_until(sent_at: float) -> float:
    """Return the time until which the leader may rely on a follower's grant. sent_at: the time when the leader sent the
    ping, not the time when the answer arrived. (Invariant 5.)
    """
    return sent_at + GRANT_SECONDS * COUNTED_SHARE


def in_time(now: float, until: float) -> bool:
    """Return whether a grant that is valid until the time `until` is valid now."""
    return now < until


def may_acknowledge(now: float, granted_until: Mapping[str, float], needed: Collection[str], me: str) -> bool:
    """Return whether the leader may tell a client that a message is stored. (Invariants 1 and 5.)

    It may do so only while grants of all needed nodes are valid, because then no other node can have been elected.
    granted_until: for each follower's name, counted_until() of the last ping that the follower has answered. needed:
    the result of counted(). The result is valid only at the time `now`, so call this function immediately before the
    bytes of the client's answer are sent.
    """
    return all(name == me or in_time(now, granted_until.get(name, now)) for name in needed)


# --- in-sync set ------------------------------------------------------------------------------------------------------


def counted(in_sync: Collection[str], pending: Collection[str] | None) -> frozenset[str]:
    """Return the nodes on which commits depend. A block is committed only if all these nodes have a copy of it, and the
    leader acknowledges a message only while grants of all these nodes are valid. (Invariants 2 and 5.)

    in_sync: the in-sync set in the znode, as far as the leader knows. pending: the in-sync set that the leader is
    writing to the znode, or None if it is writing none. The leader passes `pending` from before it sends the write
    request until it knows the outcome of the write. If a request was not answered and the znode has its old version,
    the outcome is still unknown, because the request can reach ZooKeeper later. In this case the leader repeats the
    write of the same set.
    """
    return frozenset(in_sync) if pending is None else frozenset(in_sync) | frozenset(pending)


def is_caught_up(acknowledged: int, committed: int, epoch_start: int) -> bool:
    """Return whether a follower has all committed data. If so, the leader may add the follower to the in-sync set, and
    tell it that it is no longer forgetful (see may_stand()). (Invariant 2.)

    acknowledged: the position that the follower has acknowledged. To decide whether the follower is still forgetful,
    the leader passes only what the follower has acknowledged on the present connection.
    committed: the position up to which this leader knows that the data are committed. epoch_start: where the leader's
    log ended at its election. All data that the former leader has committed are before this position. At first, a new
    leader does not know how much of these data was committed, so `committed` can be too low. Therefore the follower
    must have acknowledged all data before `epoch_start`, too.
    """
    return acknowledged >= max(committed, epoch_start)


def committed_position(own: int, acknowledged: Mapping[str, int], needed: Collection[str], me: str) -> int:
    """Return the position up to which this node (the leader) and all needed nodes have the log's data: the lowest of
    their ends. (Invariants 2 and 3.)

    own: where the log ends on this node. acknowledged: where it ends on each follower, as far as acknowledged. For
    topics with `ack=disk`, both are the ends on the disk, else the ends in memory. The leader uses the largest value
    that this function has returned as its committed position, so the committed position never decreases.
    """
    return min([own, *(acknowledged.get(name, 0) for name in needed if name != me)])


def visible_end(own: int, told: int) -> int:
    """Return the position up to which readers of a follower see the log: `told`, or the follower's own end if that is
    smaller. told: the leader has reported that all data before this position are committed. (Invariants 3 and 4.)

    A node that has just started has no such report yet. So its readers may see less data than other nodes have shown
    them before. If a reader asks for a position between the returned one and the log's end, the request is not refused
    as out of range, but waits.
    """
    return min(own, told)


# --- joining ----------------------------------------------------------------------------------------------------------


def accepts(own_epoch: int, epoch: int) -> bool:
    """Return whether a node is allowed to follow a leader of this epoch, or to stand for election when this is the last
    epoch in ZooKeeper. (Invariants 1, 2 and 5.)

    own_epoch: the highest epoch that the node has seen. The node writes an epoch to its disk before it acknowledges or
    grants anything in this epoch. If `epoch` is smaller than `own_epoch`, the node has read an old state from
    ZooKeeper, or ZooKeeper's data were restored from an old backup. In both cases the state does not say which nodes
    are in sync now.
    """
    return epoch >= own_epoch


def common_epoch(own: Iterable[E], leaders: Iterable[E]) -> E | None:
    """Return the newest epoch that both a node's own history and its leader's history contain. Return None if they have
    no epoch in common; in this case the node must not follow this leader. (Invariant 6.)

    An epoch is a number and an id. If the set's state in ZooKeeper was lost or restored from an old backup, two epochs
    can have the same number; they differ in their ids.
    """
    return max(set(own) & set(leaders), default=None)


def epoch_end(later_starts: Iterable[int], log_end: int) -> int:
    """Return the position in a node's log where the data of an epoch end. (Invariant 6.)

    later_starts: where the log ended when each later epoch of the node's history began. The value is 0 for a partition
    that did not exist then. log_end: where the log ends now. The result is the smallest of all these positions. It is
    not always the position where the next epoch began: the node may have lost data that were not synced after that, so
    that a still later epoch began at a lower position.
    """
    return min([log_end, *later_starts])


def cut_end(own_epoch_end: int, leaders_epoch_end: int) -> int:
    """Return the position at which a node that joins a leader cuts its log: the node removes all data after this
    position. Both arguments are results of epoch_end() for the newest common epoch: own_epoch_end for the node's log,
    leaders_epoch_end for the leader's log. (Invariants 2 and 6.)

    The cut must be on the disk before the leader's history replaces the node's own history.
    """
    return min(own_epoch_end, leaders_epoch_end)


def may_cut(kept: int, told: int, own_epoch: int, chosen: int) -> bool:
    """Return whether a node that joins a leader is allowed to remove all data of a partition after the position `kept`.
    (Invariants 2 and 4.)

    told: the position before which all data are committed, as a leader has told this process. Because of invariant 4,
    only two kinds of leaders can lack data before `told`: a leader that an operator has chosen, and a leader that was
    elected with an old state because ZooKeeper was set back. chosen: the highest epoch that was known when an operator
    last chose a leader (SetState.chosen).
    own_epoch: the epoch of the node's data.
    """
    return kept >= told or chosen >= own_epoch

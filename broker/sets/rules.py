"""What a node of a broker set decides: pure functions without I/O, clock or thread.

The product calls them, and so does the model of the protocol (tests/component/sets), which explores every order of
events for small sets. The numbers are those of the invariants in docs/replication.md: without the rule, the invariant
breaks, and a test of the model shows how.

Names are those of the set's nodes. Positions and ends are byte offsets of one partition, or any other numbers that
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
"""How long a follower that has answered a ping does not stand for election."""

COUNTED_SHARE = 0.9
"""How much of GRANT_SECONDS the leader counts: the nodes' clocks may differ in rate by 10 %."""


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
    """Whether a node may become a candidate. (2, 5)

    in_sync: of the state that the election will replace by its version; a node whose data are others than those that
    came in, with a new or copied directory, is none of them, whatever its name. master_present and leader_gone spare an
    election that nobody needs; both may be wrong. promises_run_out: see promised_until().

    forgetful: the present nodes whose machine has restarted since they led or had caught up (see is_caught_up()). Such
    a node may lack what it acknowledged in memory, so one whose machine has not restarted goes before it. If all
    in-sync nodes are forgetful, what was only in memory is lost, and each may stand.
    """
    remembered = me not in forgetful or all(name in forgetful for name in in_sync)
    return me in in_sync and remembered and promises_run_out and (leader_gone or not master_present)


def elected(epoch: int, in_sync: Collection[str], me: str, present: Collection[str]) -> tuple[int, tuple[str, ...]]:
    """Epoch and in-sync set that a candidate writes. (1, 2)

    Nodes that are not present leave, so that commits need not wait for them. Nobody comes in: only the leader knows
    that a node has caught up.
    """
    return epoch + 1, tuple(sorted(name for name in in_sync if name == me or name in present))


# --- grants -----------------------------------------------------------------------------------------------------------


def may_grant(own_epoch: int, stream_epoch: int, *, standing: bool) -> bool:
    """Whether a follower may answer the leader's ping with a grant. (5)

    own_epoch: the highest that it has seen; it is on the disk. stream_epoch: that of the leader whose history it has
    taken over, 0 before: a node that still joins grants nothing.
    standing: it is a candidate. It is one from before it looks at its promises until it knows for certain that its
    transaction has failed, however long that takes.
    """
    return not standing and own_epoch == stream_epoch


def promised_until(now: float) -> float:
    """Until when a follower does not stand if it grants now. (5)

    A node that starts has promised, too: it does not know what it granted before.
    """
    return now + GRANT_SECONDS


def counted_until(sent_at: float) -> float:
    """Until when the leader may count on a grant; sent_at: when it sent the ping, not when the answer came. (5)"""
    return sent_at + GRANT_SECONDS * COUNTED_SHARE


def in_time(now: float, until: float) -> bool:
    """Whether a grant or promise still runs."""
    return now < until


def may_acknowledge(now: float, granted_until: Mapping[str, float], needed: Collection[str], me: str) -> bool:
    """Whether the leader may tell a client that a message is stored. (1, 5)

    granted_until: counted_until() of the last answered ping, by name. needed: see counted(). The answer holds at `now`
    only: ask immediately before the bytes of the answer leave.
    """
    return all(name == me or in_time(now, granted_until.get(name, now)) for name in needed)


# --- in-sync set ------------------------------------------------------------------------------------------------------


def counted(in_sync: Collection[str], pending: Collection[str] | None) -> frozenset[str]:
    """The nodes that commits and grants need. (2, 5)

    in_sync: what the leader knows to be in the znode. pending: what it is writing, from before the request leaves until
    it knows the outcome; None: nothing. That the znode still has its old version is no outcome, since the request may
    yet arrive; a leader in doubt writes the same again.
    """
    return frozenset(in_sync) if pending is None else frozenset(in_sync) | frozenset(pending)


def is_caught_up(acknowledged: int, committed: int, epoch_start: int) -> bool:
    """Whether the leader may take a follower in, and tell it that it is forgetful no more, for this partition. (2)

    acknowledged: to be forgetful no more, on the connection on which it is told.
    epoch_start: the leader's end at its election. What the former leader committed lies below it, and the new one does
    not know how much that is, so `committed` alone is not enough.
    """
    return acknowledged >= max(committed, epoch_start)


def committed_position(own: int, acknowledged: Mapping[str, int], needed: Collection[str], me: str) -> int:
    """Up to where every node that counts has the log. (2, 3)

    own and acknowledged: on the disk for topics with `ack=disk`, else in memory. The leader's committed position is the
    largest that this has returned; it never goes back.
    """
    return min([own, *(acknowledged.get(name, 0) for name in needed if name != me)])


def visible_end(own: int, told: int) -> int:
    """Up to where a follower shows its log to readers: what the leader has told to be committed, as far as it is here.
    (3, 4)

    A node that starts has been told nothing. A reader may ask for a position between this and the log's end, because
    another node showed more: it waits, its position is not out of range.
    """
    return min(own, told)


# --- joining ----------------------------------------------------------------------------------------------------------


def accepts(own_epoch: int, epoch: int) -> bool:
    """Whether a node may follow a stream of this epoch, or stand for election after it. (1, 2, 5)

    own_epoch: the highest that it has seen, which is on its disk before it acknowledges or grants anything in it. A
    state in ZooKeeper with a smaller one is old, or was set back: then nobody knows who is in sync.
    """
    return epoch >= own_epoch


def common_epoch(own: Iterable[E], leaders: Iterable[E]) -> E | None:
    """The largest epoch of both histories; None: the node must not join. (6)

    An epoch: its number, and what tells it from another one of that number, of a set whose state was lost or set back.
    """
    return max(set(own) & set(leaders), default=None)


def epoch_end(later_starts: Iterable[int], log_end: int) -> int:
    """Where an epoch ends in a node's log. (6)

    later_starts: where each later epoch of its history began; 0 for a partition that did not exist then. The smallest
    counts, not the next: a node that lost its unsynced tail has less than its history says, and its next epoch began
    there.
    """
    return min([log_end, *later_starts])


def cut_end(own_epoch_end: int, leaders_epoch_end: int) -> int:
    """Where a node that joins cuts its log: both ends are epoch_end() of the common epoch. (2, 6)

    The cut is on the disk before the leader's history replaces the node's own.
    """
    return min(own_epoch_end, leaders_epoch_end)


def may_cut(kept: int, told: int, own_epoch: int, chosen: int) -> bool:
    """Whether a node that joins cuts a partition down to `kept`. (2, 4)

    told: the end up to which this process was told that everything is committed. A leader that has less was elected by
    a state that is not the newest, because ZooKeeper was set back: by invariant 4 it cannot be otherwise, unless an
    operator has chosen it. chosen: see SetState; own_epoch: that of the node's data.
    """
    return kept >= told or chosen >= own_epoch

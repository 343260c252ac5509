"""The state machine of a consumer in its group, written as a table. The consumer joins, plans, hands partitions over,
claims partitions and leaves.

    NEW ─started→ JOINING ─joined→ PLANNING ─losses→ DRAINING ─drained→ RELEASING ─released→ CLAIMING ─claimed→ STABLE
                     │                │  └──────────────gains──────────────────────────────────↗          │
                   failed           failed (also from RELEASING and CLAIMING)                         changed
                     ↓                ↓                                                                   ↓
                 JOIN_LATER       PLAN_LATER ─pause over, or changed→ PLANNING ←──────────────────────────┘

If the program does not poll, its member leaves the group for the time being. The member leaves only from a state in
which it just waits: in STABLE, PLAN_LATER, JOIN_LATER and DRAINING, the event IDLE leads to STEPPING_OUT and then to
AWAY. The next poll leads to JOINING.

Every failure leads to a pause and another try, without limit. During the pause the member keeps its partitions. When
its ZooKeeper session is lost, it owns no partitions any more (DISCONNECTED), and it joins the group again.

Actions run one after another on the rebalance thread (group_member.py), and most actions report an event when they end.
A pair of state and event that is not in the table is a bug and raises an exception.
"""

from __future__ import annotations

from enum import Enum, auto

from metaq.protocol.errors import LocalProtocolError

__all__ = ["TABLE", "Action", "Event", "State", "next_state"]


class State(Enum):
    NEW = auto()
    JOINING = auto()
    """The member is registering in the group."""
    JOIN_LATER = auto()
    """The member could not register, and waits for the next try."""
    PLANNING = auto()
    """The member is reading the state of the group and computing which partitions it should own."""
    PLAN_LATER = auto()
    """A try to own the planned partitions has failed, for example because another member has not given up a partition
    yet. The member waits for the next try.
    """
    DRAINING = auto()
    """The member no longer fetches from the partitions that it must hand over, and waits until the polling thread has
    finished their messages.
    """
    RELEASING = auto()
    """The member is committing the offsets of the partitions that it must hand over, and is releasing these
    partitions.
    """
    CLAIMING = auto()
    """The member is claiming newly assigned partitions."""
    STABLE = auto()
    """The member owns all partitions that are assigned to it."""
    DISCONNECTED = auto()
    """The ZooKeeper session is over, so the member owns nothing any more."""
    STEPPING_OUT = auto()
    """The program does not poll, so the member is giving up all its partitions and leaving the group for the time
    being.
    """
    STEP_OUT_LATER = auto()
    """The member could not leave the group (STEPPING_OUT has failed). It waits for the next try."""
    AWAY = auto()
    """The member is outside the group until the program polls again."""
    LEAVING = auto()
    LEFT = auto()


class Event(Enum):
    STARTED = auto()
    JOINED = auto()
    SETTLED = auto()
    """According to the plan, the member should own exactly the partitions that it owns."""
    GAINS = auto()
    """According to the plan, the member should own all partitions that it owns, and further ones."""
    LOSSES = auto()
    """According to the plan, the member should not own some of its partitions, and must hand these over to other
    members.
    """
    DRAINED = auto()
    """The polling thread has finished all messages of the partitions to hand over, or the time limit for this has
    passed.
    """
    RELEASED = auto()
    CLAIMED = auto()
    FAILED = auto()
    PAUSE_OVER = auto()
    CHANGED = auto()
    """The members, partitions or brokers of the group, or the ZooKeeper session, may have changed."""
    SESSION_LOST = auto()
    IDLE = auto()
    """The program has not polled for too long."""
    STEPPED_OUT = auto()
    POLLED = auto()
    """The program polls again."""
    CLOSE = auto()
    GONE = auto()
    """All partitions are released and the member's registration is removed, or the time limit for this has passed."""


class Action(Enum):
    JOIN = auto()
    """Register in the group. Reports JOINED or FAILED."""
    PLAN = auto()
    """Compute which partitions this member should own. Reports SETTLED, GAINS, LOSSES, FAILED or SESSION_LOST."""
    DRAIN = auto()
    """Stop fetching from the partitions to hand over. The event DRAINED follows later."""
    RELEASE = auto()
    """Commit the offsets of the partitions to hand over, and release these partitions. Reports RELEASED, FAILED or
    SESSION_LOST.
    """
    CLAIM = auto()
    """Claim the newly assigned partitions. Reports CLAIMED, FAILED or SESSION_LOST."""
    SETTLE = auto()
    """Make the next pause after a failure the shortest one again, because the rebalance has succeeded. Reports CHANGED
    if the members or partitions changed during the rebalance.
    """
    NOTE_CHANGE = auto()
    """Remember that the group has changed, so that the member must plan again when the present rebalance has ended."""
    PAUSE = auto()
    """Set a timer for the next try. The event PAUSE_OVER follows later. If the member only waits for partitions of
    other members and the group has changed since the plan, no timer is set and the action reports CHANGED.
    """
    ABANDON = auto()
    """Drop all partitions without committing their offsets. Reports CHANGED."""
    STEP_OUT = auto()
    """Give up all partitions and leave the group, because the program does not poll. Reports STEPPED_OUT, POLLED,
    FAILED or SESSION_LOST.
    """
    LEAVE = auto()
    """Release all partitions and leave the group for good. Reports GONE."""


_A, _E, _S = Action, Event, State

TABLE: dict[tuple[State, Event], tuple[State, tuple[Action, ...]]] = {
    (_S.NEW, _E.STARTED): (_S.JOINING, (_A.JOIN,)),
    (_S.JOINING, _E.JOINED): (_S.PLANNING, (_A.PLAN,)),
    (_S.JOINING, _E.FAILED): (_S.JOIN_LATER, (_A.PAUSE,)),
    (_S.JOIN_LATER, _E.PAUSE_OVER): (_S.JOINING, (_A.JOIN,)),
    (_S.PLANNING, _E.SETTLED): (_S.STABLE, (_A.SETTLE,)),
    (_S.PLANNING, _E.GAINS): (_S.CLAIMING, (_A.CLAIM,)),
    (_S.PLANNING, _E.LOSSES): (_S.DRAINING, (_A.DRAIN,)),
    (_S.PLANNING, _E.FAILED): (_S.PLAN_LATER, (_A.PAUSE,)),
    (_S.PLAN_LATER, _E.PAUSE_OVER): (_S.PLANNING, (_A.PLAN,)),
    (_S.PLAN_LATER, _E.CHANGED): (_S.PLANNING, (_A.PLAN,)),
    (_S.DRAINING, _E.DRAINED): (_S.RELEASING, (_A.RELEASE,)),
    (_S.RELEASING, _E.RELEASED): (_S.CLAIMING, (_A.CLAIM,)),
    (_S.RELEASING, _E.FAILED): (_S.PLAN_LATER, (_A.PAUSE,)),
    (_S.CLAIMING, _E.CLAIMED): (_S.STABLE, (_A.SETTLE,)),
    (_S.CLAIMING, _E.FAILED): (_S.PLAN_LATER, (_A.PAUSE,)),
    (_S.STABLE, _E.CHANGED): (_S.PLANNING, (_A.PLAN,)),
    (_S.DISCONNECTED, _E.CHANGED): (_S.JOINING, (_A.JOIN,)),
    (_S.STEPPING_OUT, _E.STEPPED_OUT): (_S.AWAY, ()),
    (_S.STEPPING_OUT, _E.POLLED): (_S.JOINING, (_A.JOIN,)),
    (_S.STEPPING_OUT, _E.FAILED): (_S.STEP_OUT_LATER, (_A.PAUSE,)),
    (_S.STEPPING_OUT, _E.SESSION_LOST): (_S.STEPPING_OUT, (_A.STEP_OUT,)),  # the lost session leaves less to give up
    (_S.STEP_OUT_LATER, _E.PAUSE_OVER): (_S.STEPPING_OUT, (_A.STEP_OUT,)),
    (_S.STEP_OUT_LATER, _E.POLLED): (_S.JOINING, (_A.JOIN,)),
    (_S.AWAY, _E.POLLED): (_S.JOINING, (_A.JOIN,)),
    (_S.LEAVING, _E.GONE): (_S.LEFT, ()),
}

# states in which a member rests
for _state in (_S.STABLE, _S.PLAN_LATER, _S.JOIN_LATER, _S.DRAINING):
    TABLE[_state, _E.IDLE] = (_S.STEPPING_OUT, (_A.STEP_OUT,))
# a member outside, or on its way out, reads the group when it comes back
for _state in (_S.STEPPING_OUT, _S.STEP_OUT_LATER, _S.AWAY):
    TABLE[_state, _E.CHANGED] = (_state, ())

# a change while a try is in progress: finish the try, then plan again
for _state in (_S.DRAINING, _S.RELEASING, _S.CLAIMING, _S.PLANNING):
    TABLE[_state, _E.CHANGED] = (_state, (_A.NOTE_CHANGE,))
# before joining there is no plan that could be out of date
for _state in (_S.NEW, _S.JOINING, _S.JOIN_LATER):
    TABLE[_state, _E.CHANGED] = (_state, ())
# the session can end during any action except joining
for _state in (_S.PLANNING, _S.RELEASING, _S.CLAIMING):
    TABLE[_state, _E.SESSION_LOST] = (_S.DISCONNECTED, (_A.ABANDON,))
# events of a wait that has already ended
for _state in State:
    TABLE.setdefault((_state, _E.PAUSE_OVER), (_state, ()))
    TABLE.setdefault((_state, _E.DRAINED), (_state, ()))
# a poll from before the member stepped out, or an outdated event
for _state in State:
    TABLE.setdefault((_state, _E.POLLED), (_state, ()))
    TABLE.setdefault((_state, _E.IDLE), (_state, ()))
# closing is possible at any time, and nothing matters after it
for _state in State:
    if _state in (_S.LEAVING, _S.LEFT):
        TABLE[_state, _E.CHANGED] = TABLE[_state, _E.CLOSE] = (_state, ())
    else:
        TABLE[_state, _E.CLOSE] = (_S.LEAVING, (_A.LEAVE,))


def next_state(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event in `state`, and the actions to execute. Raises LocalProtocolError if the event
    cannot come in this state.
    """
    found = TABLE.get((state, event))
    if found is None:
        raise LocalProtocolError(f"a consumer in state {state.name} cannot take the event {event.name}: this is a bug")
    return found

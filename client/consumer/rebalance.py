"""The state machine of a consumer in its group, as a table: join, plan, hand over, claim, leave.

    NEW ─started→ JOINING ─joined→ PLANNING ─losses→ DRAINING ─drained→ RELEASING ─released→ CLAIMING ─claimed→ STABLE
                     │                │  └──────────────gains──────────────────────────────────↗          │
                   failed           failed (also from RELEASING and CLAIMING)                         changed
                     ↓                ↓                                                                   ↓
                 JOIN_LATER       PLAN_LATER ─pause over, or changed→ PLANNING ←──────────────────────────┘

A member that nobody polls steps out: the event IDLE leads from any resting state to STEPPING_OUT and AWAY, and the next
poll leads to JOINING.

A member never gives up: every failure leads to a pause and another try, and the member keeps its partitions meanwhile.
When its ZooKeeper session is lost, it loses all ownership (DISCONNECTED) and joins again.

Actions run one after another on the rebalance thread (group_member.py), and most report an event of their own. A pair
of state and event that is not in the table is a bug and raises.
"""

from __future__ import annotations

from enum import Enum, auto

from metaq.protocol.errors import LocalProtocolError

__all__ = ["TABLE", "Action", "Event", "State", "next_state"]


class State(Enum):
    NEW = auto()
    JOINING = auto()
    """Registering in the group."""
    JOIN_LATER = auto()
    """Could not register: waiting for the next try."""
    PLANNING = auto()
    """Reading the group and computing what this member should own."""
    PLAN_LATER = auto()
    """A try has failed, for example because another member still holds a partition; waiting for the next try."""
    DRAINING = auto()
    """Partitions to hand over are no longer fetched; waiting until the polling thread has no messages of them."""
    RELEASING = auto()
    """Committing and releasing these partitions."""
    CLAIMING = auto()
    """Claiming newly assigned partitions."""
    STABLE = auto()
    """Owns all assigned partitions."""
    DISCONNECTED = auto()
    """The ZooKeeper session is over, so the member owns nothing any more."""
    STEPPING_OUT = auto()
    """Nobody polls: giving up all partitions and the membership."""
    STEP_OUT_LATER = auto()
    """Stepping out failed: waiting for the next try."""
    AWAY = auto()
    """Outside the group until somebody polls."""
    LEAVING = auto()
    LEFT = auto()


class Event(Enum):
    STARTED = auto()
    JOINED = auto()
    SETTLED = auto()
    """The plan equals the owned partitions."""
    GAINS = auto()
    """The plan has additional partitions, and lacks none."""
    LOSSES = auto()
    """The plan lacks owned partitions: they must be handed over."""
    DRAINED = auto()
    """The polling thread has no messages of the losses any more, or the wait for this is over."""
    RELEASED = auto()
    CLAIMED = auto()
    FAILED = auto()
    PAUSE_OVER = auto()
    CHANGED = auto()
    """Members, partitions, brokers or the session may have changed."""
    SESSION_LOST = auto()
    IDLE = auto()
    """Nobody polls."""
    STEPPED_OUT = auto()
    POLLED = auto()
    """Somebody polls again."""
    CLOSE = auto()
    GONE = auto()
    """All partitions are released and the registration is removed, or the time for it is over."""


class Action(Enum):
    JOIN = auto()
    """Reports JOINED, FAILED."""
    PLAN = auto()
    """Reports SETTLED, GAINS, LOSSES, FAILED, SESSION_LOST."""
    DRAIN = auto()
    """The event DRAINED follows later."""
    RELEASE = auto()
    """Reports RELEASED, FAILED, SESSION_LOST."""
    CLAIM = auto()
    """Reports CLAIMED, FAILED, SESSION_LOST."""
    SETTLE = auto()
    """Note that the rebalance has succeeded: reset the back-off. Reports CHANGED if the members or partitions changed
    during the rebalance."""
    NOTE_CHANGE = auto()
    """Remember that the plan must be made again."""
    PAUSE = auto()
    """The event PAUSE_OVER follows later. Reports CHANGED instead if the member only waits for other members and
    something has changed meanwhile.
    """
    ABANDON = auto()
    """Drop all partitions, without a commit. Reports CHANGED."""
    STEP_OUT = auto()
    """Reports STEPPED_OUT, POLLED, FAILED, SESSION_LOST."""
    LEAVE = auto()
    """Reports GONE."""


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
    """Return the state and actions after an event. Raises LocalProtocolError for an impossible pair."""
    found = TABLE.get((state, event))
    if found is None:
        raise LocalProtocolError(f"a consumer in state {state.name} cannot take the event {event.name}: this is a bug")
    return found

"""The life of a broker set's node as a table: (state, event) → (state, actions). No I/O, no clock, no thread.

                      LEADER                CHANCE               WON              RECORDED            COMMITTED
    IDLE ────────────────────→ FOLLOWING ──────────→ STANDING ───────→ ELECTED ────────────→ LEADING ──────────→ SERVING
      │ ↑                                              │ ↑                                      │                   │
      │ └────────────────── LOST, FAILED ──────────────┘ │CHANCE                                └───── DEPOSED ─────┤
      └──────────────────────────────────────────────────┘                                                          ↓
                                                                                                                  IDLE

A node without a leader may stand as well, or create the set's state (CREATING). DISTRUSTED leads to OUT from wherever
the node rests or leads. STOP leads to STOPPED from everywhere.

`due` in outlook.py says which event follows from what the node knows; node.py executes the actions. The model of the
protocol (tests/component/sets) uses this table. The numbers in brackets name invariants of docs/replication.md.
"""

from __future__ import annotations

from enum import Enum, auto

from metaq.protocol.errors import LocalProtocolError

__all__ = ["CANDIDATES", "LEADERS", "RESTING", "TABLE", "NodeAction", "NodeEvent", "NodeState", "next_state"]


class NodeState(Enum):
    IDLE = auto()
    """Follows nobody: it has just started, lost an election, or stopped leading."""
    CREATING = auto()
    """Writes the first state of the set."""
    FOLLOWING = auto()
    """Follows a leader that ZooKeeper named, or tries to connect to it."""
    STANDING = auto()
    """Has asked ZooKeeper to make it the leader, or is about to; the outcome is unknown."""
    ELECTED = auto()
    """Leads by the set's state, and writes this to its disk; serves nobody yet."""
    LEADING = auto()
    """Sends its data to followers; clients wait until the data that it had when it was elected are committed."""
    SERVING = auto()
    """Leads, and serves clients."""
    OUT = auto()
    """Does not take part, because its disk or its data cannot be trusted."""
    STOPPED = auto()


class NodeEvent(Enum):
    NO_SET = auto()
    """The set has no state, and this node may create it."""
    CREATED = auto()
    """This node or another one has created it."""
    LEADER = auto()
    """ZooKeeper names another node as the leader."""
    CHANCE = auto()
    """By all that this node knows, it may stand for election."""
    WON = auto()
    LOST = auto()
    """The outcome is known for certain: another write was applied."""
    UNFIT = auto()
    """The disk has failed before ZooKeeper was asked."""
    RECORDED = auto()
    """The epoch, and where each log ended when it began, are on the disk."""
    COMMITTED = auto()
    """All data that the leader had when it was elected are committed."""
    DEPOSED = auto()
    """Another node was elected, the ZooKeeper session has ended, or ZooKeeper was set back."""
    FAILED = auto()
    """What the last action began could not be done."""
    DISTRUSTED = auto()
    """The disk has failed or is full, or the data differ from the leader's."""
    TRUSTED = auto()
    """There is room again, or an operator has decided about the data."""
    STOP = auto()


class NodeAction(Enum):
    CREATE = auto()
    """Wait until following has ended, then ask ZooKeeper. Reports CREATED, UNFIT, FAILED."""
    FOLLOW = auto()
    """Follow the leader that ZooKeeper names, unless this is done already."""
    STOP_FOLLOWING = auto()
    STAND = auto()
    """Wait until following has ended, then ask ZooKeeper. Reports WON, LOST, UNFIT, FAILED."""
    RECORD = auto()
    """Reports RECORDED, DISTRUSTED, FAILED."""
    LEAD = auto()
    """May report COMMITTED or DISTRUSTED at once."""
    SERVE = auto()
    """Let clients in."""
    STEP_DOWN = auto()
    """Stop leading; turn clients away."""
    RESIGN = auto()
    """Tell the set that this node does not lead, if others are in sync."""
    LET_IN = auto()
    """Answer the followers that have connected since the node began to stand."""
    DECIDE = auto()
    """Look at what is due now."""
    DECIDE_LATER = auto()


_A, _E, _S = NodeAction, NodeEvent, NodeState

RESTING = frozenset({_S.IDLE, _S.FOLLOWING})
"""States in which a node looks for something to do."""

CANDIDATES = frozenset({_S.STANDING, _S.ELECTED})
"""States in which a node grants nothing. It enters them in the turn of the reactor in which it looks at its promises,
and leaves them when it knows the outcome, however long that takes. (5)"""

LEADERS = frozenset({_S.LEADING, _S.SERVING})

TABLE: dict[tuple[NodeState, NodeEvent], tuple[NodeState, tuple[NodeAction, ...]]] = {
    (_S.IDLE, _E.NO_SET): (_S.CREATING, (_A.CREATE,)),
    (_S.FOLLOWING, _E.NO_SET): (_S.CREATING, (_A.STOP_FOLLOWING, _A.CREATE)),
    (_S.CREATING, _E.CREATED): (_S.IDLE, (_A.DECIDE,)),
    (_S.CREATING, _E.UNFIT): (_S.OUT, ()),
    (_S.CREATING, _E.FAILED): (_S.IDLE, (_A.DECIDE_LATER,)),
    (_S.IDLE, _E.LEADER): (_S.FOLLOWING, (_A.FOLLOW,)),
    (_S.FOLLOWING, _E.LEADER): (_S.FOLLOWING, (_A.FOLLOW,)),
    (_S.IDLE, _E.CHANCE): (_S.STANDING, (_A.STAND,)),
    (_S.FOLLOWING, _E.CHANCE): (_S.STANDING, (_A.STOP_FOLLOWING, _A.STAND)),
    (_S.STANDING, _E.WON): (_S.ELECTED, (_A.RECORD,)),
    (_S.STANDING, _E.LOST): (_S.IDLE, (_A.LET_IN, _A.DECIDE)),
    (_S.STANDING, _E.UNFIT): (_S.OUT, (_A.LET_IN,)),
    # an elected node serves only after it has recorded the epoch: else it could follow an older one after a crash (2)
    (_S.ELECTED, _E.RECORDED): (_S.LEADING, (_A.LEAD, _A.LET_IN, _A.DECIDE)),
    (_S.ELECTED, _E.DISTRUSTED): (_S.OUT, (_A.RESIGN, _A.LET_IN)),
    (_S.LEADING, _E.COMMITTED): (_S.SERVING, (_A.SERVE,)),
    (_S.OUT, _E.TRUSTED): (_S.IDLE, (_A.DECIDE,)),
    (_S.OUT, _E.DISTRUSTED): (_S.OUT, ()),
    (_S.IDLE, _E.DISTRUSTED): (_S.OUT, ()),
    (_S.FOLLOWING, _E.DISTRUSTED): (_S.OUT, (_A.STOP_FOLLOWING,)),
    # the disk has failed while following ended: the action under way sees that, and reports UNFIT
    (_S.CREATING, _E.DISTRUSTED): (_S.CREATING, ()),
    (_S.STANDING, _E.DISTRUSTED): (_S.STANDING, ()),
}

for _state in CANDIDATES:  # a node that finds itself elected later stands anew: it may have granted since (5)
    TABLE[_state, _E.FAILED] = (_S.IDLE, (_A.LET_IN, _A.DECIDE_LATER))
for _state in LEADERS:
    TABLE[_state, _E.DEPOSED] = (_S.IDLE, (_A.STEP_DOWN, _A.DECIDE))
    TABLE[_state, _E.DISTRUSTED] = (_S.OUT, (_A.STEP_DOWN, _A.RESIGN))
    TABLE[_state, _E.STOP] = (_S.STOPPED, (_A.STEP_DOWN,))
# what was begun ends after the stop, and followers that wait for it are answered
for _event in (_E.CREATED, _E.WON, _E.LOST, _E.UNFIT, _E.RECORDED, _E.FAILED, _E.DISTRUSTED):
    TABLE[_S.STOPPED, _event] = (_S.STOPPED, (_A.LET_IN,))
for _state in NodeState:
    TABLE.setdefault((_state, _E.STOP), (_S.STOPPED, (_A.STOP_FOLLOWING,)))


def next_state(state: NodeState, event: NodeEvent) -> tuple[NodeState, tuple[NodeAction, ...]]:
    """Return the state and actions after an event. Raises LocalProtocolError for an impossible pair."""
    found = TABLE.get((state, event))
    if found is None:
        raise LocalProtocolError(f"a node in state {state.name} cannot take the event {event.name}: this is a bug")
    return found

"""The life of a broker set's node as a table: (state, event) → (state, actions). The code does no I/O, reads no clock
and starts no thread.

                      LEADER                CHANCE               WON              RECORDED            COMMITTED
    IDLE ────────────────────→ FOLLOWING ──────────→ STANDING ───────→ ELECTED ────────────→ LEADING ──────────→ SERVING
      │ ↑                                              │ ↑                                      │                   │
      │ └────────────────── LOST, FAILED ──────────────┘ │CHANCE                                └───── DEPOSED ─────┤
      └──────────────────────────────────────────────────┘                                                          ↓
                                                                                                                  IDLE

A node without a leader may also stand for election, or create the set's state (CREATING). The event DISTRUSTED leads to
the state OUT from every state in which the node rests (RESTING) or leads. The event STOP leads to the state STOPPED
from every state.

`due` in outlook.py decides which event is due, given the node's knowledge. node.py executes the actions. The model of
the protocol (tests/component/sets) uses this table. The numbers in brackets name invariants of docs/replication.md.
"""

from __future__ import annotations

from enum import Enum, auto

from metaq.protocol.errors import LocalProtocolError

__all__ = ["CANDIDATES", "LEADERS", "RESTING", "TABLE", "NodeAction", "NodeEvent", "NodeState", "next_state"]


class NodeState(Enum):
    IDLE = auto()
    """Follows nobody, because it has just started, lost an election, or stopped leading."""
    CREATING = auto()
    """Writes the first state of the set."""
    FOLLOWING = auto()
    """Follows a leader that ZooKeeper named, or tries to connect to it."""
    STANDING = auto()
    """Has asked ZooKeeper to make it the leader, or is about to ask. The outcome is unknown."""
    ELECTED = auto()
    """The set's state names this node as the leader. The node is recording its new epoch on its disk and serves nobody
    yet.
    """
    LEADING = auto()
    """Sends its data to followers. Clients wait until the data that it had at its election are committed."""
    SERVING = auto()
    """Leads, and serves clients."""
    OUT = auto()
    """Does not take part, because its disk or its data cannot be trusted."""
    STOPPED = auto()


class NodeEvent(Enum):
    NO_SET = auto()
    """The set has no state, and this node may create it."""
    CREATED = auto()
    """The set's state has been created, by this node or by another node."""
    LEADER = auto()
    """ZooKeeper names another node as the leader."""
    CHANCE = auto()
    """As far as this node knows, it may stand for election."""
    WON = auto()
    LOST = auto()
    """The node has certainly lost the election, because another node's write was applied to the set's state."""
    UNFIT = auto()
    """The disk failed before the node asked ZooKeeper to make it the leader."""
    RECORDED = auto()
    """The new epoch is on this node's disk, together with the positions where each log ended when the epoch began."""
    COMMITTED = auto()
    """All data that the leader had when it was elected are committed."""
    DEPOSED = auto()
    """Another node was elected, the ZooKeeper session has ended, or ZooKeeper was set back."""
    FAILED = auto()
    """The work that the last action began could not be done."""
    DISTRUSTED = auto()
    """The node's disk has failed or is full, or the node's data differ from the leader's data."""
    TRUSTED = auto()
    """The full disk has room again, or an operator has decided how to treat the data that differ."""
    STOP = auto()


class NodeAction(Enum):
    CREATE = auto()
    """Wait until following has ended, then ask ZooKeeper to create the set's state. The result is one of the events
    CREATED, UNFIT and FAILED.
    """
    FOLLOW = auto()
    """Follow the leader that ZooKeeper names, unless the node follows it already."""
    STOP_FOLLOWING = auto()
    STAND = auto()
    """Wait until following has ended, then ask ZooKeeper to make this node the leader. The result is one of the events
    WON, LOST, UNFIT and FAILED.
    """
    RECORD = auto()
    """Write to the disk that this node leads. The result is one of the events RECORDED, DISTRUSTED and FAILED."""
    LEAD = auto()
    """Begin to lead: send this node's data to followers. The event COMMITTED or DISTRUSTED may happen before this
    action returns.
    """
    SERVE = auto()
    """Begin to serve clients."""
    STEP_DOWN = auto()
    """Stop leading; turn clients away."""
    RESIGN = auto()
    """Write into ZooKeeper that this node does not lead, if other nodes are in sync."""
    LET_IN = auto()
    """Answer the followers that have connected since this node became a candidate."""
    DECIDE = auto()
    """Find out which event is due now."""
    DECIDE_LATER = auto()


_A, _E, _S = NodeAction, NodeEvent, NodeState

RESTING = frozenset({_S.IDLE, _S.FOLLOWING})
"""In these states, a node checks whether it should create the set's state in ZooKeeper, stand for election or follow a
leader.
"""

CANDIDATES = frozenset({_S.STANDING, _S.ELECTED})
"""In these states, a node grants nothing to a leader. The node checks its promises and enters STANDING in the same
iteration of the reactor. The node stays a candidate until it knows the outcome of the election, however long that
takes. (5)
"""

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
    # the disk failed while the node stopped following: the action that is under way notices that and reports UNFIT
    (_S.CREATING, _E.DISTRUSTED): (_S.CREATING, ()),
    (_S.STANDING, _E.DISTRUSTED): (_S.STANDING, ()),
}

for _state in CANDIDATES:  # a node that later finds itself elected stands again, as it may have granted since (5)
    TABLE[_state, _E.FAILED] = (_S.IDLE, (_A.LET_IN, _A.DECIDE_LATER))
for _state in LEADERS:
    TABLE[_state, _E.DEPOSED] = (_S.IDLE, (_A.STEP_DOWN, _A.DECIDE))
    TABLE[_state, _E.DISTRUSTED] = (_S.OUT, (_A.STEP_DOWN, _A.RESIGN))
    TABLE[_state, _E.STOP] = (_S.STOPPED, (_A.STEP_DOWN,))
# actions that were under way end after the stop; then followers that wait for them are answered
for _event in (_E.CREATED, _E.WON, _E.LOST, _E.UNFIT, _E.RECORDED, _E.FAILED, _E.DISTRUSTED):
    TABLE[_S.STOPPED, _event] = (_S.STOPPED, (_A.LET_IN,))
for _state in NodeState:
    TABLE.setdefault((_state, _E.STOP), (_S.STOPPED, (_A.STOP_FOLLOWING,)))


def next_state(state: NodeState, event: NodeEvent) -> tuple[NodeState, tuple[NodeAction, ...]]:
    """Return the node's next state and its actions after an event. Raises LocalProtocolError if the event is impossible
    in `state`.
    """
    found = TABLE.get((state, event))
    if found is None:
        raise LocalProtocolError(f"a node in state {state.name} cannot take the event {event.name}: this is a bug")
    return found

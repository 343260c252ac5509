"""The life of a broker set's node as a table: (state, event) → (state, actions). The code does no I/O, reads no clock
and starts no thread.

                      LEADER                CHANCE               WON              RECORDED            COMMITTED
    IDLE ────────────────────→ FOLLOWING ──────────→ STANDING ───────→ ELECTED ────────────→ LEADING ──────────→ SERVING
      │ ↑                                              │ ↑                                      │                   │
      │ └────────────────── LOST, FAILED ──────────────┘ │CHANCE                                └───── DEPOSED ─────┤
      └──────────────────────────────────────────────────┘                                                          ↓
                                                                                                                  IDLE

A node without a leader may also stand for election, or create the set's state (CREATING). The event DISTRUSTED leads to
the state OUT. It can happen in the states in RESTING and in the states in which the node leads. The event STOP leads to
the state STOPPED from every state.

The function `due` in outlook.py finds out from the node's knowledge which event happens next. node.py executes the
actions. The model of the protocol (tests/component/sets) uses this table. The numbers in brackets name invariants of
docs/replication.md.
"""

from __future__ import annotations

from enum import Enum, auto

from metaq.protocol.errors import LocalProtocolError

__all__ = ["CANDIDATES", "LEADERS", "RESTING", "TABLE", "NodeAction", "NodeEvent", "NodeState", "next_state"]


class NodeState(Enum):
    IDLE = auto()
    """The node follows no leader, because it has just started, lost an election, or stopped leading."""
    CREATING = auto()
    """The node is writing the first state of the set to ZooKeeper."""
    FOLLOWING = auto()
    """The node follows the leader that ZooKeeper names, or tries to connect to it."""
    STANDING = auto()
    """The node has asked ZooKeeper to make it the leader, or is about to ask, and does not know the outcome yet."""
    ELECTED = auto()
    """The set's state names this node as the leader. The node is recording its new epoch on its disk and serves nobody
    yet.
    """
    LEADING = auto()
    """The node is the leader and sends its data to followers. Clients must wait until the data that this node had at
    its election are committed.
    """
    SERVING = auto()
    """The node is the leader and serves clients."""
    OUT = auto()
    """The node takes no part in the set, because its disk or its data cannot be trusted."""
    STOPPED = auto()


class NodeEvent(Enum):
    NO_SET = auto()
    """The set has no state in ZooKeeper, and this node is allowed to create it."""
    CREATED = auto()
    """The set's state has been created, by this node or by another node."""
    LEADER = auto()
    """ZooKeeper names another node as the leader."""
    CHANCE = auto()
    """As far as this node knows, the set has no leader and this node is allowed to stand for election."""
    WON = auto()
    LOST = auto()
    """The node has certainly lost the election: ZooKeeper has applied another node's write to the set's state."""
    UNFIT = auto()
    """This node's disk failed before the node had asked ZooKeeper to create the set's state or to make the node the
    leader.
    """
    RECORDED = auto()
    """The new epoch is on this node's disk, together with the positions where each log ended when the epoch began."""
    COMMITTED = auto()
    """All data that the leader had when it was elected are committed."""
    DEPOSED = auto()
    """This node must stop leading, because another node was elected, the ZooKeeper session has ended, or ZooKeeper's
    data are older than before.
    """
    FAILED = auto()
    """The last action of this node (for example STAND) has failed."""
    DISTRUSTED = auto()
    """The node's disk has failed or is full, or the node's data differ from the leader's data."""
    TRUSTED = auto()
    """The reason for DISTRUSTED is gone: the full disk has free space, or an operator has decided how to treat the data
    that differ.
    """
    STOP = auto()


class NodeAction(Enum):
    CREATE = auto()
    """Wait until following has ended, then ask ZooKeeper to create the set's state. The result is one of the events
    CREATED, UNFIT and FAILED.
    """
    FOLLOW = auto()
    """Begin to follow the leader that ZooKeeper names. If the node follows this leader, nothing changes."""
    STOP_FOLLOWING = auto()
    STAND = auto()
    """Wait until following has ended, then ask ZooKeeper to make this node the leader. The result is one of the events
    WON, LOST, UNFIT and FAILED.
    """
    RECORD = auto()
    """Write to this node's disk that it leads the new epoch. The result is one of the events RECORDED, DISTRUSTED and
    FAILED.
    """
    LEAD = auto()
    """Begin to lead: send this node's data to followers. The event COMMITTED or DISTRUSTED may happen before this
    action returns.
    """
    SERVE = auto()
    """Begin to serve clients."""
    STEP_DOWN = auto()
    """Stop leading, and refuse the requests of clients."""
    RESIGN = auto()
    """If other nodes are in sync, write into ZooKeeper that this node no longer leads, so that one of them can be
    elected.
    """
    LET_IN = auto()
    """Answer the followers that have connected since this node became a candidate. Until now, they have waited for an
    answer.
    """
    DECIDE = auto()
    """Find out which event happens next, without waiting for news from ZooKeeper."""
    DECIDE_LATER = auto()


_A, _E, _S = NodeAction, NodeEvent, NodeState

RESTING = frozenset({_S.IDLE, _S.FOLLOWING})
"""In these states, a node checks whether it should create the set's state in ZooKeeper, stand for election or follow a
leader.
"""

CANDIDATES = frozenset({_S.STANDING, _S.ELECTED})
"""In these states, a node gives no leader a grant (the promise not to stand for election for some time). Before a node
enters STANDING, it checks that none of its grants is still valid. Both happen in the same iteration of the reactor, so
the node can give no grant in between. The node stays in these states until it knows the outcome of the election,
however long that takes. (Invariant 5.)
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

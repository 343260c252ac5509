"""A state of the model: a few nodes with their disks, what is under way between them, and the set's znode.

Everything is immutable, so that states are compared and kept in a dictionary. Nodes are "a", "b", "c"; Core.nodes has
them in this order. A set of nodes is a frozenset of names.

A state is its core and the grants, of which each core is met with many: what can be done is worked out once for a core.

What is left out, and why nothing is lost by that:

- A node knows who else is forgetful when it stands, as if all were present. In truth it waits until they are.
- ZooKeeper's sessions, `master` and the nodes' presence only say who is believed to be gone. Here any belief may be
  held at any time, also a wrong one: nodes stand while the leader is well, and drop nodes that are well.
- A crash and the start after it are one step. A dead node is one that does nothing, which any node may do.
- Time: a grant ends at any time, only the leader's part of it first. An answer that is late is one that was slow.
- One write of the znode at a time may be forgotten by its sender and be applied later; there could be more.
- A message that is lost is one that is not delivered until its connection is replaced.
- Several partitions are several logs under the same rules.
- A leader serves at once: it need not wait until what it had is committed.
- A candidate may still receive what its former leader has sent; in truth it stops following first.
- Readers read, and clients are told that their messages are stored, whenever they can: both change nothing but what
  must hold from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from metaq.broker.sets.life import NodeState as Life

T = TypeVar("T")

NAMES = "abc"
PLACES = {name: place for place, name in enumerate(NAMES)}

Names = frozenset[str]
Entry = int
"""Ten times the epoch, plus the number of the node that wrote it: with its place in the log this is one message."""

Block = tuple[Entry | None, int]
"""What is sent at once: an entry, or none, and up to where the log is committed."""

NO_GRANT, GIVEN, HELD, ENDED, ANSWER_TOO_LATE, HELD_TOO_LONG = range(6)
"""Of a follower's grant to a leader: none; answered, under way to the leader; counted by the leader; no longer counted
but still promised. The last two exist only in mutants: no longer promised, but under way or counted."""

PROMISED = frozenset((GIVEN, HELD, ENDED))
COUNTED = frozenset((HELD, HELD_TOO_LONG))


class Office(NamedTuple):
    """What a candidate, an elected node or a leader has in memory, beside what every node has."""

    term: int  # its epoch; of a candidate the one that it stands for
    current: bool  # whether the version of the znode that it knows is the present one
    in_sync: Names  # what it knows to be in the znode
    pending: Names | None = None  # what it writes there, and does not know yet whether it is
    acked: tuple[int, ...] = ()  # by node: acknowledged on the stream
    flying: tuple[int, ...] = ()  # by node: the newest acknowledgement that was sent to it


class Node(NamedTuple):
    log: tuple[Entry, ...] = ()  # on the disk, or in the page cache
    safe: int = 0  # how many of them are on the disk; counted only in sets that lose power
    history: tuple[tuple[int, int], ...] = ((1, 0),)  # on the disk: (epoch, length of the log when it began)
    epoch: int = 1  # on the disk: the highest that it has seen
    forgetful: bool = False  # whether its machine has restarted since it was last caught up; on the disk
    role: Life = Life.IDLE
    leader: str = ""  # whom it has a stream from
    stream: int = 0  # the epoch of that
    wire: tuple[Block, ...] = ()  # under way to it on that
    told: int = 0  # up to where it knows the log to be committed
    office: Office | None = None


class Znode(NamedTuple):
    epoch: int
    leader: str
    in_sync: Names


Grants = tuple[int, ...]
"""From each follower to each leader."""

Leader = tuple[int, str, Names, Names | None]
"""The epoch of a leader, its name, the in-sync set that it knows, and the one that it writes."""


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """All but the grants. Model._core() makes these: cores of one exploration are equal if they are the same object."""

    nodes: tuple[Node, ...]
    znode: Znode
    orphan: Znode | None  # a write that its sender has forgotten, and that ZooKeeper may still apply
    seen: tuple[Entry, ...]  # the most that a reader has seen, or that was acknowledged as in-sync
    wrong: str  # the invariant that the step to this state broke
    leaders: tuple[Leader, ...]


class State(NamedTuple):
    core: Core
    grants: Grants
    acknowledged: tuple[int, str] = (0, "")  # the newest epoch in which a client was told that a message is stored, by


def replaced(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])

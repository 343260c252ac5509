"""What happened in a run, as values: the input of the checkers (checkers.py).

Times are seconds of the machine's monotonic clock. A node's full name is its set's id and its name, as `0a`. What
consumer groups need stands in tests.history.facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.history.facts import History, Name, Send

__all__ = ["Failover", "Failovers", "Got", "Lead", "Put", "Transaction"]


class Transaction(NamedTuple):
    """outcome: `commit`, `rollback`, or `doubt`: nobody knows which of both."""

    begun: float
    time: float
    outcome: str
    names: Sequence[Name]


class Put(NamedTuple):
    """A message that one node was asked to store. code: 200 if it acknowledged; 0: no answer."""

    begun: float
    time: float
    node: str
    topic: str
    number: int
    code: int
    id: int
    offset: int


class Got(NamedTuple):
    """Bytes of a partition that a node showed. checksum: their CRC-32."""

    time: float
    node: str
    partition: str
    offset: int
    size: int
    checksum: int


class Lead(NamedTuple):
    """A node's log says that it leads; time: by its clock."""

    time: float
    node: str
    epoch: int


class Failover(NamedTuple):
    """A fault. moved: when another node led, or nobody was waited for any more; healed: when it was put right;
    settled: when all nodes were in sync again. before, after: the epoch in which it began, and that at `moved`.
    restarted: nodes that did not come back by themselves."""

    begin: float
    moved: float
    healed: float
    settled: float
    kind: str
    of_leader: bool
    set_id: int
    victim: str
    second: str
    before: int
    after: int
    restarted: Sequence[str] = ()

    @property
    def led_elsewhere(self) -> bool:
        """Whether a new leadership has begun."""
        return self.after > self.before


@dataclass(slots=True)
class Failovers:
    """Everything that the checkers read.

    groups: what is stored in the end, and what groups were handed; its acks are those that promise something. sends:
    all that ended. logs: the bytes of each partition in the end, of the last leader. files: set -> node ->
    path -> digest. starts: set -> (epoch, where each partition ended when it began), rising.
    """

    groups: History = field(default_factory=History)
    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    gets: list[Got] = field(default_factory=list)
    leads: list[Lead] = field(default_factory=list)
    faults: list[Failover] = field(default_factory=list)
    logs: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[int, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    starts: Mapping[int, Sequence[tuple[int, Mapping[str, int]]]] = field(default_factory=dict)
    cut_files: int = 0
    """Copies of what deposed leaders have cut off."""

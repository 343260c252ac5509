"""The table KINDS, with one entry for each kind of message that has internal logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..delays.delays import Delays
from ..halves.halves import Halves
from ..memory.memory import Memory
from ..memory.sequence_rows import cut_torn_writes
from ..shared.shared_groups import SharedGroups
from ..store.internal_logs import InternalTopic
from ..store.tuning import DELAYED_SEGMENT_BYTES
from ..writing.sequences import Sequences
from ..writing.write import Write

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["KINDS", "MessageKind"]


@dataclass(frozen=True, kw_only=True)
class MessageKind(InternalTopic):
    """One kind of message: the internal topic in which the kind's records are stored, and the class of the kind's
    memory.

    make: a function that creates the memory. If it is None, the class of the memory is called with the arguments of
    `Memory`.
    """

    memory: type[Memory[Any]]
    make: Callable[[Broker], Memory[Any]] | None = None

    def memory_in(self, broker: Broker) -> Memory[Any]:
        """Create the memory of this kind for a broker, and return it."""
        if self.make is not None:
            return self.make(broker)
        return self.memory(broker.store, broker.clock, broker.reactor)


def _delays(broker: Broker) -> Delays:
    return Delays(broker.store, Write, broker.clock, broker.reactor, broker.in_thread, broker.account)


def _halves(broker: Broker) -> Halves:
    return Halves(
        broker.store,
        Write,
        broker.clock,
        broker.reactor,
        broker.in_thread,
        broker.account,
        first_seconds=broker.options.half_check_seconds,
        checks=broker.options.half_checks,
    )


def _sequences(broker: Broker) -> Sequences:
    return Sequences(broker.store, broker.clock, broker.reactor, broker.partitions.for_waiting)


def _shared(broker: Broker) -> SharedGroups:
    return SharedGroups(
        broker.store,
        broker.partitions,
        broker.writing,
        broker.reading,
        broker.parked,
        broker.reactor,
        broker.clock,
        broker.account,
    )


KINDS: dict[str, MessageKind] = {
    kind.memory.topic: kind
    for kind in (
        # with_messages: a delivery whose mark is missing would be repeated
        MessageKind("metaqdelayed", DELAYED_SEGMENT_BYTES, with_messages=True, memory=Delays, make=_delays),
        MessageKind("metaqhalves", DELAYED_SEGMENT_BYTES, with_messages=True, memory=Halves, make=_halves),
        # after the first two: a row about one of their messages counts only if this message exists
        MessageKind("metaqsequences", 1 << 30, recovered=cut_torn_writes, memory=Sequences, make=_sequences),
        # after the first three, which `broker.writing` needs
        MessageKind("metaqshared", 1 << 30, memory=SharedGroups, make=_shared),
    )
}
"""All kinds of messages that have internal logs, by internal topic. A broker creates the memories of the kinds in the
order of this dict. When this broker becomes the leader, it calls `Memory.lead` of each memory in the same order.
"""

"""One partition on its way through a handler (listener.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..message import Message
from .partition_state import PartitionState

__all__ = ["Lane"]


@dataclass(slots=True, eq=False)
class Lane:
    """One partition. Everything belongs to the worker in it, but `queued`, `more` and `paused` to Listener._lock."""

    state: PartitionState
    queued: bool = False
    """In the queue of work, or in a worker."""
    more: bool = False
    """Something arrived meanwhile."""
    paused: bool = False
    messages: deque[Message] = field(default_factory=deque)
    """Taken and not processed yet, from state.position on."""
    end: int = 0
    """Where the position is once they are processed: behind the last, and behind what was filtered away after it."""
    moves: int = -1
    """state.moves when they were taken."""
    tries: int = 0
    """Failed ones of the first of them."""
    single_before: int = 0
    """Below this offset, messages of a batch that failed go to the handler one by one."""

    def is_current(self) -> bool:
        """Whether the messages taken still are what comes next."""
        state = self.state
        return state.active and not state.revoking and state.moves == self.moves

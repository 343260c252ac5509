"""Up to which block everything that must be on the disk of this node is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from metaq.protocol.errors import MetaqError

from ..store.partition_log import PartitionLog
from ..store.store import Store

__all__ = ["SafeBlocks"]


class _Waiting:
    __slots__ = ("number", "safe")

    def __init__(self, number: int) -> None:
        self.number = number
        self.safe = False


class SafeBlocks:
    """Reactor thread. Blocks become safe in any order and count in theirs."""

    def __init__(
        self, store: Store, on_safe: Callable[[], None], on_failure: Callable[[MetaqError], None], safe: int = 0
    ) -> None:
        """on_safe: called when `number` has grown, but not within `add`. on_failure: the disk has failed; nothing
        becomes safe any more."""
        self.number = safe
        """The last block that is safe with all before it."""
        self._store = store
        self._on_safe = on_safe
        self._on_failure = on_failure
        self._waiting: deque[_Waiting] = deque()

    def add(self, number: int, ends: Sequence[tuple[PartitionLog, int]]) -> None:
        """The next block is safe when each of these logs is so up to its `end`."""
        if not ends and not self._waiting:
            self.number = number
            return
        waiting = _Waiting(number)
        self._waiting.append(waiting)
        adding = True

        def settled(errors: Sequence[MetaqError | None]) -> None:
            failure = next(filter(None, errors), None)
            if failure is not None:
                self._on_failure(failure)
                return
            waiting.safe = True
            before = self.number
            while self._waiting and self._waiting[0].safe:
                self.number = self._waiting.popleft().number
            if self.number != before and not adding:
                self._on_safe()

        self._store.when_all_safe(ends, settled)
        adding = False

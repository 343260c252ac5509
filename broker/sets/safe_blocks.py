"""Find out which blocks of a broker set are safe on this node: all blocks up to which number. A block is safe when
those of its data that must be on this node's disk are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from metaq.protocol.errors import MetaqError

from ..store.partition_log import PartitionLog
from ..store.store import Store

__all__ = ["SafeBlocks"]

WhenSafe = Callable[[Callable[[MetaqError | None], None]], None]
"""when_safe(done): calls done(None) when the data are safe, or done(error) if they cannot become safe."""


class _Waiting:
    __slots__ = ("missing", "number")

    def __init__(self, number: int, missing: int) -> None:
        self.number = number
        self.missing = missing


class SafeBlocks:
    """Tracks which blocks are safe. Blocks can become safe in any order, but `number` grows to a block's number only
    when all blocks before it are safe, too. Used on the reactor thread.
    """

    def __init__(
        self, store: Store, on_safe: Callable[[], None], on_failure: Callable[[MetaqError], None], safe: int = 0
    ) -> None:
        """safe: the first value of `number`. on_safe: called when `number` has grown, except during a call of `add`.
        on_failure: called with the error when data of a block cannot become safe; `number` then never reaches this
        block.
        """
        self.number = safe
        """The number of the last block that is safe together with all blocks before it."""
        self._store = store
        self._on_safe = on_safe
        self._on_failure = on_failure
        self._waiting: deque[_Waiting] = deque()

    def add(self, number: int, ends: Sequence[tuple[PartitionLog, int]], when_others: WhenSafe | None = None) -> None:
        """Add the next block. The block is safe when two conditions hold: the data of each log in `ends` are safe up to
        the end offset given with it, and `when_others`, if given, has called its callback.
        """
        if not ends and when_others is None and not self._waiting:
            self.number = number
            return
        waiting = _Waiting(number, 1 if when_others is None else 2)
        self._waiting.append(waiting)
        adding = True

        def settled(errors: Sequence[MetaqError | None]) -> None:
            failure = next(filter(None, errors), None)
            if failure is not None:
                self._on_failure(failure)
                return
            waiting.missing -= 1
            before = self.number
            while self._waiting and not self._waiting[0].missing:
                self.number = self._waiting.popleft().number
            if self.number != before and not adding:
                self._on_safe()

        if when_others is not None:
            when_others(lambda error: settled([error]))
        self._store.when_all_safe(ends, settled)
        adding = False

"""What a consumer does where stored bytes are damaged, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable

from metaq.coordination.logs import get_log
from metaq.protocol.errors import CorruptRecord

from ..config import Damage
from .partition_state import PartitionState

__all__ = ["DamagePolicy", "OnDamaged"]

log = get_log(__name__)

OnDamaged = Callable[[CorruptRecord], object]
"""Called once for each damaged range that a consumer meets."""


class DamagePolicy:
    """Decides, and tells the user once. On the thread that takes messages."""

    def __init__(self, damage: Damage = "stop", on_damaged: OnDamaged | None = None) -> None:
        self._skips = damage == "skip"
        self._on_damaged = on_damaged

    def passes(self, state: PartitionState, damage: CorruptRecord) -> bool:
        """Whether to go on behind the damage: nobody can if its end is not known. Raises what on_damaged raises, and
        does not call it again then.
        """
        passes = self._skips and damage.end is not None
        if state.reported != damage.position:
            state.reported = damage.position
            if passes:
                log.warning("damaged bytes are passed over: %s", damage)
            if self._on_damaged is not None:
                self._on_damaged(damage)
        return passes

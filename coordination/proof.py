"""How sure it is that a session lives: the age of the last question that the server answered in it.

kazoo tells of a lost session only once its thread has run. A process that hung meanwhile (a stopped machine, a long
pause of the whole system) may run other threads first, which would go on with what another member owns by now. The age
is right at once, because it needs nobody to notice anything.
"""

from __future__ import annotations

from collections.abc import Callable

from kazoo.interfaces import IAsyncResult

from .paths import ROOT
from .session import ZkSession
from .session_clock import session_clock

__all__ = ["SessionProof"]


class SessionProof:
    """Counts from the moment of asking: the server has kept the session for its whole timeout from then on.

    Thread-safe: renew() on any thread, the answers come on kazoo's.
    """

    def __init__(self, session: ZkSession, clock: Callable[[], float] = session_clock) -> None:
        self._session = session
        self._clock = clock
        self._asked_at = clock()

    @property
    def age_seconds(self) -> float:
        """Since the last question that was answered was asked; before the first one, since this object was made."""
        return self._clock() - self._asked_at

    def renew(self) -> None:
        """Ask, without waiting. Nothing happens while no server is connected."""
        if self._session.connected:
            asked_at = self._clock()
            self._session.zk.exists_async(ROOT).rawlink(lambda answer: self._answered(asked_at, answer))

    def _answered(self, asked_at: float, answer: IAsyncResult) -> None:
        if answer.successful():
            self._asked_at = max(self._asked_at, asked_at)

"""Whether a member of a group may still hand out what it owns."""

from __future__ import annotations

from collections.abc import Callable

from metaq.coordination.logs import get_log
from metaq.coordination.session import SessionProof, ZkSession, session_clock

from ..timers import Timers
from .tuning import PROOF_SHARE, SUSPENDED_SHARE, UNPROVED_SHARE

__all__ = ["SessionWatch"]

log = get_log(__name__)


class SessionWatch:
    """Watches the ZooKeeper session of a member. holds_its_claims: what its GroupMember says of that.

    Every limit is a share of the timeout that the server has granted, which may be less than what was asked for.
    """

    def __init__(
        self,
        session: ZkSession,
        group: str,
        timers: Timers,
        holds_its_claims: Callable[[], bool],
        clock: Callable[[], float] = session_clock,
    ) -> None:
        self._session = session
        self._group = group
        self._timers = timers
        self._holds_its_claims = holds_its_claims
        self._proof = SessionProof(session, clock)
        self._waits = False

    def prove(self) -> None:
        """Prove the session now and regularly from then on."""
        self._proof.renew()
        self._timers.call_later(self._session.session_timeout * PROOF_SHARE, self.prove)

    def may_have_lost_everything(self) -> bool:
        """Without ZooKeeper for so long that the session may be over and another member may own the partitions.

        They are kept, but nothing is handed out before ZooKeeper answers again: it then says whether they are ours.
        """
        timeout = self._session.session_timeout
        suspended, unproved = self._session.suspended_seconds, self._proof.age_seconds
        if suspended <= timeout * SUSPENDED_SHARE and unproved <= timeout * UNPROVED_SHARE:
            self._waits = False
            return not self._holds_its_claims()
        if not self._waits:
            self._waits = True
            log.warning(
                "group %s: ZooKeeper has not answered for %.1f s; nothing is handed out until it does, because another "
                "member may own the partitions",
                self._group,
                max(suspended, unproved),
            )
        return True

"""Read a cluster's brokers and topics at a time when no broker set is changing its leader. Any thread may use this
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from metaq.coordination.brokers.cluster_view import BrokerNodes, ClusterView, TopicReplica
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.logs import get_log
from metaq.coordination.session.zk_session import ZkSession

__all__ = ["SteadyView"]

log = get_log(__name__)

_T = TypeVar("_T")


class SteadyView(ClusterView):
    """A ClusterView whose reads wait while a broker set has nodes, but no leader that has registered its topics.
    Without the wait, a result would lack the set's partitions, and for example a Spark query that is planned at that
    moment would not read them.

    If the set has no such leader after `patience_seconds`, the view returns what is registered. After that, reads do
    not wait for this set any more; they wait for it again only after the view has once seen the set with a leader.
    """

    def __init__(
        self,
        session: ZkSession,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(session)
        self._patience = patience_seconds
        self._clock = clock
        self._sleep = sleep
        self._given_up: set[int] = set()

    def brokers(self) -> dict[int, BrokerNodes]:
        return self._steadily(super().brokers)

    def replicas_many(self, topics: Sequence[str], publish: bool = True) -> list[list[TopicReplica]]:
        read = super().replicas_many
        return self._steadily(lambda: read(topics, publish))

    def _steadily(self, read: Callable[[], _T]) -> _T:
        backoff = Backoff(0.02, 0.2)
        give_up = self._clock() + self._patience
        while True:
            before = self.set_leaders()
            unled = {each for each, leader in before.items() if leader is None}
            self._given_up &= unled
            if not unled - self._given_up:
                found = read()
                if not before or self.set_leaders() == before:
                    return found
            pause = backoff.next()
            if self._clock() + pause > give_up:
                self._given_up |= unled
                log.warning("broker sets without a leader: %s", ", ".join(map(str, sorted(unled))) or "changing ones")
                return read()
            self._sleep(pause)

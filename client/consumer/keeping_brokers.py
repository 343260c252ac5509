"""Find out which brokers keep delayed messages, so that they can keep a failed message until its next attempt.

Brokers of metaq keep delayed messages, unless they are masters in 1.x's synchronous replication; Java brokers do not. A
broker announces in its first answer on a connection whether it keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import MetaqError

from ..questions.sources import endpoint_at
from ..transport.channel import Channel
from ..transport.connection import Endpoint

__all__ = ["Keeping", "KeepingBrokers"]

log = get_log(__name__)


class Keeping(NamedTuple):
    """What the brokers of some topics have answered. lacking: the name of a broker that keeps no delayed messages, for
    error texts. It is None if there is no such broker. answered: number of brokers that keep delayed messages.
    """

    lacking: str | None
    answered: int


class KeepingBrokers:
    """Asks brokers whether they keep delayed messages. Any thread may call the methods. connect: returns an existing or
    a new connection to a broker; raises MetaqError.
    """

    def __init__(self, view: ClusterView, connect: Callable[[Endpoint], Channel]) -> None:
        self._view = view
        self._connect = connect

    def look(self, topics: Sequence[str]) -> Keeping:
        """Ask the brokers of `topics` one after another whether they keep delayed messages, and stop at the first one
        that does not. Brokers that do not answer, or that have no master, are ignored. Raises CoordinationUnavailable.
        """
        nodes = self._view.brokers()
        answered = 0
        brokers = {each.broker_id for replicas in self._view.replicas_many(topics, publish=False) for each in replicas}
        for broker_id in sorted(brokers):
            master = nodes[broker_id].master if broker_id in nodes else None
            if master is None:
                continue
            try:
                keeps = self._connect(endpoint_at(master)).takes_delays
            except MetaqError:
                continue
            if not keeps:
                return Keeping(f"broker {broker_id} at {endpoint_at(master)}", answered)
            answered += 1
        return Keeping(None, answered)

    def keeps(self, broker_id: int) -> bool:
        """Ask a broker whether it keeps delayed messages. Return False also if it does not answer. Raises
        CoordinationUnavailable.
        """
        nodes = self._view.brokers().get(broker_id)
        if nodes is None or nodes.master is None:
            return False
        try:
            return self._connect(endpoint_at(nodes.master)).takes_delays
        except MetaqError as error:
            log.info("broker %d is not sent a failed message: %s", broker_id, error)
            return False

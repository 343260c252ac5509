"""REPLICATION_STATUS and RESTART_REPLICATION: for operators."""

from __future__ import annotations

from metaq.protocol.errors import NotReplicating
from metaq.protocol.frames import Frame

from ..broker import Broker
from ..replication.status import ReplicationStatus
from .admin import answer_json
from .answers import Answer

__all__ = ["answer_replication_status", "answer_restart_replication", "replication_status"]


def replication_status(broker: Broker) -> ReplicationStatus:
    """Of this moment; a broker without a part in replication is a plain master."""
    return ReplicationStatus("master") if broker.replication is None else broker.replication.status()


def answer_replication_status(broker: Broker, frame: Frame) -> Answer:
    return answer_json(frame, replication_status(broker).to_json())


def answer_restart_replication(broker: Broker, frame: Frame) -> Answer:
    """Connect anew and check everything again; the answer is the status at that moment. Raises NotReplicating."""
    if broker.replication is None:
        raise NotReplicating("this broker has no part in replication: start it with -Fmetaslave, -Fsamsa or -Fgregor")
    broker.replication.restart()
    return answer_json(frame, replication_status(broker).to_json())

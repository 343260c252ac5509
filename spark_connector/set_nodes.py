"""Find the leader of a broker set by asking its nodes. A task uses this module if the leader does not answer, for
example because it is frozen: the task has no connection to ZooKeeper, where it could read which node leads now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint, open_connection
from metaq.client.transport.metadata import parse_address
from metaq.protocol.errors import BrokerUnavailable, ConfigError, MetaqError, NotLeader, RequestTimedOut

__all__ = ["QUIET_SECONDS", "SetNodes"]

log = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
"""Seconds that a task waits for an answer from a node of a broker set. A node that has not answered by then may be
frozen, so the task asks the other nodes which node leads the set.
"""

_ANSWER_SECONDS = 1.0
"""Maximum seconds to wait when a node is asked which node leads. A live node can answer this question at once."""


_FOUND_SECONDS = 30.0
"""If a node did not answer, and a task has found the leader by asking other nodes, then for this number of seconds the
tasks of this process ask the leader instead of the node that did not answer.
"""

_found: dict[Endpoint, tuple[Endpoint, float]] = {}
"""For each node that did not answer: the leader that was found after that, and the time (time.monotonic()) until which
tasks ask this leader instead of the node.
"""


class SetNodes:
    """The nodes of one broker set, as the driver saw them when it planned the query. The object is empty for a broker
    outside a set. This object may be used by one thread only.
    """

    def __init__(self, partition: TopicPartition, nodes: Sequence[Endpoint], config: ConnectionConfig) -> None:
        """partition: any partition of the broker set. nodes: addresses of the set's nodes."""
        self._partition = partition
        self._nodes = tuple(nodes)
        self._config = config

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def connect(self, endpoint: Endpoint) -> Connection:
        """Return a connection for reading from this address. If the address belongs to a node of a broker set, wait at
        most QUIET_SECONDS until it is connected, because another node may lead the set.

        Raises BrokerUnavailable.
        """
        return open_connection(endpoint, self._config, QUIET_SECONDS if self._nodes else None)

    def first(self, planned: Endpoint) -> Endpoint:
        """Return the node to ask first: `planned`, or another node if a task of this process has found in the last
        _FOUND_SECONDS that `planned` did not answer and that this other node leads.
        """
        leader, until = _found.pop(planned, (planned, 0.0))
        if time.monotonic() >= until:
            return planned
        _found[planned] = leader, until
        return leader

    def leader(self, silent: Endpoint) -> Endpoint | None:
        """Ask the nodes of the set one after the other which node leads, and return the address of the first leader
        that a node names (itself or another node). Return None if no node names a leader. silent: the node that did not
        answer; it is not asked.

        The call blocks for at most two seconds per node.
        """
        for node in self._nodes:
            found = None if node == silent else self._leader_by(node)
            if found is not None and found != silent:
                _found.pop(found, None)
                _found[silent] = found, time.monotonic() + _FOUND_SECONDS
                return found
        return None

    def _leader_by(self, node: Endpoint) -> Endpoint | None:
        try:
            connection = open_connection(node, self._config, _ANSWER_SECONDS)
            try:
                partition_bounds(connection, self._partition, _ANSWER_SECONDS)
            finally:
                connection.close()
        except NotLeader as error:
            return _address(error.url)
        except (BrokerUnavailable, RequestTimedOut) as error:
            log.info("%s does not say who leads its broker set: %s", node, error)
            return None
        except MetaqError as error:  # if it leads, the task gets the same error
            log.info("%s leads its broker set: %s", node, error)
        return node


def _address(url: str) -> Endpoint | None:
    try:
        return parse_address(url) if url else None
    except ConfigError as error:
        log.info("a node names a leader that cannot be reached: %s", error)
        return None

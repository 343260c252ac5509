"""List and describe brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.protocol.errors import MetaqError

from ..questions.cluster import Cluster
from ..questions.partition_bounds import read_stats
from ..questions.sources import endpoint_at
from ..records.results import TopicPartition
from ..settings.config import ConnectionConfig
from ..transport.connection import open_connection

__all__ = ["BrokerAdmin", "BrokerDescription", "BrokerSummary"]

MAX_ASKED = 16
"""Largest number of brokers that are asked for their version at the same time."""


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """A broker, or a slave of a broker.

    role: "master"; "slave " and its number; or "gone" if the broker was registered earlier and is not registered now,
    and then all following fields are None. node: for the leader of a broker set, its name, otherwise None. address:
    host and port. topics, partitions: how many the broker offers to producers. config_checksum: the checksum of the
    server.ini that a master has registered. version: None if the process does not answer.
    """

    broker: int
    role: str
    node: str | None = None
    address: str | None = None
    topics: int | None = None
    partitions: int | None = None
    config_checksum: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker's own report.

    protocol: "frames", or "text" for a Java broker. slaves: the addresses of its registered slaves, by their numbers.
    registered_checksum: the checksum of the server.ini that it has registered, or None. figures: its statistics, as
    `metaq stats` shows them: uptime, connections, requests, messages, ….
    """

    broker: int
    address: str
    protocol: str
    slaves: Mapping[int, str]
    registered_checksum: int | None
    figures: Mapping[str, str]


class BrokerAdmin:
    """The calls about brokers. Only one thread may use this object at a time. All calls raise CoordinationUnavailable
    if ZooKeeper does not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> Sequence[BrokerSummary]:
        """Return all registered brokers and slaves, and then the brokers that were registered earlier and are not
        registered now. Of a broker set only the leader is listed. Each process is asked for its version; this takes at
        most connect_timeout_seconds for each 16 processes that do not answer.
        """
        cluster = self._cluster
        topics = cluster.topics()
        served = [
            (broker, topic)
            for topic, places in zip(topics, cluster.view.topic_partitions_many(topics), strict=True)
            for broker, _ in places
        ]
        registered = cluster.view.brokers()
        checksums = dict(zip(registered, cluster.view.config_checksums([*registered]), strict=True))
        addresses = [each for nodes in registered.values() for each in (nodes.master, *nodes.slaves) if each]
        leaders = {
            broker_id: view.state.leader for broker_id, view in cluster.sets().items() if view.state and view.is_led
        }
        with ThreadPoolExecutor(MAX_ASKED) as pool:
            versions = [*pool.map(partial(_version, config=cluster.config), addresses)]
        found = []
        for address, version in zip(addresses, versions, strict=True):
            broker_id, is_master = address.broker_id, address.slave_id is None
            mine = [topic for broker, topic in served if broker == broker_id]
            found.append(
                BrokerSummary(
                    broker_id,
                    "master" if is_master else f"slave {address.slave_id}",
                    leaders.get(broker_id) if is_master else None,
                    f"{address.host}:{address.port}",
                    len(set(mine)),
                    len(mine),
                    checksums[broker_id] if is_master else None,
                    version,
                )
            )
        gone = [BrokerSummary(each, "gone") for each in cluster.view.absent_brokers(registered)]
        return [*found, *gone]

    def describe(self, broker: int) -> BrokerDescription:
        """Return what the broker with this id reports; of a broker set, its leader is asked. Raises BrokerUnavailable
        if no such broker is registered, or if it does not answer.
        """
        cluster = self._cluster
        cluster.look_again()
        (registered,) = cluster.view.config_checksums([broker])
        slaves = cluster.view.brokers().get(broker, BrokerNodes(None)).slaves
        connection = cluster.connection(broker)
        lines = cluster.ask(TopicPartition("", broker, -1), read_stats)
        return BrokerDescription(
            broker,
            str(connection.endpoint),
            "frames" if connection.speaks_frames else "text",
            {each.slave_id: f"{each.host}:{each.port}" for each in slaves if each.slave_id is not None},
            registered,
            {name: value for name, _, value in (line.partition(" ") for line in lines)},
        )


def _version(address: BrokerAddress, config: ConnectionConfig) -> str | None:
    """Return the version that the process at this address reports, or None if the process does not answer."""
    try:
        connection = open_connection(endpoint_at(address), config)
    except MetaqError:
        return None
    connection.close()
    return connection.peer_version

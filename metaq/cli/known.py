"""Check names against the topics and groups of the cluster. An unknown name is an error, which an empty table would
hide."""

from __future__ import annotations

from functools import partial

from metaq.client.questions.cluster import Cluster
from metaq.client.questions.shared import SharedPartition, shared_status
from metaq.client.runtime.nearest import did_you_mean
from metaq.client.transport.connection import Connection
from metaq.protocol.errors import ClientError, RequestRefused
from metaq.protocol.own_topics import DEAD_PREFIX, RETRY_PREFIX, is_own_topic

from .cluster_access import ask_brokers, tell_silent

__all__ = ["check_known_group", "check_known_topic", "own_topics_groups", "shared_partitions"]


def shared_partitions(cluster: Cluster, group: str = "") -> tuple[list[SharedPartition], dict[int, str]]:
    """Return all brokers' reports on a shared group ("" = all groups), and the reasons why other brokers did not
    answer.

    Brokers without shared groups, such as 1.x's, report none.
    """
    masters = [broker_id for broker_id, nodes in cluster.view.brokers().items() if nodes.master is not None]
    found, silent = ask_brokers(cluster, masters, partial(_shared_status, group=group))
    return sorted(each for answer in found.values() for each in answer), silent


def _shared_status(connection: Connection, broker_id: int, group: str) -> list[SharedPartition]:
    try:
        return shared_status(connection, broker_id=broker_id, group=group)
    except RequestRefused:
        return []


def own_topics_groups(cluster: Cluster, *prefixes: str) -> set[str]:
    """Return the groups that have a topic of failed messages or of dead letters. Such a topic is created with its first
    message."""
    return {name.removeprefix(each) for name in cluster.view.topics() for each in prefixes if name.startswith(each)}


def check_known_group(cluster: Cluster, group: str) -> None:
    """Check that a group is a consumer group or a shared group, or has failed messages or dead letters.

    Raises ClientError, which names the most similar group; BrokerUnavailable if a broker that does not answer may have
    it as a shared group.
    """
    known = own_topics_groups(cluster, RETRY_PREFIX, DEAD_PREFIX).union(cluster.view.groups())
    if group in known:
        return
    found, silent = shared_partitions(cluster)
    known.update(each.group for each in found)
    if group in known:
        return
    tell_silent(silent)
    near = did_you_mean(group, sorted(known), "`metaq groups list` and `metaq shared list` show those that there are")
    raise ClientError(f"there is no group {group!r}: {near}")


def check_known_topic(cluster: Cluster, topic: str) -> None:
    """Check that a topic exists or has existed. Raises NoPartition, which names the most similar topic.

    For a group's topics of failed messages and dead letters only the group must be known: these topics are created when
    a message first fails.
    """
    if topic in cluster.view.topics():
        return
    if not is_own_topic(topic):
        raise cluster.no_partition(topic)
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            check_known_group(cluster, topic.removeprefix(prefix))

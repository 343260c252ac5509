"""Check whether the topics and groups that a user names exist in the cluster. Without this check the result for a
mistyped name would be empty, and there would be no error.
"""

from __future__ import annotations

from functools import partial

from metaq.protocol.errors import ClientError, RequestRefused
from metaq.protocol.own_topics import DEAD_PREFIX, RETRY_PREFIX, is_own_topic

from ..questions.cluster import Cluster
from ..questions.shared import SharedPartition, shared_status
from ..runtime.nearest import did_you_mean
from ..transport.connection import Connection
from .completeness import ask_brokers, tell_silent

__all__ = ["check_known_group", "check_known_topic", "own_topics_groups", "shared_partitions"]


def shared_partitions(cluster: Cluster, group: str = "") -> tuple[list[SharedPartition], dict[int, str]]:
    """Ask all brokers about a shared group ("" = all shared groups). Return two results: the brokers' reports, and a
    dict that contains, by broker id, why a broker did not answer.

    A broker that does not know shared groups, such as a broker of 1.x, counts as a broker without shared groups.
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
    """Return the groups that have a topic whose name begins with one of `prefixes`: RETRY_PREFIX for failed messages,
    DEAD_PREFIX for dead letters. The first failed message or dead letter of a group creates the corresponding topic.
    """
    return {name.removeprefix(each) for name in cluster.view.topics() for each in prefixes if name.startswith(each)}


def check_known_group(cluster: Cluster, group: str) -> None:
    """Check that a group exists, that is, that a consumer group or a shared group has this name, or that failed
    messages or dead letters of such a group exist.

    Raises ClientError for an unknown group; the error text names the most similar known group. Raises BrokerUnavailable
    if no broker that answers knows the group and at least one broker does not answer, because that broker may know the
    group as a shared group.
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
    """Check that a topic exists or has existed. Raises NoPartition for an unknown topic; the error text names the most
    similar known topic.

    If `topic` is the topic of a group's failed messages or dead letters, the function only checks that the group is
    known, because this topic does not exist before a message of the group fails for the first time.
    """
    if topic in cluster.view.topics():
        return
    if not is_own_topic(topic):
        raise cluster.no_partition(topic)
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            check_known_group(cluster, topic.removeprefix(prefix))

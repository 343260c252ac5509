"""recoverOffset: convert the consumer groups' offsets when an operator has made a synchronous slave the new master
(zookeeper.md §7).

The messages have the same ids on the new master as on the former master, but other offsets. ZooKeeper has, for each
group and partition, the offset and the id of the last processed message. Among the new master's messages whose id is at
most this id, the last one is looked up; the group's offset is set to the end of this message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from metaq.coordination.offsets.offset_store import ZooKeeperOffsetStore
from metaq.coordination.records.paths import partition_name
from metaq.coordination.records.payloads import UNKNOWN_MESSAGE_ID, Offset
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import InvalidName
from metaq.protocol.topic_partition import TopicPartition

from ..configuration.server_ini import BrokerConfig
from ..store.partition_log import PartitionLog
from ..store.store import Store

__all__ = ["position_behind", "recover_offsets"]

_log = logging.getLogger(__name__)

_BLOCK_RECORDS = 1 << 16


def recover_offsets(
    config: BrokerConfig, store: Store, tls: CertificateFiles | None = None, login: ZooKeeperLogin | None = None
) -> int:
    """Rewrite the consumer groups' offsets in ZooKeeper, and return the number of changed offsets. The call blocks, and
    must be made before the broker listens.

    As in 1.x, only offsets with a positive message id are rewritten. Messages of a Java master on Linux have negative
    ids, so the offsets of groups that have read from such a master stay unchanged. tls: the files for TLS with
    ZooKeeper; None means without TLS. login: by which the session identifies itself. Raises CoordinationUnavailable,
    StoreError.
    """
    zookeeper = config.zookeeper
    seconds = zookeeper.session_timeout_ms / 1000
    with ZkSession(zookeeper.connect, zookeeper.root, seconds, tls=tls, login=login) as session:
        offsets = ZooKeeperOffsetStore(session)
        changed = 0
        for group in sorted(session.nodes.children(session.paths.groups())):
            for topic in sorted(session.nodes.children(session.paths.group_offsets(group))):
                names = session.nodes.children(session.paths.offsets(group, topic))
                changed += _recover(offsets, store, config.broker_id, group, topic, list(_own(config.broker_id, names)))
    _log.info("recoverOffset: %d offsets of groups were moved to this broker's own positions", changed)
    return changed


def _own(broker_id: int, names: Iterable[str]) -> Iterable[int]:
    for name in names:
        try:
            _, broker, partition = TopicPartition.parse("", name)
        except InvalidName as error:
            _log.error("left out: %s", error)
            continue
        if broker == broker_id:
            yield partition


def _recover(
    offsets: ZooKeeperOffsetStore, store: Store, broker_id: int, group: str, topic: str, partitions: list[int]
) -> int:
    changed: dict[tuple[str, str], Offset] = {}
    for partition in partitions:
        name = partition_name(broker_id, partition)
        old = offsets.load(group, topic, name)
        if old is None or old.message_id <= 0:
            continue
        log = store.find(topic, partition)
        position = None if log is None else position_behind(log, old.message_id)
        new = Offset(UNKNOWN_MESSAGE_ID, 0) if position is None else Offset(old.message_id, position)
        if new != old:
            _log.info("recoverOffset: group %s, %s %s: from %d to %d", group, topic, name, old.offset, new.offset)
            changed[topic, name] = new
    if changed:
        offsets.commit(group, changed, None)
    return len(changed)


def position_behind(log: PartitionLog, message_id: int) -> int | None:
    """Return the end offset of the last readable message whose id is at most `message_id`, or None if there is none."""
    for segment in reversed(log.segments):
        found = None
        for units in log.lookup.units_between(
            segment.first_offset, segment.end, log.segments.size_bytes, _BLOCK_RECORDS
        ):
            hits = np.flatnonzero(units["id"] <= message_id)
            if len(hits):
                last = units[hits[-1]]
                found = int(last["offset"]) + int(last["size"])
        if found is not None:
            return found
    return None

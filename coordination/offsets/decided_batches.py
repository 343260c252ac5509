"""Keep the last decided batch of each Spark query in ZooKeeper. A batch is called decided when it is certain that all
its rows are already written to the query's topics or will be written there. Each query has one znode. The data of a
znode is replaced only if the znode still has the version that was read.
"""

from __future__ import annotations

from typing import NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from metaq.protocol.errors import CoordinationError

from ..records.payloads import DecidedBatch, format_decided_batch, parse_decided_batch
from ..session.zk_session import ZkSession
from ..session.znodes import FencedWrite, create_persistent, delete, set_data

__all__ = ["DecidedBatch", "DecidedBatches", "Versioned"]

_MAX_NODE_BYTES = 1_000_000
"""Largest size of a znode's data in bytes. ZooKeeper's default limit for a whole request is 1 MiB (jute.maxbuffer), and
a request contains some bytes besides the data.
"""


class Versioned(NamedTuple):
    """The content and the version of a Spark query's znode. Both values are None if the znode does not exist."""

    decided: DecidedBatch | None
    version: int | None


class DecidedBatches:
    """Reads and writes the decided batches in ZooKeeper. Any thread may call the methods. The methods raise
    CoordinationUnavailable if ZooKeeper does not answer, and CoordinationError for damaged data.
    """

    def __init__(self, session: ZkSession) -> None:
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths

    def query_ids(self) -> list[str]:
        """Return the ids of the queries that have a znode, sorted."""
        return sorted(self._nodes.children(self._paths.spark_writes()))

    def load(self, query_id: str) -> Versioned:
        path = self._paths.spark_write(query_id)
        node = self._nodes.get_versioned(path)
        return Versioned(parse_decided_batch(path, node[0]), node[1]) if node else Versioned(None, None)

    def replace(self, query_id: str, found: Versioned, decided: DecidedBatch) -> Versioned | None:
        """Replace the content of the query's znode by `decided`, if the znode has not changed since the caller has read
        `found` from it. Return the new content, or None if somebody else has changed the znode.

        If this method raises CoordinationUnavailable, `decided` may have been written already. ZooKeeper may also write
        `decided` later, unless somebody else replaces `found` first.
        """
        path = self._paths.spark_write(query_id)
        data = format_decided_batch(decided)
        if len(data) > _MAX_NODE_BYTES:
            raise CoordinationError(
                f"{len(decided.pending)} transactions of one batch do not fit into a znode ({len(data)} bytes): "
                "write fewer partitions (coalesce), or raise metaq.transaction.bytes"
            )
        if found.version is None:
            self._nodes.ensure([self._paths.spark_writes()])
            return Versioned(decided, 0) if self._write(create_persistent(path, data)) else None
        written = self._write(set_data(path, data, found.version))
        return Versioned(decided, found.version + 1) if written else None

    def remove(self, query_id: str) -> None:
        """Delete the znode of the query."""
        self._write(delete(self._paths.spark_write(query_id)))

    def _write(self, write: FencedWrite) -> bool:
        """Execute the write. Return False if the znode has changed since it was read."""
        (failure,) = self._nodes.write(self._session.session_id, [write], BadVersionError, NodeExistsError, NoNodeError)
        return failure is None

"""Store the committed offsets of consumer groups in ZooKeeper or, for broadcast consumers, in a local file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from metaq.protocol.errors import CoordinationError
from metaq.protocol.topic_partition import TopicPartition

from ..groups.membership import GroupMembership
from ..records.paths import partition_name
from ..records.payloads import UNKNOWN_MESSAGE_ID, Offset, format_offset, parse_offset
from ..runtime.home import in_home
from ..session.zk_session import ZkSession
from ..session.znodes import FencedWrite, create_persistent, set_data

__all__ = ["LocalOffsetStore", "Offset", "OffsetStore", "OwnerCheckedStore", "ZooKeeperOffsetStore"]

_FILE = "~/.meta_offsets"
_LISTED_FROM = 64
"""A call that reads or writes more than this number of offset znodes first lists the existing ones. Then it reads or
updates only the existing znodes, and a write creates the missing ones. This takes less time than trying all znodes. The
call lists nothing if it is known that all znodes to write exist.
"""

TopicPartitionName = tuple[str, str]
"""A partition as a pair of texts: the topic's name and `<broker>-<partition>`."""


class OffsetStore(Protocol):
    """A store of committed offsets. Any thread may call the methods. The methods raise CoordinationUnavailable if the
    store cannot be reached, and CoordinationError for damaged data.
    """

    def load(self, group: str, topic: str, partition: str) -> Offset | None:
        """Return the group's committed offset of the partition `<broker>-<partition>`, or None if the group never
        committed one.
        """
        return self.load_many(group, [(topic, partition)])[0]

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        """Return the result of load() for each partition, in order, in about one round trip."""

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        """Store the offsets. Each offset is stored independently, so some of them may be stored although the call
        fails.

        fence: id of the ZooKeeper session that holds the owner znodes of the partitions. This id is the value of
        GroupMembership.session_id at the time of the claim. If the session is not the current session any more,
        SessionLost is raised and nothing is written, so that the offsets of a new owner are not overwritten. None means
        the current session; tools that change the offsets of a group without members pass None.
        """

    def changed_since(self, group: str, partitions: Sequence[TopicPartitionName], zxid: int) -> list[bool]:
        """Return for each partition whether its committed offset was written by a later ZooKeeper transaction than
        `zxid`. The result is False for a partition without a committed offset. A consumer calls this method to decide
        whether a committed offset is newer than the position that the consumer remembers. A store outside of ZooKeeper
        always returns True: its offsets can be trusted, because they do not go back when ZooKeeper is restored from an
        older copy.
        """
        return [True] * len(partitions)


class ZooKeeperOffsetStore(OffsetStore):
    """Keeps offsets in ZooKeeper as 1.x does: one persistent znode per partition, with the data `msgId-offset`
    (zookeeper.md §2).

    The store sends several reads without waiting for each answer, and many writes in one ZooKeeper transaction. If a
    commit fails, it is possible that some of its offsets have been stored. The caller can always repeat the commit
    safely.
    """

    def __init__(self, session: ZkSession) -> None:
        self._nodes = session.nodes
        self._session = session
        self._paths = session.paths
        self._known: set[str] = set()  # znodes known to exist: their data is set; others are created
        self._absent: set[str] = set()  # znodes that were missing when read: they are created

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        paths = [self._paths.offset(group, *each) for each in partitions]
        if len(paths) > _LISTED_FROM:
            self._known |= self._listed(group, partitions)
            there = [path for path in paths if path in self._known]
        else:
            there = paths
        nodes = {path: node for path, node in zip(there, self._nodes.get_many(there), strict=True) if node}
        self._known |= nodes.keys()
        self._absent = (self._absent | set(paths)) - self._known
        return [parse_offset(path, nodes[path].data) if path in nodes else None for path in paths]

    def _listed(self, group: str, partitions: Iterable[TopicPartitionName]) -> set[str]:
        """Return the paths of the offset znodes that the group has for the topics of these partitions."""
        topics = list(dict.fromkeys(topic for topic, _ in partitions))
        names = self._nodes.children_many([self._paths.offsets(group, topic) for topic in topics])
        return {
            self._paths.offset(group, topic, name) for topic, each in zip(topics, names, strict=True) for name in each
        }

    def changed_since(self, group: str, partitions: Sequence[TopicPartitionName], zxid: int) -> list[bool]:
        found = self._nodes.get_with_stats([self._paths.offset(group, *each) for each in partitions])
        return [each is not None and each[1].mzxid > zxid for each in found]

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        if not offsets:
            return
        session_id = self._session.session_id if fence is None else fence
        wanted = {self._paths.offset(group, *each): format_offset(offset) for each, offset in offsets.items()}
        if len(wanted) > _LISTED_FROM and not wanted.keys() <= self._known:
            self._known |= self._listed(group, offsets)
            there = {path: data for path, data in wanted.items() if path in self._known}
        else:
            there = {path: data for path, data in wanted.items() if path not in self._absent}
        missing = {path: data for path, data in wanted.items() if path not in there}
        missing |= self._failing(session_id, set_data, there, NoNodeError)
        if missing:
            self._nodes.ensure({self._paths.offsets(group, topic) for topic, _ in offsets})
            existing = self._failing(session_id, create_persistent, missing, NodeExistsError)  # a tool was faster
            if vanished := self._failing(session_id, set_data, existing, NoNodeError):
                names = ", ".join(sorted(vanished))
                raise CoordinationError(f"cannot commit offsets, their nodes come and go: {names}")
        self._known |= wanted.keys()
        self._absent -= wanted.keys()

    def _failing(
        self,
        session_id: int,
        write: Callable[[str, bytes], FencedWrite],
        wanted: Mapping[str, bytes],
        expected: type[KazooException],
    ) -> dict[str, bytes]:
        """Write each entry of `wanted` (path, data) to ZooKeeper, by the operation that `write` returns for it. Return
        the entries whose writes failed with the error `expected`.
        """
        failures = self._nodes.write(session_id, [write(path, data) for path, data in wanted.items()], expected)
        return {path: data for (path, data), failure in zip(wanted.items(), failures, strict=True) if failure}


class LocalOffsetStore(OffsetStore):
    """Keeps offsets in the file `~/.meta_offsets`, which broadcast consumers of 1.x also use (storage.md §8). All
    processes of one user share the file.

    A Java client writes the whole file from its own memory, so it overwrites newer entries that another process has
    written for other groups. LocalOffsetStore changes only the entries of the offsets that it commits: while it holds a
    lock file beside the offset file, it writes a new file, calls fsync, and replaces the offset file by a rename.
    `fence` is ignored: only this host uses the file, and only this host has members of the broadcast group.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = Path(path) if path else in_home(_FILE, "offsets_file", "name another file")

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        known = self._entries(self._read(), group)
        return [known.get(each) for each in partitions]

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        if not offsets:
            return
        with self._locked():
            groups = self._read()
            merged = self._entries(groups, group) | dict(offsets)
            groups[group] = [_local_entry(*each, offset) for each, offset in sorted(merged.items())]
            self._replace(json.dumps(groups, ensure_ascii=False, separators=(",", ":")))

    def _read(self) -> dict[str, Any]:
        try:
            text = self._path.read_text("utf-8")
            groups = json.loads(text) if text.strip() else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CoordinationError(f"cannot read the offsets in {self._path}: {error}: repair or remove it") from error
        if not isinstance(groups, dict):
            raise self._damaged(groups)
        return groups

    def _entries(self, groups: Mapping[str, Any], group: str) -> dict[TopicPartitionName, Offset]:
        try:
            return dict(_parse_local_entry(entry) for entry in groups.get(group) or ())
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(groups[group]) from error

    def _damaged(self, data: object) -> CoordinationError:
        return CoordinationError(f"{self._path} holds {str(data)[:200]!r} instead of offsets: repair or remove it")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = self._path.with_name(self._path.name + ".lock").open("a")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.tmp.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CoordinationError:
        return CoordinationError(f"cannot write the offsets to {self._path}: {error.strerror}: choose a writable path")


def _local_entry(topic: str, partition: str, offset: Offset) -> dict[str, Any]:
    _, broker_id, number = TopicPartition.parse(topic, partition)
    return {
        "offset": offset.offset,
        "topic": topic,
        "partition": {"partition": number, "brokerId": broker_id},
        "modified": True,  # written as by Java, but never read
        "messageId": offset.message_id,
    }


def _parse_local_entry(entry: Mapping[str, Any]) -> tuple[TopicPartitionName, Offset]:
    place = entry["partition"]
    name = partition_name(int(place["brokerId"]), int(place["partition"]))
    message_id = entry.get("messageId", UNKNOWN_MESSAGE_ID)
    return (str(entry["topic"]), name), Offset(int(message_id), int(entry["offset"]))


class OwnerCheckedStore(OffsetStore):
    """Wraps an OffsetStore that does not use ZooKeeper (a file, a database). Before each commit the wrapper checks that
    the committing member owns the partitions. Any thread may call the methods.

    Each commit first asks ZooKeeper in one round trip whether the session `fence` holds the owner znodes of all
    partitions. The check in ZooKeeper and the write to the store are two separate steps; only ZooKeeperOffsetStore can
    do both in one step. So if a member's session ends exactly between the two steps, the member can still overwrite a
    commit that the next owner makes at that moment. In that case messages may be delivered again. No message is lost,
    because either all messages before the overwriting offset were consumed, or the group begins to consume at this
    offset. There is one
    exception: if both owners begin at "latest" at that moment, and nothing is committed afterwards, the messages
    between the two start offsets are skipped.
    """

    def __init__(self, store: OffsetStore, membership: GroupMembership) -> None:
        self._store = store
        self._membership = membership

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        return self._store.load_many(group, partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        if fence is not None:
            self._membership.require_owned(offsets, fence)
        self._store.commit(group, offsets, fence)

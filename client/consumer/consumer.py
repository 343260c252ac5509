"""The consumer: what users call, on one polling thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING, Self

from metaq.coordination.assignment import Strategy, range_assignment
from metaq.coordination.group import GroupMembership, broadcast_group
from metaq.coordination.offset_store import LocalOffsetStore, OffsetStore, ZooKeeperOffsetStore
from metaq.coordination.proof import SessionProof
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError, NotOwner
from metaq.protocol.limits import check_group, check_topic

from ..config import ConsumerConfig, check_protocol
from ..connection import Connection, Endpoint
from ..lookups import lag_behind, max_offset, min_offset, offset_at_time
from ..message import Message
from ..pool import ConnectionPool
from ..timers import Timers
from ..values import Lag, TopicPartition
from .arrivals import Arrivals
from .fetcher import LATEST, Fetcher
from .group_member import GroupMember
from .handout import Handout
from .offset_commit import OffsetCommitter
from .partition_state import UNKNOWN_MESSAGE_ID, PartitionState

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Consumer"]

log = logging.getLogger(__name__)

_STARTS = {"earliest": 0, "latest": LATEST}
_LOOKUP_SECONDS = 10.0

_SUSPENDED_SHARE = 1 / 3
"""Of the session timeout: without a connection for longer, the session may be over (ZkSession.suspended_seconds)."""
_UNPROVED_SHARE = 2 / 3
"""Of the session timeout: with no younger proof of the session it may be over, for all that this process knows."""
_PROOF_SHARE = 1 / 9
"""Of the session timeout: how often it is proved."""

OnPartitions = Callable[[list[TopicPartition]], None]


class Consumer:
    """Reads topics as a member of a group. At least once; order holds within a partition; one owner per partition.

    A message counts as consumed when poll() is called again, when commit() is called, or when a `with` block is left
    without an exception, after it was handed out; only what counts as consumed is committed. Use one thread at a time;
    close() may be called from another.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        topics: Iterable[str],
        start: str = "earliest",
        tags: Iterable[str] | None = None,
        broadcast: bool = False,
        auto_commit_seconds: float | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        protocol: str = "auto",
        root: str = "/meta",
        consumer_id: str | None = None,
        offsets_file: str | Path | None = None,
        strategy: Strategy = range_assignment,
        config: ConsumerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """connect: ZooKeeper's `host:port,host:port/chroot`; root: metaq's own root below it.

        start: where a partition without a committed offset begins, "earliest" or "latest". tags: only messages with one
        of these (filtered by the broker where it can, checked again here). broadcast: every host reads everything: the
        group is `<group>-<ip>` and its offsets are in offsets_file (default ~/.meta_offsets), as in metaq 1.x.
        auto_commit_seconds: 0 = never in between. on_assigned, on_revoked: called inside poll() with the partitions;
        what on_revoked was called for is handed over when it returns. protocol: "auto" or "text". consumer_id: a fixed
        name within the group. strategy: who gets what; the same for all members.

        Returns once ZooKeeper is connected; the group is joined in the background. Raises ConfigError, InvalidName,
        CoordinationUnavailable.
        """
        config = config or ConsumerConfig()
        if auto_commit_seconds is not None:
            config = replace(config, auto_commit_seconds=auto_commit_seconds)
        wanted = [topics] if isinstance(topics, str) else list(topics)
        if not wanted:
            raise ConfigError("topics", "[]", "name at least one topic")
        if start not in _STARTS:
            raise ConfigError("start", start, "choose 'earliest' or 'latest'")
        if offsets_file is not None and not broadcast:
            raise ConfigError(
                "offsets_file", offsets_file, "it is for broadcast=True; a group's offsets are in ZooKeeper"
            )
        for topic in wanted:
            check_topic(topic)
        check_group(group)
        self.group = broadcast_group(group) if broadcast else group
        self._config = config
        self._clock = clock
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._polling = threading.Lock()
        self._closed = False
        self._waits_for_zookeeper = False
        self._arrivals = Arrivals()
        self._timers = Timers("metaq-fetch", clock)
        self._commit_timers = Timers("metaq-commit", clock)
        self._pool = ConnectionPool(config.connection, check_protocol(protocol), clock=clock)
        self._session = ZkSession(connect, root, config.session_timeout_seconds)
        self._proof = SessionProof(self._session, clock)
        store: OffsetStore = LocalOffsetStore(offsets_file) if broadcast else ZooKeeperOffsetStore(self._session)
        self._committer = OffsetCommitter(store, self.group)
        wanted_tags = frozenset(tags) if tags is not None else None
        self._fetcher = Fetcher(
            self.group, wanted_tags, self._pool, self._endpoint_of, self._arrivals, config, self._timers, clock
        )
        self._handout = Handout(self._arrivals, self._fetcher, wanted_tags)
        membership = GroupMembership(
            self._session, self.group, consumer_id, dict.fromkeys(wanted), lambda: self._member.changed()
        )
        self._member = GroupMember(
            membership,
            store,
            self._committer,
            self._handout,
            config,
            strategy,
            _STARTS[start],
            self._timers,
            wake=lambda: self._arrivals.put(None),
            wants_notice=on_revoked is not None,
            clock=clock,
        )
        self.consumer_id = membership.consumer_id
        self._start()

    def _start(self) -> None:
        try:
            self._session.start(self._config.start_timeout_seconds)
        except BaseException:
            self._session.close()
            raise
        self._prove_session()
        self._member.begin(self._fetcher)
        if self._config.auto_commit_seconds:
            owned = _Owned(self._member)
            self._committer.commit_regularly(self._commit_timers, self._config.auto_commit_seconds, owned)

    # --- messages ---------------------------------------------------------------------------------------------------

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> list[Message]:
        """Return the next messages, at least one if any comes within `timeout` seconds, else [].

        What earlier calls returned counts as consumed now. Raises CorruptRecord for a stored message with a wrong
        checksum (again at each call until you seek past it), ClientError (closed, or called on two threads at once),
        and whatever on_assigned and on_revoked raise.
        """
        if not self._polling.acquire(blocking=False):
            raise ClientError("poll() runs on another thread: give each thread a consumer of its own")
        try:
            return self._poll(max_messages, timeout)
        finally:
            self._polling.release()

    def _poll(self, max_messages: int, timeout: float) -> list[Message]:
        self._check_open()
        self._handout.acknowledge()
        deadline = 0.0
        while True:
            self._tell_user()
            messages = [] if self._may_have_lost_everything() else self._handout.take(max_messages)
            if messages:
                return messages
            now = self._clock()
            deadline = deadline or now + timeout
            if now >= deadline or self._closed:
                return []
            self._wait(deadline - now)
            # an empty stretch (filtered away) may have been passed: nobody holds anything of it
            self._handout.acknowledge()

    def _may_have_lost_everything(self) -> bool:
        """Without ZooKeeper for so long that the session may be over and another member may own the partitions.

        They are kept, but nothing is handed out before ZooKeeper answers again: it then says whether they are ours.
        """
        timeout = self._config.session_timeout_seconds
        suspended, unproved = self._session.suspended_seconds, self._proof.age_seconds
        if suspended <= timeout * _SUSPENDED_SHARE and unproved <= timeout * _UNPROVED_SHARE:
            self._waits_for_zookeeper = False
            return not self._member.holds_its_claims()
        if not self._waits_for_zookeeper:
            self._waits_for_zookeeper = True
            log.warning(
                "group %s: ZooKeeper has not answered for %.1f s; nothing is handed out until it does, because another "
                "member may own the partitions",
                self.group,
                max(suspended, unproved),
            )
        return True

    def _prove_session(self) -> None:
        """Timer thread."""
        self._proof.renew()
        self._timers.call_later(self._config.session_timeout_seconds * _PROOF_SHARE, self._prove_session)

    def _wait(self, seconds: float) -> None:
        """Until something arrives: data, or something to tell the user."""
        try:
            state = self._fetcher.wait(seconds)
        except Empty:
            return
        if state is not None:
            self._handout.next_is(state)

    def _tell_user(self) -> None:
        notices = self._member.notices
        while True:
            try:
                notice = notices.get_nowait()
            except Empty:
                return
            callback = self._on_assigned if notice.assigned else self._on_revoked
            try:
                if callback is not None:
                    callback(notice.partitions)
            finally:
                notice.done()

    def poll_arrow(self, max_messages: int = 65_536, timeout: float = 1.0) -> pyarrow.RecordBatch:
        """As `poll`, but as one pyarrow.RecordBatch (schema: `metaq.client.consumer.arrow.SCHEMA`); it may be empty."""
        from .arrow import record_batch  # pyarrow is an extra

        return record_batch(self.poll(max_messages, timeout))

    def __iter__(self) -> Iterator[Message]:
        """Messages for ever, until close(). Each counts as consumed when the next one is asked for."""
        while not self._closed:
            yield from self.poll(1, 1.0)

    # --- positions --------------------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """What this consumer owns now, sorted."""
        return sorted(self._member.owned)

    def commit(self) -> int:
        """Count everything handed out as consumed and commit it now; return how many partitions changed.

        Raises SessionLost (the partitions are others' now), CoordinationUnavailable.
        """
        self._check_open()
        self._handout.acknowledge()
        return self._committer.commit(_Owned(self._member))

    def position(self, partition: TopicPartition) -> int:
        """Byte offset of the next message that poll() returns. Raises NotOwner."""
        return self._owned(partition).position

    def seek(self, partition: TopicPartition, to: int | str | datetime) -> None:
        """Go on at a byte offset that begins a message, at "earliest", "latest", or the first message stored at a time.

        It counts as consumed up to there. Raises NotOwner, ConfigError, BrokerUnavailable; ClientError for a time if
        the broker speaks the text protocol only.
        """
        state = self._owned(partition)
        offset = self._resolve(partition, to)
        self._handout.forget(state)
        state.damage = 0
        state.last_id = UNKNOWN_MESSAGE_ID
        self._fetcher.move(state, offset)
        state.consumed = (offset, UNKNOWN_MESSAGE_ID)

    def _resolve(self, partition: TopicPartition, to: int | str | datetime) -> int:
        if isinstance(to, int):
            if to < 0:
                raise ConfigError("offset", to, "choose 0 or more bytes")
            return to
        if isinstance(to, datetime):
            if to.tzinfo is None:
                raise ConfigError("time", to, "give it a time zone, for example datetime.now(UTC)")
            return offset_at_time(self._connection(partition), partition, int(to.timestamp() * 1000), _LOOKUP_SECONDS)
        if to == "earliest":
            return min_offset(self._connection(partition), partition, _LOOKUP_SECONDS)
        if to == "latest":
            return max_offset(self._connection(partition), partition, _LOOKUP_SECONDS)
        raise ConfigError("seek", to, "choose an offset, 'earliest', 'latest' or a datetime")

    def lag(self) -> dict[TopicPartition, Lag]:
        """What each owned partition still holds behind this consumer's position. Raises BrokerUnavailable."""
        lags: dict[TopicPartition, Lag] = {}
        for partition, state in sorted(self._member.owned.items()):
            if state.opened:
                lags[partition] = lag_behind(self._connection(partition), partition, state.position, _LOOKUP_SECONDS)
            else:
                lags[partition] = Lag(0, 0)  # "latest", and not there yet
        return lags

    def _owned(self, partition: TopicPartition) -> PartitionState:
        state = self._member.owned.get(partition)
        if state is None:
            raise NotOwner(f"{partition.topic} {partition} is not assigned to this consumer: see assignment()")
        return state

    def _endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        return self._member.endpoint_of(partition)

    def _connection(self, partition: TopicPartition) -> Connection:
        endpoint = self._member.endpoint_of(partition)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {partition.broker} is not registered")
        return self._pool.connection(endpoint, self._config.connection.connect_timeout_seconds)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("this consumer is closed")

    def close(self, timeout: float = 10.0) -> None:
        """Commit what counts as consumed, release the partitions and leave the group, within `timeout` seconds.

        Idempotent; a poll() that waits on another thread returns [].
        """
        if self._closed:
            return
        self._closed = True
        self._arrivals.put(None)
        self._commit_timers.close()
        self._member.close(timeout)
        self._timers.close()
        self._pool.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._handout.acknowledge()
        self.close()


class _Owned:
    """The partitions a member owns, looked at anew each time."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._member.owned.values())

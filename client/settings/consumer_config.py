"""Settings of consumers. They are separate from config.py, so that a producer does not import the code that reads
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from metaq.coordination.groups.assignment import STRATEGIES, Strategy
from metaq.protocol.errors import ConfigError, CorruptRecord, InvalidWhere
from metaq.protocol.limits import MAX_LEASE_MS, is_utf8
from metaq.protocol.pulls import MAX_WAIT_MS, TAG_EXPRESSION, is_tag_expression
from metaq.protocol.where import Where, parse_where

from ..runtime.durations import Duration
from .config import ConnectionConfig, check_call_backs, check_settings, check_text, check_texts
from .moved_options import MovedProtocol

if TYPE_CHECKING:
    from metaq.coordination.offsets.offset_store import OffsetStore

__all__ = [
    "ConsumerConfig",
    "MovedLease",
    "MovedReading",
    "OnDamage",
    "OnDamaged",
    "ReadFrom",
    "SharedConfig",
    "check_damage",
    "check_tags",
    "check_where",
]

OnDamage = Literal["stop", "skip"]
"""How a consumer reacts to stored bytes without an intact record: it stops there, or skips them."""


OnDamaged = Callable[[CorruptRecord], object]
"""Function that is called once for each damaged range that a consumer finds."""

ReadFrom = Literal["leader", "nearest"]
"""The node of a broker set from which a consumer reads."""


def check_tags(tags: Iterable[str] | None) -> frozenset[str] | None:
    """Check the `tags` of a consumer and return them. None means that the consumer takes all messages. Raises
    ConfigError.
    """
    wanted = None if tags is None else frozenset(check_texts("tags", tags))
    if wanted is not None and not wanted:
        raise ConfigError("tags", tags, "name at least one, or leave it out")
    for tag in wanted or ():
        if not is_utf8(tag):
            raise ConfigError("tags", repr(tag), "it is not valid UTF-8, so no message can have it: use proper text")
        if is_tag_expression(tag):
            raise ConfigError("tags", repr(tag), f"{TAG_EXPRESSION} tags=['A', 'B']")
    return wanted


def check_damage(damage: str) -> None:
    """Check the option `damage`. Raises ConfigError."""
    if damage not in ("stop", "skip"):
        raise ConfigError("damage", damage, "choose 'stop' or 'skip'")


def check_where(where: str | None) -> Where | None:
    """Parse the option `where`, and return its content filter. None means that there is no filter. Raises
    ConfigError.
    """
    if where is None:
        return None
    if not isinstance(where, str):
        raise ConfigError("where", repr(where), "write the filter as a text (str), or leave it out")
    try:
        return parse_where(where)
    except InvalidWhere as error:
        raise ConfigError("where", where, f"{error.reason}: docs/filters.md has the grammar") from error


class MovedReading(MovedProtocol, total=False):
    """Former arguments of a Consumer and of readers without a group."""

    on_damaged: OnDamaged | None


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer: how it fetches messages, commits offsets, and shares partitions with other members."""

    consumer_id: str | None = None
    """A fixed name of the consumer, unique within the group. None: each start makes a new name."""
    strategy: Strategy | str = "range"
    """How partitions are assigned to members. All members of a group must have the same strategy: "range", "consist"
    (1.x's consistent hashing), "zone" (a partition goes to a member in the `zone` of its broker, if there is such a
    member), or your own function.
    """
    broadcast: bool = False
    """Deliver every message to every host, as in metaq 1.x. The group's name is then `<group>-<ip>`, and a file keeps
    the offsets.
    """
    offsets_file: str | Path | None = None
    """The file in which broadcast=True keeps its offsets. None: `~/.meta_offsets`."""
    offset_store: OffsetStore | None = None
    """A store that keeps the offsets, for example a SqlOffsetStore. None: ZooKeeper, or the file of broadcast=True."""
    read_from: ReadFrom = "leader"
    """The node of a broker set to read from. "leader": the node that accepts messages. "nearest": an in-sync node in
    the consumer's `zone` if there is one, otherwise the leader. Another node than the leader delivers a message up to
    0.2 s later.
    """
    zone: str = ""
    """The zone in which the consumer runs, as in the brokers' `--zone`. It is required for read_from="nearest" and
    strategy="zone".
    """
    fetch_max_bytes: int = 2 << 20
    """Bytes requested by one pull. A broker returns at most 4 MiB, or its maxTransferSize if that is more. Over the
    text protocol, the limit is always maxTransferSize. The first record comes whole, regardless of its size.
    """
    arrow_fetch_bytes: int = 3 << 20
    """Bytes requested by one pull of poll_arrow(). The cost of poll_arrow() depends more on the number of answers than
    on the number of messages. While this setting is less than max_buffered_bytes, the next answer is requested when the
    last answer begins to arrive.
    """
    max_buffered_bytes: int = 4 << 20
    """Number of prefetched bytes per partition at which the consumer pauses fetching. The buffer may exceed this by at
    most one pull.
    """
    check_crcs: bool | None = None
    """Whether each message's checksum is compared before delivery (like librdkafka's check.crcs, which is off by
    default). None: poll() and run() compare checksums; poll_arrow() does not, because this would double its cost. The
    broker has already checked the message on arrival, so this check finds changes that happened later on a disk or in
    memory.
    """
    damage: OnDamage = "stop"
    """The consumer's reaction to stored bytes without an intact record. "stop": poll() raises CorruptRecord with the
    byte range at each call until a seek; run() stops the partition, and logs this once. "skip": the bytes count as
    consumed, and the range is logged and passed to on_damaged. Other partitions continue in both cases.
    """
    on_damaged: OnDamaged | None = None
    """Function that is called with a CorruptRecord, once for each damaged range of stored bytes, for both values of
    `damage`. It is called in poll(), or on a handler thread of run().
    """
    long_poll_ms: int = 15_000
    """How long a broker may hold a pull when there is nothing to return."""
    text_idle_step_ms: int = 50
    text_idle_max_ms: int = 500
    """Pause after an empty answer of the text protocol, or after a broker did not wait as requested. It grows by `step`
    up to `max` (1.x: 500 and 5,000).
    """
    error_min_seconds: float = 0.1
    error_max_seconds: float = 5.0
    """Pause after a failed pull. It doubles from min to max, with jitter."""
    auto_commit_seconds: float = 5.0
    """Interval between automatic commits of positions. 0 = commit only at commit() or close(), or when a partition is
    handed over.
    """
    revoke_wait_seconds: float = 15.0
    """How long a partition that must be handed over to another member waits for the current owner's next poll()."""
    max_poll_interval_seconds: float | None = None
    """After this time without a poll(), the member gives its partitions to other members until its next poll(). As with
    Kafka's max.poll.interval.ms, the time includes the processing of messages, also in a handler of run(). None: the
    member never gives them up; only a warning is logged.
    """
    rebalance_min_seconds: float = 0.05
    rebalance_max_seconds: float = 0.5
    """Pause before a failed rebalance is retried. It doubles from min to max, with jitter; retries never end. A
    partition that another member still owns is claimed as soon as ZooKeeper reports that it is free.
    """
    session_timeout_seconds: float = 30.0
    """Requested timeout of the consumer's ZooKeeper session. The server may grant a shorter or longer timeout. If the
    consumer crashes, other members get its partitions when the timeout has passed.
    """
    start_timeout_seconds: float = 15.0
    """How long the start waits for ZooKeeper while a server is slow or a leader is elected. If ZooKeeper cannot be at
    the address (nothing listens, the name is unknown, or something else listens), the start fails after about a
    second.
    """
    retry_step_seconds: float = 0.5
    retry_max_seconds: float = 5.0
    """Pause of a partition after its handler has failed, in run() with retry=None. The pause is step × 1, 2, 3 … up to
    max (1.x: the same).
    """
    stop_seconds: float = 10.0
    """How long run() waits for running handlers when it is told to end."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_settings(self, "auto_commit_seconds")
        check_damage(self.damage)
        check_call_backs(on_damaged=self.on_damaged)
        if self.read_from not in ("leader", "nearest"):
            raise ConfigError("read_from", repr(self.read_from), "choose 'leader' or 'nearest'")
        check_text("zone", self.zone)
        if self.read_from == "nearest" and not self.zone:
            raise ConfigError("zone", repr(self.zone), "name the zone of the nodes to read from")
        if not callable(self.strategy) and self.strategy not in (*STRATEGIES, "zone"):
            names = ", ".join(map(repr, (*STRATEGIES, "zone")))
            raise ConfigError("strategy", repr(self.strategy), f"choose {names} or a function of your own")
        if self.strategy == "zone" and not self.zone:
            raise ConfigError("zone", repr(self.zone), "name the zone in which the consumer runs")
        if self.long_poll_ms > MAX_WAIT_MS:
            raise ConfigError("long_poll_ms", self.long_poll_ms, f"choose 1 … {MAX_WAIT_MS} milliseconds")


class MovedLease(TypedDict, total=False):
    """Former arguments of a SharedConsumer."""

    lease_seconds: Duration | None
    member: str | None


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Settings of a shared consumer: how it leases messages."""

    member: str | None = None
    """The member's name, which operators see; it must be unique for each consumer. None: a name is made from host and
    process.
    """
    lease_seconds: float = 30.0
    """Duration of a message's lease to this member. After this time another member may get the message, unless the
    lease was extended.
    """
    prefetch: int = 256
    """Largest number of messages leased ahead of the work. If each message takes long, fewer are leased: as many as
    take about a fifth of a second of work.
    """
    fetch_max_bytes: int = 1 << 20
    """Largest number of bytes leased by one request. A single message may be larger."""
    long_poll_ms: int = 15_000
    """How long a broker may hold a request when there is nothing to lease."""
    settle_linger_ms: int = 100
    """How long an acknowledgement waits for others, to be sent together with them; 0 = it does not wait. In a group
    with ordered_by_key, no acknowledgement waits.
    """
    error_min_seconds: float = 0.05
    error_max_seconds: float = 2.0
    """Pause after a failed request to a partition's broker. It doubles from min to max, with jitter."""
    session_timeout_seconds: float = 30.0
    """Timeout of the ZooKeeper session. A shared consumer owns nothing in ZooKeeper, so this only limits how long its
    view of the brokers is stale."""
    start_timeout_seconds: float = 15.0
    """How long the start waits for ZooKeeper while a server is slow or a leader is elected."""
    stop_seconds: float = 10.0
    """How long run() waits for running handlers when it is told to end."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_settings(self, "prefetch", "settle_linger_ms")
        most = MAX_LEASE_MS / 1000
        if not 0.001 <= self.lease_seconds <= most:
            raise ConfigError("lease_seconds", self.lease_seconds, f"choose 0.001 … {most:g} seconds")
        if self.long_poll_ms > MAX_WAIT_MS:
            raise ConfigError("long_poll_ms", self.long_poll_ms, f"choose 1 … {MAX_WAIT_MS} milliseconds")

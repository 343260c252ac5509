"""The settings of consumers. They are not in config.py, because producers import config.py, and would then also import
the code that reads messages.
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
"""How a consumer reacts to damaged stored bytes, which contain no intact record: "stop" (it stops before these bytes)
or "skip" (it skips them).
"""


OnDamaged = Callable[[CorruptRecord], object]
"""A function that is called once for each range of damaged stored bytes that a consumer finds."""

ReadFrom = Literal["leader", "nearest"]
"""Which node of a broker set a consumer reads from: the leader, or an in-sync node in the consumer's own zone
("nearest").
"""


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
    """Check the value of the option `damage`. Raises ConfigError if it is not allowed."""
    if damage not in ("stop", "skip"):
        raise ConfigError("damage", damage, "choose 'stop' or 'skip'")


def check_where(where: str | None) -> Where | None:
    """Parse the text of the option `where`, and return the content filter. None means that there is no filter. Raises
    ConfigError if the text is no filter.
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
    """Former arguments of Consumer and of readers without a group, which are now settings of ConsumerConfig."""

    on_damaged: OnDamaged | None


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer: how it fetches messages, commits offsets, and shares partitions with other members."""

    consumer_id: str | None = None
    """A fixed name of the consumer, which must be unique within the group. None: a new name is made at each start."""
    strategy: Strategy | str = "range"
    """How partitions are assigned to members. All members of a group must have the same strategy: "range", "consist"
    (1.x's consistent hashing), "zone" (a partition goes to a member in the `zone` of the partition's broker, if there
    is such a member), or your own function.
    """
    broadcast: bool = False
    """Whether each host gets every message (broadcast), as in metaq 1.x. The group's consumers on one host then form a
    group of their own, `<group>-<ip>`, whose offsets are kept in a file.
    """
    offsets_file: str | Path | None = None
    """The file where a consumer with broadcast=True keeps its offsets. None: `~/.meta_offsets`."""
    offset_store: OffsetStore | None = None
    """The store that keeps the offsets, for example a SqlOffsetStore. None: ZooKeeper, or `offsets_file` if broadcast
    is True.
    """
    read_from: ReadFrom = "leader"
    """The node of a broker set to read from. "leader": the node that accepts messages. "nearest": an in-sync node in
    the consumer's `zone` if there is one, otherwise the leader. A node that is not the leader delivers a message up to
    0.2 s later than the leader.
    """
    zone: str = ""
    """The zone where the consumer runs. It is a name that is compared with the zone of each broker (the broker's option
    `--zone`). A zone is required for read_from="nearest" and strategy="zone".
    """
    fetch_max_bytes: int = 2 << 20
    """Number of bytes of records that the consumer asks for in one pull. A broker returns at most 4 MiB, or its
    maxTransferSize if that is more. Over the text protocol, the limit is always maxTransferSize. The first record is
    returned completely, regardless of its size.
    """
    arrow_fetch_bytes: int = 3 << 20
    """Number of bytes of records that the consumer asks for in one pull if the program calls poll_arrow(). Its default
    is larger than that of fetch_max_bytes, because most of the time that poll_arrow() spends on an answer does not
    depend on the number of messages in the answer. If arrow_fetch_bytes is less than max_buffered_bytes, the next pull
    is sent as soon as the answer to the previous pull begins to arrive.
    """
    max_buffered_bytes: int = 4 << 20
    """If the consumer holds at least this number of bytes of a partition that the program has not taken yet, it sends
    no further pull to the partition. As long as it holds fewer bytes, it sends pulls, so it can hold up to one pull's
    bytes more than this number.
    """
    check_crcs: bool | None = None
    """Whether the consumer checks each message's checksum before delivery (like librdkafka's check.crcs, which is off
    by default). None: poll() and run() check the checksums, but poll_arrow() does not, because the check would double
    the cost of poll_arrow(). The broker has checked each message when it arrived from the producer, so this check can
    find only bytes that were changed afterwards, on a disk or in memory.
    """
    damage: OnDamage = "stop"
    """The consumer's reaction to damaged stored bytes, which contain no intact record. "stop": poll() raises
    CorruptRecord with the byte range at each call until a seek; run() stops the partition, and logs this once. "skip":
    the consumer continues after the damaged bytes, and logs their range. Messages of other partitions are delivered in
    both cases.
    """
    on_damaged: OnDamaged | None = None
    """A function that is called with a CorruptRecord, once for each range of damaged stored bytes, whatever the value
    of `damage`. The function is called on the thread that calls poll(), or on a handler thread of run().
    """
    long_poll_ms: int = 15_000
    """If there is no message to return, a broker waits at most this number of milliseconds for a message before it
    answers a pull (long polling).
    """
    text_idle_step_ms: int = 50
    text_idle_max_ms: int = 500
    """Longest pause in milliseconds between an empty answer and the next pull, if the answer came without long polling:
    over the text protocol, or because the broker did not wait as long as requested. The pause grows by
    text_idle_step_ms with each such answer (1.x: by 500, up to 5,000).
    """
    error_min_seconds: float = 0.1
    error_max_seconds: float = 5.0
    """Longest pause in seconds before the next pull after a failed one. The first pause is error_min_seconds, and each
    further pause is twice as long, up to this value, with jitter.
    """
    auto_commit_seconds: float = 5.0
    """Interval in seconds between automatic commits of positions. 0: positions are committed only by commit() and
    close(), and when a partition goes to another member.
    """
    revoke_wait_seconds: float = 15.0
    """Before this consumer gives a partition to another member, it waits at most this number of seconds until the
    program calls poll() again, which shows that the delivered messages were processed.
    """
    max_poll_interval_seconds: float | None = None
    """If the program does not call poll() for this number of seconds, the member gives its partitions to other members;
    its next poll() lets it claim partitions again. As with Kafka's max.poll.interval.ms, the time includes the
    processing of messages, also in a handler of run(). None: the member keeps its partitions, and only a warning is
    logged.
    """
    rebalance_min_seconds: float = 0.05
    rebalance_max_seconds: float = 0.5
    """Longest pause in seconds before a failed rebalance is tried again; the number of tries is not limited. The first
    pause is rebalance_min_seconds, and each further pause is twice as long, up to this value, with jitter. A partition
    that another member still owns is claimed as soon as ZooKeeper reports that it is free.
    """
    session_timeout_seconds: float = 30.0
    """Requested timeout of the consumer's ZooKeeper session in seconds. The server may grant a shorter or longer
    timeout. If the consumer crashes, other members get its partitions when the timeout has passed.
    """
    start_timeout_seconds: float = 15.0
    """The constructor waits at most this number of seconds for ZooKeeper while a server is slow or a leader is being
    elected. If there is certainly no ZooKeeper at the address (nothing listens, the host name is unknown, or something
    else listens), the start fails after about a second.
    """
    retry_step_seconds: float = 0.5
    retry_max_seconds: float = 5.0
    """For run() with retry=None, which tries a failed message again in place: the longest pause in seconds before the
    next attempt. The pauses are retry_step_seconds × 1, 2, 3 … up to this value, as in 1.x.
    """
    stop_seconds: float = 10.0
    """Number of seconds that run() waits for running handlers after it was told to end."""
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
    """Arguments that SharedConsumer formerly had, and that are settings of SharedConfig now."""

    lease_seconds: Duration | None
    member: str | None


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Settings of a shared consumer: how it leases messages."""

    member: str | None = None
    """The member's name, which operators see. The name must be different for each consumer. None: a name is made from
    the host and the process.
    """
    lease_seconds: float = 30.0
    """Duration in seconds of a lease of this member, from the time when the broker leases the message. When the lease
    has ended without an extension, another member can get the message.
    """
    prefetch: int = 256
    """Largest number of messages that the member leases before a thread is free to handle them. If handling a message
    takes long, the member leases fewer messages ahead: only as many as it can handle in about a fifth of a second.
    """
    fetch_max_bytes: int = 1 << 20
    """Largest sum of the bytes of the messages that one request leases. If a single message is larger, it is leased
    alone.
    """
    long_poll_ms: int = 15_000
    """If there is no message to lease, a broker waits at most this number of milliseconds for a message before it
    answers.
    """
    settle_linger_ms: int = 100
    """The member holds an acknowledgement back for this number of milliseconds, so that it can send further
    acknowledgements in the same request; 0 means that each acknowledgement is sent at once. In a group with
    ordered_by_key, acknowledgements are always sent at once.
    """
    error_min_seconds: float = 0.05
    error_max_seconds: float = 2.0
    """Longest pause in seconds after a failed request to a partition's broker. The pause doubles from error_min_seconds
    up to this value, with jitter.
    """
    session_timeout_seconds: float = 30.0
    """Timeout of the ZooKeeper session in seconds. A shared consumer owns no znodes, so the timeout has only one
    effect: it limits how long the consumer's view of the brokers can be out of date.
    """
    start_timeout_seconds: float = 15.0
    """The constructor waits at most this number of seconds for ZooKeeper while a server is slow or a leader is being
    elected.
    """
    stop_seconds: float = 10.0
    """Number of seconds that run() waits for running handlers after it was told to end."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_settings(self, "prefetch", "settle_linger_ms")
        most = MAX_LEASE_MS / 1000
        if not 0.001 <= self.lease_seconds <= most:
            raise ConfigError("lease_seconds", self.lease_seconds, f"choose 0.001 … {most:g} seconds")
        if self.long_poll_ms > MAX_WAIT_MS:
            raise ConfigError("long_poll_ms", self.long_poll_ms, f"choose 1 … {MAX_WAIT_MS} milliseconds")

"""How consumers are set: apart from config.py, so that a producer does not load what reads messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metaq.coordination.assignment import STRATEGIES, Strategy
from metaq.protocol.errors import ConfigError, InvalidWhere
from metaq.protocol.limits import MAX_LEASE_MS, is_utf8
from metaq.protocol.pulls import MAX_WAIT_MS, TAG_EXPRESSION, is_tag_expression
from metaq.protocol.where import Where, parse_where

from .config import ConnectionConfig, check_settings, check_text, check_texts

if TYPE_CHECKING:
    from metaq.coordination.offset_store import OffsetStore

__all__ = [
    "ConsumerConfig",
    "OnDamage",
    "ReadFrom",
    "SharedConfig",
    "check_damage",
    "check_tags",
    "check_where",
]

OnDamage = Literal["stop", "skip"]
"""What a consumer does at stored bytes that hold no good record: stop there, or go on behind them."""


ReadFrom = Literal["leader", "nearest"]
"""Which node of a broker set a consumer reads from."""


def check_tags(tags: Iterable[str] | None) -> frozenset[str] | None:
    """The `tags` of a consumer; None: it takes all messages. Raises ConfigError."""
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
    """Raises ConfigError unless `damage` is one of ours."""
    if damage not in ("stop", "skip"):
        raise ConfigError("damage", damage, "choose 'stop' or 'skip'")


def check_where(where: str | None) -> Where | None:
    """The filter by content of an option `where`; None: there is none. Raises ConfigError."""
    if where is None:
        return None
    if not isinstance(where, str):
        raise ConfigError("where", repr(where), "write the filter as a text (str), or leave it out")
    try:
        return parse_where(where)
    except InvalidWhere as error:
        raise ConfigError("where", where, f"{error.reason}: docs/filters.md has the grammar") from error


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a consumer fetches, commits and shares partitions."""

    consumer_id: str | None = None
    """A fixed name within the group; two members must not have the same. None: one of its own each time."""
    strategy: Strategy | str = "range"
    """Which member gets which partitions, the same for all members of a group: "range", "consist" (1.x's consistent
    hashing), "zone" (a partition to a member in the `zone` of its broker, where there is one) or a function of your
    own."""
    broadcast: bool = False
    """Every host reads everything, as in metaq 1.x: the group is `<group>-<ip>`, and a file keeps its offsets."""
    offsets_file: str | Path | None = None
    """The file in which broadcast=True keeps its offsets. None: `~/.meta_offsets`."""
    offset_store: OffsetStore | None = None
    """Keeps the offsets instead of ZooKeeper or that file, for example a SqlOffsetStore."""
    read_from: ReadFrom = "leader"
    """Which node of a broker set gives the messages. "leader": the one that takes them. "nearest": an in-sync node of
    the consumer's `zone` while there is one, which shows a message up to 0.2 s later; else the leader."""
    zone: str = ""
    """Where the consumer runs, as brokers were started with `--zone`; read_from="nearest" and strategy="zone" need
    it."""
    fetch_max_bytes: int = 2 << 20
    """Bytes that one pull asks for. A broker gives at most 4 MiB, or its maxTransferSize if that is more (over the text
    protocol only this); the first record comes whole, however large."""
    arrow_fetch_bytes: int = 3 << 20
    """The same for poll_arrow(), whose cost is more that of an answer than that of its messages. While it is less than
    max_buffered_bytes, the next answer is asked for when the last one begins to come in."""
    max_buffered_bytes: int = 4 << 20
    """Bytes fetched ahead per partition before the consumer pauses fetching (at most one pull more)."""
    check_crcs: bool | None = None
    """Whether each message's checksum is compared before it is handed out (librdkafka's check.crcs, off there). None:
    poll() and run() do, poll_arrow() does not, where it would cost as much as all the rest. The broker has checked
    the message when it came; here it shows what a disk or memory has changed since."""
    damage: OnDamage = "stop"
    """What a consumer does at stored bytes that hold no good record. "stop": poll() raises CorruptRecord, with the
    range, at each call until a seek; run() holds that partition, and logs that once. "skip": the bytes count as
    consumed, and the log and on_damaged get the range. Other partitions go on either way."""
    long_poll_ms: int = 15_000
    """How long a broker may park a pull when there is nothing to return."""
    text_idle_step_ms: int = 50
    text_idle_max_ms: int = 500
    """Pause after an empty `get` of the text protocol, or of a broker that was asked to wait and has not: grows by step
    up to max (1.x: 500 and 5,000)."""
    error_min_seconds: float = 0.1
    error_max_seconds: float = 5.0
    """Pause after a failed pull, doubling from min to max, with jitter."""
    auto_commit_seconds: float = 5.0
    """How often positions are committed. 0 = only when commit() or close() is called, or a partition is handed over."""
    revoke_wait_seconds: float = 15.0
    """How long a partition that another member should get waits for the next poll()."""
    max_poll_interval_seconds: float | None = None
    """After this long without a poll() the member leaves its partitions to others, until the next poll() (Kafka's
    max.poll.interval.ms: work on messages counts, also that of a handler of run()). None: never; the log warns."""
    rebalance_min_seconds: float = 0.05
    rebalance_max_seconds: float = 0.5
    """Pause before a failed rebalance is tried again, for ever, doubling from min to max, with jitter. A partition that
    another member still holds is claimed as soon as ZooKeeper reports that it is free."""
    session_timeout_seconds: float = 30.0
    """Timeout that the consumer asks for its ZooKeeper session; the server may grant less or more. After a crash others
    get the partitions once it has passed."""
    start_timeout_seconds: float = 15.0
    """How long the start waits for ZooKeeper while a server is slow or a leader is elected. If no ZooKeeper can be
    there (nothing listens, an unknown name, something else listens) the start fails after about a second."""
    retry_step_seconds: float = 0.5
    retry_max_seconds: float = 5.0
    """run() in place (retry=None): pause of a partition after its handler failed: step × 1, 2, 3 … up to max (1.x: the
    same)."""
    stop_seconds: float = 10.0
    """run(): how long it waits for running handlers when it is told to end."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_settings(self, "auto_commit_seconds")
        check_damage(self.damage)
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


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """How a shared consumer leases messages."""

    lease_seconds: float = 30.0
    """How long a message is this member's; after that, unless the lease is extended, another one may get it."""
    prefetch: int = 256
    """Most messages leased ahead of the work. While each message takes long, fewer are leased: as many as a fifth of a
    second is enough for."""
    fetch_max_bytes: int = 1 << 20
    """Bytes that one request leases; one message may be larger."""
    long_poll_ms: int = 15_000
    """How long a broker may park a request when there is nothing to lease."""
    settle_linger_ms: int = 100
    """How long an acknowledgement waits for others to go with it; 0 = not at all. None waits in a group that takes the
    messages of a key in order."""
    error_min_seconds: float = 0.05
    error_max_seconds: float = 2.0
    """Pause after a failed request to a partition's broker, doubling from min to max, with jitter."""
    session_timeout_seconds: float = 30.0
    """Timeout of the ZooKeeper session; a shared consumer owns nothing in ZooKeeper, so it only bounds stale views."""
    start_timeout_seconds: float = 15.0
    """How long the start waits for ZooKeeper while a server is slow or a leader is elected."""
    stop_seconds: float = 10.0
    """run(): how long it waits for running handlers when it is told to end."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_settings(self, "prefetch", "settle_linger_ms")
        most = MAX_LEASE_MS / 1000
        if not 0.001 <= self.lease_seconds <= most:
            raise ConfigError("lease_seconds", self.lease_seconds, f"choose 0.001 … {most:g} seconds")
        if self.long_poll_ms > MAX_WAIT_MS:
            raise ConfigError("long_poll_ms", self.long_poll_ms, f"choose 1 … {MAX_WAIT_MS} milliseconds")

"""The settings of a broker, which server_ini.py reads from server.ini. If a field's value has a unit, the name of the
field ends with the unit, for example `_ms`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Literal
from zlib import crc32

from metaq.protocol.own_topics import OWN_MARK, OWN_PARTITIONS, is_own_topic

from ..runtime.account import Quotas
from ..runtime.schedule import Schedule, parse_schedule
from ..store.topic_config import DeletePolicy, parse_delete_policy
from .transaction_settings import TransactionConfig

__all__ = [
    "DEFAULT_MAX_PENDING_PUT_BYTES",
    "SET_DIRECTORY",
    "AdminFrom",
    "BrokerConfig",
    "BrokerOptions",
    "Promise",
    "TopicConfig",
    "ZooKeeperConfig",
]

AdminFrom = Literal["loopback", "any"]
"""Who may make admin requests: only clients on this machine, or every client that can reach the port."""

DEFAULT_MAX_PENDING_PUT_BYTES = 128 << 20

COPY_BYTES_PER_SECOND = 200 << 20

DEFAULT_DELETE_POLICY = "delete,168"
DEFAULT_DELETE_WHEN = "0 0 6,18 * * ?"

SET_DIRECTORY = "metaqset"
"""Name of a directory in the first data path of a broker set's node. In this directory the node stores what it knows
about the set, for example the set's epochs (sets/history.py).
"""


class Promise(Enum):
    """How safely a message of a replicated topic must be stored before the leader acknowledges it."""

    LEADER = "leader"
    """A message is acknowledged when the leader has stored it as safely as the topic's flush mode demands."""
    IN_SYNC = "in-sync"
    """A message is acknowledged when every in-sync node has received it; a node need not have written it to its
    disk.
    """
    DISK = "disk"
    """A message is acknowledged when every in-sync node has it on its disk."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the command that starts the broker. These options are not keys of server.ini, because a Java broker
    refuses a server.ini with keys that it does not know.
    """

    admin_from: AdminFrom = "loopback"
    disk_reserve: int | None = None
    """The number of bytes that must stay free on the disk of each data directory: if fewer bytes are free, the broker
    refuses puts. None means that a fraction of the disk's size is used as this number (store/disk_space.py).
    """
    max_pending_put_bytes: int = DEFAULT_MAX_PENDING_PUT_BYTES
    """A limit for the total number of bytes of all puts that wait until their messages are safe. While the waiting puts
    have more bytes than this limit, the broker reads no more puts from connections (pending_puts.py).
    """
    node: str | None = None
    """The value that replaces BrokerConfig.node. If it is None, the value of server.ini is used."""
    zone: str | None = None
    """The value that replaces BrokerConfig.zone. If it is None, the value of server.ini is used."""
    half_check_seconds: float = 6.0
    """Seconds from a half message's arrival to its first check, unless the producer has sent another number of seconds
    with the message. From the first check to the second one, always this many seconds pass. Each later pause is twice
    as long as the pause before it, but at most an hour.
    """
    security: str | None = None
    """The path of security.ini (security_ini.py). If it is None, the broker does not use TLS."""
    http_names: tuple[str, ...] = ()
    """Host names that requests to the HTTP ports may use, in addition to the hostName in server.ini
    (http/browsers.py).
    """
    half_checks: int = 15
    """The number of times that producers are asked for the outcome of a half message. After this number of checks the
    message is parked: it is kept, but producers are no longer asked about it.
    """


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """The section [zookeeper]. connect: `host:port,…[/chroot]`; root: the znode below which metaq keeps all its
    znodes.
    """

    connect: str = "localhost:2181"
    root: str = "/meta"
    enabled: bool = True
    session_timeout_ms: int = 30_000
    connection_timeout_ms: int = 30_000
    sync_time_ms: int = 5_000
    """When a broker is stopped, it first unregisters from ZooKeeper, and then continues to serve clients for this many
    milliseconds.
    """


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic, from the section [topic=<name>]. A key that is not set there has the value from
    [system]. `name` is the name of a topic or a pattern such as `wild*`.
    """

    name: str
    partitions: int
    unflush_threshold: int
    """Whenever this many records were appended to a partition of the topic, the broker syncs them to the disk. If the
    number is 0 or less, every put waits for a sync (group commit).
    """
    unflush_interval_ms: int
    data_path: str
    delete_policy: DeletePolicy = field(default_factory=partial(parse_delete_policy, DEFAULT_DELETE_POLICY))
    delete_when: Schedule = field(default_factory=partial(parse_schedule, DEFAULT_DELETE_WHEN))
    accept_publish: bool = True
    accept_subscribe: bool = True
    accept_compressed: bool = False
    """Whether the broker accepts messages with compressed payloads. If True, the broker sends no messages of this topic
    to clients that cannot read compressed payloads.
    """
    stat: bool = False
    """Whether realtime counters are kept for the topic."""
    ack: Promise | None = None
    """The value of the key `ack`, or None if the key is not set. The property `promise` replaces None by a default."""
    min_in_sync: int = 1
    """The least number of in-sync nodes, including the leader. While there are fewer in-sync nodes, the leader refuses
    messages for the topic.
    """
    replicas: int | None = None
    """The number of in-sync nodes that the topic should have. While there are fewer in-sync nodes, the broker reports
    the topic as under-replicated. None means that all nodes of the broker set should be in sync.
    """
    readable_partitions: int | None = None
    """The number of partitions that the broker registers for consumers. The number for producers is `partitions`. The
    two numbers can differ only while partitions are moved to other brokers. None means the same number as `partitions`.
    """
    filters: Mapping[str, str] = field(default_factory=dict)
    """The filter of each consumer group, by group name. The filter is `package.module:callable`, or a Java class that
    filters.ini maps to such a callable.
    """

    @property
    def promise(self) -> Promise:
        """How safely a message of this topic must be stored before a leader acknowledges it. If the key `ack` is not
        set, the value is DISK for a topic with group commit, and IN_SYNC for other topics.
        """
        return self.ack or (Promise.DISK if self.unflush_threshold <= 0 else Promise.IN_SYNC)

    @property
    def has_group_commit(self) -> bool:
        """Whether each put to this topic is acknowledged only after it is synced to the disk (group commit)."""
        return self.unflush_threshold <= 0 or self.ack is Promise.DISK


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The configuration of one broker: the sections [system] and [zookeeper], and the sections of all topics. `system`
    has those settings from [system] that a topic without a section of its own uses.
    """

    broker_id: int
    host: str
    port: int
    system: TopicConfig
    topics: Mapping[str, TopicConfig]
    max_segment_size: int
    max_transfer_size: int
    transactions: TransactionConfig
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
    limits: Quotas = field(default_factory=Quotas)
    listen: str = ""
    """The numeric address on which the broker listens; "" means all IPv4 addresses. `listen` is an option of the
    command that starts the broker. It is not a key of server.ini, because a Java broker refuses unknown keys.
    """
    dashboard_port: int | None = None
    """The value of dashboardHttpPort. If it is None, there is no dashboard. (In 1.x a broker without this key serves
    its dashboard on port 8120; so a second broker on the same host fails to start, because the port is in use.)
    """
    move_consumers_past_end: bool = False
    """updateConsumerOffsets: how the broker answers a get beyond the end of a partition. If it is True, the answer has
    status 301 and the end offset, to which the consumer then moves. If it is False, the answer has status 404.
    """
    node: str | None = None
    """The name of this node in its broker set, or None for a single broker."""
    zone: str = ""
    """The name of the zone (for example a data center) in which the broker runs, or "" for none. Consumers that name
    the same zone read from this broker rather than from brokers in other zones.
    """
    copy_bytes_per_second: int = COPY_BYTES_PER_SECOND
    """copyBytesPerSecond: the lowest rate, in bytes per second, at which a leader copies data to a joining node. While
    producers write, the leader reduces its rate of copying so that it does not delay the producers, but at most to this
    rate.
    """
    app_class_path: str | None = None
    """appClassPath: a directory of Python modules with filters. If it is None, filters can only be in installed
    modules.
    """
    filter_classes: Mapping[str, str] = field(default_factory=dict)
    """The content of filters.ini: Java class -> Python callable."""
    source: bytes = b""
    """The bytes of server.ini as they were read, for `stats config`."""
    filter_source: bytes = b""
    """The bytes of filters.ini as they were read."""
    _names: _Names = field(init=False, repr=False, compare=False)
    _counted: _Names = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", _Names(self.topics))
        object.__setattr__(self, "_counted", _Names(topic.name for topic in self.topics.values() if topic.stat))

    @property
    def checksum(self) -> int:
        """The CRC-32 of the bytes of server.ini. The broker registers the CRC-32 in ZooKeeper."""
        return crc32(self.source)

    @property
    def data_paths(self) -> list[str]:
        """All configured data directories; the directory of [system] comes first."""
        return list(dict.fromkeys((self.system.data_path, *(topic.data_path for topic in self.topics.values()))))

    def topic(self, name: str) -> TopicConfig | None:
        """Return the settings of a topic. Return None if no section has the topic's name or a pattern that matches the
        topic's name; the broker then refuses messages for the topic.

        A topic that only a pattern matches has the settings of [system], not the settings of the pattern's section, as
        in 1.x. metaq's own topics (own_topics.py) are always accepted. If the pattern of a section begins with `%`, the
        section is for metaq's own topics: an own topic that the pattern matches has the settings of this section.
        """
        exact = self.topics.get(name)
        if exact is not None:
            return exact
        if is_own_topic(name):
            return self._own_topic(name)
        return self.system if self._names.match(name) else None

    def _own_topic(self, name: str) -> TopicConfig:
        for pattern, topic in self.topics.items():
            if pattern.startswith(OWN_MARK) and _pattern(pattern).fullmatch(name):
                return topic
        return replace(self.system, partitions=OWN_PARTITIONS)

    def has_stat(self, name: str) -> bool:
        """Return whether realtime counters are kept for a topic. They are kept if the topic's name matches the name or
        pattern of any section with stat=true, as in 1.x.
        """
        return self._counted.match(name)


class _Names:
    """Finds out whether a topic matches any of a set of section names, some of which can be patterns. A look-up must be
    cheap, because clients choose the names that the broker looks up. The time for a look-up grows with the number of
    patterns among the section names, but not with the number of plain names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        chosen = set(names)
        self._plain = {name for name in chosen if _PLAIN.fullmatch(name)}
        self._patterns = [_pattern(name) for name in sorted(chosen - self._plain)]

    def match(self, topic: str) -> bool:
        return topic in self._plain or any(pattern.fullmatch(topic) for pattern in self._patterns)


_PLAIN = re.compile(r"[\w-]*")
"""A regular expression that fully matches a section name if the name is a plain topic name and not a pattern."""


def _pattern(name: str) -> re.Pattern[str]:
    # every name is a regular expression in which * means .*; so a name without * may be a pattern, too (`.` matches any
    # character). re caches compiled expressions
    return re.compile(name.replace("*", ".*"))

"""The settings of a broker, which server_ini.py reads from server.ini. The name of a field includes the unit of its
value.
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
"""Name of a directory in the first data path of a broker set's node. In this directory the node stores its knowledge of
the set (sets/history.py).
"""


class Promise(Enum):
    """The kinds of acknowledgement that a replicated topic can have. Each kind says when a message is acknowledged."""

    LEADER = "leader"
    """A message is acknowledged when the leader has stored it as safely as the topic's flush mode demands."""
    IN_SYNC = "in-sync"
    """A message is acknowledged when every in-sync node has it, at least in memory."""
    DISK = "disk"
    """A message is acknowledged when every in-sync node has it on its disk."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the command that starts the broker. These options are not keys of server.ini, because a Java broker
    refuses unknown keys.
    """

    admin_from: AdminFrom = "loopback"
    disk_reserve: int | None = None
    """The number of bytes that must stay free on the disk of a data directory; with fewer free bytes, the broker
    refuses puts. None: a fraction of the disk's size (store/disk_space.py).
    """
    max_pending_put_bytes: int = DEFAULT_MAX_PENDING_PUT_BYTES
    """Limit of the bytes of all puts that wait until they are safe. Above this limit the broker reads no more puts
    (pending_puts.py).
    """
    node: str | None = None
    """Overrides BrokerConfig.node; None: use the value of server.ini."""
    zone: str | None = None
    """Overrides BrokerConfig.zone; None: use the value of server.ini."""
    half_check_seconds: float = 6.0
    """Seconds from a half message's arrival to its first check, unless the producer has sent another number of seconds
    with the message. The pause before the second check is this value, too; each later pause is twice as long as the
    pause before it, but at most an hour.
    """
    security: str | None = None
    """The path of security.ini (security_ini.py); None: no TLS."""
    http_names: tuple[str, ...] = ()
    """Host names that requests to the HTTP ports may use, in addition to the hostName in server.ini
    (http/browsers.py).
    """
    half_checks: int = 15
    """The number of times that producers are asked for the outcome of a half message. After that the message is parked,
    which means that producers are no longer asked about it.
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
    """A stopping broker serves clients for this many milliseconds after it has unregistered from ZooKeeper."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The section [topic=<name>]. Every key defaults to the value in [system]. `name` may be a pattern such as
    `wild*`.
    """

    name: str
    partitions: int
    unflush_threshold: int
    """The topic's data are synced to the disk after this many records; 0 or less: every put waits for a sync (group
    commit).
    """
    unflush_interval_ms: int
    data_path: str
    delete_policy: DeletePolicy = field(default_factory=partial(parse_delete_policy, DEFAULT_DELETE_POLICY))
    delete_when: Schedule = field(default_factory=partial(parse_schedule, DEFAULT_DELETE_WHEN))
    accept_publish: bool = True
    accept_subscribe: bool = True
    accept_compressed: bool = False
    """Whether messages with compressed payloads are accepted. If True, clients that cannot read compressed payloads get
    no messages of this topic.
    """
    stat: bool = False
    """Whether realtime counters are kept for the topic."""
    ack: Promise | None = None
    """The value of the key `ack`; None if the key is not set. The property `promise` gives the effective value."""
    min_in_sync: int = 1
    """The least number of in-sync nodes, including the leader. If there are fewer in-sync nodes, the topic's messages
    are refused.
    """
    replicas: int | None = None
    """The number of in-sync nodes that the topic should have; with fewer in-sync nodes, the topic counts as
    under-replicated. None: the number of all nodes of the broker set.
    """
    readable_partitions: int | None = None
    """The number of partitions that the broker registers for consumers; None: the same number as `partitions`, which
    producers see. The two numbers may differ while partitions move.
    """
    filters: Mapping[str, str] = field(default_factory=dict)
    """The filter of each consumer group, by group name. The filter is `package.module:callable`, or a Java class that
    filters.ini maps to such a callable.
    """

    @property
    def promise(self) -> Promise:
        """The kind of acknowledgement of a replicated topic. If the key `ack` is not set, this is DISK for a topic with
        group commit, and IN_SYNC for other topics.
        """
        return self.ack or (Promise.DISK if self.unflush_threshold <= 0 else Promise.IN_SYNC)

    @property
    def has_group_commit(self) -> bool:
        """Whether puts wait until they are synced to the disk (group commit)."""
        return self.unflush_threshold <= 0 or self.ack is Promise.DISK


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The configuration of one broker: the sections [system] and [zookeeper], and the sections of all topics. `system`
    has the settings for topics without a section.
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
    """The numeric address on which the broker listens; "": all IPv4 addresses. It is an option of the command and not a
    key of server.ini, because a Java broker refuses unknown keys.
    """
    dashboard_port: int | None = None
    """dashboardHttpPort; None: no dashboard. (Without this key, 1.x serves its dashboard on port 8120, so a second
    broker on the host fails to start.)
    """
    move_consumers_past_end: bool = False
    """updateConsumerOffsets: whether a get beyond the end of a partition is answered with 301 and the end offset
    instead of 404.
    """
    node: str | None = None
    """The name of this node in its broker set; None for a single broker."""
    zone: str = ""
    """The name of the broker's zone. Consumers with the same zone prefer this broker."""
    copy_bytes_per_second: int = COPY_BYTES_PER_SECOND
    """copyBytesPerSecond: the lowest rate, in bytes per second, at which a leader copies data to a joining node. The
    leader slows the copying down to protect producers, but never below this rate.
    """
    app_class_path: str | None = None
    """appClassPath: a directory of Python modules with filters; None: only installed modules."""
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
        """Return the settings of a topic. Return None if clients may not send messages to the topic, because no section
        is for the topic and no pattern matches it.

        A topic that only a pattern matches has the settings of [system], not the settings of the pattern's section, as
        in 1.x. metaq's own topics (own_topics.py) are always accepted. If one of these topics matches a pattern that
        begins with `%`, the topic has the settings of the pattern's section.
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
    """A set of section names; some of the names may be patterns. The object finds out whether a topic matches any of
    the names. Clients may ask for any topic name, so a match must be cheap: its cost depends on the number of patterns,
    but not on the number of other names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        chosen = set(names)
        self._plain = {name for name in chosen if _PLAIN.fullmatch(name)}
        self._patterns = [_pattern(name) for name in sorted(chosen - self._plain)]

    def match(self, topic: str) -> bool:
        return topic in self._plain or any(pattern.fullmatch(topic) for pattern in self._patterns)


_PLAIN = re.compile(r"[\w-]*")
"""Matches a section name that is a plain topic name and not a pattern."""


def _pattern(name: str) -> re.Pattern[str]:
    # every name is a regular expression in which * means .*; so a name without * may be a pattern, too (`.` matches any
    # character). re caches compiled expressions
    return re.compile(name.replace("*", ".*"))

"""server.ini of metaq 1.x (storage.md §9) as values: every key, default and check in one place.

Field names carry the unit. `read_config` is the only reader, `default_server_ini` prints a file that it reads back.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from zlib import crc32

from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import DEFAULT_PORT, check_topic
from metaq.protocol.message_id import MAX_BROKER_ID

from .filters.mapping import parse_filter_map
from .ini import Entry, Section, evaluate_int32, parse_ini
from .schedule import Schedule, parse_schedule
from .sources import ConfigFiles, Sources
from .store.retention import DeletePolicy, parse_delete_policy
from .transactions.config import FlushTxLog, TransactionConfig

__all__ = [
    "BrokerConfig",
    "TopicConfig",
    "ZooKeeperConfig",
    "default_server_ini",
    "local_address",
    "parse_config",
    "read_config",
]

DEFAULT_DELETE_POLICY = "delete,168"
DEFAULT_DELETE_WHEN = "0 0 6,18 * * ?"
DEFAULT_MAX_CHECKPOINTS = 3
DEFAULT_CHECKPOINT_INTERVAL_MS = 60 * 60 * 1000
DEFAULT_MAX_TX_TIMEOUT_SECONDS = 60
DEFAULT_MAX_TX_TIMEOUTS = 30_000
# 1.x has no defaults for these three: its sample file's values
DEFAULT_UNFLUSH_INTERVAL_MS = 10_000
DEFAULT_MAX_SEGMENT_SIZE = 1024 * 1024 * 1024
DEFAULT_MAX_TRANSFER_SIZE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """[zookeeper]. connect: `host:port,…[/chroot]`; root: the node below which everything lives."""

    connect: str = "localhost:2181"
    root: str = "/meta"
    enabled: bool = True
    session_timeout_ms: int = 30_000
    connection_timeout_ms: int = 30_000
    sync_time_ms: int = 5_000
    """How long the broker goes on serving after it has unregistered."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """[topic=<name>], every key defaulting to [system]'s. `name` may be a pattern (`wild*`)."""

    name: str
    partitions: int
    unflush_threshold: int
    """Records after which data is synced; 0 and less: every put waits for the sync (group commit)."""
    unflush_interval_ms: int
    data_path: str
    delete_policy: DeletePolicy = field(default_factory=partial(parse_delete_policy, DEFAULT_DELETE_POLICY))
    delete_when: Schedule = field(default_factory=partial(parse_schedule, DEFAULT_DELETE_WHEN))
    accept_publish: bool = True
    accept_subscribe: bool = True
    stat: bool = False
    """Whether realtime counters are kept."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Group -> the filter of its messages: `package.module:callable`, or a Java class that filters.ini maps to one."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker: [system], [zookeeper] and all topics. `system` has the settings of topics without a section."""

    broker_id: int
    host: str
    port: int
    system: TopicConfig
    topics: Mapping[str, TopicConfig]
    max_segment_size: int
    max_transfer_size: int
    transactions: TransactionConfig
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
    dashboard_port: int | None = None
    """dashboardHttpPort; None: no pages. (1.x serves them on 8120 then, and a second broker of the host fails.)"""
    move_consumers_past_end: bool = False
    """updateConsumerOffsets: a get beyond the end is answered 301 <end>, not 404."""
    app_class_path: str | None = None
    """appClassPath: a directory of Python modules with filters; None: only those that are installed."""
    filter_classes: Mapping[str, str] = field(default_factory=dict)
    """filters.ini: Java class -> Python callable."""
    source: bytes = b""
    """The file as it was read, for `stats config`."""
    filter_source: bytes = b""
    """filters.ini as it was read."""

    @property
    def checksum(self) -> int:
        """CRC-32 of the file, as registered in ZooKeeper."""
        return crc32(self.source)

    @property
    def data_paths(self) -> list[str]:
        """Every configured data directory, [system]'s first."""
        return list(dict.fromkeys((self.system.data_path, *(topic.data_path for topic in self.topics.values()))))

    def topic(self, name: str) -> TopicConfig | None:
        """Settings of a topic that puts may use, None if it is neither configured nor matched by a pattern.

        A topic that only a pattern matches has [system]'s settings, not the pattern's (1.x).
        """
        exact = self.topics.get(name)
        if exact is not None:
            return exact
        return self.system if any(pattern.fullmatch(name) for pattern in _patterns(self.topics)) else None

    def has_stat(self, name: str) -> bool:
        """Whether realtime counters are kept: if the name matches any section with stat=true, as in 1.x."""
        counted = [topic.name for topic in self.topics.values() if topic.stat]
        return any(pattern.fullmatch(name) for pattern in _patterns(counted))


def _patterns(topics: Iterable[str]) -> Iterable[re.Pattern[str]]:
    # every name is a regular expression with * for .*, also those without * (`.` matches any character); re caches
    return (re.compile(name.replace("*", ".*")) for name in topics)


# --- the keys ---------------------------------------------------------------------------------------------------------

_TOPIC_KEYS = frozenset(
    (
        "acceptPublish",
        "acceptSubscribe",
        "dataPath",
        "deletePolicy",
        "deleteWhen",
        "numPartitions",
        "stat",
        "unflushInterval",
        "unflushThreshold",
    )
)
_SYSTEM_KEYS = _TOPIC_KEYS | {
    "appClassPath",
    "brokerId",
    "checkpointInterval",
    "dashboardHttpPort",
    "dataLogPath",
    "flushTxLogAtCommit",
    "hostName",
    "maxCheckpoints",
    "maxSegmentSize",
    "maxTransferSize",
    "maxTxTimeoutInSeconds",
    "maxTxTimeoutTimerCapacity",
    "serverPort",
    "updateConsumerOffsets",
}
_ZOOKEEPER_KEYS = frozenset(
    (
        "zk.zkConnect",
        "zk.zkConnectionTimeoutMs",
        "zk.zkEnable",
        "zk.zkRoot",
        "zk.zkSessionTimeoutMs",
        "zk.zkSyncTimeMs",
    )
)
SYSTEM_KEYS_WITHOUT_EFFECT = frozenset(
    (
        # threads of the Java broker
        "getProcessThreadCount",
        "loadMessageStoresInParallel",
        "putProcessThreadCount",
        "quartzThreadCount",
        # fields of Java's configuration class, which it accepts and ignores
        "closedPartitionMap",
        "configFileChecksum",
        "lastModified",
        "path",
        "propertyChangeSupport",
        "slaveConfig",
        "topicConfigMap",
        "topics",
        "zkConfig",
    )
)
TOPIC_KEYS_WITHOUT_EFFECT = frozenset(("filterClassNames", "topic"))
_FILTER_PREFIX = "group."
_TOPIC_PREFIX = "topic="


def _check_keys(section: Section, name: str, known: frozenset[str]) -> None:
    for entry in (*section.values(), *section.blank.values()):
        if entry.key in known:
            continue
        close = difflib.get_close_matches(entry.key, known, 1, 0.0)
        hint = f"did you mean {close[0]}? known keys: {', '.join(sorted(known))}"
        raise ConfigError(f"{entry.where}: {entry.key}", entry.value, f"is no key of [{name}]; {hint}")


def _fail(entry: Entry, remedy: str) -> ConfigError:
    return ConfigError(f"{entry.where}: {entry.key}", entry.value, remedy)


class _Values:
    """Typed access to one section; an entry that is not set gives the default, or ConfigError if there is none."""

    def __init__(self, section: Section, name: str, file: str) -> None:
        self._section = section
        self._name = name
        self._file = file

    def entry(self, key: str) -> Entry | None:
        return self._section.get(key)

    def blank(self, key: str) -> Entry | None:
        """The entry of a key that stands there without a value."""
        return self._section.blank.get(key)

    def text(self, key: str, default: str) -> str:
        entry = self._section.get(key)
        return default if entry is None else entry.value

    def boolean(self, key: str, default: bool) -> bool:
        entry = self._section.get(key)
        if entry is None:
            return default
        if entry.value not in ("true", "false"):
            raise _fail(entry, "must be true or false")
        return entry.value == "true"

    def integer(self, key: str, default: int | None, low: int = -(1 << 31), high: int = (1 << 31) - 1) -> int:
        entry = self._section.get(key)
        if entry is None:
            if default is None:
                raise ConfigError(f"{self._file}: {key}", "", f"is required: set it in [{self._name}]")
            return default
        try:
            value = evaluate_int32(entry.value)
        except ValueError as error:
            raise _fail(entry, f"{error}: use a whole number such as 1024*1024") from error
        if not low <= value <= high:
            seen = "" if str(value) == entry.value else f", but is {value} as a 32-bit number"
            raise _fail(entry, f"must be {low} … {high}{seen}")
        return value


_ZOOKEEPER_DEFAULTS = ZooKeeperConfig()


# --- reading ----------------------------------------------------------------------------------------------------------

_MAX_PARTITIONS = 100_000


def read_config(path: str, filters_path: str | None = None) -> BrokerConfig:
    """Read a server.ini and its filters.ini (sources.py).

    Raises ConfigError for everything wrong with them, naming line, key, value and remedy.
    """
    files = ConfigFiles(path, filters_path)
    config = parse_config(files.read(), path)
    return config if config.app_class_path else replace(config, app_class_path=files.provided_path)


def parse_config(
    source: bytes | Sources, name: str = "server.ini", *, inherited: TopicConfig | None = None
) -> BrokerConfig:
    """The configuration in the bytes of a server.ini, and of a filters.ini; `name` is used in errors.

    inherited: what topics inherit instead of the file's own [system], for a running broker that reads it again.
    """
    source, filter_source = source if isinstance(source, Sources) else Sources(source)
    sections = parse_ini(source.decode("utf-8", "surrogateescape"), name)
    for required in ("system", "zookeeper"):
        if required not in sections:
            raise ConfigError(name, f"[{required}]", "the section is missing: add it")
    _check_keys(sections["system"], "system", _SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    _check_keys(sections["zookeeper"], "zookeeper", _ZOOKEEPER_KEYS | _SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    values = _Values(sections["system"], "system", name)
    system = _topic("", values, None)
    _check_values_without_effect(values)
    return BrokerConfig(
        broker_id=values.integer("brokerId", None, 0, MAX_BROKER_ID),
        host=_host(values),
        port=values.integer("serverPort", DEFAULT_PORT, 0, 65535),
        system=system,
        topics=_topics(sections, inherited or system, name),
        max_segment_size=values.integer("maxSegmentSize", None, 1),
        max_transfer_size=values.integer("maxTransferSize", None, 1),
        transactions=_transactions(values, system.data_path),
        zookeeper=_zookeeper(_Values(sections["zookeeper"], "zookeeper", name)),
        dashboard_port=values.integer("dashboardHttpPort", 0, 0, 65535) if values.entry("dashboardHttpPort") else None,
        move_consumers_past_end=values.boolean("updateConsumerOffsets", False),
        app_class_path=_path(values.text("appClassPath", "")),
        filter_classes=parse_filter_map(filter_source),
        source=source,
        filter_source=filter_source,
    )


def _check_values_without_effect(values: _Values) -> None:
    """What the Java broker would not start with is refused, so that it can take the file back."""
    for key in ("getProcessThreadCount", "putProcessThreadCount", "quartzThreadCount"):
        values.integer(key, 0)
    values.boolean("loadMessageStoresInParallel", False)


def _path(text: str) -> str | None:
    return _absolute(text) if text else None


def _topic(name: str, values: _Values, inherited: TopicConfig | None) -> TopicConfig:
    """Settings of one section; without `inherited` it is [system], where three keys are required."""
    base = inherited or TopicConfig(name, 0, 0, 0, _absolute("~/meta"))
    required = inherited is None
    return TopicConfig(
        name=name,
        partitions=values.integer("numPartitions", None if required else base.partitions, 1, _MAX_PARTITIONS),
        unflush_threshold=values.integer("unflushThreshold", None if required else base.unflush_threshold),
        unflush_interval_ms=values.integer("unflushInterval", None if required else base.unflush_interval_ms, 0),
        data_path=_absolute(values.text("dataPath", base.data_path)),
        delete_policy=_delete_policy(values, base),
        delete_when=_delete_when(values, base),
        accept_publish=values.boolean("acceptPublish", base.accept_publish),
        accept_subscribe=values.boolean("acceptSubscribe", base.accept_subscribe),
        stat=values.boolean("stat", base.stat) if required else values.text("stat", _java(base.stat)).lower() == "true",
    )


def _java(value: bool) -> str:
    return "true" if value else "false"


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _delete_policy(values: _Values, base: TopicConfig) -> DeletePolicy:
    entry = values.entry("deletePolicy")
    return base.delete_policy if entry is None else parse_delete_policy(entry.value, f"{entry.where}: {entry.key}")


def _delete_when(values: _Values, base: TopicConfig) -> Schedule:
    entry = values.entry("deleteWhen")
    return base.delete_when if entry is None else parse_schedule(entry.value, f"{entry.where}: {entry.key}")


def _topics(sections: Mapping[str, Section], system: TopicConfig, file: str) -> dict[str, TopicConfig]:
    topics: dict[str, TopicConfig] = {}
    for name, section in sections.items():
        if not name.startswith(_TOPIC_PREFIX):
            continue
        topic = name.removeprefix(_TOPIC_PREFIX).strip()
        _check_topic_name(topic, file, name)
        filters, settings = _split_filters(section)
        _check_keys(settings, name, _TOPIC_KEYS | TOPIC_KEYS_WITHOUT_EFFECT)
        topics[topic] = replace(
            _topic(topic, _Values(settings, name, file), system),
            filters={key.removeprefix(_FILTER_PREFIX): entry.value for key, entry in filters.items()},
        )
    if not topics:
        raise ConfigError(file, "", "has no topic: add a section such as [topic=test], or [topic=*] for any name")
    return topics


def _split_filters(section: Section) -> tuple[Section, Section]:
    """The entries of a topic's section that name filters, and the others."""
    parts = Section(), Section()
    for entry in (*section.values(), *section.blank.values()):
        parts[0 if entry.key.startswith(_FILTER_PREFIX) else 1].put(entry)
    return parts


def _check_topic_name(topic: str, file: str, section: str) -> None:
    try:
        check_topic(topic.replace("*", "any"))
        re.compile(topic.replace("*", ".*"))
    except InvalidName as error:
        raise ConfigError(file, f"[{section}]", str(error)) from error
    except re.error as error:
        raise ConfigError(file, f"[{section}]", f"is not a valid pattern ({error})") from error


def _zookeeper(values: _Values) -> ZooKeeperConfig:
    base = _ZOOKEEPER_DEFAULTS
    if blank := values.blank("zk.zkConnect"):
        raise _fail(blank, "names no server: set host:port, or remove the line for localhost:2181")
    root = "/" + values.text("zk.zkRoot", base.root).strip("/")
    return ZooKeeperConfig(
        connect=values.text("zk.zkConnect", base.connect),
        root=root,
        enabled=values.boolean("zk.zkEnable", base.enabled),
        session_timeout_ms=values.integer("zk.zkSessionTimeoutMs", base.session_timeout_ms, 1),
        connection_timeout_ms=values.integer("zk.zkConnectionTimeoutMs", base.connection_timeout_ms, 1),
        sync_time_ms=values.integer("zk.zkSyncTimeMs", base.sync_time_ms, 0),
    )


def _transactions(values: _Values, data_path: str) -> TransactionConfig:
    return TransactionConfig(
        log_path=_absolute(values.text("dataLogPath", data_path)),
        flush=FlushTxLog(values.integer("flushTxLogAtCommit", FlushTxLog.AT_COMMIT, min(FlushTxLog), max(FlushTxLog))),
        max_checkpoints=values.integer("maxCheckpoints", DEFAULT_MAX_CHECKPOINTS, 1),
        checkpoint_interval_ms=values.integer("checkpointInterval", DEFAULT_CHECKPOINT_INTERVAL_MS, 1),
        max_timeout_seconds=values.integer("maxTxTimeoutInSeconds", DEFAULT_MAX_TX_TIMEOUT_SECONDS, 1),
        max_timeouts=values.integer("maxTxTimeoutTimerCapacity", DEFAULT_MAX_TX_TIMEOUTS, 1),
    )


def _host(values: _Values) -> str:
    entry = values.entry("hostName")
    if entry is None:
        return local_address()
    if "_" in entry.value or any(c.isspace() or c == "/" for c in entry.value):
        raise _fail(entry, "cannot be read by Java clients: use a name without '_', '/' and blanks, or an IP address")
    return entry.value.removeprefix("[").removesuffix("]")


def local_address() -> str:
    """The first non-loopback IPv4 address of this machine, as 1.x chooses it, or 127.0.0.1 if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # the interface has no IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                return address
    return "127.0.0.1"


_SIOCGIFADDR = 0x8915  # linux/sockios.h


# --- writing ----------------------------------------------------------------------------------------------------------


def default_server_ini(
    *,
    broker_id: int,
    host: str,
    port: int,
    data_path: str,
    zookeeper: str,
    topics: Mapping[str, int],
    partitions: int = 1,
    unflush_threshold: int = 0,
    root: str = _ZOOKEEPER_DEFAULTS.root,
) -> str:
    """The text of a server.ini with these values and the defaults for the rest, which the Java broker reads as well.

    topics: name or pattern (`*` for any) -> number of partitions; `partitions` holds for topics that only a pattern
    matches. unflush_threshold: 0 = every put waits for the disk (group commit).
    """
    zk = ZooKeeperConfig(connect=zookeeper, root=root)
    lines = [
        "[system]",
        f"brokerId={broker_id}",
        f"hostName={host}",
        f"serverPort={port}",
        f"dataPath={data_path}",
        f"numPartitions={partitions}",
        "; 0: a put is answered when it is on the disk; n > 0: when it is written, synced every n puts",
        f"unflushThreshold={unflush_threshold}",
        f"unflushInterval={DEFAULT_UNFLUSH_INTERVAL_MS}",
        f"maxSegmentSize={DEFAULT_MAX_SEGMENT_SIZE}",
        f"maxTransferSize={DEFAULT_MAX_TRANSFER_SIZE}",
        f"deletePolicy={DEFAULT_DELETE_POLICY}",
        f"deleteWhen={DEFAULT_DELETE_WHEN}",
        "",
        "[zookeeper]",
        f"zk.zkConnect={zk.connect}",
        f"zk.zkRoot={zk.root}",
        f"zk.zkSessionTimeoutMs={zk.session_timeout_ms}",
        f"zk.zkConnectionTimeoutMs={zk.connection_timeout_ms}",
        f"zk.zkSyncTimeMs={zk.sync_time_ms}",
    ]
    for name, count in topics.items():
        lines += ["", f"[topic={name}]", f"numPartitions={count}"]
    return "\n".join(lines) + "\n"

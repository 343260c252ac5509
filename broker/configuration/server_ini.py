"""Read a server.ini in the format of metaq 1.x (storage.md §9), with all keys, defaults and checks, and return the
settings.

`read_config` is the only function here that reads the file from the disk. The tables in this module name all keys; each
row has a key and the field of settings.py that the key sets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from ipaddress import ip_address
from typing import Any, NamedTuple

from metaq.coordination.runtime.local_address import local_address
from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import DEFAULT_PORT, INT32_MAX, INT32_MIN, check_node, check_topic
from metaq.protocol.message_id import MAX_BROKER_ID

from ..runtime.account import Quotas
from ..runtime.schedule import parse_schedule
from ..store.topic_config import parse_delete_policy
from .filter_map import parse_filter_map
from .ini import Entry, Section, SectionValues, check_keys, parse_ini, wrong
from .settings import COPY_BYTES_PER_SECOND, BrokerConfig, Promise, TopicConfig, ZooKeeperConfig
from .sources import ConfigFiles, ConfigTexts
from .transaction_settings import FlushTxLog, TransactionConfig

__all__ = [
    "LIMITS_KEYS",
    "REPLICATION_KEYS",
    "SYSTEM_KEYS",
    "SYSTEM_KEYS_WITHOUT_EFFECT",
    "TOPIC_KEYS_WITHOUT_EFFECT",
    "ZOOKEEPER_KEYS",
    "BrokerConfig",
    "TopicConfig",
    "ZooKeeperConfig",
    "parse_config",
    "read_config",
]

DEFAULT_MAX_CHECKPOINTS = 3
DEFAULT_CHECKPOINT_INTERVAL_MS = 60 * 60 * 1000
DEFAULT_MAX_TX_TIMEOUT_SECONDS = 60
DEFAULT_MAX_TX_TIMEOUTS = 30_000
_TRANSACTION_DEFAULTS: Mapping[str, Any] = {
    "flush": FlushTxLog.AT_COMMIT,
    "max_checkpoints": DEFAULT_MAX_CHECKPOINTS,
    "checkpoint_interval_ms": DEFAULT_CHECKPOINT_INTERVAL_MS,
    "max_timeout_seconds": DEFAULT_MAX_TX_TIMEOUT_SECONDS,
    "max_timeouts": DEFAULT_MAX_TX_TIMEOUTS,
}

_MAX_PARTITIONS = 100_000


# --- keys -------------------------------------------------------------------------------------------------------------

ReadValue = Callable[[SectionValues, str, Any], Any]
"""read(section, key, default) returns the value of a key. If the default is None, the key is required."""


class _Key(NamedTuple):
    """A key of server.ini, with the function that reads its value."""

    name: str
    read: ReadValue


def _integer(low: int = INT32_MIN, high: int = INT32_MAX) -> ReadValue:
    return lambda values, key, default: values.integer(key, default, low, high)


def _optional(read: ReadValue) -> ReadValue:
    """Return a function that reads a key with `read` if the key is set, and otherwise returns the default. If the
    default is None and the key is not set, the function returns None, whereas `read` would treat the key as required.
    """
    return lambda values, key, default: default if values.entry(key) is None else read(values, key, None)


def _parsed(parse: Callable[[str, str], Any]) -> ReadValue:
    """Return a function that reads a key by calling parse(text, place). text: the key's value. place: the file, the
    line and the key, for errors.
    """

    def read(values: SectionValues, key: str, default: Any) -> Any:
        entry = values.entry(key)
        return default if entry is None else parse(entry.value, f"{entry.where}: {entry.key}")

    return read


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _parse_host(entry: Entry) -> str:
    if "_" in entry.value or any(c.isspace() or c == "/" for c in entry.value):
        raise wrong(entry, "cannot be read by Java clients: use a name without '_', '/' and blanks, or an IP address")
    return entry.value.removeprefix("[").removesuffix("]")


def _parse_ack(text: str, where: str) -> Promise:
    try:
        return Promise(text)
    except ValueError:
        raise ConfigError(where, text, f"use one of {', '.join(each.value for each in Promise)}") from None


def _parse_node(text: str, where: str) -> str:
    try:
        return check_node(text)
    except InvalidName as error:
        raise ConfigError(where, text, str(error)) from None


_path = _parsed(lambda text, where: _absolute(text))
_flag: ReadValue = SectionValues.boolean
_positive = _integer(1)
_number = _integer(0)
_port = _integer(0, 65535)
_flush = _integer(min(FlushTxLog), max(FlushTxLog))

_TOPIC: Mapping[str, _Key] = {
    "partitions": _Key("numPartitions", _integer(1, _MAX_PARTITIONS)),
    "unflush_threshold": _Key("unflushThreshold", _integer()),
    "unflush_interval_ms": _Key("unflushInterval", _number),
    "data_path": _Key("dataPath", _path),
    "delete_policy": _Key("deletePolicy", _parsed(parse_delete_policy)),
    "delete_when": _Key("deleteWhen", _parsed(parse_schedule)),
    "accept_publish": _Key("acceptPublish", _flag),
    "accept_subscribe": _Key("acceptSubscribe", _flag),
    "accept_compressed": _Key("acceptCompressed", _flag),
    "stat": _Key("stat", _flag),
    "ack": _Key("ack", _optional(_parsed(_parse_ack))),
    "min_in_sync": _Key("minInSync", _positive),
    "replicas": _Key("replicas", _optional(_positive)),
}
_SYSTEM: Mapping[str, _Key] = {
    "broker_id": _Key("brokerId", _integer(0, MAX_BROKER_ID)),
    "host": _Key("hostName", lambda values, key, default: _parse_host(e) if (e := values.entry(key)) else default),
    "port": _Key("serverPort", _port),
    "max_segment_size": _Key("maxSegmentSize", _positive),
    "max_transfer_size": _Key("maxTransferSize", _positive),
    "dashboard_port": _Key("dashboardHttpPort", _optional(_port)),
    "move_consumers_past_end": _Key("updateConsumerOffsets", _flag),
    "app_class_path": _Key("appClassPath", _path),
}
_TRANSACTIONS: Mapping[str, _Key] = {
    "log_path": _Key("dataLogPath", _path),
    "flush": _Key("flushTxLogAtCommit", lambda values, key, default: FlushTxLog(_flush(values, key, default))),
    "max_checkpoints": _Key("maxCheckpoints", _positive),
    "checkpoint_interval_ms": _Key("checkpointInterval", _positive),
    "max_timeout_seconds": _Key("maxTxTimeoutInSeconds", _positive),
    "max_timeouts": _Key("maxTxTimeoutTimerCapacity", _positive),
}
_ZOOKEEPER: Mapping[str, _Key] = {
    "connect": _Key("zk.zkConnect", SectionValues.text),
    "root": _Key("zk.zkRoot", SectionValues.text),
    "enabled": _Key("zk.zkEnable", _flag),
    "session_timeout_ms": _Key("zk.zkSessionTimeoutMs", _positive),
    "connection_timeout_ms": _Key("zk.zkConnectionTimeoutMs", _positive),
    "sync_time_ms": _Key("zk.zkSyncTimeMs", _number),
}
_REPLICATION: Mapping[str, _Key] = {
    "node": _Key("node", _optional(_parsed(_parse_node))),
    "zone": _Key("zone", _parsed(_parse_node)),
    "copy_bytes_per_second": _Key("copyBytesPerSecond", _positive),
}
_LIMITS: Mapping[str, _Key] = {
    "unfinished_bytes": _Key("unfinishedBytes", _integer(1 << 24)),
    "request_seconds": _Key("requestSeconds", _positive),
    "unsent_bytes": _Key("unsentBytes", _integer(1 << 20)),
    "waiting_bytes": _Key("waitingBytes", _integer(1 << 20)),
    "transaction_bytes": _Key("transactionBytes", _integer(1 << 20)),
    "open_transactions": _Key("openTransactions", _positive),
    "xa_idle_seconds": _Key("xaIdleSeconds", _number),
    "http_connections": _Key("httpConnections", _positive),
    "waiting_pages": _Key("waitingPages", _positive),
    "shared_groups": _Key("sharedGroups", _positive),
    "shared_bytes": _Key("sharedBytes", _integer(1 << 20)),
    "made_topics": _Key("madeTopics", _positive),
    "half_messages": _Key("halfMessages", _positive),
    "address_share": _Key("addressShare", _integer(1, 100)),
}
_CHECKED: Mapping[str, ReadValue] = {
    "getProcessThreadCount": _integer(),
    "loadMessageStoresInParallel": _flag,
    "putProcessThreadCount": _integer(),
    "quartzThreadCount": _integer(),
}
"""Keys that have an effect only in a Java broker, mostly numbers of threads, each with the function that reads its
value. This broker uses the functions only to check the values: it refuses to start with a value with which a Java
broker would refuse to start, and ignores all other values. So every file that this broker accepts is also accepted by a
Java broker.
"""

_IGNORED = "closedPartitionMap configFileChecksum lastModified path propertyChangeSupport slaveConfig topicConfigMap"
"""Keys that have no effect. The Java broker accepts them only because its configuration class happens to have fields
with these names; so this broker accepts them, too.
"""

TOPIC_KEYS = {key.name for key in _TOPIC.values()}
SYSTEM_KEYS = TOPIC_KEYS | {key.name for table in (_SYSTEM, _TRANSACTIONS) for key in table.values()}
LIMITS_KEYS = {key.name for key in _LIMITS.values()}
REPLICATION_KEYS = {key.name for key in _REPLICATION.values()}
ZOOKEEPER_KEYS = {key.name for key in _ZOOKEEPER.values()}
SYSTEM_KEYS_WITHOUT_EFFECT = _CHECKED.keys() | {*_IGNORED.split(), "topics", "zkConfig"}
TOPIC_KEYS_WITHOUT_EFFECT = {"filterClassNames", "topic"}
_FILTER_PREFIX = "group."
_TOPIC_PREFIX = "topic="


def _read(table: Mapping[str, _Key], values: SectionValues, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Read all keys of a table from `values`, and return their values by field name. A key that has no default must be
    set.
    """
    return {field: key.read(values, key.name, defaults.get(field)) for field, key in table.items()}


# --- files ------------------------------------------------------------------------------------------------------------


def read_config(path: str, filters_path: str | None = None, listen: str = "") -> BrokerConfig:
    """Read a server.ini and its filters.ini (sources.py). listen: the numeric address on which the broker listens; ""
    means all IPv4 addresses.

    Raises ConfigError for any mistake in the files; the error names the line, the key, the value and the remedy.
    """
    files = ConfigFiles(path, filters_path)
    config = parse_config(files.read(), path, listen=listen)
    return config if config.app_class_path else replace(config, app_class_path=files.provided_path)


def parse_config(
    source: bytes | ConfigTexts, name: str = "server.ini", *, inherited: TopicConfig | None = None, listen: str = ""
) -> BrokerConfig:
    """Parse the bytes of a server.ini and of a filters.ini. name: the name of the server.ini for errors.

    inherited: the settings that topics inherit instead of the settings in the file's own section [system]. When a
    running broker reloads the file, it passes its own settings from [system] as `inherited`.
    """
    source, filter_source = source if isinstance(source, ConfigTexts) else ConfigTexts(source)
    sections = parse_ini(source.decode("utf-8", "surrogateescape"), name)
    for required in ("system", "zookeeper"):
        if required not in sections:
            raise ConfigError(name, f"[{required}]", "the section is missing: add it")
    check_keys(sections["system"], "system", SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    check_keys(sections["zookeeper"], "zookeeper", ZOOKEEPER_KEYS | SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    replication = sections.get("replication", Section())
    check_keys(replication, "replication", REPLICATION_KEYS)
    limits = sections.get("limits", Section())
    check_keys(limits, "limits", LIMITS_KEYS)
    values = SectionValues(sections["system"], "system", name)
    unset = TopicConfig("", 0, 0, 0, _absolute("~/meta"))
    optional = (field for field in _TOPIC if field not in ("partitions", "unflush_threshold", "unflush_interval_ms"))
    system = TopicConfig("", **_read(_TOPIC, values, {field: getattr(unset, field) for field in optional}))
    _check_replicas(system, name, "system")
    for key, read in _CHECKED.items():
        read(values, key, False)
    host = None if values.entry("hostName") else listen
    if host is not None and (not host or ip_address(host).is_unspecified):
        host = local_address()
    defaults = {"host": host, "port": DEFAULT_PORT, "move_consumers_past_end": False}
    replicated = {"zone": "", "copy_bytes_per_second": COPY_BYTES_PER_SECOND}
    return BrokerConfig(
        **_read(_SYSTEM, values, defaults),
        **_read(_REPLICATION, SectionValues(replication, "replication", name), replicated),
        system=system,
        topics=_topics(sections, inherited or system, name),
        transactions=TransactionConfig(
            **_read(_TRANSACTIONS, values, {**_TRANSACTION_DEFAULTS, "log_path": _absolute(system.data_path)})
        ),
        zookeeper=_zookeeper(SectionValues(sections["zookeeper"], "zookeeper", name)),
        limits=Quotas(**_read(_LIMITS, SectionValues(limits, "limits", name), asdict(Quotas()))),
        listen=listen,
        filter_classes=parse_filter_map(filter_source),
        source=source,
        filter_source=filter_source,
    )


def _topics(sections: Mapping[str, Section], system: TopicConfig, file: str) -> dict[str, TopicConfig]:
    topics: dict[str, TopicConfig] = {}
    for name, section in sections.items():
        if not name.startswith(_TOPIC_PREFIX):
            continue
        topic = name.removeprefix(_TOPIC_PREFIX).strip()
        _check_topic_name(topic, file, name)
        filters, settings = _split_filters(section)
        check_keys(settings, name, TOPIC_KEYS | TOPIC_KEYS_WITHOUT_EFFECT)
        values = SectionValues(settings, name, file)
        stat = settings.pop("stat", None)  # not checked in a topic's section, as in 1.x: only true is true
        topics[topic] = TopicConfig(
            topic,
            **_read(_TOPIC, values, {field: getattr(system, field) for field in _TOPIC})
            | ({} if stat is None else {"stat": stat.value.lower() == "true"}),
            filters={key.removeprefix(_FILTER_PREFIX): entry.value for key, entry in filters.items()},
        )
        _check_replicas(topics[topic], file, name)
    if not topics:
        raise ConfigError(file, "", "has no topic: add a section such as [topic=test], or [topic=*] for any name")
    return topics


def _check_replicas(topic: TopicConfig, file: str, section: str) -> None:
    if topic.replicas is not None and topic.min_in_sync > topic.replicas:
        remedy = f"is more than replicas={topic.replicas} of [{section}]: the topic would take no message; lower it"
        raise ConfigError(f"{file}: minInSync", topic.min_in_sync, remedy)


def _split_filters(section: Section) -> tuple[Section, Section]:
    """Split a topic's section into the entries that name filters and all other entries."""
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


def _zookeeper(values: SectionValues) -> ZooKeeperConfig:
    if blank := values.blank("zk.zkConnect"):
        raise wrong(blank, "names no server: set host:port, or remove the line for localhost:2181")
    config = ZooKeeperConfig(**_read(_ZOOKEEPER, values, asdict(ZooKeeperConfig())))
    return replace(config, root="/" + config.root.strip("/"))

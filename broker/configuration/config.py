"""From a server.ini of metaq 1.x (storage.md §9) to settings: every default and check in one place.

`read_config` is the only reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address

from metaq.coordination.local_address import local_address
from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import DEFAULT_PORT, check_topic
from metaq.protocol.message_id import MAX_BROKER_ID

from ..filters.mapping import parse_filter_map
from ..store.retention import DeletePolicy, parse_delete_policy
from ..transactions.config import FlushTxLog, TransactionConfig
from .ini import Section, parse_ini
from .ini_values import (
    FILTER_PREFIX,
    SYSTEM_KEYS,
    SYSTEM_KEYS_WITHOUT_EFFECT,
    TOPIC_KEYS,
    TOPIC_KEYS_WITHOUT_EFFECT,
    TOPIC_PREFIX,
    ZOOKEEPER_KEYS,
    SectionValues,
    check_keys,
    wrong,
)
from .schedule import Schedule, parse_schedule
from .settings import BrokerConfig, TopicConfig, ZooKeeperConfig
from .sources import ConfigFiles, ConfigTexts

__all__ = [
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
_ZOOKEEPER_DEFAULTS = ZooKeeperConfig()


_MAX_PARTITIONS = 100_000


def read_config(path: str, filters_path: str | None = None, listen: str = "") -> BrokerConfig:
    """Read a server.ini and its filters.ini (sources.py). listen: numeric address, "" = all.

    Raises ConfigError for everything wrong with them, naming line, key, value and remedy.
    """
    files = ConfigFiles(path, filters_path)
    config = parse_config(files.read(), path, listen=listen)
    return config if config.app_class_path else replace(config, app_class_path=files.provided_path)


def parse_config(
    source: bytes | ConfigTexts, name: str = "server.ini", *, inherited: TopicConfig | None = None, listen: str = ""
) -> BrokerConfig:
    """The configuration in the bytes of a server.ini, and of a filters.ini; `name` is used in errors.

    inherited: what topics inherit instead of the file's own [system], for a running broker that reads it again.
    """
    source, filter_source = source if isinstance(source, ConfigTexts) else ConfigTexts(source)
    sections = parse_ini(source.decode("utf-8", "surrogateescape"), name)
    for required in ("system", "zookeeper"):
        if required not in sections:
            raise ConfigError(name, f"[{required}]", "the section is missing: add it")
    check_keys(sections["system"], "system", SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    check_keys(sections["zookeeper"], "zookeeper", ZOOKEEPER_KEYS | SYSTEM_KEYS | SYSTEM_KEYS_WITHOUT_EFFECT)
    values = SectionValues(sections["system"], "system", name)
    system = _topic("", values, None)
    _check_values_without_effect(values)
    return BrokerConfig(
        broker_id=values.integer("brokerId", None, 0, MAX_BROKER_ID),
        host=_host(values, listen),
        port=values.integer("serverPort", DEFAULT_PORT, 0, 65535),
        system=system,
        topics=_topics(sections, inherited or system, name),
        max_segment_size=values.integer("maxSegmentSize", None, 1),
        max_transfer_size=values.integer("maxTransferSize", None, 1),
        transactions=_transactions(values, system.data_path),
        zookeeper=_zookeeper(SectionValues(sections["zookeeper"], "zookeeper", name)),
        listen=listen,
        dashboard_port=values.integer("dashboardHttpPort", 0, 0, 65535) if values.entry("dashboardHttpPort") else None,
        move_consumers_past_end=values.boolean("updateConsumerOffsets", False),
        app_class_path=_path(values.text("appClassPath", "")),
        filter_classes=parse_filter_map(filter_source),
        source=source,
        filter_source=filter_source,
    )


def _check_values_without_effect(values: SectionValues) -> None:
    """What the Java broker would not start with is refused, so that it can take the file back."""
    for key in ("getProcessThreadCount", "putProcessThreadCount", "quartzThreadCount"):
        values.integer(key, 0)
    values.boolean("loadMessageStoresInParallel", False)


def _path(text: str) -> str | None:
    return _absolute(text) if text else None


def _topic(name: str, values: SectionValues, inherited: TopicConfig | None) -> TopicConfig:
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


def _delete_policy(values: SectionValues, base: TopicConfig) -> DeletePolicy:
    entry = values.entry("deletePolicy")
    return base.delete_policy if entry is None else parse_delete_policy(entry.value, f"{entry.where}: {entry.key}")


def _delete_when(values: SectionValues, base: TopicConfig) -> Schedule:
    entry = values.entry("deleteWhen")
    return base.delete_when if entry is None else parse_schedule(entry.value, f"{entry.where}: {entry.key}")


def _topics(sections: Mapping[str, Section], system: TopicConfig, file: str) -> dict[str, TopicConfig]:
    topics: dict[str, TopicConfig] = {}
    for name, section in sections.items():
        if not name.startswith(TOPIC_PREFIX):
            continue
        topic = name.removeprefix(TOPIC_PREFIX).strip()
        _check_topic_name(topic, file, name)
        filters, settings = _split_filters(section)
        check_keys(settings, name, TOPIC_KEYS | TOPIC_KEYS_WITHOUT_EFFECT)
        topics[topic] = replace(
            _topic(topic, SectionValues(settings, name, file), system),
            filters={key.removeprefix(FILTER_PREFIX): entry.value for key, entry in filters.items()},
        )
    if not topics:
        raise ConfigError(file, "", "has no topic: add a section such as [topic=test], or [topic=*] for any name")
    return topics


def _split_filters(section: Section) -> tuple[Section, Section]:
    """The entries of a topic's section that name filters, and the others."""
    parts = Section(), Section()
    for entry in (*section.values(), *section.blank.values()):
        parts[0 if entry.key.startswith(FILTER_PREFIX) else 1].put(entry)
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
    base = _ZOOKEEPER_DEFAULTS
    if blank := values.blank("zk.zkConnect"):
        raise wrong(blank, "names no server: set host:port, or remove the line for localhost:2181")
    root = "/" + values.text("zk.zkRoot", base.root).strip("/")
    return ZooKeeperConfig(
        connect=values.text("zk.zkConnect", base.connect),
        root=root,
        enabled=values.boolean("zk.zkEnable", base.enabled),
        session_timeout_ms=values.integer("zk.zkSessionTimeoutMs", base.session_timeout_ms, 1),
        connection_timeout_ms=values.integer("zk.zkConnectionTimeoutMs", base.connection_timeout_ms, 1),
        sync_time_ms=values.integer("zk.zkSyncTimeMs", base.sync_time_ms, 0),
    )


def _transactions(values: SectionValues, data_path: str) -> TransactionConfig:
    return TransactionConfig(
        log_path=_absolute(values.text("dataLogPath", data_path)),
        flush=FlushTxLog(values.integer("flushTxLogAtCommit", FlushTxLog.AT_COMMIT, min(FlushTxLog), max(FlushTxLog))),
        max_checkpoints=values.integer("maxCheckpoints", DEFAULT_MAX_CHECKPOINTS, 1),
        checkpoint_interval_ms=values.integer("checkpointInterval", DEFAULT_CHECKPOINT_INTERVAL_MS, 1),
        max_timeout_seconds=values.integer("maxTxTimeoutInSeconds", DEFAULT_MAX_TX_TIMEOUT_SECONDS, 1),
        max_timeouts=values.integer("maxTxTimeoutTimerCapacity", DEFAULT_MAX_TX_TIMEOUTS, 1),
    )


def _host(values: SectionValues, listen: str) -> str:
    entry = values.entry("hostName")
    if entry is None:
        return listen if listen and not ip_address(listen).is_unspecified else local_address()
    if "_" in entry.value or any(c.isspace() or c == "/" for c in entry.value):
        raise wrong(entry, "cannot be read by Java clients: use a name without '_', '/' and blanks, or an IP address")
    return entry.value.removeprefix("[").removesuffix("]")

"""The keys of server.ini (storage.md §9) and typed access to their values."""

from __future__ import annotations

import difflib

from metaq.protocol.errors import ConfigError

from .ini import Entry, Section, evaluate_int32

__all__ = [
    "FILTER_PREFIX",
    "SYSTEM_KEYS",
    "SYSTEM_KEYS_WITHOUT_EFFECT",
    "TOPIC_KEYS",
    "TOPIC_KEYS_WITHOUT_EFFECT",
    "TOPIC_PREFIX",
    "ZOOKEEPER_KEYS",
    "SectionValues",
    "check_keys",
    "wrong",
]

TOPIC_KEYS = frozenset(
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
SYSTEM_KEYS = TOPIC_KEYS | {
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
ZOOKEEPER_KEYS = frozenset(
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
FILTER_PREFIX = "group."
TOPIC_PREFIX = "topic="


def check_keys(section: Section, name: str, known: frozenset[str]) -> None:
    """Raise ConfigError for a key of the section `name` that is not in `known`, naming the closest one."""
    for entry in (*section.values(), *section.blank.values()):
        if entry.key in known:
            continue
        close = difflib.get_close_matches(entry.key, known, 1, 0.0)
        hint = f"did you mean {close[0]}? known keys: {', '.join(sorted(known))}"
        raise ConfigError(f"{entry.where}: {entry.key}", entry.value, f"is not a key of [{name}]; {hint}")


def wrong(entry: Entry, remedy: str) -> ConfigError:
    """The error for an entry, which names its line, key and value."""
    return ConfigError(f"{entry.where}: {entry.key}", entry.value, remedy)


class SectionValues:
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
            raise wrong(entry, "must be true or false")
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
            raise wrong(entry, f"{error}: use a whole number such as 1024*1024") from error
        if not low <= value <= high:
            seen = "" if str(value) == entry.value else f", but is {value} as a 32-bit number"
            raise wrong(entry, f"must be {low} … {high}{seen}")
        return value

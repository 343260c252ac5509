"""What reading server.ini again changes, decided without doing it (zookeeper.md §3, storage.md §9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from .config import BrokerConfig, parse_config
from .ini import Section, parse_ini
from .sources import ConfigTexts

__all__ = ["ReloadReport", "Reloaded", "reloaded_config"]


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What reading server.ini again has done."""

    changed: bool
    """Whether the bytes of server.ini or filters.ini differ from those loaded before; if not, nothing was done."""
    added_topics: tuple[str, ...] = ()
    changed_topics: tuple[str, ...] = ()
    removed_topics: tuple[str, ...] = ()
    """No longer in the file; they stay registered and accepted until a restart."""
    needs_restart: tuple[str, ...] = ()
    """Keys of [system], [zookeeper] and [replication] that differ from those at the start."""
    warnings: tuple[str, ...] = ()
    """What is not done yet, and when it will be done."""

    def to_json(self) -> dict[str, bool | list[str]]:
        """As RELOAD_CONFIG answers it (docs/protocol.md)."""
        return {
            "changed": self.changed,
            "addedTopics": list(self.added_topics),
            "changedTopics": list(self.changed_topics),
            "removedTopics": list(self.removed_topics),
            "needsRestart": list(self.needs_restart),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        if not self.changed:
            return "server.ini has not changed"
        lists = (
            ("added: ", self.added_topics),
            ("changed: ", self.changed_topics),
            ("no longer in the file, kept until a restart: ", self.removed_topics),
            ("takes effect at a restart: ", self.needs_restart),
            ("", self.warnings),
        )
        parts = [what + ", ".join(names) for what, names in lists if names]
        return "server.ini was loaded again; " + ("; ".join(parts) or "no topic differs")


class Reloaded(NamedTuple):
    """What follows from new files: the configuration to go on with, and the data directories of the next start."""

    config: BrokerConfig
    report: ReloadReport
    data_paths_at_restart: list[str]


def reloaded_config(running: BrokerConfig, at_start: bytes, source: ConfigTexts, name: str) -> Reloaded:
    """What changes when the files hold `source`. Any thread: takes 0.1 ms a topic.

    Only topics change; they inherit the running [system]. A topic that is missing now keeps its settings (1.x).
    at_start: server.ini when the broker was started. Raises ConfigError for a file that it would not start with.
    """
    next_start = parse_config(source, name)
    file = parse_config(source, name, inherited=running.system)
    old, new = running.topics, file.topics
    report = ReloadReport(
        changed=True,
        added_topics=tuple(sorted(new.keys() - old.keys())),
        changed_topics=tuple(sorted(topic for topic in new.keys() & old.keys() if new[topic] != old[topic])),
        removed_topics=tuple(sorted(old.keys() - new.keys())),
        needs_restart=_differing_keys(at_start, source.ini),
    )
    config = replace(
        running,
        topics={**old, **new},
        filter_classes=file.filter_classes,
        source=file.source,
        filter_source=file.filter_source,
    )
    return Reloaded(config, report, next_start.data_paths)


def _differing_keys(old: bytes, new: bytes) -> tuple[str, ...]:
    """Keys of [system], [zookeeper] and [replication] that two versions of a server.ini set differently."""

    def sections(source: bytes) -> list[Section]:
        found = parse_ini(source.decode("utf-8", "surrogateescape"), "")
        return [found.get(name, Section()) for name in ("system", "zookeeper", "replication")]

    keys: set[str] = set()
    for before, after in zip(sections(old), sections(new), strict=True):
        keys |= {k for k in before.keys() | after.keys() if _value(before, k) != _value(after, k)}
    return tuple(sorted(keys))


def _value(section: Section, key: str) -> str | None:
    return section[key].value if key in section else None

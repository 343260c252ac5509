"""Find out what a reload of server.ini changes, without applying the changes (zookeeper.md §3, storage.md §9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from .ini import Section, parse_ini
from .server_ini import BrokerConfig, parse_config
from .sources import ConfigTexts

__all__ = ["ReloadReport", "Reloaded", "reloaded_config"]


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The result of a reload of server.ini."""

    changed: bool
    """Whether the text of server.ini or of filters.ini has changed since the broker last loaded it. If this is False,
    the reload has had no effect.
    """
    added_topics: tuple[str, ...] = ()
    changed_topics: tuple[str, ...] = ()
    removed_topics: tuple[str, ...] = ()
    """Topics whose sections were removed from server.ini. Until its restart the broker keeps these topics registered in
    ZooKeeper, and continues to accept messages for them.
    """
    needs_restart: tuple[str, ...] = ()
    """Keys of [system], [zookeeper], [replication] and [limits] whose values have changed since the broker's start. The
    new values take effect only at a restart.
    """
    warnings: tuple[str, ...] = ()
    """Texts for the operator about changes of the files that do not take effect at once. Each text says when the change
    will be made.
    """

    def to_json(self) -> dict[str, bool | list[str]]:
        """Return the content of the answer to RELOAD_CONFIG (docs/protocol.md)."""
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
    """What a reload of changed files leads to: the configuration that the broker must use from now on, the report about
    the reload, and the data directories that the broker will use after its next start.
    """

    config: BrokerConfig
    report: ReloadReport
    data_paths_at_restart: list[str]


def reloaded_config(running: BrokerConfig, at_start: bytes, source: ConfigTexts, name: str) -> Reloaded:
    """Return what follows from a reload if server.ini and filters.ini now have the content `source`. The function can
    be called on any thread, and takes 0.1 ms for each topic.

    A reload changes only the settings of topics and the filter classes. If a topic's section lacks a setting, the topic
    takes this setting from the section [system] that the broker has used since its start, not from the new [system]. A
    topic whose section was removed from the file keeps its settings, as in 1.x. at_start: content of server.ini at the
    broker's start. Raises ConfigError if the broker would refuse to start with the new content.
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
    """Compare two versions of a server.ini. Among the keys that take effect only at a restart, return those whose
    values differ.
    """

    def sections(source: bytes) -> list[Section]:
        found = parse_ini(source.decode("utf-8", "surrogateescape"), "")
        return [found.get(name, Section()) for name in ("system", "zookeeper", "replication", "limits")]

    keys: set[str] = set()
    for before, after in zip(sections(old), sections(new), strict=True):
        keys |= {k for k in before.keys() | after.keys() if _value(before, k) != _value(after, k)}
    return tuple(sorted(keys))


def _value(section: Section, key: str) -> str | None:
    return section[key].value if key in section else None

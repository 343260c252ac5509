"""Reading server.ini again while the broker runs: what changed, and who must know (zookeeper.md §3, storage.md §9)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred

from metaq.protocol.errors import ConfigError

from .config import BrokerConfig, parse_config
from .ini import Section, parse_ini
from .sources import Sources

__all__ = ["ReloadReport", "Reloader", "reloaded_config"]

_log = logging.getLogger(__name__)


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
    """Keys of [system] and [zookeeper] that differ from those at the start."""
    warnings: tuple[str, ...] = ()
    """What is not done yet, and who will do it."""

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


def reloaded_config(running: BrokerConfig, source: Sources, name: str) -> tuple[BrokerConfig, ReloadReport]:
    """The configuration to go on with when the files hold `source`, and what of `running` it changes.

    Only topics change; they inherit the running [system]. A topic that is missing now keeps its settings (1.x).
    Raises ConfigError for a file that the broker would not start with, and for a topic in a new data directory.
    """
    file = parse_config(source, name, inherited=running.system)
    for topic in file.topics.values():
        if topic.data_path not in running.data_paths:
            remedy = f"of [topic={topic.name}] is a new data directory, and those are opened at the start: restart"
            raise ConfigError(f"{name}: dataPath", topic.data_path, remedy)
    old, new = running.topics, file.topics
    report = ReloadReport(
        changed=True,
        added_topics=tuple(sorted(new.keys() - old.keys())),
        changed_topics=tuple(sorted(topic for topic in new.keys() & old.keys() if new[topic] != old[topic])),
        removed_topics=tuple(sorted(old.keys() - new.keys())),
    )
    config = replace(
        running,
        topics={**old, **new},
        filter_classes=file.filter_classes,
        source=file.source,
        filter_source=file.filter_source,
    )
    return config, report


def _differing_keys(old: bytes, new: bytes) -> tuple[str, ...]:
    """Keys of [system] and [zookeeper] that two versions of a server.ini set differently."""

    def sections(source: bytes) -> list[Section]:
        found = parse_ini(source.decode("utf-8", "surrogateescape"), "")
        return [found.get(name, Section()) for name in ("system", "zookeeper")]

    keys: set[str] = set()
    for before, after in zip(sections(old), sections(new), strict=True):
        keys |= {k for k in before.keys() | after.keys() if _value(before, k) != _value(after, k)}
    return tuple(sorted(keys))


def _value(section: Section, key: str) -> str | None:
    return section[key].value if key in section else None


Apply = Callable[[BrokerConfig, Sequence[str]], Deferred[list[str]]]
"""apply(config, topics): make it the running configuration and register the topics anew; gives warnings."""


class Reloader:
    """Loads server.ini again on request, one request after the other. Reactor thread."""

    def __init__(
        self,
        path: str,
        running: Callable[[], BrokerConfig],
        read: Callable[[], Deferred[Sources]],
        apply: Apply,
    ) -> None:
        """path: for messages. read: the files as they are now; fails with ConfigError.

        apply fails with ConfigError if the configuration cannot be used, and must have changed nothing then.
        """
        self._path = path
        self._running = running
        self._read = read
        self._apply = apply
        self._at_start = running().source
        self._lock = DeferredLock()

    def reload(self) -> Deferred[ReloadReport]:
        """Load the file; fails with ConfigError, and then nothing has changed."""
        deferred: Deferred[ReloadReport] = self._lock.run(lambda: ensureDeferred(self._reload()))
        return deferred

    async def _reload(self) -> ReloadReport:
        try:
            source = await self._read()
            running = self._running()
            if source == (running.source, running.filter_source):
                return ReloadReport(changed=False)
            config, report = reloaded_config(running, source, self._path)
            warnings = await self._apply(config, (*report.added_topics, *report.changed_topics))
        except ConfigError as error:
            _log.error("server.ini is not loaded again, nothing has changed: %s", error)
            raise
        report = replace(report, needs_restart=_differing_keys(self._at_start, source.ini), warnings=tuple(warnings))
        _log.info("%s", report)
        return report

"""Read server.ini again while the broker runs, and apply the changes of settings that reload_plan.py finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred

from metaq.protocol.errors import MetaqError

from ..configuration.reload_plan import ReloadReport, reloaded_config
from ..configuration.server_ini import BrokerConfig
from ..configuration.sources import ConfigTexts
from ..filters.filter_table import load_filters
from .broker import Broker

__all__ = ["Reloader"]

_log = logging.getLogger(__name__)


class Reloader:
    """Loads server.ini again when an operator requests this. If several operators request it at once, the requests are
    served one after the other. Used only on the reactor thread.
    """

    def __init__(
        self,
        path: str,
        broker: Broker,
        read: Callable[[], Deferred[ConfigTexts]],
        use: Callable[[BrokerConfig], None],
        publish: Callable[[BrokerConfig, Sequence[str]], Deferred[list[str]]],
    ) -> None:
        """path: the path of server.ini, for messages to operators. read: reads server.ini and filters.ini; returns a
        Deferred that gives their present content or fails with ConfigError.

        use(config): called just before the broker and its store begin to use the new configuration. publish(config,
        topics): publishes the configuration's checksum and these topics in ZooKeeper; its Deferred gets a list of
        warnings.
        """
        self._path = path
        self._broker = broker
        self._read = read
        self._use = use
        self._publish = publish
        self._at_start = broker.config.source
        self._lock = DeferredLock()

    def reload(self) -> Deferred[ReloadReport]:
        """Load server.ini and filters.ini again. If this fails with ConfigError or DirectoryInUse, the broker continues
        with its old configuration.
        """
        deferred: Deferred[ReloadReport] = self._lock.run(lambda: ensureDeferred(self._reload()))
        return deferred

    async def _reload(self) -> ReloadReport:
        try:
            source = await self._read()
            running = self._broker.config
            if source == (running.source, running.filter_source):
                return ReloadReport(changed=False)
            parse = partial(reloaded_config, running, self._at_start, source, self._path)
            config, report, data_paths = await self._broker.in_thread(parse)
            self._broker.check_sections(config, self._path)
            await self._change(config)
        except MetaqError as error:
            _log.error("server.ini is not loaded again, nothing has changed: %s", error)
            raise
        warnings = self._broker.partitions.kept() + self._left_behind(data_paths)
        warnings += await self._publish(config, (*report.added_topics, *report.changed_topics))
        report = replace(report, warnings=tuple(warnings))
        _log.info("%s", report)
        return report

    async def _change(self, config: BrokerConfig) -> None:
        """Apply a new configuration. First let worker threads import the new filters and lock the new data directories;
        only these two steps can fail. Then do all remaining steps on the reactor thread without a pause, so that no
        request sees a half-applied configuration.
        """
        broker, store = self._broker, self._broker.store
        filters = await broker.in_thread(partial(load_filters, config, broker.reading.filters))
        new_paths = store.unknown_paths(config.data_paths)
        locks = await broker.in_thread(partial(store.lock_empty_paths, new_paths))
        store.adopt_paths(locks)
        self._use(config)
        broker.reconfigure(config, filters)

    def _left_behind(self, data_paths: Sequence[str]) -> list[str]:
        """Return a warning for each data directory that contains partitions and that server.ini no longer names."""
        unnamed = self._broker.store.unknown_paths(self._broker.store.data_paths, known=data_paths)
        return [
            f"{path} is in no dataPath any more: its partitions will not be served after a restart"
            for path in unnamed
            if self._broker.store.has_partitions(path)
        ]

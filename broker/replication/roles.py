"""What the plugin options make of a broker: which parts it runs, and what it registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed

from metaq.protocol.errors import ConfigError

from ..broker import Broker
from ..config import BrokerConfig
from ..sources import ConfigFiles
from .plugins import Plugins

if TYPE_CHECKING:
    from ..registration import Registration
    from .slave import AsyncSlave

__all__ = ["Roles", "check_roles"]


def check_roles(plugins: Plugins, config: BrokerConfig) -> None:
    """Raise ConfigError if server.ini does not allow what the plugins ask for."""
    if plugins.samsa is not None or plugins.gregor:
        raise ConfigError("-F", "samsa or gregor", "synchronous replication is not part of the broker yet")
    if plugins.metaslave is not None and not config.zookeeper.enabled:
        raise ConfigError("zk.zkEnable", "false", "a slave (-Fmetaslave) finds its master in ZooKeeper: set it to true")


class Roles:
    """Reactor thread. Made before the port listens, started when the broker is registered."""

    def __init__(self, plugins: Plugins, broker: Broker, config: BrokerConfig, files: ConfigFiles | None) -> None:
        self._plugins = plugins
        self._broker = broker
        self._files = files
        self._registration: Registration | None = None
        self._slave: AsyncSlave | None = None
        self.registers = config.zookeeper.enabled and not plugins.gregor
        """Whether the broker has nodes in ZooKeeper."""
        if plugins.metaslave is not None:
            broker.partitions.takes_puts = False

    @property
    def slave_id(self) -> int | None:
        """Of an asynchronous slave, else None."""
        return None if self._plugins.metaslave is None else self._plugins.metaslave.slave_id

    def start(self, registration: Registration | None) -> None:
        """The broker serves and is registered. registration: None if it registers nothing."""
        plugin = self._plugins.metaslave
        if plugin is None:
            return
        from .config_copy import ConfigCopy
        from .slave import AsyncSlave

        assert registration is not None  # check_roles
        self._registration = registration
        copy = None
        if plugin.sync_master_config and self._files is not None:
            copy = ConfigCopy(self._broker, self._files.ini, self._broker.reload_config)
        self._slave = AsyncSlave(self._broker, plugin, on_topics=self._register_topics, config_copy=copy)
        self._broker.replication = self._slave
        self._slave.start(registration.session)

    def stop(self) -> Deferred[None]:
        """Fires when nothing is copied any more."""
        return succeed(None) if self._slave is None else self._slave.stop()

    def _register_topics(self, topics: Mapping[str, int]) -> None:
        """Offer what the master offers, with its numbers of partitions, whatever the slave's own file says."""
        assert self._registration is not None
        for name, partitions in topics.items():
            config = self._broker.config.topic(name) or self._broker.config.system
            self._registration.add_topic(name, replace(config, name=name, partitions=partitions))

"""The role that the plugin options give to a broker: plain master, asynchronous slave, synchronous master or
synchronous slave. The role decides what the broker copies and what it registers in ZooKeeper.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import SLAVE_STATUS_TOPIC

from ..configuration.settings import SET_DIRECTORY, BrokerConfig
from ..configuration.sources import ConfigFiles
from .host import ReplicationHost
from .plugins import Plugins
from .status import SyncSlave

if TYPE_CHECKING:
    from ..partitions.registration import Registration
    from .slave import AsyncSlave
    from .sync_master import SyncMaster

__all__ = ["Roles", "check_roles", "config_for"]


def check_roles(plugins: Plugins, config: BrokerConfig) -> None:
    """Raise ConfigError if the settings in server.ini do not fit the plugins, or if a node of a broker set has plugins
    for replication.
    """
    if config.node is not None:
        _check_node(config.node, plugins, config)
    elif os.path.isdir(directory := os.path.join(config.data_paths[0], SET_DIRECTORY)):
        remedy = (
            f"belongs to a node of a broker set: start it with --node, or remove {directory} for a broker by itself, "
            "whose messages the other nodes will not have"
        )
        raise ConfigError("dataPath", config.data_paths[0], remedy)
    if config.zookeeper.enabled:
        return
    if plugins.metaslave is not None:
        raise ConfigError("zk.zkEnable", "false", "a slave (-Fmetaslave) finds its master in ZooKeeper: set it to true")
    if plugins.samsa is not None and plugins.samsa.recover_offset:
        raise ConfigError("zk.zkEnable", "false", "recoverOffset changes offsets in ZooKeeper: set it to true")


def _check_node(node: str, plugins: Plugins, config: BrokerConfig) -> None:
    if not config.zookeeper.enabled:
        remedy = (
            "the nodes of a broker set elect their leader in ZooKeeper: set zk.zkEnable to true, or leave --node out"
        )
        raise ConfigError("node", node, remedy)
    if plugins.metaslave is not None:
        remedy = "an asynchronous slave (-Fmetaslave) is no node of a broker set: leave --node or -Fmetaslave out"
        raise ConfigError("node", node, remedy)
    if plugins.samsa is not None or plugins.gregor:
        plugin = "gregor" if plugins.gregor else "samsa"
        remedy = f"a broker set replaces 1.x's synchronous slave: leave --node or -F{plugin} out"
        raise ConfigError("node", node, remedy)


def config_for(plugins: Plugins, config: BrokerConfig) -> BrokerConfig:
    """Return the broker's configuration, adapted to its role. The configuration of a synchronous slave gets an
    additional topic, to which its master sends probe messages.
    """
    if not plugins.gregor:
        return config
    probes = replace(config.system, name=SLAVE_STATUS_TOPIC, partitions=1)
    return replace(config, topics={**config.topics, SLAVE_STATUS_TOPIC: probes})


class Roles:
    """Creates, starts and stops the objects that do the copying for the broker's role. Used only on the reactor thread.
    The object is created before the port listens, and is started when the broker is registered.
    """

    def __init__(
        self, plugins: Plugins, broker: ReplicationHost, config: BrokerConfig, files: ConfigFiles | None
    ) -> None:
        self._plugins = plugins
        self._broker = broker
        self._files = files
        self._registration: Registration | None = None
        self._slave: AsyncSlave | None = None
        self._sync_master: SyncMaster | None = None
        self.registers = config.zookeeper.enabled and not plugins.gregor
        """Whether the broker registers itself in ZooKeeper."""
        if plugins.metaslave is not None:
            broker.partitions.takes_puts = False
        if plugins.samsa is not None:
            from .sync_master import SyncMaster

            # before the port listens, so that every message also goes to the slave
            master = SyncMaster(broker, plugins.samsa, unregister=self._unregister, register=self._register_again)
            self._sync_master = broker.writing.slave = broker.replication = master
        if plugins.gregor:
            broker.writing.takes_copies = True
            broker.replication = SyncSlave()

    @property
    def slave_id(self) -> int | None:
        """The id of an asynchronous slave, or None for other roles."""
        return None if self._plugins.metaslave is None else self._plugins.metaslave.slave_id

    async def before_registration(self) -> None:
        """Called before the broker registers in ZooKeeper. If it is a synchronous master, make a first attempt to
        connect to its slave.
        """
        if self._sync_master is not None:
            await self._sync_master.start()

    def start(self, registration: Registration | None) -> None:
        """Start copying, if this broker is an asynchronous slave. Called when the broker serves clients and is
        registered. registration: the broker's registration in ZooKeeper, or None if the broker registers nothing.
        """
        self._registration = registration
        plugin = self._plugins.metaslave
        if plugin is None:
            return
        from .config_copy import ConfigCopy
        from .slave import AsyncSlave

        assert registration is not None  # check_roles
        copy = None
        if plugin.sync_master_config and self._files is not None:
            copy = ConfigCopy(self._broker, self._files.ini, self._broker.reload_config)
        self._slave = AsyncSlave(self._broker, plugin, on_topics=self._register_topics, config_copy=copy)
        self._broker.replication = self._slave
        self._slave.start(registration.session)

    def stop(self) -> Deferred[None]:
        """Stop an asynchronous slave's copying; the Deferred fires when it has ended. This method does not stop a
        synchronous master, which must copy as long as it serves clients; `end` does that later.
        """
        return succeed(None) if self._slave is None else self._slave.stop()

    def end(self) -> None:
        """If this broker is a synchronous master, stop sending messages to its slave. Called when the broker no longer
        serves clients.
        """
        if self._sync_master is not None:
            self._sync_master.stop()

    def _register_topics(self, topics: Mapping[str, int]) -> None:
        """Register in ZooKeeper that this slave has the master's topics, each with as many partitions as the master
        has. The topics and numbers in the slave's own server.ini do not matter.
        """
        assert self._registration is not None
        for name, partitions in topics.items():
            config = self._broker.config.topic(name) or self._broker.config.system
            self._registration.add_topic(name, replace(config, name=name, partitions=partitions))

    async def _unregister(self) -> None:
        if self._registration is not None:
            await self._registration.withdraw()

    async def _register_again(self) -> None:
        if self._registration is not None:
            await self._registration.come_back(self._broker.port, self._broker.partitions.served_topics())

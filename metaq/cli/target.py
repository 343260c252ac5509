"""Which broker a command asks: --broker ID, found in ZooKeeper, or --server HOST:PORT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from metaq.client.config import ConnectionConfig
from metaq.client.connection import Connection, Endpoint, open_connection
from metaq.coordination.brokers import BrokerAddress, BrokerNodes
from metaq.protocol.errors import BrokerUnavailable, ConfigError

from .cluster import open_cluster
from .options import zk_option

__all__ = ["Target", "target_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Server(click.ParamType[Endpoint]):
    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Endpoint:
        if isinstance(value, Endpoint):
            return value
        host, _, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            self.fail(f"{value!r} is not an address: write host and port, like 127.0.0.1:8123", param, ctx)
        return Endpoint(host, int(port))


@dataclass(frozen=True)
class Target:
    """What the user named; `connected` finds it. server wins over ZooKeeper, which is then not asked."""

    zk: str
    broker: int | None
    slave: int | None
    server: Endpoint | None

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """An open connection. Raises BrokerUnavailable, ConfigError if it must be named which broker."""
        connection = open_connection(self.endpoint(), ConnectionConfig())
        try:
            yield connection
        finally:
            connection.close()

    def endpoint(self) -> Endpoint:
        """Where the broker listens."""
        if self.server is not None:
            return self.server
        with open_cluster(self.zk) as cluster:
            address = self._choose(cluster.view.brokers())
        return Endpoint(address.host, address.port)

    def _choose(self, brokers: dict[int, BrokerNodes]) -> BrokerAddress:
        if self.broker is None:
            addresses = [each for nodes in brokers.values() for each in (nodes.master, *nodes.slaves) if each]
        else:
            nodes = brokers.get(self.broker, BrokerNodes(None))
            addresses = [each for each in (nodes.master, *nodes.slaves) if each and each.slave_id == self.slave]
        if len(addresses) == 1:
            return addresses[0]
        known = ", ".join(map(_name, _addresses(brokers))) or "none"
        if not addresses:
            wanted = "" if self.broker is None else f"{self.broker}" + _slave(self.slave)
            raise BrokerUnavailable(f"broker {wanted} is not registered in ZooKeeper ({known} is): start it".strip())
        raise ConfigError("--broker", "", f"name one of those that are registered: {known}")


def _addresses(brokers: dict[int, BrokerNodes]) -> list[BrokerAddress]:
    return [each for nodes in brokers.values() for each in (nodes.master, *nodes.slaves) if each]


def _name(address: BrokerAddress) -> str:
    return f"{address.broker_id}{_slave(address.slave_id)}"


def _slave(slave_id: int | None) -> str:
    return "" if slave_id is None else f" (--slave {slave_id})"


def target_options(command: _F) -> _F:
    """Adds the options --broker, --slave, --server and --zk, handed over as one argument `target`."""

    def call(zk: str, broker: int | None, slave: int | None, server: Endpoint | None, **others: Any) -> Any:
        if slave is not None and broker is None:
            raise click.UsageError("--slave needs --broker, the id of its master")
        if server is not None and broker is not None:
            raise click.UsageError("--server and --broker both name a broker: leave one of them out")
        return command(target=Target(zk, broker, slave, server), **others)

    call.__doc__ = command.__doc__
    call.__name__ = command.__name__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--server", type=_Server(), help="Address of a broker; ZooKeeper is not asked."),
        click.option("--slave", type=click.IntRange(0), help="Id of a slave of that broker; default: its master."),
        click.option(
            "--broker", "-b", type=click.IntRange(0), help="Id of a registered broker; default: the only one."
        ),
        zk_option,
    ):
        call = option(call)
    return call  # type: ignore[return-value]

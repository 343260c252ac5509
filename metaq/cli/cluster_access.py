"""Connect a command to the cluster that `--zk` names, or to one broker, and report brokers that are not registered.

A command waits for ZooKeeper for at most `--zk-timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import click

from metaq.client.questions.cluster import Cluster
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint, open_connection
from metaq.client.transport.wire import UNIX, NoListener
from metaq.client.transport.zookeeper import zk_session
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import SetView
from metaq.protocol.errors import BrokerUnavailable, NoPartition

from .options import ZK_TIMEOUT_SECONDS, Parsed, with_options, zk_option
from .output import echo

__all__ = [
    "Target",
    "naming_topics",
    "open_cluster",
    "open_session",
    "server_address",
    "target_options",
    "tell_absent",
    "tell_empty",
    "zk_timeout",
]


def zk_timeout() -> float:
    """Return the maximum seconds to wait for the first connection to ZooKeeper. A user sets this number of seconds by
    the option --zk-timeout before the command's name.
    """
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.find_root().params.get("zk_timeout")
    return ZK_TIMEOUT_SECONDS if chosen is None else float(chosen)


def open_cluster(zk: str) -> Cluster:
    """Return a Cluster that is connected to ZooKeeper. zk: the connect string. Raises CoordinationUnavailable."""
    return Cluster(zk, start_timeout_seconds=zk_timeout())


@contextmanager
def open_session(zk: str) -> Iterator[ZkSession]:
    """Yield a ZooKeeper session, which is connected at the beginning of the `with` block and ends with the block. zk:
    the connect string. Raises CoordinationUnavailable, and ConfigError if the files of the user's profile cannot be
    used.
    """
    with closing(zk_session(zk)) as session:
        session.start(zk_timeout())
        yield session


@contextmanager
def naming_topics(zk: str, topic: str) -> Iterator[None]:
    """If the `with` block raises NoPartition because no broker publishes `topic`, add the name of the most similar
    existing topic to the error text.
    """
    try:
        yield
    except NoPartition:
        with open_cluster(zk) as cluster:
            cluster.partitions(topic)
        raise  # the topic exists now


def tell_absent(cluster: Cluster, how: str = "not shown") -> None:
    """Print on stderr which brokers are absent, that is, were registered earlier and are not registered now. how: words
    for this text that say what the command does with the data of these brokers, for example "not shown".
    """
    tell_empty(cluster)
    absent = ", ".join(map(str, cluster.view.absent_brokers(cluster.view.brokers())))
    if absent:
        echo(f"metaq: broker {absent} is not registered in ZooKeeper now; data that only it has is {how}", err=True)


def tell_empty(cluster: Cluster) -> None:
    """Print a warning on stderr if no broker is or ever was registered, because --zk may name a wrong chroot. Without
    the warning the user would see only an empty table, and would not notice this mistake.
    """
    if not cluster.view.broker_ids():
        echo(f"metaq: no broker is registered at {cluster.zookeeper}: start one, or name another --zk", err=True)


# --- one broker -------------------------------------------------------------------------------------------------------


def server_address(text: str) -> Endpoint:
    """Parse the value of --server: host and port, or `unix:` and the path of a Unix socket. Raises ValueError."""
    if text.startswith(UNIX) and text != UNIX:
        return Endpoint(text, 0)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not an address: write host and port, like 127.0.0.1:8123, or unix: and a path")
    return Endpoint(host, int(port))


@dataclass(frozen=True)
class Target:
    """The broker that the user has named by options. If the user has given its address (`server`), ZooKeeper is not
    used; otherwise `connected` finds the address in ZooKeeper.
    """

    zk: str
    broker: int | None
    slave: int | None
    server: Endpoint | None

    @contextmanager
    def connected(self, endpoint: Endpoint | None = None) -> Iterator[Connection]:
        """Yield an open connection. endpoint: the address, if the caller has already got it from `found`; with None
        this method finds the address itself.

        Raises BrokerUnavailable if the broker is not registered or cannot be reached. Raises UsageError if the user
        must name a broker and has not named one.
        """
        endpoint = endpoint or self.endpoint()
        try:
            connection = open_connection(endpoint, ConnectionConfig())
        except NoListener:  # its text has the remedy
            raise
        except BrokerUnavailable as error:
            remedy = "start the broker that listens there, or name another one"
            raise BrokerUnavailable(f"{error}: {remedy}") from error
        try:
            yield connection
        finally:
            connection.close()

    def endpoint(self) -> Endpoint:
        """Return the broker's address."""
        return self.found()[0]

    def found(self) -> tuple[Endpoint, tuple[int, SetView] | None]:
        """Return two values: the broker's address, and the id and the view of the broker set that the broker leads. The
        second value is None if the broker leads no set. With --server the second value is always None.
        """
        if self.server is not None:
            return self.server, None
        with open_cluster(self.zk) as cluster:
            address = self._choose(cluster.view.brokers())
            view = cluster.sets().get(address.broker_id) if address.slave_id is None else None
        found = (address.broker_id, view) if view is not None and view.nodes else None
        return Endpoint(address.host, address.port), found

    def _choose(self, brokers: dict[int, BrokerNodes]) -> BrokerAddress:
        if self.broker is None:
            addresses = [each for nodes in brokers.values() for each in (nodes.master, *nodes.slaves) if each]
        else:
            nodes = brokers.get(self.broker, BrokerNodes(None))
            addresses = [each for each in (nodes.master, *nodes.slaves) if each and each.slave_id == self.slave]
        if len(addresses) == 1:
            return addresses[0]
        known = list(map(_name, _addresses(brokers)))
        if not known:
            raise BrokerUnavailable("no broker is registered in ZooKeeper: start one, or name another --zk")
        if not addresses:
            wanted = f"broker {self.broker}{_slave(self.slave)}"
            raise BrokerUnavailable(f"{wanted} is not registered in ZooKeeper (registered: {', '.join(known)})")
        raise click.UsageError(
            f"--broker is missing: choose {' or '.join(known)}", click.get_current_context(silent=True)
        )


def _addresses(brokers: dict[int, BrokerNodes]) -> list[BrokerAddress]:
    return [each for nodes in brokers.values() for each in (nodes.master, *nodes.slaves) if each]


def _name(address: BrokerAddress) -> str:
    return f"{address.broker_id}{_slave(address.slave_id)}"


def _slave(slave_id: int | None) -> str:
    return "" if slave_id is None else f" (--slave {slave_id})"


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --broker, --slave, --server and --zk to a command. The command receives their values as one
    argument `target`.
    """

    def call(zk: str, broker: int | None, slave: int | None, server: Endpoint | None, **others: Any) -> Any:
        if slave is not None and broker is None:
            raise click.UsageError("--slave needs --broker, the id of its master")
        if server is not None and broker is not None:
            raise click.UsageError("--server and --broker both name a broker: leave one of them out")
        return command(target=Target(zk, broker, slave, server), **others)

    return with_options(
        call,
        command,
        zk_option,
        click.option(
            "--broker", "-b", type=click.IntRange(0), help="Id of a registered broker; default: the only one."
        ),
        click.option("--slave", type=click.IntRange(0), help="Id of a slave of that broker; default: its master."),
        click.option(
            "--server",
            type=Parsed("HOST:PORT", server_address),
            help="Address of a broker, or unix:PATH of its Unix socket; ZooKeeper is not asked.",
        ),
    )

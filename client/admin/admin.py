"""The class `Admin`: administer a cluster from a program."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from metaq.coordination.runtime.interrupts import begin_elsewhere

from ..browsing.dead_letters import DeadLetters
from ..questions.cluster import Cluster
from ..runtime.durations import Duration, check_wait
from ..runtime.unclosed import Closing
from ..settings.config import ConnectionConfig, config_or_default
from .broker_admin import BrokerAdmin
from .delayed_admin import DelayedAdmin
from .group_admin import GroupAdmin
from .offset_admin import OffsetAdmin
from .topic_admin import TopicAdmin

__all__ = ["Admin"]


class Admin(Closing):
    """Administers a cluster, as the program `metaq` does from the command line. Use it as a context manager:

        with Admin("localhost:2181") as admin:
            for each in admin.groups.describe("audit").partitions:
                print(each.partition, each.lag_messages)

    Only one thread may use an Admin at a time. It has one ZooKeeper session, and one connection for each broker that it
    has asked. All calls raise CoordinationUnavailable if ZooKeeper does not answer.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        root: str = "/meta",
        start_timeout_seconds: Duration = 15.0,
        config: ConnectionConfig | None = None,
    ) -> None:
        """connect: the addresses of the ZooKeeper servers, `host:port,host:port/chroot`. root: the path of metaq's
        nodes below the chroot. start_timeout_seconds: how long to wait for the connection to ZooKeeper. Raises
        ConfigError, CoordinationUnavailable.
        """
        self._connect, self._root, self._start_timeout_seconds = connect, root, start_timeout_seconds
        self._config = config_or_default(config, ConnectionConfig)
        self._cluster = Cluster(
            connect, root=root, start_timeout_seconds=start_timeout_seconds, config=self._config, starts=False
        )
        self.brokers = BrokerAdmin(self._cluster)
        """The calls about brokers: `list`, `describe`."""
        self.topics = TopicAdmin(self._cluster)
        """The calls about topics: `list`, `describe`."""
        self.groups = GroupAdmin(self._cluster)
        """The calls about consumer groups: `list`, `describe`, `seek`, `delete`, `delete_offsets`."""
        self.offsets = OffsetAdmin(self._cluster)
        """The calls about committed offsets: `list`, `copy`, `skip`."""
        self.delayed = DelayedAdmin(self._cluster)
        """The calls about delayed messages: `count`, `list`, `cancel`."""
        try:
            self._cluster.start()
            self._opened()
        except BaseException:
            begin_elsewhere((self._cluster.close,))
            raise

    def dead_letters(self, group: str) -> DeadLetters:
        """Return an object that reads, redrives and drops the dead letters of a group. It has connections of its own,
        so close it, for example by `with admin.dead_letters("audit") as letters`.
        """
        return DeadLetters(
            self._connect,
            group=group,
            root=self._root,
            start_timeout_seconds=self._start_timeout_seconds,
            config=self._config,
        )

    def close(self, timeout: Duration = 10.0) -> None:
        """End the ZooKeeper session and all connections. This takes at most `timeout` seconds plus END_SECONDS, even if
        ZooKeeper or a broker does not answer. Further calls do nothing.
        """
        seconds = check_wait("timeout", timeout)
        self._closes()
        self._cluster.close(seconds)

    def __repr__(self) -> str:
        return f"<Admin of {self._cluster.zookeeper}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

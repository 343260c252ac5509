"""The demo's consumer group: member processes, and what ZooKeeper says about owners of partitions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metaq.client.questions.cluster import Cluster
from metaq.protocol.errors import RequestTimedOut

from ..servers import Child, stop_all, wait_until
from .delivery import ROW, History, read_history

__all__ = ["ConsumerGroup", "GroupSettings", "Member", "Rebalance"]

STOP_SECONDS = 20.0
WATCH_SECONDS = 0.02
"""How often ZooKeeper is asked for the owners while a rebalance is measured."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """rate: messages a second that each member takes at most. session_seconds: ZooKeeper session timeout of members."""

    zookeeper: str
    group: str
    topic: str
    directory: Path
    rate: int
    session_seconds: float


@dataclass(frozen=True, slots=True)
class Rebalance:
    """From its cause to the moment when every partition had a live owner and every live member a share."""

    cause: str
    seconds: float
    owned: Mapping[str, list[str]] = field(default_factory=dict)
    """Partition names by member."""


class Member:
    """One consumer process and its history."""

    def __init__(self, settings: GroupSettings, name: str) -> None:
        self.name = name
        self.history_file = settings.directory / f"{name}.rows"
        self.history_file.touch()
        arguments = (
            settings.zookeeper,
            settings.group,
            settings.topic,
            name,
            str(self.history_file),
            str(settings.rate),
            str(settings.session_seconds),
        )
        log = settings.directory / f"{name}.log"
        self.process = Child(f"consumer {name}", arguments, log, module="metaq.cli.demo.consumer")

    @property
    def received(self) -> int:
        """Messages written to its history so far."""
        return self.history_file.stat().st_size // ROW.itemsize

    def history(self) -> History:
        return read_history(self.history_file)


class ConsumerGroup:
    """Starts, kills and stops members; main thread only. `cluster` tells which member owns what."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._partitions = len(cluster.partitions(settings.topic))
        self.members: list[Member] = []
        self.live: list[Member] = []

    @property
    def received(self) -> int:
        """Messages in all histories, duplicates included."""
        return sum(member.received for member in self.members)

    def start(self, *names: str) -> None:
        """Start a process for each name."""
        started = [Member(self._settings, name) for name in names]
        self.members += started
        self.live += started

    def kill(self, name: str) -> None:
        """End a member by SIGKILL: it leaves the group without a word."""
        member = next(each for each in self.live if each.name == name)
        self.live.remove(member)
        member.process.kill()

    def stop(self) -> None:
        """Have all live members commit and leave."""
        stop_all([member.process for member in self.live], STOP_SECONDS)
        self.live.clear()

    def check(self) -> None:
        """Raise BrokerUnavailable naming a member that has ended by itself."""
        for member in self.live:
            member.process.check()

    def wait_for(self, received: float, timeout: float, tick: Callable[[], None]) -> None:
        """Wait until that many messages were received by all members together. Raises RequestTimedOut."""

        def enough() -> bool:
            tick()
            self.check()
            return self.received >= received

        if not wait_until(enough, time.monotonic() + timeout, WATCH_SECONDS):
            raise RequestTimedOut(
                f"the group received {self.received:,} messages in {timeout:.0f} s, not {received:,.0f}"
            )

    def rebalanced(self, cause: str, since: float, deadline: float, tick: Callable[[], None]) -> Rebalance:
        """Wait until the live members share all partitions; `since` is when the cause happened (monotonic seconds).

        tick is called all the while. Raises RequestTimedOut at `deadline` (monotonic seconds).
        """

        def shared() -> bool:
            tick()
            self.check()
            owned = self.owned()
            return set(owned) == {member.name for member in self.live} and self._all_owned(owned)

        if not wait_until(shared, deadline, WATCH_SECONDS):
            raise RequestTimedOut(f"{cause}: the group did not share all partitions in time, it owns {self.owned()}")
        return Rebalance(cause, time.monotonic() - since, self.owned())

    def _all_owned(self, owned: Mapping[str, list[str]]) -> bool:
        return sum(map(len, owned.values())) == self._partitions

    def owned(self) -> dict[str, list[str]]:
        """Partition names by member name, as the owner nodes in ZooKeeper say now."""
        names = defaultdict(list)
        for partition, consumer in self._cluster.owners(self._settings.group, self._settings.topic).items():
            names[self._member_name(consumer)].append(partition)
        return dict(sorted(names.items()))

    def _member_name(self, consumer: str) -> str:
        """1.x puts the group in front of a configured consumer id: `<group>_<id>`."""
        return consumer.removeprefix(f"{self._settings.group}_")

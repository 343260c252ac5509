"""The consumer group of the demo: start and stop its member processes, and read the owners of partitions from
ZooKeeper.

Each member process runs the function `main` of this module. A member handles messages at a limited rate, as if each
message needed real work. Because of this limit, the topic still has messages that the group has not read when another
member joins and when a member is killed. Each member writes the messages that it receives to a file, its history.
"""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from metaq import Consumer, ConsumerConfig, Message
from metaq.client.questions.cluster import Cluster
from metaq.protocol.errors import RequestTimedOut

from ..servers import Child, stop_all, wait_until
from .delivery import ROW, History, empty_history, read_history

__all__ = ["ConsumerGroup", "GroupSettings", "Member", "Rebalance", "main"]

STOP_SECONDS = 20.0
POLL_MESSAGES = 500
POLL_SECONDS = 0.25
COMMIT_SECONDS = 1.0
WATCH_SECONDS = 0.02
"""While the demo measures a rebalance, it reads the owners of the partitions from ZooKeeper at this interval, in
seconds.
"""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of the group's members. rate: maximum number of messages that each member handles per second.
    session_seconds: the ZooKeeper session timeout of the members.
    """

    zookeeper: str
    group: str
    topic: str
    directory: Path
    rate: int
    session_seconds: float


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A rebalance of the group. The rebalance begins when a member joins or is killed. It ends when every partition has
    a live owner and every live member owns a partition.
    """

    cause: str
    seconds: float
    owned: Mapping[str, list[str]] = field(default_factory=dict)
    """The names of the partitions that each member owns, by the member's name."""


class Member:
    """One consumer process of the group, and the file of the messages that it has received (its history)."""

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
        self.process = Child(f"consumer {name}", arguments, log, module="metaq.cli.demo.group")

    @property
    def received(self) -> int:
        """Number of messages that the member has written to its history so far."""
        return self.history_file.stat().st_size // ROW.itemsize

    def history(self) -> History:
        return read_history(self.history_file)


class ConsumerGroup:
    """Starts, kills and stops the member processes, and reads the owners of partitions from `cluster`. This object may
    be used only by the main thread.
    """

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._partitions = len(cluster.partitions(settings.topic))
        self.members: list[Member] = []
        self.live: list[Member] = []

    @property
    def received(self) -> int:
        """Number of messages in the histories of all members, duplicates included."""
        return sum(member.received for member in self.members)

    def start(self, *names: str) -> None:
        """Start a member process for each name."""
        started = [Member(self._settings, name) for name in names]
        self.members += started
        self.live += started

    def kill(self, name: str) -> None:
        """End a member by SIGKILL, so that it leaves the group without notice."""
        member = next(each for each in self.live if each.name == name)
        self.live.remove(member)
        member.process.kill()

    def stop(self) -> None:
        """Make all live members commit their offsets and leave the group."""
        stop_all([member.process for member in self.live], STOP_SECONDS)
        self.live.clear()

    def check(self) -> None:
        """Raise BrokerUnavailable, which names the member, if a member has ended by itself."""
        for member in self.live:
            member.process.check()

    def wait_for(self, received: float, timeout: float, tick: Callable[[], None]) -> None:
        """Wait until all members together have received `received` messages. Raises RequestTimedOut if this takes
        longer than `timeout` seconds.
        """

        def enough() -> bool:
            tick()
            self.check()
            return self.received >= received

        if not wait_until(enough, time.monotonic() + timeout, WATCH_SECONDS):
            raise RequestTimedOut(
                f"the group received {self.received:,} messages in {timeout:.0f} s, not {received:,.0f}"
            )

    def rebalanced(self, cause: str, since: float, deadline: float, tick: Callable[[], None]) -> Rebalance:
        """Wait until every partition has a live owner and every live member owns a partition. Return a Rebalance with
        the seconds from `since` until then. cause: a text that says which member has joined or was killed. since: when
        this happened (monotonic seconds).

        tick: called repeatedly while waiting. Raises RequestTimedOut at `deadline` (monotonic seconds).
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
        """Return the names of the partitions that each member owns now according to the owner znodes in ZooKeeper, by
        member name.
        """
        names = defaultdict(list)
        for partition, consumer in self._cluster.owners(self._settings.group, self._settings.topic).items():
            names[self._member_name(consumer)].append(partition)
        return dict(sorted(names.items()))

    def _member_name(self, consumer: str) -> str:
        """Return the name of a member from its consumer id in ZooKeeper, which has the form `<group>_<name>`, as in
        1.x.
        """
        return consumer.removeprefix(f"{self._settings.group}_")


# --- in a member process ----------------------------------------------------------------------------------------------


class Throttle:
    """Limits the work of a member to `rate` messages per second. After a time in which the member had no messages, it
    does not work faster than `rate` to catch up.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds_each = 1.0 / rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def worked(self, messages: int) -> None:
        """Record that the member has handled `messages` more messages. Then sleep until the time at which a member that
        handles `rate` messages per second would have finished them.
        """
        now = self._clock()
        self._free_at = max(self._free_at, now - self._seconds_each) + messages * self._seconds_each
        if self._free_at > now:
            self._sleep(self._free_at - now)


def history_of(messages: Sequence[Message], time_ns: int) -> History:
    """Return one row of a member's history for each of `messages`, which one poll has returned. time_ns: the time of
    this poll.
    """
    rows = empty_history(len(messages))
    rows["time_ns"] = time_ns
    rows["sequence"] = [json.loads(message.payload)["sequence"] for message in messages]
    rows["offset"] = [message.offset for message in messages]
    rows["broker"] = [message.partition.broker for message in messages]
    rows["partition"] = [message.partition.partition for message in messages]
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run a member of the group until SIGTERM. The arguments are ZOOKEEPER GROUP TOPIC CONSUMER_ID HISTORY_FILE RATE
    SESSION_SECONDS.
    """
    zookeeper, group, topic, consumer_id, history, rate, session_seconds = arguments
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    config = ConsumerConfig(
        auto_commit_seconds=COMMIT_SECONDS, session_timeout_seconds=float(session_seconds), consumer_id=consumer_id
    )
    throttle = Throttle(float(rate))
    with (
        Path(history).open("ab", buffering=0) as rows,
        Consumer(zookeeper, group=group, topics=[topic], start="earliest", config=config) as consumer,
    ):
        while not stopping:
            receive(consumer, rows, throttle)


def receive(consumer: Consumer, rows: BinaryIO, throttle: Throttle) -> None:
    """Poll the consumer once, and write the received messages to the history. The messages must be in the history
    before the next poll, because the consumer may commit their offsets from the next poll on.
    """
    messages = consumer.poll(max_messages=POLL_MESSAGES, timeout=POLL_SECONDS)
    if messages:
        rows.write(history_of(messages, time.monotonic_ns()).tobytes())
        throttle.worked(len(messages))

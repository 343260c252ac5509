"""Applications of the original Java client beside a run: a producer, members of a group, and what they wrote down.

Each is a JVM of its own. The producer's threads send one message after the other and never one again, the members write
down what they are handed (tests/java, SendingThread and Journal). The facts are judged by `judge`.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.javapeer import CUT_OFF_SECONDS
from metaq.client.questions.cluster import Cluster
from metaq.coordination.records.payloads import format_broker_url
from tests.history import checkers
from tests.history.facts import Call, Delivery, History, Name, Owner, Send, Stored
from tests.history.reading import stored_in
from tests.kills.children import wait_until
from tests.kills.journal import clock
from tests.kills.outcome import Problem
from tests.soak.members import Group, JavaConsumer, JavaProducer

__all__ = ["TOPIC", "TOPICS", "Findings", "JavaClients", "judge", "judge_java"]

TOPIC = "java"
TOPICS = {TOPIC: "numPartitions=2\nack=in-sync"}
GROUP = "java-group"
_THREADS = ("java0", "java1", "java2")
_PAUSE = 0.015
_LOOK_SECONDS = 0.2
_TAIL_BYTES = 4096
_NUMBERS = re.compile("[0-9]+")
_REASON_CHARACTERS = 60


class JavaClients(Group):
    """Use as a context manager. One thread. members: by name."""

    def __init__(self, connect: str, directory: Path) -> None:
        super().__init__(connect, GROUP, TOPIC, directory / "java")
        self.members: dict[str, JavaConsumer] = {}
        self.started_again: list[str] = []
        """Members that had closed their connection to a broker for good, of which they own partitions."""
        self.producer_cut_off = 0
        """How often members got nothing because the producer had closed its connection to their broker for good."""
        self._closed = 0
        self._ending = ExitStack()

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def send(self) -> None:
        """Have the producer send until finish()."""
        self._producer = JavaProducer(self, _PAUSE, _THREADS)
        self._ending.callback(self._producer.kill)

    def join(self) -> None:
        """One more member of the group."""
        name = f"member{len(self.members)}"
        self.members[name] = JavaConsumer(self, name)
        self.members[name].start()
        self._ending.callback(self.members[name].kill)

    def wait_until_all_receive(self, seconds: float) -> list[str]:
        """Until each member has been handed a message that was sent after this call; those that were not, with the
        owners of the partitions and what became of the sends meanwhile.

        A member that has no connection to a broker of which it owns partitions is started again: at each rebalance the
        Java client may close its connections for good (docs/migrating.md), with brokers of either kind. The producer's
        comes back at the next change of the brokers. Until then the members of that broker get nothing: counted.
        """
        closed_before, self._closed = self._closed, self._closed_for_good()
        attempts = self.sends()
        sent = Counter(each.name.producer for each in attempts)

        def silent() -> list[str]:
            return [name for name, member in self.members.items() if not self._has_newer(member, sent)]

        end = time.monotonic() + seconds
        while not wait_until(lambda: not silent(), CUT_OFF_SECONDS, _LOOK_SECONDS) and time.monotonic() < end:
            self._start_cut_off_again(silent())
        if not (found := silent()):
            return []
        if self._closed_for_good() > closed_before:
            self.producer_cut_off += 1
            return []
        with Cluster(self.zookeeper) as cluster:
            owners = cluster.owners(GROUP, TOPIC)
        outcomes = Counter(each.ack.partition if each.ack else each.error for each in self.sends()[len(attempts) :])
        return [f"{name} (owners: {owners}; sends: {dict(outcomes)})" for name in found]

    def _closed_for_good(self) -> int:
        """How many new connections the producer's client has closed because it took the former ones for open."""
        log = (self.directory / "java.log").read_text(errors="replace")
        return sum("GeckoHandler" in line and "超过设定值" in line for line in log.splitlines())

    def _start_cut_off_again(self, names: Iterable[str]) -> None:
        """As a process of its own: a consumer that is shut down in the middle of a rebalance stays in its group."""
        for name in names:
            if self._is_cut_off(member := self.members[name]):
                member.stop()
                member.start()
                self.started_again.append(name)

    def _is_cut_off(self, member: JavaConsumer) -> bool:
        with Cluster(self.zookeeper) as cluster:
            brokers = cluster.view.brokers()
            owned = [place for place, owner in cluster.owners(GROUP, TOPIC).items() if owner == member.owner]
        masters = [brokers[int(place.partition("-")[0])].master for place in owned]
        urls = [format_broker_url(master.host, master.port).decode() for master in masters if master is not None]
        return any(member.connections(url) == 0 for url in urls)

    def _has_newer(self, member: JavaConsumer, sent: Mapping[str, int]) -> bool:
        """sent: messages of each thread; the one under way has the next number."""
        if not member.journal().exists():
            return False
        lines = member.journal().read_bytes()[-_TAIL_BYTES:].splitlines(keepends=True)[1:]
        names = [Name.parse(json.loads(line)[-1]) for line in lines if line.endswith(b"\n")]
        return any(name.number > sent[name.producer] for name in names)

    def finish(self, seconds: float) -> None:
        """Stop sending, have the group receive everything, and leave. seconds: see wait_until_received()."""
        self._producer.close()
        self.wait_until_received({each.name for each in self.acks()}, seconds)
        for member in self.members.values():
            member.stop()

    def wait_until_received(self, names: set[Name], seconds: float) -> None:
        """Until the group was handed all of these, or nothing new for so many seconds; before that members that are cut
        off are started again, as in wait_until_all_receive()."""
        moved, count, looked = clock(), -1, False
        while names - (seen := {each.place.name for each in self.deliveries({})}) and clock() - moved < seconds:
            if len(seen) != count:
                count, moved, looked = len(seen), clock(), False
            elif not looked and clock() - moved > CUT_OFF_SECONDS:
                looked = True
                self._start_cut_off_again(self.members)
            time.sleep(1.0)


@dataclass(frozen=True, slots=True)
class Findings:
    """problems: what the product is to blame for. acknowledged: sends. repeated: messages that were acknowledged, and
    that the client has sent more than once by itself. kept: sends that failed for the application and are stored.
    reasons: why sends failed, and how often."""

    problems: list[Problem]
    acknowledged: int
    repeated: int
    kept: int
    reasons: Mapping[str, int]


def judge(attempts: Sequence[Send], stored: Mapping[str, Sequence[Stored]], deliveries: Sequence[Delivery]) -> Findings:
    """What was sent, what is stored, and what the group was handed, compared: `lost` and `false` as in
    tests.history.checkers; acknowledged, and handed to nobody; stored, and sent by nobody."""
    acks = [each.ack for each in attempts if each.ack is not None]
    owners = [
        Owner(GROUP, each.member, each.partition, each.time, calls=[Call(each.time, each.time, [each.place])])
        for each in deliveries
    ]
    history = History({name: list(records) for name, records in stored.items()}, acks, owners)
    there = Counter(record.name for records in stored.values() for record in records)
    handed = {each.place.name for each in deliveries}
    failed = {each.name for each in attempts if each.ack is None}
    problems = [*checkers.lost(history), *checkers.false(history)]
    problems += [
        Problem("unseen", f"{each.name} was acknowledged", each.partition) for each in acks if each.name not in handed
    ]
    unsent = there.keys() - {each.name for each in attempts}
    problems += [Problem("unsent", f"{name} is stored, and was never sent") for name in sorted(unsent)]
    return Findings(
        problems,
        len(acks),
        sum(count > 1 for name, count in there.items() if name not in failed),
        sum(name in there for name in failed),
        Counter(_NUMBERS.sub("…", each.error)[:_REASON_CHARACTERS] for each in attempts if each.ack is None),
    )


def judge_java(clients: JavaClients, logs: Mapping[str, bytes]) -> Findings:
    """After finish(). logs: by "<topic> <partition>"."""
    stored = stored_in(logs, [TOPIC])
    return judge(clients.sends(), stored, clients.deliveries(stored))

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

from bench.javapeer import CUT_OFF_SECONDS, JavaClient
from metaq.client.questions.cluster import Cluster
from metaq.coordination.records import format_broker_url
from tests.history import checkers
from tests.history.facts import Call, Delivery, History, Name, Owner, Send, Stored
from tests.history.reading import deliveries_in, sends_in, stored_in
from tests.kills.children import wait_until
from tests.kills.journal import clock, read_journal
from tests.kills.outcome import Problem

__all__ = ["TOPIC", "TOPICS", "Findings", "JavaClients", "judge", "judge_java"]

TOPIC = "java"
TOPICS = {TOPIC: "numPartitions=2\nack=in-sync"}
GROUP = "java-group"
_THREADS = 3
_PAUSE_MS = 15
_GONE_SECONDS = 20.0
"""The session of a process that had to be killed lasts 6 s."""
_LOOK_SECONDS = 0.2
_TAIL_BYTES = 4096
_NUMBERS = re.compile("[0-9]+")
_REASON_CHARACTERS = 60


class JavaClients:
    """Use as a context manager. One thread."""

    def __init__(self, connect: str, directory: Path) -> None:
        self._connect = connect
        self._directory = directory
        self._producer: JavaClient | None = None
        self._members: dict[str, JavaClient] = {}
        self.started_again: list[str] = []
        """Members that had closed their connection to a broker for good, of which they own partitions."""
        self._ending = ExitStack()

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def members(self) -> Sequence[str]:
        return list(self._members)

    def _client(self, name: str) -> JavaClient:
        home = self._directory / name  # the client keeps offsets and messages there
        home.mkdir()
        return self._ending.enter_context(JavaClient(self._connect, home / "log"))

    def send(self) -> None:
        """Have the producer send until stop_sending()."""
        self._producer = self._client("producer")
        for name in self._threads():
            self._producer.call("attempt", TOPIC, name, self._directory / f"{name}.attempts", _PAUSE_MS)

    def stop_sending(self) -> None:
        """Every send has its outcome when this returns."""
        assert self._producer is not None
        for name in self._threads():
            self._producer.call("give_up", name)

    def join(self) -> None:
        """One more member of the group."""
        name = f"member{len(self._members)}"
        self._members[name] = self._client(name)
        self._follow(name)

    def _follow(self, name: str) -> None:
        self._members[name].call("follow", TOPIC, GROUP, name, self._path(name))

    def leave(self) -> None:
        """All members leave the group."""
        for member in self._members.values():
            member.call("unfollow", GROUP)

    def _threads(self) -> list[str]:
        return [f"j{number}" for number in range(_THREADS)]

    def _path(self, member: str) -> Path:
        return self._directory / f"{member}.deliveries"

    def attempts(self) -> list[Send]:
        """All sends that have ended, in that order."""
        paths = [self._directory / f"{name}.attempts" for name in self._threads()]
        return sorted((each for path in paths for each in sends_in(read_journal(path))), key=lambda each: each.time)

    def deliveries(self, stored: Mapping[str, Sequence[Stored]]) -> list[Delivery]:
        """In the order in which each member got them. stored: where the places of messages are looked up."""
        log = [each for records in stored.values() for each in records]
        return [each for name in self._members for each in deliveries_in(read_journal(self._path(name)), name, log)]

    def wait_until_all_receive(self, seconds: float) -> list[str]:
        """Until each member has been handed a message that was sent after this call; those that were not, with the
        owners of the partitions and what became of the sends meanwhile.

        A member that has no connection to a broker of which it owns partitions is started again: at each rebalance the
        Java client may close its connections for good (docs/migrating.md), with brokers of either kind.
        """
        attempts = self.attempts()
        sent = Counter(each.name.producer for each in attempts)

        def silent() -> list[str]:
            return [name for name in self._members if not self._has_newer(name, sent)]

        end = time.monotonic() + seconds
        while not wait_until(lambda: not silent(), CUT_OFF_SECONDS, _LOOK_SECONDS) and time.monotonic() < end:
            self._start_cut_off_again(silent())
        if not (found := silent()):
            return []
        with Cluster(self._connect) as cluster:
            owners = cluster.owners(GROUP, TOPIC)
        outcomes = Counter(each.ack.partition if each.ack else each.error for each in self.attempts()[len(attempts) :])
        return [f"{name} (owners: {owners}; sends: {dict(outcomes)})" for name in found]

    def _start_cut_off_again(self, names: Iterable[str]) -> None:
        for name in names:
            if self._is_cut_off(name):
                self._start_again(name)

    def _start_again(self, name: str) -> None:
        """As a process of its own: a consumer that is shut down in the middle of a rebalance stays in its group."""
        self._members[name].restart()
        with Cluster(self._connect) as cluster:  # a znode of the former session would take the new member with it
            gone = wait_until(lambda: f"{GROUP}_{name}" not in cluster.members(GROUP), _GONE_SECONDS, _LOOK_SECONDS)
        assert gone, f"{name} is in its group {_GONE_SECONDS:.0f} s after its end"
        self._follow(name)
        self.started_again.append(name)

    def _is_cut_off(self, name: str) -> bool:
        with Cluster(self._connect) as cluster:
            brokers = cluster.view.brokers()
            owned = [place for place, owner in cluster.owners(GROUP, TOPIC).items() if owner == f"{GROUP}_{name}"]
        masters = [brokers[int(place.partition("-")[0])].master for place in owned]
        urls = [format_broker_url(master.host, master.port).decode() for master in masters if master is not None]
        return any(self._members[name].connections(url) == 0 for url in urls)

    def _has_newer(self, member: str, sent: Mapping[str, int]) -> bool:
        """sent: messages of each thread; the one under way has the next number."""
        path = self._path(member)
        if not path.exists():
            return False
        lines = path.read_bytes()[-_TAIL_BYTES:].splitlines(keepends=True)[1:]
        names = [Name.parse(json.loads(line)[-1]) for line in lines if line.endswith(b"\n")]
        return any(name.number > sent[name.producer] for name in names)

    def finish(self, seconds: float) -> None:
        """Stop sending, have the group receive everything, and leave. seconds: see wait_until_received()."""
        self.stop_sending()
        self.wait_until_received({each.name for each in self.attempts() if each.ack is not None}, seconds)
        self.leave()

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
    return judge(clients.attempts(), stored, clients.deliveries(stored))

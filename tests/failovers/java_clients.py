"""Applications of the original Java client beside a run: a producer, members of a group, and what they wrote down.

Each is a JVM of its own. The producer's threads send one message after the other and never one again (Attempts.java);
the members write down what they are handed (Journal.java). The facts are judged by `judge`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.javapeer import CUT_OFF_SECONDS, JavaClient
from metaq.client.questions.cluster import Cluster
from metaq.coordination.records import format_broker_url
from metaq.protocol.record import HEADER_BYTES, iter_headers
from tests.kills.children import wait_until
from tests.kills.journal import clock, read_journal
from tests.soak.history import read_journal as read_deliveries

__all__ = [
    "TOPIC",
    "TOPICS",
    "Attempt",
    "Delivery",
    "Findings",
    "JavaClients",
    "Record",
    "judge",
    "judge_java",
    "records_in",
]

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


class Attempt(NamedTuple):
    """A send. text: "<thread> <number>". partition: "<broker>-<number>", "" if it failed; reason: why it did."""

    begun: float
    ended: float
    text: str
    partition: str
    offset: int
    id: int
    reason: str

    @property
    def is_acknowledged(self) -> bool:
        return bool(self.partition)


class Delivery(NamedTuple):
    """A message that a member was handed; time: of the monotonic clock."""

    time: float
    member: str
    partition: str
    id: int
    text: str


class Record(NamedTuple):
    """A message as it lies in a partition in the end."""

    partition: str
    offset: int
    id: int
    text: str


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

    def attempts(self) -> list[Attempt]:
        """All sends that have ended, in that order."""
        found = [
            _attempt(line) for name in self._threads() for line in read_journal(self._directory / f"{name}.attempts")
        ]
        return sorted(found, key=lambda each: each.ended)

    def deliveries(self) -> list[Delivery]:
        """In the order in which each member got them."""
        behind = time.time() - clock()
        return [
            Delivery(line.time - behind, name, line.partition, line.message_id, f"{line.producer} {line.number}")
            for name in self._members
            for line in read_deliveries(self._path(name))
        ]

    def wait_until_all_receive(self, seconds: float) -> list[str]:
        """Until each member has been handed a message that was sent after this call; those that were not, with the
        owners of the partitions and what became of the sends meanwhile.

        A member that has no connection to a broker of which it owns partitions is started again: at each rebalance the
        Java client may close its connections for good (docs/migrating.md), with brokers of either kind.
        """
        attempts = self.attempts()
        sent = Counter(each.text.partition(" ")[0] for each in attempts)

        def silent() -> list[str]:
            return [name for name in self._members if not self._has_newer(name, sent)]

        end = time.monotonic() + seconds
        while not wait_until(lambda: not silent(), CUT_OFF_SECONDS, _LOOK_SECONDS) and time.monotonic() < end:
            self._start_cut_off_again(silent())
        if not (found := silent()):
            return []
        with Cluster(self._connect) as cluster:
            owners = cluster.owners(GROUP, TOPIC)
        outcomes = Counter(each.partition or each.reason for each in self.attempts()[len(attempts) :])
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
        words = [line.decode("ascii").split() for line in lines if line.endswith(b"\n")]
        return any(int(number) > sent[thread] for *_, thread, number in words)

    def finish(self, seconds: float) -> None:
        """Stop sending, have the group receive everything, and leave. seconds: see wait_until_received()."""
        self.stop_sending()
        self.wait_until_received({each.text for each in self.attempts() if each.is_acknowledged}, seconds)
        self.leave()

    def wait_until_received(self, texts: set[str], seconds: float) -> None:
        """Until the group was handed all of these, or nothing new for so many seconds; before that members that are cut
        off are started again, as in wait_until_all_receive()."""
        moved, count, looked = clock(), -1, False
        while texts - (seen := {each.text for each in self.deliveries()}) and clock() - moved < seconds:
            if len(seen) != count:
                count, moved, looked = len(seen), clock(), False
            elif not looked and clock() - moved > CUT_OFF_SECONDS:
                looked = True
                self._start_cut_off_again(self.members)
            time.sleep(1.0)


def _attempt(line: Sequence[object]) -> Attempt:
    kind, ended, begun, text, *values = line
    if kind == "fail":
        values = ["", -1, 0, *values]
    return Attempt(begun, ended, text, *values, *([""] if kind == "ack" else []))  # type: ignore[arg-type]


def records_in(logs: Mapping[str, bytes]) -> list[Record]:
    """What lies in TOPIC. logs: by "<topic> <partition>"."""
    return [
        Record(partition, header.start, header.id, data[header.start + HEADER_BYTES : header.end].decode("ascii"))
        for name, data in logs.items()
        for topic, _, partition in [name.partition(" ")]
        if topic == TOPIC
        for header in iter_headers(memoryview(data))
    ]


@dataclass(frozen=True, slots=True)
class Findings:
    """problems: what the product is to blame for. acknowledged: sends. repeated: messages that were acknowledged, and
    that the client has sent more than once by itself. kept: sends that failed for the application and are stored.
    reasons: why sends failed, and how often."""

    problems: list[str]
    acknowledged: int
    repeated: int
    kept: int
    reasons: Mapping[str, int]


def judge(attempts: Sequence[Attempt], records: Sequence[Record], deliveries: Sequence[Delivery]) -> Findings:
    """What was sent, what is stored, and what the group was handed, compared."""
    places = {(each.partition, each.offset): each for each in records}
    stored = Counter(each.text for each in records)
    ids = {(each.partition, each.id): each.text for each in records}
    handed = {each.text for each in deliveries}
    problems = []
    for each in attempts:
        if not each.is_acknowledged:
            continue
        place = places.get((each.partition, each.offset))
        if place is None or (place.id, place.text) != (each.id, each.text):
            problems.append(
                f"lost: {each.text} was acknowledged at {each.partition} @{each.offset}; there lies {place}"
            )
        if each.text not in handed:
            problems.append(f"unseen: {each.text}, acknowledged at {each.partition} @{each.offset}")
    known = {each.text for each in attempts}
    problems += [f"false: {text} is stored and was never sent" for text in stored if text not in known]
    for got in deliveries:
        if ids.get((got.partition, got.id)) != got.text:
            problems.append(f"vanished: {got.member} was handed {got.text} of {got.partition}, id {got.id}")
    failed = {each.text for each in attempts if not each.is_acknowledged}
    return Findings(
        problems,
        len(attempts) - len(failed),
        sum(count > 1 for text, count in stored.items() if text not in failed),
        sum(text in stored for text in failed),
        Counter(_NUMBERS.sub("…", each.reason)[:_REASON_CHARACTERS] for each in attempts if not each.is_acknowledged),
    )


def judge_java(clients: JavaClients, logs: Mapping[str, bytes]) -> Findings:
    """After finish()."""
    return judge(clients.attempts(), records_in(logs), clients.deliveries())

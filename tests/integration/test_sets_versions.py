"""A broker set whose nodes are of two releases: each leads the other, each opens the other's data directory, both ways,
under load of all kinds of messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from metaq import HalfOutcome, Message, Producer, ProducerConfig, SharedConfig, SharedConsumer
from metaq.protocol.errors import MetaqError, TransactionTooLate
from metaq.protocol.record import HEADER_BYTES, iter_headers, payload_start
from tests.broker_process import RunningBroker
from tests.integration.background import Repeating
from tests.integration.earlier_release import ReleasedBroker, unpack
from tests.integration.set_nodes import SetNodes
from tests.segment_files import contents
from tests.waiting import DEADLINE, eventually

TOPICS = {
    "t": "numPartitions=2",
    "safe": "numPartitions=2\nunflushThreshold=0",
    "jobs": "numPartitions=1",
}
DELAY_SECONDS = 1.0
MORE = 40
"""Steps of the load between two changes of the set."""
KINDS = 7


class Nodes(SetNodes):
    """Nodes of this release, and those of `earlier`."""

    def __init__(self, packages: Path, directory: Path, connect: str) -> None:
        super().__init__(directory, connect, TOPICS, unflush_threshold=1000, max_segment_size=1 << 16)
        self.earlier: set[str] = set()
        self._packages = packages

    def _begin(self, name: str, directory: Path, ini: str, words: tuple[str, ...]) -> RunningBroker:
        if name in self.earlier:
            return ReleasedBroker(self._packages, directory, ini, module=words)
        return super()._begin(name, directory, ini, words)

    def restart(self, name: str, *, earlier: bool) -> None:
        """Kill a node, and start it as one of this release or of the earlier one."""
        others = {"a", "b"} - {name}
        self.kill(name)
        self.wait_for_leader(*others)
        (self.earlier.add if earlier else self.earlier.discard)(name)
        self.start(name)
        self.wait_in_sync("a", "b")


class Load(Repeating):
    """Sends messages of all kinds, in turn. acknowledged: those that must be there once; unknown: those that may be;
    pairs: messages of one transaction, of which both or none are there."""

    def __init__(self, connect: str) -> None:
        super().__init__(self._send, 0.01)
        self.acknowledged: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.pairs: list[tuple[bytes, bytes]] = []
        self._producer = Producer(connect, config=ProducerConfig(producer_group="bank"))
        self._producer.check_transactions(self._outcome, ["t", "safe"])

    @staticmethod
    def _outcome(message: Message) -> bool:
        return not message.payload.startswith(b"dropped")

    def _send(self, number: int) -> None:
        kind = number % KINDS
        topic = "safe" if number // KINDS % 2 else "t"
        body = b"%d " % number + b"x" * (number % 700)
        if kind == 0:
            self._in_transaction(number)
            return
        self.unknown.add(body)
        if kind == 1:
            self._producer.send("jobs", body, timeout=DEADLINE)
        elif kind == 2:
            self._producer.send(topic, body, delay=DELAY_SECONDS, timeout=DEADLINE)
        elif kind == 3:
            if not self._half(topic, body):
                return
        elif kind == 4:
            self._producer.send_batch(topic, [body + b"1", body + b"2"], timeout=DEADLINE)
            self.unknown.discard(body)
            self.acknowledged |= {body + b"1", body + b"2"}
            return
        else:
            self._producer.send(topic, body, timeout=DEADLINE)
        self.acknowledged.add(body)
        self.unknown.discard(body)

    def _half(self, topic: str, body: bytes) -> bool:
        """Commit one half message and roll back another. Every fourth outcome is told only when the broker asks for it.
        Return False if the message was rolled back, because a failover took longer than `check_after`."""
        said = HalfOutcome.UNKNOWN if len(body) % 4 == 0 else HalfOutcome.COMMITTED
        send = partial(self._producer.send_in_transaction, topic, timeout=DEADLINE)
        send(b"dropped " + body, execute=lambda message: HalfOutcome.ROLLED_BACK, check_after=60.0)
        with suppress(TransactionTooLate):
            send(body, execute=lambda message: said, check_after=1.0)
            return True
        return False

    def _in_transaction(self, number: int) -> None:
        first, second = b"%d first" % number, b"%d second" % number
        self.pairs.append((first, second))
        with suppress(MetaqError):  # its broker was killed: it may be committed, and then it is whole
            with self._producer.transaction() as transaction:
                transaction.send("t", first)
                transaction.send("safe", second)
            self.acknowledged |= {first, second}

    def close(self) -> None:
        """Close the producer, which answers what the broker asks until then."""
        self._producer.close()


class Member(threading.Thread):
    """A member of a shared group, which acknowledges the messages of `jobs`. given: how often each was given out."""

    def __init__(self, connect: str) -> None:
        super().__init__(daemon=True)
        self.given: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()
        self.failure: Exception | None = None
        self._connect = connect
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            config = SharedConfig(prefetch=0, lease_seconds=60)
            with SharedConsumer(self._connect, group="workers", topics=["jobs"], config=config) as consumer:
                while not self._ending.is_set():
                    messages = consumer.poll(0.2)
                    self.given.update(message.payload for message in messages)
                    consumer.ack(*messages)
                    consumer.flush(DEADLINE)
                    self.acknowledged.update(message.payload for message in messages)
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        self._ending.set()
        self.join(DEADLINE)
        assert not self.is_alive()
        assert self.failure is None, self.failure


@pytest.fixture
def nodes(tmp_path: Path, chroot: str) -> Iterator[Nodes]:
    nodes = Nodes(unpack(tmp_path / "earlier"), tmp_path, chroot)
    try:
        yield nodes
    finally:
        nodes.stop()


def test_nodes_of_two_releases_lead_and_follow_each_other_and_open_each_others_files(nodes: Nodes) -> None:
    nodes.earlier = {"a", "b"}
    nodes.start("a", "b")
    nodes.wait_in_sync("a", "b")
    member = Member(nodes.connect)
    with Load(nodes.connect) as load:
        member.start()
        load.wait_for(MORE)
        steps = (
            ("b", False),  # the follower is upgraded: it opens the earlier files, and follows an earlier leader
            ("a", True),  # the leader dies, and comes back as it was: it follows a leader of this release
            ("b", False),  # the earlier node leads again
            ("b", True),  # the way back: the earlier release opens files of this one
            ("a", False),  # the leader is upgraded
            ("b", False),  # both are
        )
        for name, earlier in steps:
            nodes.restart(name, earlier=earlier)
            load.wait_for(MORE)
        nodes.kill(nodes.leader)
        nodes.wait_for_leader("a", "b")
        load.wait_for(MORE)
        nodes.start(*[name for name in "ab" if nodes.nodes[name].process.poll() is not None])
        nodes.wait_in_sync("a", "b")
    eventually(lambda: member.acknowledged == set(payloads(nodes, "jobs-0")), what="all jobs to be done")
    member.end()
    assert load.errors == []
    eventually(lambda: not load.acknowledged - payloads(nodes).keys(), what="all that was acknowledged")
    load.close()
    found = payloads(nodes)
    assert [body for body, count in found.items() if count > 1] == []
    assert found.keys() - load.acknowledged - load.unknown <= {each for pair in load.pairs for each in pair}
    assert [pair for pair in load.pairs if (pair[0] in found) != (pair[1] in found)] == []
    assert [body for body, count in member.given.items() if count > 1] == []
    eventually(lambda: files(nodes, "a") == files(nodes, "b"), what="the same bytes on both nodes")
    assert {path.split("/")[0] for path in files(nodes, "a") if "/0/" in path or "/1/" in path} == {
        "metaqsequences",
        "metaqdelayed",
        "metaqhalves",
        "metaqshared",
    }
    logs = [nodes.nodes[name].errors.read_text() for name in "ab"]
    assert [log for log in logs if "Traceback" in log] == []


def files(nodes: Nodes, name: str) -> dict[str, bytes]:
    """Return the segments of all partitions and internal logs of a node by their path in its data directory."""
    data = nodes.data(name)
    return nodes.segments(name) | contents(data.glob("metaq*/*/*.meta"), data)


def payloads(nodes: Nodes, directory: str = "") -> Counter[bytes]:
    """Return how often node "a" has each payload, in all partitions or in that of one directory."""
    found: Counter[bytes] = Counter()
    for path, data in nodes.segments("a").items():
        if path.startswith(directory):
            for header in iter_headers(data):
                body = data[header.start + HEADER_BYTES : header.end]
                found[body[payload_start(body, header.flag) :]] += 1
    return found

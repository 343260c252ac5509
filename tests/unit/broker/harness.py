"""A broker without a port: real store, real handlers, a clock that stands still and threads that run when told to."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from metaq.broker.broker import Broker, WorkerThreads
from metaq.broker.configuration.config import BrokerConfig, parse_config
from metaq.broker.configuration.reload import Reloader
from metaq.broker.configuration.settings import BrokerOptions
from metaq.broker.configuration.sources import ConfigTexts
from metaq.broker.filters.table import load_filters
from metaq.broker.network.session import Session
from metaq.broker.requests.verbs import make_gate
from metaq.broker.store.files import REAL_FILES, Files
from metaq.broker.store.store import Store, TopicStoreConfig
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum, encode_body, encode_record
from metaq.protocol.sends import SendBatchRequest
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import AnswerReader, encode_put
from tests.frames import FrameReader

T = TypeVar("T")

NOW = 1_700_000_000.0

INI = """
[system]
brokerId=0
hostName=127.0.0.1
serverPort=8123
numPartitions=1
dataPath={data}
unflushThreshold=1000
unflushInterval=10000
maxSegmentSize=1048576
maxTransferSize=1000
stat=true
{system}
[zookeeper]
zk.zkEnable=false
[topic=t]
numPartitions=3
[topic=safe]
numPartitions=2
unflushThreshold=0
[topic=wild*]
numPartitions=9
[topic=quiet]
stat=false
"""


class Threads:
    """run_in_thread whose calls wait until `run`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((function, done))

    def run(self) -> int:
        """Do all calls, those that come of them too; how many."""
        count = 0
        while self.waiting:
            count += 1
            self.run_one()
        return count

    def run_one(self) -> None:
        """Do the call that has waited longest."""
        function, done = self.waiting.pop(0)
        try:
            result = function()
        except Exception as error:
            result = error
        done(result)


class Transport(StringTransport):
    """Keeps each write apart, and can be full."""

    sent_bytes = 0

    def __init__(self, peerAddress: Any = None) -> None:  # noqa: N803
        super().__init__(peerAddress=peerAddress)
        self.writes: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))
        super().write(bytes(data))

    def writeSequence(self, data: Any) -> None:  # noqa: N802
        self.write(b"".join(data))

    def abortConnection(self) -> None:  # noqa: N802
        self.aborted = True


class StreamTransport(Transport):
    """Of a replication stream."""

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: N802
        """Every connection has it."""


def lose_partition(lives: Any, topic: str) -> None:
    """Another life of a broker, without the directory of partition 0, which has had no message."""
    log = lives.harness.store.get(topic, 0)
    assert log.end_offset == 0
    lives.files.kill()
    shutil.rmtree(log.directory)
    lives.files.heal()
    lives.start()


def unsent_bytes(broker: Any) -> int:
    """Of answers that wait in full transports."""
    used: int = dict(broker.account.budgets())["unsent_bytes"].used
    return used


class Peer:
    """One connection to the broker, as its client."""

    def __init__(self, session: Session, host: str = "127.0.0.1") -> None:
        self.session = session
        self.transport = Transport(peerAddress=IPv4Address("TCP", host, 40000))
        self._answers, self._frames = AnswerReader(), FrameReader()
        session.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        self.session.dataReceived(data)

    def received(self) -> bytes:
        """What came since the last call."""
        data: bytes = self.transport.value()
        self.transport.clear()
        return data

    def answers(self) -> list[Any]:
        return self._answers.receive(self.received())

    def ask(self, data: bytes) -> Any:
        self.send(data)
        (answer,) = self.answers()
        return answer

    def frames(self) -> list[Frame]:
        return self._frames.receive(self.received())

    def ask_frame(self, data: bytes) -> Frame:
        self.send(data)
        (frame,) = self.frames()
        return frame

    def half_close(self) -> None:
        """Send nothing any more, and go on reading."""
        self.session.readConnectionLost()

    def lose(self) -> None:
        self.session.connectionLost(Failure(ConnectionError()))


class Harness:
    """The broker and what it stands on."""

    def __init__(
        self,
        directory: Path,
        system: str = "",
        topics: str = "",
        filters: str = "",
        files: Files = REAL_FILES,
        reactor: Clock | None = None,
        options: BrokerOptions = BrokerOptions(),  # noqa: B008
    ) -> None:
        self.reactor = reactor or Clock()
        self.threads = Threads()
        self.pauses: list[float] = []
        """Of worker threads, in which others get the interpreter."""
        self.time = NOW
        self.ini = INI.format(data=directory / "data", system=system) + topics
        self.filters_ini = filters
        self.config = parse_config(ConfigTexts(self.ini.encode(), filters.encode()))
        self.topics_seen: list[str] = []
        self.registered: list[tuple[int, tuple[str, ...]]] = []
        self.store = Store(
            self.config.data_paths,
            self.store_config,
            run_in_thread=self.threads,
            clock=lambda: self.time,
            monotonic=self.reactor.seconds,
            files=files,
        )
        self.store.open()
        self.broker = Broker(
            self.config,
            self.store,
            reactor=self.reactor,
            threads=WorkerThreads(self.threads, pause=self.pauses.append),
            clock=lambda: self.time,
            rng=random.Random(1),
            on_topic=lambda name, config: self.topics_seen.append(name),
            filters=load_filters(self.config),
            options=options,
        )
        self.broker.reloader = Reloader("server.ini", self.broker, self._read, self._use, self._publish)
        self.broker.transactions.open()
        self.gate = make_gate(self.broker)

    def store_config(self, name: str) -> TopicStoreConfig:
        topic = self.config.topic(name) or self.config.system
        return TopicStoreConfig(self.config.max_segment_size, topic.unflush_threshold, topic.unflush_interval_ms)

    def connect(self, host: str = "127.0.0.1") -> Peer:
        return Peer(self.session(), host)

    def session(self) -> Session:
        """Of one more connection, whose transport is the caller's to make."""
        return Session(self.gate, self.broker)

    def _read(self) -> Deferred[ConfigTexts]:
        return succeed(ConfigTexts(self.ini.encode(), self.filters_ini.encode()))

    def _use(self, config: BrokerConfig) -> None:
        self.config = config

    def _publish(self, config: BrokerConfig, topics: Sequence[str]) -> Deferred[list[str]]:
        self.registered.append((config.checksum, tuple(topics)))
        return succeed([])

    def close(self) -> None:
        """Stop as a broker does, with nothing under way."""
        self.broker.transactions.close()
        self.store.close()

    def turn(self) -> None:
        """What is put off to the reactor's next turn."""
        self.reactor.advance(0)


def worked_off(work: Generator[None, None, T]) -> T:
    """What it returns in the end."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast(T, done.value)


def put(topic: str, partition: int, body: bytes = b"hello", opaque: int = 1, flag: int = 0) -> bytes:
    return encode_put(topic, partition, flag, checksum(body), opaque, body)


def batch(topic: str, partition: int, bodies: list[bytes], opaque: int = 1, tag: str | None = None) -> bytes:
    flag = 0 if tag is None else 1
    records = [encode_record(encode_body(body, flag, (tag or "").encode()), 0, flag) for body in bodies]
    return raw_batch(topic, partition, records, opaque)


def raw_batch(topic: str, partition: int, records: list[bytes], opaque: int = 1, tx_key: str | None = None) -> bytes:
    payload = np.array([len(record) for record in records], ">u4").tobytes() + b"".join(records)
    ext = SendBatchRequest(topic, partition, len(records), tx_key).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, opaque, ext, len(payload)) + payload


def pull(topic: str, partition: int, offset: int, max_bytes: int = 1 << 20, opaque: int = 1, **more: Any) -> bytes:
    request = PullRequest(topic, partition, offset, max_bytes, **more)
    return encode_frame(RequestCode.PULL, opaque, request.to_ext())

"""A broker without a port: real store, real handlers, a clock that stands still and threads that run when told to."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from metaq.broker.assembly.broker import Broker, WorkerThreads
from metaq.broker.assembly.kinds import KINDS
from metaq.broker.assembly.reload import Reloader
from metaq.broker.assembly.verbs import make_gate
from metaq.broker.configuration.server_ini import BrokerConfig, parse_config
from metaq.broker.configuration.settings import BrokerOptions
from metaq.broker.configuration.sources import ConfigTexts
from metaq.broker.filters.filter_table import load_filters
from metaq.broker.network.session import Session
from metaq.broker.store.files import REAL_FILES, Files
from metaq.broker.store.store import Store, TopicStoreConfig
from metaq.protocol.access import ANYBODY
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullReply, PullRequest, decode_runs
from metaq.protocol.record import (
    DELAYED_FLAG,
    attribute_of,
    checksum,
    encode_attributes,
    encode_body,
    encode_record,
    iter_headers,
)
from metaq.protocol.sends import SendBatchRequest, SendManyRequest, SendReply, SendRequest, encode_parts
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import AnswerReader, encode_put
from tests.doubles.store import FaultyFiles
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
    reset = False
    principal = ANYBODY
    is_encrypted = False
    certified_hosts: frozenset[str] = frozenset()

    def __init__(self, peerAddress: Any = None) -> None:  # noqa: N803
        super().__init__(peerAddress=peerAddress)
        self.writes: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.disconnecting, "what is written behind loseConnection goes out by chance only"
        self.writes.append(bytes(data))
        super().write(bytes(data))

    def writeSequence(self, data: Any) -> None:  # noqa: N802
        self.write(b"".join(data))

    def abortConnection(self) -> None:  # noqa: N802
        self.aborted = True

    def is_reset(self) -> bool:
        return self.reset


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

    def __init__(self, session: Session, host: str = "127.0.0.1", threads: Threads | None = None) -> None:
        self.session = session
        self.threads = threads
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

    @property
    def is_read(self) -> bool:
        return bool(self.transport.producerState == "producing")

    def ask(self, data: bytes, work: bool = False) -> Any:
        """work: let the threads do theirs before the answer has to be there."""
        self._ask(data, work)
        (answer,) = self.answers()
        return answer

    def frames(self) -> list[Frame]:
        return self._frames.receive(self.received())

    def ask_frame(self, data: bytes, work: bool = False) -> Frame:
        """work: as of `ask`."""
        self._ask(data, work)
        (frame,) = self.frames()
        return frame

    def _ask(self, data: bytes, work: bool) -> None:
        self.send(data)
        if work:
            assert self.threads
            self.threads.run()

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
            kinds=KINDS,
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
        return Peer(self.session(), host, self.threads)

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


class Lives:
    """One broker after the other over the same files. options: of each harness."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.options = options
        self.files = FaultyFiles()
        self.time = NOW
        self.start()

    @property
    def broker(self) -> Broker:
        return self.harness.broker

    def start(self, **more: Any) -> None:
        self.harness = Harness(self.directory, files=self.files, **self.options | more)
        self.harness.time = self.time
        self.peer = self.harness.connect()

    def kill(self) -> None:
        """kill -9, and another start."""
        self.files.kill()
        self.files.heal()
        self.start()

    def restart(self) -> None:
        self.harness.close()
        self.start()

    def end(self) -> None:
        self.files.heal()
        self.harness.close()

    def fail_change(self, change: int) -> None:
        """The disk is full at that change of files from now on."""
        self.files.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.files.fail_at = self.files.changes + change

    def mend(self) -> None:
        """There is room again."""
        self.files.heal()
        self.harness.store.space.look_now()

    def ask(self, data: bytes, peer: Peer | None = None) -> Frame:
        peer = peer or self.peer
        peer.send(data)
        self.work()
        (frame,) = peer.frames()
        return frame

    def work(self) -> None:
        for _ in range(20):  # a batch is taken in slices
            self.harness.turn()
            if not self.harness.threads.run():
                break

    def step_clock(self, seconds: float) -> None:
        """The wall clock alone."""
        self.time = self.harness.time = self.harness.time + seconds

    def wait(self, seconds: float, step: float = 0.05) -> None:
        """Let both clocks go on."""
        for _ in range(round(seconds / step)):
            self.step_clock(step)
            self.harness.reactor.advance(step)
            self.harness.threads.run()

    def stored(self, topic: str = "t", partition: int = 0) -> list[tuple[bytes, int, int]]:
        """(payload, id, flag) of each message."""
        log = self.harness.store.find(topic, partition)
        if log is None or log.visible_end == log.first_offset:
            return []
        data = log.segments.snapshot().read(log.first_offset, log.visible_end - log.first_offset)
        return [
            (payload_of(data[each.start + 20 : each.end], each.flag), each.id, each.flag) for each in iter_headers(data)
        ]

    def payloads(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        return [payload for payload, _, _ in self.stored(topic, partition)]


def payload_of(body: Any, flag: int) -> bytes:
    """Behind the attribute."""
    attribute = attribute_of(body, flag)
    return bytes(body[0 if attribute is None else 4 + len(attribute) :])


def given(frame: Frame) -> list[tuple[int, bytes]]:
    """(offset, payload) of what a filtered answer has."""
    return [
        (offset + header.start, payload_of(data[header.start + 20 : header.end], header.flag))
        for offset, data in decode_runs(frame.body, PullReply.from_ext(frame.ext).runs)
        for header in iter_headers(data)
    ]


def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, of: Any = None, result: Any = None) -> list[Any]:
    """What `of` says of the arguments of each call of owner.name from now on, or `result` of what it gives, as ever."""
    calls: list[Any] = []
    real = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        if result is None:
            calls.append(of(*given) if of else given)
        found = real(*given, **more)
        if result is not None:
            calls.append(result(found))
        return found

    monkeypatch.setattr(owner, name, call)
    return calls


def filter_module(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> Any:
    """my_filters, with these."""
    module = types.ModuleType("my_filters")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, "my_filters", module)
    return module


def overwrite(path: str | Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def place(frame: Frame) -> tuple[int, int]:
    """First id and offset of what was stored."""
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    reply = SendReply.from_ext(frame.ext)
    return reply.message_id, reply.offset


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


def send(topic, partition, body=b"hello", opaque=1, flag=0, crc=None, one_way=0, **more):
    """crc: instead of the right one; more: what else a SendRequest has."""
    ext = SendRequest(topic, partition, flag, checksum(body) if crc is None else crc, **more).to_ext()
    return encode_frame(RequestCode.SEND, opaque, ext, len(body), flag=one_way) + body


def raw_batch(topic: str, partition: int, records: list[bytes], opaque: int = 1, **more: Any) -> bytes:
    """more: what else a SendBatchRequest has."""
    payload = np.array([len(record) for record in records], ">u4").tobytes() + b"".join(records)
    ext = SendBatchRequest(topic, partition, len(records), **more).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, opaque, ext, len(payload)) + payload


def many(parts, opaque=1, wrong=(), sequences=(), one_way=0, **more):
    """parts: (topic, partition, records) of each; wrong: ext fields to send instead; more: of a SendManyRequest."""
    topics = list(dict.fromkeys(topic for topic, _, _ in parts))
    records = [record for _, _, records in parts for record in records]
    table = [(topics.index(topic), partition, len(records)) for topic, partition, records in parts]
    body = encode_parts(table, list(map(len, records)), sequences) + b"".join(records)
    ext = SendManyRequest(tuple(topics), len(parts), len(records), **more).to_ext() | dict(wrong)
    return encode_frame(RequestCode.SEND_MANY, opaque, ext, len(body), flag=one_way) + body


def record(body: bytes = b"hello", flag: int = 0) -> bytes:
    return encode_record(body, 0, flag)


def reserved(payload: bytes, properties: Mapping[str, str]) -> tuple[int, bytes]:
    """Flag and body of a message that the broker keeps back: delayed, or a half one."""
    flag, attribute = encode_attributes(reserved=dict(properties))
    flag |= DELAYED_FLAG
    return flag, encode_body(payload, flag, attribute)


def records_of(items: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """items: (flag, body) of each."""
    return [record(body, flag) for flag, body in items]


def pull(topic: str, partition: int, offset: int, max_bytes: int = 1 << 20, opaque: int = 1, **more: Any) -> bytes:
    request = PullRequest(topic, partition, offset, max_bytes, **more)
    return encode_frame(RequestCode.PULL, opaque, request.to_ext())

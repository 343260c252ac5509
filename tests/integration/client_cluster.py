"""Real brokers on a real ZooKeeper for the client's integration tests, and consumers in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from metaq import Consumer, Message, PartitionReader, SharedConsumer, SharedMessage, TopicPartition
from tests.broker_process import RunningBroker, server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.waiting import DEADLINE, eventually

SESSION_SECONDS = 10.0
"""Long enough that no process of a busy machine loses its session because it did not get a processor."""
SHORT_SESSION_SECONDS = 2.0
"""Of members that are to lose theirs, so that others need not wait long."""


class Brokers:
    """Brokers that share a chroot; each keeps its directory and port across restarts."""

    def __init__(
        self,
        connect: str,
        directory: Path,
        topics: Mapping[str, int | str],
        max_segment_size: int = 1 << 30,
        session_seconds: float = SESSION_SECONDS,
        zone: str = "",
    ) -> None:
        self.connect = connect
        self._replication = f"\n[replication]\nzone={zone}" if zone else ""
        self._session_ms = int(session_seconds * 1000)
        self._max_segment_size = max_segment_size
        self._directory = directory
        self._topics = topics
        self.running: dict[int, RunningBroker] = {}
        self._ports: dict[int, int] = {}

    def start(self, broker_id: int = 0) -> RunningBroker:
        """Start a broker, or start it again where it was. Its messages are on disk when they are acknowledged."""
        directory = self._directory / f"broker-{broker_id}"
        (directory / "data").mkdir(parents=True, exist_ok=True)
        ini = server_ini(
            directory / "data",
            {topic: f"numPartitions={count}" for topic, count in self._topics.items()},
            broker_id=broker_id,
            zookeeper=f"zk.zkConnect={self.connect}\nzk.zkSessionTimeoutMs={self._session_ms}\nzk.zkSyncTimeMs=100"
            + self._replication,
            max_segment_size=self._max_segment_size,
        )
        if broker_id in self._ports:
            ini = ini.replace("serverPort=0", f"serverPort={self._ports[broker_id]}")
        broker = ForkedBroker(directory, ini)
        self.running[broker_id], self._ports[broker_id] = broker, broker.port
        return broker

    def stop(self) -> None:
        for broker in self.running.values():
            if broker.process.poll() is None:
                broker.kill()


@contextmanager
def running_brokers(
    connect: str,
    directory: Path,
    topics: Mapping[str, int | str],
    count: int = 1,
    max_segment_size: int = 1 << 30,
    session_seconds: float = SESSION_SECONDS,
    zone: str = "",
) -> Iterator[Brokers]:
    brokers = Brokers(connect, directory, topics, max_segment_size, session_seconds, zone)
    try:
        for broker_id in range(count):
            brokers.start(broker_id)
        yield brokers
    finally:
        brokers.stop()


def read(consumer: Consumer | PartitionReader, count: int) -> list[Message]:
    """Poll until `count` messages have come."""
    messages: list[Message] = []

    def all_came() -> bool:
        if len(messages) < count:
            messages.extend(consumer.poll(timeout=0.1))
        return len(messages) >= count

    eventually(all_came, what=f"the arrival of {count} messages")
    return messages


def leased(consumer: SharedConsumer, count: int) -> list[SharedMessage]:
    """Poll until `count` messages have come, none of them settled and none more."""
    messages: list[SharedMessage] = []

    def all_came() -> bool:
        messages.extend(consumer.poll(0.2, max_messages=count - len(messages)))
        return len(messages) == count

    eventually(all_came, what=f"{count} messages")
    return messages


def read_until_quiet(consumer: Consumer, count: int, quiet_seconds: float = 1.0) -> list[Message]:
    """Poll until `count` messages have come, however long that takes, and then until no more come for a while."""
    messages = read(consumer, count)
    last = time.monotonic()
    while time.monotonic() - last < quiet_seconds:
        got = consumer.poll(timeout=0.1)
        if got:
            messages += got
            last = time.monotonic()
    return messages


_MEMBER = """
import json, sys
from metaq import Consumer, ConsumerConfig
connect, group, topic, options = sys.argv[1:5]
config = ConsumerConfig(auto_commit_seconds=0.1, **json.loads(options))
with Consumer(connect, group=group, topics=[topic], config=config) as consumer:
    owned = None
    while True:
        if (now := [str(each) for each in consumer.assignment()]) != owned:
            owned = now
            print(json.dumps(owned), flush=True)
        for message in consumer.poll(timeout=0.05):
            print(json.dumps({"payload": message.payload.decode()}), flush=True)
"""


class MemberProcess:
    """A consumer in a process of its own, which can be killed. options: of its ConsumerConfig."""

    def __init__(
        self, connect: str, group: str, topic: str, session_seconds: float = SESSION_SECONDS, **options: object
    ) -> None:
        config = json.dumps({"session_timeout_seconds": session_seconds, **options})
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, connect, group, topic, config],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.payloads: list[str] = []

    def wait_until_it_owns(self, count: int, topic: str) -> list[TopicPartition]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if isinstance(said, dict):
                self.payloads.append(said["payload"])
            elif len(said) == count:
                return [TopicPartition.parse(topic, name) for name in said]
        raise AssertionError("the member ended")

    def wait_for(self, payload: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if isinstance(said := json.loads(line), dict):
                self.payloads.append(said["payload"])
                if said["payload"] == payload:
                    return
        raise AssertionError("the member ended")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Running:
    """Consumer.run(handler, …) on a thread of its own. It ends with the block, and its error is the test's."""

    def __init__(self, consumer: Consumer | SharedConsumer, handler: Callable[..., object], **arguments: Any) -> None:
        self.consumer: Any = consumer
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(handler, arguments))
        self.thread.start()

    def _run(self, handler: Callable[..., object], arguments: dict[str, Any]) -> None:
        try:
            self.consumer.run(handler, **arguments)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        assert self.error is None, self.error


class Failing(Running):
    """Its handler fails on payloads, on each as often as `fails` still says. calls: what it was given, at these times,
    seconds since 1970."""

    def __init__(
        self,
        consumer: Consumer,
        fails: Mapping[bytes, int] | None = None,
        error: Callable[[], Exception] | None = None,
        **arguments: Any,
    ) -> None:
        self.fails, self._make_error = Counter(fails or {}), error
        self.calls: list[Message] = []
        self.times: list[float] = []
        super().__init__(consumer, self.handle, **arguments)

    def handle(self, message: Message) -> None:
        self.calls.append(message)
        self.times.append(time.time())
        if self.fails[message.payload] > 0:
            self.fails[message.payload] -= 1
            raise self._make_error() if self._make_error else ValueError(f"cannot take {message.payload!r}")

    def attempts(self, payload: bytes) -> list[int]:
        assert self.error is None, self.error
        return [each.attempts for each in list(self.calls) if each.payload == payload]

"""A broker and producers that are killed again and again, with delayed messages, of which some are cancelled, and what
is stored then."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from metaq import ConnectionConfig, Producer, ProducerConfig, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers, property_of
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE

PARTITIONS = 2
TOPICS = {
    "loose": f"numPartitions={PARTITIONS}\nunflushThreshold=1000",
    "safe": f"numPartitions={PARTITIONS}\nunflushThreshold=0",
}
CONFIG = ProducerConfig(
    delivery_timeout_seconds=60.0,
    retry_max_seconds=0.1,
    connection=ConnectionConfig(request_timeout_seconds=3.0, reconnect_max_seconds=0.1),
)
LONGEST_SECONDS = 2.0
"""Of the delays, so that a life of the broker delivers what another one has taken."""


class Stored(NamedTuple):
    """A message of the data directory. time_ms: when it was given to its partition, by its id."""

    payload: bytes
    time_ms: int
    due_ms: int | None


def stored(data: Path) -> Iterator[Stored]:
    """What lies in the partitions."""
    for topic in TOPICS:
        for directory in data.glob(f"{topic}-*"):
            content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.meta")))
            for each in iter_headers(content):
                body = content[each.start + HEADER_BYTES : each.end]
                attribute = attribute_of(body, each.flag)
                due = None if attribute is None else property_of(attribute, b"metaq.due")
                payload = body if attribute is None else body[4 + len(attribute) :]
                yield Stored(payload, store_time_ms(each.id) or 0, None if due is None else int(due))


class Sending(threading.Thread):
    """Sends in one way until told to stop; knows what was acknowledged, with its result, and what was cancelled."""

    def __init__(self, topic: str, way: str, address: str, seed: int, name: str = "") -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self._own = name.encode()
        self.way = way
        self.acknowledged: dict[bytes, SendResult] = {}
        self.cancelled: set[bytes] = set()
        self.undecided: set[bytes] = set()
        """To be cancelled; nobody knows whether that was done."""
        self.failed: list[MetaqError] = []
        self.stopping = threading.Event()
        self._random = random.Random(seed)
        self._count = 0
        self.producer = Producer.direct(
            address, broker_id=0, partitions=dict.fromkeys(TOPICS, PARTITIONS), config=CONFIG
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                getattr(self, self.way)()
            except MetaqError as error:
                self.failed.append(error)
            time.sleep(0.002)
        self.producer.close()

    def _payload(self) -> bytes:
        self._count += 1
        place = self._own, self.topic.encode(), self.way.encode(), self._count
        return b"%s/%s/%s/%d/" % place + b"x" * (self._count % 97)

    def _when(self) -> dict[str, Any]:
        seconds = self._random.choice((0.0, 0.01, 0.3, LONGEST_SECONDS)) * self._random.random()
        if self._random.random() < 0.5:
            return {"delay": seconds}
        return {"deliver_at": datetime.now(UTC) + timedelta(seconds=seconds)}

    def single(self) -> None:
        payload = self._payload()
        result = self.producer.send(self.topic, payload, **self._when())
        self.acknowledged[payload] = result
        if self._random.random() < 0.2:
            self.undecided.add(payload)
            if self.producer.cancel(result):
                self.cancelled.add(payload)
            self.undecided.discard(payload)

    def batched(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(1, 60))]
        where = TopicPartition(self.topic, 0, self._count % PARTITIONS)
        results = self.producer.send_batch(self.topic, payloads, partition=where, **self._when())
        self.acknowledged.update(zip(payloads, results, strict=True))

    def gathered(self) -> None:
        under_way = []
        for _ in range(40):
            payload = self._payload()
            under_way.append((payload, self.producer.send_async(self.topic, payload, **self._when())))
        for payload, future in under_way:
            self.acknowledged[payload] = future.result()


WAYS = ("single", "batched", "gathered")


class Proxy(threading.Thread):
    """In front of a broker whose port changes."""

    def __init__(self) -> None:
        import socket

        super().__init__(daemon=True)
        self.port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def run(self) -> None:
        import socket
        from contextlib import suppress

        def copy(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.port), 1.0)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()


class Findings(NamedTuple):
    """Payloads that should not be so. acknowledged: how many messages were; cancelled: how many of them.
    sender_kills: of processes with producers."""

    acknowledged: int
    cancelled: int
    sender_kills: int
    lost: list[bytes]
    twice: list[bytes]
    early: list[bytes]
    came_although_cancelled: list[bytes]
    failed: list[MetaqError]


def due_ms_of(result: SendResult) -> int:
    assert result.due is not None
    return round(result.due.timestamp() * 1000)


def judge(found: list[Stored], threads: list[Sending], books: list[Path], sender_kills: int) -> Findings:
    """What the threads, and the processes by their books, know beside what lies in the partitions."""
    dues = {payload: due_ms_of(result) for each in threads for payload, result in each.acknowledged.items()}
    for path in books:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for line in lines:
            if line.endswith(b"\n"):  # its process was killed while it wrote the last one
                payload, due = line.split()
                dues[payload] = int(due)
    cancelled = {payload for each in threads for payload in each.cancelled}
    undecided = {payload for each in threads for payload in each.undecided}
    counts = Counter(each.payload for each in found)
    early = []
    for each in found:
        due_ms = dues.get(each.payload, each.due_ms)
        if due_ms is not None and each.time_ms < due_ms:
            early.append(each.payload)
    return Findings(
        len(dues),
        len(cancelled),
        sender_kills,
        [each for each in dues if each not in counts and each not in cancelled and each not in undecided],
        [payload for payload, count in counts.items() if count > 1],
        early,
        [each for each in cancelled if each in counts],
        [error for each in threads for error in each.failed],
    )


def live(directory: Path, kills: int, seconds: float, seed: int) -> Findings:
    """A broker with so many kills, one after about so many seconds each, and between them as many kills of processes
    with producers; then until all is delivered."""
    rng = random.Random(seed)
    ini = server_ini(directory / "data", TOPICS)
    proxy = Proxy()
    proxy.start()
    broker = RunningBroker(directory, ini)
    proxy.port = broker.port
    threads = [
        Sending(topic, way, proxy.address, seed * 100 + number)
        for number, (topic, way) in enumerate((topic, way) for topic in TOPICS for way in WAYS)
    ]
    for each in threads:
        each.start()
    books = [directory / f"sender-{number}.books" for number in range(2)]
    senders = [_sender(proxy.address, seed, path) for path in books]
    for kill in range(kills):
        time.sleep(rng.uniform(0.2, 0.8) * seconds)
        _end(senders[kill % 2])
        senders[kill % 2] = _sender(proxy.address, seed + kill + 1, books[kill % 2])
        time.sleep(rng.uniform(0.3, 0.7) * seconds)
        broker.kill()
        broker = RunningBroker(directory, ini)
        proxy.port = broker.port
    time.sleep(seconds)
    for sender in senders:
        _end(sender)
    for each in threads:
        each.stopping.set()
    for each in threads:
        each.join(DEADLINE)
        assert not each.is_alive()
    time.sleep(LONGEST_SECONDS + 1.0)
    assert broker.stop() == 0
    proxy.close()
    return judge(list(stored(directory / "data")), threads, books, kills + len(senders))


def _sender(address: str, seed: int, path: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.delays.sender", address, str(seed), str(path)]
    return subprocess.Popen(words, stdin=subprocess.PIPE)


def _end(sender: subprocess.Popen[bytes]) -> None:
    sender.kill()
    sender.wait()
    assert sender.stdin is not None
    sender.stdin.close()

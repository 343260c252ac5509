"""Connections that break at any byte, and kill -9: each acknowledged message is stored once, none twice, in order."""

import random
import re
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from metaq import ConnectionConfig, Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import MetaqError
from metaq.protocol.record import iter_headers
from tests.broker_process import server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.waiting import DEADLINE

KILLS = 6
SECONDS = 1.0
PARTITIONS = 3
TOPICS = {
    "loose": f"numPartitions={PARTITIONS}\nunflushThreshold=1000",
    "safe": f"numPartitions={PARTITIONS}\nunflushThreshold=0",
}
CONFIG = ProducerConfig(
    delivery_timeout_seconds=60.0,
    retry_max_seconds=0.1,
    connection=ConnectionConfig(request_timeout_seconds=3.0, reconnect_max_seconds=0.1),
)


class BreakingProxy:
    """In front of a broker whose port changes. Each connection ends after a random number of bytes, in the middle of a
    request or of an answer, while `breaks`."""

    def __init__(self, seed):
        self.port = 0
        self.breaks = True
        self.broken = 0
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.port), 1.0)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        limits = [self._random.randrange(500, 400_000), self._random.randrange(200, 6_000)]
        for (source, target), limit in zip(((client, server), (server, client)), limits, strict=True):
            threading.Thread(target=self._copy, args=(source, target, limit), daemon=True).start()

    def _copy(self, source, target, limit):
        with suppress(OSError):
            while data := source.recv(65536):
                if self.breaks and len(data) >= limit:
                    self.broken += 1
                    target.sendall(data[:limit])
                    break
                limit -= len(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Sending(threading.Thread):
    """Sends in one way until told to stop; knows what was acknowledged."""

    def __init__(self, number, topic, way, producer):
        super().__init__(daemon=True)
        self.name = f"{number}"
        self.topic = topic
        self.way = way
        self.producer = producer
        self.acknowledged = []
        self.failed = []
        self.stopping = threading.Event()
        self.count = 0

    def payload(self):
        self.count += 1
        return b"%s/%d/" % (self.name.encode(), self.count) + b"x" * (self.count % 97)

    def run(self):
        getattr(self, self.way)()

    def pipelined(self, **where):
        under_way: deque[Any] = deque()
        while not self.stopping.is_set() or under_way:
            if not self.stopping.is_set():
                payload = self.payload()
                under_way.append((payload, self.producer.send_async(self.topic, payload, **where)))
            if len(under_way) >= 64 or self.stopping.is_set():
                payload, future = under_way.popleft()
                self.note([payload], future.result)

    def pipelined_in_one(self):
        self.pipelined(partition=TopicPartition(self.topic, 0, 1))

    def batched(self):
        while not self.stopping.is_set():
            payloads = [self.payload() for _ in range(40)]
            where = TopicPartition(self.topic, 0, self.count % PARTITIONS)
            self.note(payloads, partial(self.producer.send_batch, self.topic, payloads, partition=where))

    def blocking(self):
        while not self.stopping.is_set():
            payload = self.payload()
            self.note([payload], partial(self.producer.send, self.topic, payload, key=self.name))

    def note(self, payloads, result):
        try:
            result()
        except MetaqError as error:
            self.failed.append(error)
        else:
            self.acknowledged += payloads


def stored(data, topic):
    """The payloads of each partition of a topic, in order."""
    found = {}
    for directory in data.glob(f"{topic}-*"):
        content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.meta")))
        found[directory.name] = [
            # behind what a key puts in front of it
            re.findall(rb"\d+/\d+/x*$", content[each.start + 20 : each.start + 20 + each.length])[0]
            for each in iter_headers(content)
        ]
    return found


WAYS = ("pipelined", "pipelined_in_one", "batched", "blocking")


@pytest.mark.parametrize("seed", [1, 2])
def test_each_message_is_stored_once_whatever_breaks(tmp_path, seed):
    proxy = BreakingProxy(seed)
    ini = server_ini(tmp_path / "data", TOPICS)
    broker = ForkedBroker(tmp_path, ini)
    proxy.port = broker.port
    producers = [
        Producer.direct(proxy.address, broker_id=0, partitions=dict.fromkeys(TOPICS, PARTITIONS), config=CONFIG)
        for _ in range(2)
    ]
    threads = [
        Sending(number, topic, way, producers[number % 2])
        for number, (topic, way) in enumerate((topic, way) for topic in TOPICS for way in WAYS)
    ]
    for each in threads:
        each.start()
    for _ in range(KILLS):
        time.sleep(SECONDS)
        broker.kill()
        broker = ForkedBroker(tmp_path, ini)
        proxy.port = broker.port
    time.sleep(SECONDS)
    proxy.breaks = False
    for each in threads:
        each.stopping.set()
    for each in threads:
        each.join(DEADLINE)
        assert not each.is_alive()
    for producer in producers:
        producer.close()
    assert broker.stop() == 0
    proxy.close()
    assert proxy.broken > 10
    for each in threads:
        assert len(each.acknowledged) > 50, each.way
        assert not each.failed
    for topic in TOPICS:
        partitions = stored(tmp_path / "data", topic)
        counts = Counter(payload for payloads in partitions.values() for payload in payloads)
        twice = [payload for payload, count in counts.items() if count > 1]
        assert twice == []
        acknowledged = [payload for each in threads if each.topic == topic for payload in each.acknowledged]
        assert [payload for payload in acknowledged if payload not in counts] == []
        in_order(partitions, [each for each in threads if each.topic == topic and each.way != "pipelined"])


def in_order(partitions, threads):
    """Messages of one thread to one partition lie in the order in which they were sent."""
    names = {each.name.encode() for each in threads}
    for payloads in partitions.values():
        numbers = defaultdict(list)
        for payload in payloads:
            name, number, _ = payload.split(b"/")
            if name in names:
                numbers[name].append(int(number))
        assert sum(map(len, numbers.values())) > 0
        for each in numbers.values():
            assert all(first < second for first, second in pairwise(each))

"""A main thread that uses the client while an interval timer's handler raises in it, thousands of times.

Run by test_interrupt_storm.py, and by hand: `python -m tests.integration.interrupt_storm <storm> <interrupts>
[<ZooKeeper with brokers of topic t>]`, the storms being the functions below without their `storm_of_`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

from metaq import (
    Consumer,
    LocalMessageStore,
    OrderedProducer,
    Producer,
    ProducerConfig,
    StoredMessage,
    TopicPartition,
)
from metaq.client.questions.cluster import Cluster
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import open_connection
from metaq.protocol.errors import BrokerUnavailable, MetaqError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker, FakeCluster
from tests.integration.alarms import Alarm
from tests.integration.background import Repeating
from tests.waiting import DEADLINE, eventually

_PATIENCE = 20.0
_HANGS_SECONDS = 240.0
"""A storm that lasts longer hangs, and ends with the stacks of its threads. It lasts two seconds."""

Seen = Counter[str]
"""What happened how often. The test accepts no name that ends with "lost"."""


class Storm(Alarm):
    """Calls something on the main thread, and interrupts it at a random time of most calls, three of four."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.count = 0
        self._random = Random(seed)
        self._longest = 0.0005  # seconds until the interrupt; it follows how long the calls last

    def call(self, action: Callable[[], object]) -> bool:
        """Whether it was interrupted."""
        interrupted = self.interrupts(action, self._random.uniform(0.00001, self._longest))
        self.count += interrupted
        self._longest *= 1.01 if interrupted else 0.97
        return interrupted


def say_lost(what: str, error: BaseException) -> None:
    print(f"{what} was lost: {error!r}", file=sys.stderr)


def storm_of_calls(interrupts: int) -> Seen:
    """Blocking calls, and futures of another thread, on one connection at a time."""
    seen = Seen()
    with FakeBroker({"t": 1}) as broker:
        connection = open_connection(broker.endpoint, ConnectionConfig())
        lock = threading.Lock()

        def ask(opaque: int) -> tuple[bytes]:
            return (encode_frame(RequestCode.STATS, opaque, {"item": "x"}),)

        def others(_step: int) -> None:
            with lock:
                here = connection
            done: SimpleQueue[object] = SimpleQueue()  # an Event may be interrupted with its lock held
            here.submit(ask, lambda reply, _error: done.put(reply), time.monotonic() + 30)
            try:
                done.get(timeout=_PATIENCE)
                seen["futures"] += 1
            except Empty:
                seen["futures lost"] += 1
            try:
                assert isinstance(here.call(ask, _PATIENCE), Frame)
                seen["calls of others"] += 1
            except BrokerUnavailable:
                seen["calls of others ended with their connection"] += 1
            except MetaqError as error:
                say_lost("a call of another thread", error)
                seen["calls of others lost"] += 1

        with Storm() as storm, Repeating(others, 0.0):
            while storm.count < interrupts:
                try:
                    if not storm.call(partial(connection.call, ask, _PATIENCE)):
                        seen["calls"] += 1
                except BrokerUnavailable:
                    seen["calls that found the connection ended"] += 1
                except MetaqError as error:
                    say_lost("a call", error)
                    seen["calls lost"] += 1
                if connection.closed:
                    seen["connections ended"] += 1
                    with lock:
                        connection = open_connection(broker.endpoint, ConnectionConfig())
        connection.close()
    seen["interrupts"] = storm.count
    return seen


def storm_of_sends(interrupts: int) -> Seen:
    """send(), with futures of another thread."""
    return _producer_storm(interrupts, lambda producer: producer.send("t", b"x", timeout=_PATIENCE))


def storm_of_futures(interrupts: int) -> Seen:
    """send_async() and result(), with futures of another thread."""
    return _producer_storm(interrupts, lambda producer: producer.send_async("t", b"x", timeout=_PATIENCE).result())


def storm_of_flushes(interrupts: int) -> Seen:
    """send_async() and flush(), with futures of another thread."""

    def act(producer: Producer) -> None:
        for _ in range(5):
            producer.send_async("t", b"x", key="k", timeout=_PATIENCE)
        producer.flush(_PATIENCE)

    return _producer_storm(interrupts, act)


def storm_of_full_buffers(interrupts: int) -> Seen:
    """send_async() that has to wait for room, with futures of another thread."""

    def act(producer: Producer) -> None:
        for _ in range(5):
            producer.send_async("t", bytes(1_500), timeout=_PATIENCE)

    return _producer_storm(interrupts, act, room=4_000)


def _producer_storm(interrupts: int, act: Callable[[Producer], object], room: int = 64 << 20) -> Seen:
    seen = Seen()
    config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01, max_buffered_bytes=room)
    with FakeBroker({"t": 4}) as broker, Producer(metadata=FakeCluster([broker]), config=config) as producer:

        def others(_step: int) -> None:
            try:
                producer.send_async("t", b"other", timeout=_PATIENCE).result(_PATIENCE + 5)
                seen["futures"] += 1
            except (MetaqError, TimeoutError) as error:
                say_lost("a future", error)
                seen["futures lost"] += 1

        with Storm() as storm, Repeating(others, 0.0):
            while storm.count < interrupts and not seen["futures lost"]:
                try:
                    if not storm.call(partial(act, producer)):
                        seen["uninterrupted"] += 1
                except MetaqError as error:
                    say_lost("a send", error)
                    seen["sends lost"] += 1
        try:
            producer.flush(_PATIENCE)
        except MetaqError as error:
            say_lost("room", error)
            seen["room lost"] += 1
    seen["interrupts"] = storm.count
    return seen


def storm_of_ordered_sends(interrupts: int) -> Seen:
    """OrderedProducer.send() to a partition that another thread sends to, too, while its broker comes and goes."""
    seen = Seen()
    here = TopicPartition("t", 0, 0)
    config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01, recover_interval_seconds=1.0)
    with (
        tempfile.TemporaryDirectory() as directory,
        FakeBroker({"t": 1}) as broker,
        LocalMessageStore(Path(directory) / "store.db") as store,
    ):
        cluster = FakeCluster([broker])
        with OrderedProducer(metadata=cluster, partitions={"t": {0: 1}}, store=store, config=config) as producer:
            numbers = {"main": 0, "other": 0}

            def send(who: str) -> None:
                numbers[who] += 1
                producer.send("t", f"{who}:{numbers[who]}".encode(), partition=here, timeout=_PATIENCE)

            def others(_step: int) -> None:
                if numbers["other"] % 100 == 50:
                    cluster.unregister(broker)
                send("other")
                if numbers["other"] % 100 == 75:
                    cluster.register(broker)

            answered: set[int] = set()
            with Storm() as storm, Repeating(others, 0.0):
                while storm.count < interrupts:
                    if not storm.call(partial(send, "main")):
                        answered.add(numbers["main"])
            cluster.register(broker)
            if not producer.flush(DEADLINE):
                seen["saved messages lost"] += producer.waiting(here)
        bodies = [body.decode().split(":") for body in broker.bodies("t", 0)]
        arrived = {who: list(dict.fromkeys(int(each) for name, each in bodies if name == who)) for who in numbers}
        seen["futures"] = len(arrived["other"])
        seen["answered messages lost"] = len(answered - set(arrived["main"]))
        seen["messages of the other thread lost"] = numbers["other"] - len(arrived["other"])
        seen["order lost"] = sum(numbers != sorted(numbers) for numbers in arrived.values())
    seen["interrupts"] = storm.count
    return _without_zeros(seen)


def storm_of_saves(interrupts: int) -> Seen:
    """LocalMessageStore.append() and remove(): the file has what the count says, whole and in order."""
    seen = Seen()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalMessageStore(Path(directory) / "store.db") as store,
        Storm() as storm,
    ):
        number, answered = 0, []

        def act() -> None:
            store.append("q", [StoredMessage("t", b"%d" % number)])
            if number % 3 == 0:
                store.append("other", [StoredMessage("t", b"x")])
                store.remove("other", [number for number, _ in store.peek("other", 1)])

        while storm.count < interrupts:
            number += 1
            if not storm.call(act):
                answered.append(number)
        kept = [int(message.body) for _, message in store.peek("q", number + 1)]
        seen["futures"] = len(kept)
        seen["counts lost"] = abs(store.count("q") - len(kept))
        seen["order lost"] = int(kept != sorted(set(kept)))
        seen["messages lost"] = len(set(answered) - set(kept))
    seen["interrupts"] = storm.count
    return _without_zeros(seen)


def storm_of_polls(interrupts: int, connect: str) -> Seen:
    """poll(), commit(), seek() and lag() of one consumer, which sees all that another thread sends."""
    seen = Seen()
    random = Random(1)
    sent: set[tuple[TopicPartition, int]] = set()
    found: set[tuple[TopicPartition, int]] = set()
    group = f"storm-{os.getpid()}"
    with Producer(connect) as producer, Consumer(connect, group=group, topics=["t"]) as consumer:
        eventually(lambda: consumer.poll(timeout=0.1) or consumer.assignment(), what="the partitions")

        def others(_step: int) -> None:
            result = producer.send("t", b"x", timeout=_PATIENCE)
            sent.add((result.partition, result.offset))
            seen["futures"] += 1

        def poll() -> None:
            messages = consumer.poll(timeout=0.02)
            storm.armed = False  # behind this line they are the user's, and no call comes in between
            found.update((message.partition, message.offset) for message in messages)

        def seek() -> None:
            partition = random.choice(consumer.assignment())
            consumer.seek(partition, consumer.position(partition))

        with Storm() as storm, Repeating(others, 0.0):
            while storm.count < interrupts:
                action = random.choice((poll, poll, poll, consumer.commit, consumer.lag, seek))
                try:
                    if not storm.call(action):
                        seen["uninterrupted"] += 1
                except BrokerUnavailable:  # lag() or seek() behind a poll() that was interrupted while it read
                    seen["calls that found the connection ended"] += 1
                except MetaqError as error:
                    say_lost(f"{action}", error)
                    seen["calls lost"] += 1
        deadline = time.monotonic() + DEADLINE
        while not sent <= found and time.monotonic() < deadline:
            found.update((message.partition, message.offset) for message in consumer.poll(timeout=0.5))
        for partition, offset in sorted(sent - found):
            say_lost(f"the message at {offset} of {partition}, position {consumer.position(partition)}", LookupError())
        seen["messages lost"] = len(sent - found)
    seen["interrupts"] = storm.count
    return _without_zeros(seen)


def storm_of_members(interrupts: int, connect: str) -> Seen:
    """Consumers that come, poll and go: none stays in the group."""
    seen = Seen()
    group = f"storm-{os.getpid()}"
    begun: list[Consumer] = []

    class Member(Consumer):
        def __init__(self) -> None:
            super().__init__(connect, group=group, topics=["t"])
            begun.append(self)  # from here on its user has it, and has to close it

    def come_and_go() -> None:
        with Member() as consumer:
            consumer.poll(timeout=0.005)

    with Storm() as storm:
        while storm.count < interrupts:
            try:
                if not storm.call(come_and_go):
                    seen["futures"] += 1
                while begun:
                    begun.pop().close()
            except MetaqError as error:
                say_lost("a consumer", error)
                seen["consumers lost"] += 1
    with Cluster(connect) as cluster:
        try:
            eventually(lambda: not cluster.members(group), what="the end of the members")
        except AssertionError:
            seen["members lost"] = len(cluster.members(group))
    seen["threads"] = threading.active_count()
    seen["interrupts"] = storm.count
    return seen


def _without_zeros(seen: Seen) -> Seen:
    return Seen({name: count for name, count in seen.items() if count})


if __name__ == "__main__":
    faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)
    run: Callable[..., Seen] = globals()[f"storm_of_{sys.argv[1]}"]
    print(json.dumps(run(int(sys.argv[2]), *sys.argv[3:]), sort_keys=True), flush=True)

"""A program that ends without close(): what it has sent is delivered within a bounded time, or it is said."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from metaq import Consumer, DeadLetters, Producer, SharedConsumer, TopicBrowser, browse
from tests.integration.client_cluster import Brokers
from tests.waiting import DEADLINE, eventually

_PROGRAM = """
import os, sys, threading, time
from metaq import Producer, ProducerConfig
connect, count, linger_ms, seconds = sys.argv[1], *map(float, sys.argv[2:5])
producer = Producer(connect, linger_ms=int(linger_ms), config=ProducerConfig(deliver_at_exit_seconds=seconds))
def send():
    return [producer.send_async("t", b"%d" % number, timeout=60.0) for number in range(int(count))]
"""


_FORKS = """
futures = send()
if (child := os.fork()) == 0:
    sys.exit(7)
print(os.waitpid(child, 0)[1] >> 8, file=sys.stderr)
"""
_DROPS = "def main():\n    global producer\n    send()\n    del producer\nmain()"
LINGERS = 60_000


def run(brokers: Brokers, end: str, count: int, linger_ms: int = 0, seconds: float = DEADLINE) -> tuple[int, str]:
    """The program's exit code and what it said on stderr."""
    program = [sys.executable, "-c", _PROGRAM + end]
    arguments = [brokers.connect, str(count), str(linger_ms), str(seconds)]
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    return done.returncode, done.stderr


def stored(brokers: Brokers) -> list[int]:
    return sorted(int(message.payload) for message in browse(brokers.connect, "t"))


@pytest.mark.parametrize(
    ("end", "count", "linger_ms", "code", "said"),
    [
        pytest.param("futures = send()", 5000, 0, 0, "", id="all that was sent"),
        pytest.param("futures = send()", 100, LINGERS, 0, "", id="what lingers"),
        pytest.param("futures = send()\nraise SystemExit(3)", 100, LINGERS, 3, "", id="what an exception leaves"),
        pytest.param(
            "threading.Thread(target=lambda: (time.sleep(0.5), send())).start()",
            100,
            LINGERS,
            0,
            "",
            id="what a thread sends that goes on after the main one",
        ),
        pytest.param(_FORKS, 100, LINGERS, 0, "7\n", id="once, what a forked child has too"),
        pytest.param(_DROPS, 20_000, 0, 0, "", id="what was given to a producer that nobody has any more"),
    ],
)
def test_it_is_delivered(brokers: Brokers, end: str, count: int, linger_ms: int, code: int, said: str) -> None:
    assert run(brokers, end, count, linger_ms) == (code, said)
    assert stored(brokers) == list(range(count))


def test_what_cannot_be_delivered_in_time_is_said_with_its_number_topic_and_reason(brokers: Brokers) -> None:
    with Producer(brokers.connect) as producer:
        producer.send("t", b"0")
    os.kill(brokers.running[0].process.pid, signal.SIGSTOP)
    started = time.monotonic()
    code, said = run(brokers, "futures = send()", 50, seconds=1.0)
    took = time.monotonic() - started
    os.kill(brokers.running[0].process.pid, signal.SIGCONT)
    assert code == 0
    assert took < 60
    counts = [int(count) for count in re.findall(r"metaq: (\d+) messages? to topic 't' could not be delivered", said)]
    assert sum(counts) == 50, said
    assert "deliver_at_exit_seconds=1" in said


def test_of_a_direct_producer_too_that_was_a_functions_own(brokers: Brokers) -> None:
    end = f"""
def main():
    own = Producer.direct("127.0.0.1:{brokers.running[0].port}", broker_id=0, partitions={{"t": 1}})
    for number in range(20_000):
        own.produce("t", b"%d" % number)
main()
"""
    assert run(brokers, end, 0) == (0, "")
    assert stored(brokers) == list(range(20_000))


def consumer(connect: str) -> Consumer:
    made = Consumer(connect, group="g", topics=["t"])
    made.poll(timeout=0.5)
    return made


MAKERS: list[Callable[[str], Any]] = [
    consumer,
    lambda connect: Producer(connect),
    lambda connect: TopicBrowser(connect, "t"),
    lambda connect: DeadLetters(connect, group="g"),
    lambda connect: SharedConsumer(connect, group="g", topics=["t"]),
]


def drop(made: list[Any]) -> None:
    """Nobody has it any more."""
    made.clear()
    gc.collect()


@pytest.mark.parametrize("make", MAKERS)
def test_a_dropped_client_warns_and_ends_its_session_and_threads(chroot: str, make: Callable[[str], Any]) -> None:
    before = set(threading.enumerate())
    made = [make(chroot)]
    kind = type(made[0]).__name__
    with pytest.warns(ResourceWarning, match=f"this {kind} was not closed"):
        drop(made)
    eventually(lambda: not set(threading.enumerate()) - before)


def test_the_members_of_a_group_need_not_wait_for_one_that_was_dropped(chroot: str) -> None:
    made = [consumer(chroot)]
    with pytest.warns(ResourceWarning):
        drop(made)
    with TopicBrowser(chroot, "t") as browser:
        eventually(lambda: browser._cluster.members("g") == [])

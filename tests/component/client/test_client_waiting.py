"""Threads that wait are all woken, also when some of them give up at the same moment."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from metaq import Producer, ProducerConfig
from metaq.client.waiting import Waiter, finish_together
from metaq.protocol.errors import RequestTimedOut
from metaq.testing import FakeBroker, FakeCluster

PATIENCE = 30.0


class Blocked:
    """A thread that waits."""

    def __init__(self, seconds=PATIENCE):
        self.waiter = Waiter()
        deadline = time.monotonic() + seconds
        self.thread = threading.Thread(target=self.waiter.park_until_done, args=(deadline, time.monotonic))
        self.thread.start()
        while self.waiter.mailbox is None:
            time.sleep(0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_all_are_woken(count):
    blocked = [Blocked() for _ in range(count)]
    finish_together([each.waiter for each in blocked])
    for each in blocked:
        each.thread.join(PATIENCE / 2)
        assert not each.thread.is_alive()
        assert each.waiter.done


def test_who_gave_up_before_still_passes_the_wake_up_on():
    gone = [Blocked(0.0) for _ in range(4)]
    for each in gone:
        each.thread.join()
    blocked = [Blocked() for _ in range(4)]
    finish_together([each.waiter for pair in zip(gone, blocked, strict=True) for each in pair])
    for each in blocked:
        each.thread.join(PATIENCE / 2)
        assert not each.thread.is_alive()


def test_who_gives_up_at_the_same_moment_leaves_nobody_asleep():
    for round_ in range(30):
        blocked = [Blocked(PATIENCE if number % 3 else 0.0005 * (round_ % 5)) for number in range(12)]
        finish_together([each.waiter for each in blocked])
        for each in blocked:
            each.thread.join(PATIENCE / 2)
            assert not each.thread.is_alive()


def test_senders_with_short_deadlines_hold_up_nobody_else():
    """Every send of 24 threads ends, a third of them by giving up."""
    config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)
    with FakeBroker({"t": 3}) as broker, Producer(metadata=FakeCluster([broker]), config=config) as producer:
        given_up = []

        def sender(number):
            for _ in range(100):
                try:
                    producer.send("t", b"x", timeout=0.0005 if number % 3 == 0 else PATIENCE)
                except RequestTimedOut:
                    assert number % 3 == 0
                    given_up.append(number)

        with ThreadPoolExecutor(24) as pool:
            for each in [pool.submit(sender, number) for number in range(24)]:
                each.result(PATIENCE * 2)
        producer.flush(PATIENCE)
        stored = sum(len(broker.bodies("t", partition)) for partition in range(3))
        assert stored >= 2400 - len(given_up)

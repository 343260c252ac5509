"""Threads that wait are all woken, also when some of them give up at the same moment."""

import threading
import time

import pytest

from metaq import Producer
from metaq.client.runtime.waiting import Waiter, finish_together
from metaq.protocol.errors import RequestTimedOut
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import FAST, everything, together

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


def assert_woken(blocked):
    for each in blocked:
        each.thread.join(PATIENCE / 2)
        assert not each.thread.is_alive()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_all_are_woken(count):
    blocked = [Blocked() for _ in range(count)]
    finish_together([each.waiter for each in blocked])
    assert_woken(blocked)
    assert all(each.waiter.done for each in blocked)


def test_who_gave_up_before_still_passes_the_wake_up_on():
    gone = [Blocked(0.0) for _ in range(4)]
    for each in gone:
        each.thread.join()
    blocked = [Blocked() for _ in range(4)]
    finish_together([each.waiter for pair in zip(gone, blocked, strict=True) for each in pair])
    assert_woken(blocked)


def test_who_gives_up_at_the_same_moment_leaves_nobody_asleep():
    for round_ in range(30):
        blocked = [Blocked(PATIENCE if number % 3 else 0.0005 * (round_ % 5)) for number in range(12)]
        finish_together([each.waiter for each in blocked])
        assert_woken(blocked)


def test_senders_with_short_deadlines_hold_up_nobody_else():
    """Every send of 24 threads ends, a third of them by giving up."""
    with FakeBroker({"t": 3}) as broker, Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        given_up = []

        def sender(number):
            for _ in range(100):
                try:
                    producer.send("t", b"x", timeout=0.0005 if number % 3 == 0 else PATIENCE)
                except RequestTimedOut:
                    assert number % 3 == 0
                    given_up.append(number)

        together(sender, range(24))
        producer.flush(PATIENCE)
        assert len(everything(broker)) >= 2400 - len(given_up)

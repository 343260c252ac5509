"""What has a ZooKeeper session and is dropped without close() warns, and ends it: others need not wait for it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from metaq import Consumer, DeadLetters, Producer, SharedConsumer, TopicBrowser
from tests.waiting import eventually


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

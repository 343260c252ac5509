"""Constructors and close() that an interrupt ends: nobody else ends what they began, so they leave no thread and no
socket."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Protocol

import pytest

from metaq import (
    Consumer,
    DeadLetters,
    LocalMessageStore,
    OrderedProducer,
    PartitionReader,
    Producer,
    SharedConsumer,
    TopicBrowser,
    TopicPartition,
)
from metaq.client.questions.cluster import Cluster
from metaq.coordination.runtime.interrupts import Aside
from tests.integration.alarms import Alarm, Limit
from tests.integration.client_cluster import Brokers
from tests.waiting import eventually

ROUNDS = 30


class Closable(Protocol):
    def close(self) -> object: ...


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalMessageStore]:
    with LocalMessageStore(tmp_path / "store.db") as store:
        yield store


@cache
def _address(connect: str) -> str:
    with Cluster(connect) as cluster:
        endpoint = cluster.endpoint(0)
    return f"{endpoint.host}:{endpoint.port}"


Make = Callable[[str, LocalMessageStore], Closable]
MAKERS: dict[str, Make] = {
    "producer": lambda connect, store: Producer(connect),
    "producer with a store": lambda connect, store: Producer(connect, undelivered=store),
    "ordered producer": lambda connect, store: OrderedProducer(connect, partitions={"t": {0: 2}}, store=store),
    "consumer": lambda connect, store: Consumer(connect, group="g", topics=["t"]),
    "shared consumer": lambda connect, store: SharedConsumer(connect, group="g", topics=["t"]),
    "reader": lambda connect, store: PartitionReader(_address(connect), TopicPartition("t", 0, 0)),
    "cluster": lambda connect, store: Cluster(connect),
    "browser": lambda connect, store: TopicBrowser(connect, "t"),
    "dead letters": lambda connect, store: DeadLetters(connect, group="g"),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest, brokers: Brokers, store: LocalMessageStore) -> Callable[[], Closable]:
    """Makes a client of this kind; the first one is closed already, so that what all of them share is there."""
    chosen = partial(MAKERS[request.param], brokers.connect, store)
    chosen().close()
    return chosen


def _used() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def _is_left_at_most(threads: int, descriptors: int) -> bool:
    now = _used()
    return now[0] <= threads and now[1] <= descriptors


def test_an_interrupted_constructor_leaves_nothing(make: Callable[[], Closable]) -> None:
    before = _used()
    constructed: list[Closable] = []
    random, longest, interrupted = Random(1), 0.03, 0

    def construct() -> Closable:
        return make()

    def keep() -> None:
        constructed.append(construct())

    with Alarm() as alarm:
        for _ in range(ROUNDS):
            begin, every = 1e-5 + random.random() * longest, 1e-4 + random.random() * 1e-3
            if alarm.interrupts(keep, begin, every=every, when=partial(_is_constructing, construct)):
                interrupted += 1
                longest *= 1.1
            else:
                longest *= 0.8  # half of them are interrupted, however fast the machine is
            while constructed:
                constructed.pop().close()
    assert interrupted
    _await_no_more_than(before)


def test_an_interrupt_where_a_part_of_it_is_constructed_leaves_nothing(make: Callable[[], Closable]) -> None:
    """It may come when the call of a class returns: nobody has the new object then. Chance seldom finds that."""
    before = _used()
    parts = list[str]()
    while True:
        at = _AtReturn(len(parts))
        sys.setprofile(at)
        try:
            made = make()
        except Limit:
            parts.append(at.part)
            continue
        finally:
            sys.setprofile(None)
        made.close()
        break
    assert len(parts) > 2
    _await_no_more_than(before)


class _AtReturn:
    """Raises Limit when the so many-th constructor of ours, within another one of the client, returns. part: which."""

    def __init__(self, passed: int) -> None:
        self.part = ""
        self._left = passed

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "return" or frame.f_code.co_name != "__init__" or "/tests/" in frame.f_code.co_filename:
            return
        caller = frame.f_back
        if caller is None or not any(each in caller.f_code.co_filename for each in ("/client/", "/coordination/")):
            return
        if self._left:
            self._left -= 1
            return
        self.part = frame.f_code.co_qualname
        sys.setprofile(None)
        raise Limit


def _await_no_more_than(before: tuple[int, int]) -> None:
    """The threads and descriptors of then; an AssertionError names those that there are."""
    try:
        eventually(partial(_is_left_at_most, *before), what=f"as few threads and descriptors as before, {before}")
    except AssertionError as error:
        descriptors = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.lexists(each.path)]
        raise AssertionError(f"{error}: {threading.enumerate()}, {descriptors}") from None


def _is_constructing(construct: Callable[[], object]) -> bool:
    """Whether the constructor is at work: what it has returned is its caller's."""
    frame = inspect.currentframe()
    files = list[str]()
    while frame is not None and frame.f_code is not construct.__code__:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return frame is not None and any("/client/" in each for each in files)


def test_an_interrupted_close_is_done_all_the_same(
    make: Callable[[], Closable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nobody who calls it again, as behind a `with`."""
    begun, start = list[bool](), Aside.start

    def begin(aside: Aside, *arguments: Any) -> None:
        start(aside, *arguments)
        begun.append(True)

    monkeypatch.setattr(Aside, "start", begin)
    before = _used()
    random, interrupted = Random(1), 0
    with Alarm() as alarm:
        for _ in range(ROUNDS // 3):
            closable = make()
            begun.clear()
            interrupted += alarm.interrupts(closable.close, 1e-5 + random.random() * 0.003, when=begun.copy)
    assert interrupted
    _await_no_more_than(before)

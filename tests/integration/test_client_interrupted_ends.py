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
from types import CodeType, FrameType
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
    gc.collect()
    return chosen


def _used() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def _is_left_at_most(threads: int, descriptors: int) -> bool:
    now = _used()
    if now[0] > threads or now[1] > descriptors:
        gc.collect()
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


def test_an_interrupt_anywhere_in_the_constructor_leaves_nothing(make: Callable[[], Closable]) -> None:
    """It comes at each call and return of the constructor and of what it calls, one after another, and when the
    constructor of a part returns: nobody has the new object then. Chance seldom finds the one call that matters.
    """

    def construct() -> Closable:
        return make()

    before = _used()
    interrupted = list[str]()
    while True:
        at = _AtCall(construct.__code__, len(interrupted))
        made: Closable | None = None
        sys.setprofile(at)
        try:
            made = construct()
        except Limit:
            pass
        finally:
            sys.setprofile(None)
        if made is not None:
            break
        interrupted.append(at.where)
        _await_no_more_than(before, behind=at.where)  # here, because its traceback kept the frames and what they had
    made.close()
    assert len(interrupted) > 10


class _AtCall:
    """Raises Limit at the so many-th call or return near a constructor, and returns of constructors of ours further
    in. where: which."""

    def __init__(self, construct: CodeType, passed: int) -> None:
        self.where = ""
        self._construct = construct
        self._left = passed

    def __call__(self, frame: FrameType, event: str, called: object) -> None:
        if called is sys.setprofile or not self._counts(frame, event):
            return
        if self._left:
            self._left -= 1
            return
        self.where = f"{event} of {called if event == 'c_return' else ''} {frame.f_code.co_qualname}:{frame.f_lineno}"
        sys.setprofile(None)
        raise Limit

    def _counts(self, frame: FrameType, event: str) -> bool:
        if event not in ("call", "return", "c_return") or "/tests/" in frame.f_code.co_filename:
            return False
        depth = self._depth(frame)
        if event == "return" and frame.f_code.co_name == "__init__":
            assert frame.f_back is not None
            caller = frame.f_back.f_code.co_filename
            return depth > 1 and any(each in caller for each in ("/client/", "/coordination/"))
        return 1 <= depth <= 2

    def _depth(self, frame: FrameType) -> int:
        """The number of calls from the client's constructor to this frame; -1 outside of it."""
        calls = list[CodeType]()
        each: FrameType | None = frame
        while each is not None and each.f_code is not self._construct:
            calls.append(each.f_code)
            each = each.f_back
        return -1 if each is None else len([code for code in calls if "/tests/" not in code.co_filename])


def _await_no_more_than(before: tuple[int, int], behind: str = "interrupts") -> None:
    """The threads and descriptors of then; an AssertionError names those that there are."""
    try:
        what = f"as few threads and descriptors as before, {before}, behind {behind}"
        eventually(partial(_is_left_at_most, *before), what=what)
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

"""Many runs, each of its own seed, on one pair of servers; differences with the shortest list that still shows them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple
from unittest import mock

from metaq.broker.standalone import keeper
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.coordination.standalone import server as standalone_server
from tests.kills.outcome import Outcome, Problem, Say
from tests.kills.scratch import scratch_directory

from .core import CoreServer
from .generator import Generator
from .operations import Operation
from .run import Difference, Run, replay, shrink
from .servers import MAX_SESSION_MS, NEVER_MS, TICK_MS, ApacheServer
from .wires import Connect, socket_wires

__all__ = ["described", "random_run", "roots", "run"]

EXPIRE_EVERY = 5
"""Runs, one of which has a session that ends by its time-out: that takes real time."""

SNAPSHOT_LOG_BYTES = 100_000
"""A snapshot after so much, so that there are some in each run."""

MOST_REPLAYS = 400
"""Of a list that is shortened."""


def random_run(seed: int, length: int, run: Run) -> Difference | None:
    """`length` operations drawn from `seed`, and the end of the run."""
    generator = Generator(seed)
    generator.until_expiry = 0 if seed % EXPIRE_EVERY else length // 2
    for _ in range(length):
        operation = generator.draw()
        found = run.do(operation)
        if isinstance(found, Difference):
            return found
        generator.observe(operation, found)
    return run.finish()


class Pair(NamedTuple):
    """Two servers, and how the second one is started again from its log, if it can be."""

    first: Connect
    second: Connect
    restart: Callable[[], None] | None = None


@contextmanager
def _apache_and_sockets(directory: Path) -> Iterator[Pair]:
    with (
        ApacheServer(directory / "apache") as apache,
        mock.patch.object(standalone_server, "_CONTAINER_CHECK_MS", NEVER_MS),
        mock.patch.object(keeper, "SNAPSHOT_LOG_BYTES", SNAPSHOT_LOG_BYTES),
        InProcessZooKeeper(
            directory / "standalone", tick_time_ms=TICK_MS, max_session_timeout_ms=MAX_SESSION_MS
        ) as standalone,
    ):

        def restart() -> None:
            standalone.stop()
            standalone.start()

        yield Pair(socket_wires((apache.host, apache.port)), socket_wires((standalone.host, standalone.port)), restart)


@contextmanager
def _apache_and_core(directory: Path) -> Iterator[Pair]:
    with (
        ApacheServer(directory / "apache") as apache,
        mock.patch.object(standalone_server, "_CONTAINER_CHECK_MS", NEVER_MS),
    ):
        core = CoreServer()
        yield Pair(socket_wires((apache.host, apache.port)), core.connect, core.restart)


@contextmanager
def _apaches(directory: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(ApacheServer(directory / name)) for name in ("first", "second"))
        yield Pair(socket_wires((first.host, first.port)), socket_wires((second.host, second.port)))


PAIRS: dict[str, Callable[[Path], AbstractContextManager[Pair]]] = {
    "sockets": _apache_and_sockets,
    "core": _apache_and_core,
    "apaches": _apaches,
}


def roots() -> Iterator[str]:
    """The znodes of runs: of one length, so that requests are, too."""
    return (f"/f{number:07}" for number in itertools.count())


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    operations: int = 10_000,
    length: int = 2000,
    pair: Literal["sockets", "core", "apaches"] = "sockets",
    stop: bool = True,
) -> Outcome:
    """The same operations of several clients to the standalone ZooKeeper and to Apache's, all that they send compared.

    length: operations of one list; the next one has the next seed. pair: what is compared with Apache's server: the
    standalone one at its port, with its files; its core, called, with a clock of its own; another one of Apache's,
    which shows what depends on chance. stop: at the first difference.
    """
    problems: list[Problem] = []
    names, done, number = roots(), 0, 0
    with scratch_directory() as scratch, PAIRS[pair](scratch) as servers:  # disks are not what is compared

        def start() -> Run:
            return Run(servers.first, servers.second, next(names), servers.restart)

        while done < operations and not (problems and stop):
            run = start()
            try:
                found = random_run(seed + number, length, run)
            finally:
                run.close()
            done += len(run.done)
            if found is not None:
                problems.append(Problem("differs", described(seed + number, found, start)))
            number += 1
    return Outcome(problems, {"operations": done, "lists": number})


def described(seed: int, found: Difference, start: Callable[[], Run]) -> str:
    """The difference of the shortest list that still has one."""
    replays = 0

    def differs(tried: Sequence[Operation]) -> bool:
        nonlocal replays
        replays += 1
        return replays <= MOST_REPLAYS and replay(tried, start) is not None

    if not differs(found.operations):
        return f"seed {seed}: {found}\nwas not seen again"
    short = shrink(found.operations, differs)
    again = replay(short, start)
    if again is None:
        return f"seed {seed}: {found}\nwas not always seen again"
    return f"seed {seed}: {again}\n{short!r}"

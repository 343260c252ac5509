"""Measure the time and the ZooKeeper requests until a large group has assigned its partitions: `python -m
bench.groups`.

The members are real group members in a few processes, each with its own ZooKeeper session; they only do not fetch from
brokers. The ZooKeeper server itself counts the requests (`packets_received`), so the members' regular checks of their
sessions and the observer's few requests are included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click

from metaq import ConsumerConfig
from metaq.client.consumer.group_member import GroupMember
from metaq.client.consumer.offset_commit import OffsetCommitter, StartPosition
from metaq.client.consumer.self_checks import SessionWatch
from metaq.client.fetching.core import ConsumerCore
from metaq.client.runtime.timers import Timers
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.groups.assignment import range_assignment
from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.offsets.offset_store import ZooKeeperOffsetStore
from metaq.coordination.servers.local_zookeeper import four_letter_word
from metaq.coordination.session.zk_session import ZkSession

__all__ = ["measure_group"]

GROUP = "g"
_POLL_SECONDS = 0.1
_STARTERS = 8
"""Number of threads that start members in one process."""
_LIMIT_SECONDS = 600.0
_STILL_SECONDS = 2.0
"""Seconds for which the group must stay unchanged before the next step."""


# --- a process with some members --------------------------------------------------------------------------------------


class _Member:
    def __init__(self, connect: str, topics: list[str], timers: Timers) -> None:
        self.session = ZkSession(connect)
        self.session.start(60.0)
        self.membership = GroupMembership(self.session, GROUP, None, topics, lambda: self.member.changed())
        store = ZooKeeperOffsetStore(self.session)
        fetcher: Any = SimpleNamespace(
            serve_soon=lambda: None, wake=lambda: None, brokers_are=lambda masters, others: None
        )
        self.member = GroupMember(
            self.membership,
            OffsetCommitter(store, GROUP),
            ConsumerCore(GROUP, ConsumerConfig()),
            fetcher,
            timers,
            ClusterView(self.session),
        )
        SessionWatch(self.session, GROUP, timers, self.member.holds_its_claims).prove()
        self.member.begin(StartPosition(0))

    def close(self) -> None:
        self.member.close(30.0)
        self.session.close()


def _serve(connect: str, topics: list[str], count: int) -> None:
    """Execute commands from standard input, one per line: `join` or `leave <consumer id>`. Answer each of them; return
    when the input ends.
    """
    timers = Timers("timers")
    members: dict[str, _Member] = {}
    before = threading.active_count()
    print("ready", flush=True)
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "join":
            with ThreadPoolExecutor(_STARTERS) as pool:
                for each in pool.map(lambda _: _Member(connect, topics, timers), range(count)):
                    members[each.membership.consumer_id] = each
        elif command == "leave" and argument in members:
            members.pop(argument).close()
        print((threading.active_count() - before) / max(1, len(members)), flush=True)
    with ThreadPoolExecutor(_STARTERS) as pool:
        list(pool.map(_Member.close, members.values()))


class _Process:
    def __init__(self, connect: str, topics: list[str], count: int) -> None:
        arguments = json.dumps([connect, topics, count])
        command = [sys.executable, "-m", "bench.groups", "--members-of", arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# --- the observer -----------------------------------------------------------------------------------------------------


class _Observer:
    def __init__(self, server: EmbeddedZooKeeper, session: ZkSession, topics: list[str]) -> None:
        self._server = server
        self._session = session
        self._view = ClusterView(session)
        self._topics = topics
        self._partitions = {topic: self._view.consumer_partitions(topic) for topic in topics}
        self._wanted_of: tuple[list[str], dict[str, dict[str, str]]] = [], {}

    def requests(self) -> int:
        """Return the number of packets that the server has received."""
        said = four_letter_word(self._server.host, self._server.port, b"mntr")
        (line,) = (each for each in said.splitlines() if each.startswith("zk_packets_received"))
        return int(float(line.split()[1]))

    def is_settled(self, members: int) -> bool:
        owned = self._session.nodes.children_many([self._session.paths.owners(GROUP, each) for each in self._topics])
        if list(map(len, owned)) != [len(self._partitions[topic]) for topic in self._topics]:
            return False
        consumers = list(self._view.consumers(GROUP))
        if len(consumers) != members:
            return False
        wanted = self.wanted(consumers)
        return all(self._view.owners(GROUP, topic) == wanted[topic] for topic in self._topics)

    def wanted(self, consumers: list[str]) -> dict[str, dict[str, str]]:
        """Return by topic and partition the consumer that should own it. The result is computed once for each list of
        consumers, because 400 assignments take 0.1 s of a processor that the members need.
        """
        if self._wanted_of[0] != consumers:
            owners = {
                topic: {
                    partition: consumer
                    for consumer in consumers
                    for partition in range_assignment(consumer, consumers, partitions)
                }
                for topic, partitions in self._partitions.items()
            }
            self._wanted_of = consumers, owners
        return self._wanted_of[1]

    def first(self) -> str:
        """Return the member whose leaving moves the most partitions."""
        return min(self._view.consumers(GROUP))


def _measure(observer: _Observer, members: int, act: Callable[[], None]) -> dict[str, float]:
    """Return the seconds and requests from the call of `act` until each partition has its right owner. Check afterwards
    that the group stays so.
    """
    before, began = observer.requests(), time.monotonic()
    act()
    while not observer.is_settled(members):
        if time.monotonic() - began > _LIMIT_SECONDS:
            raise RuntimeError(f"{members} members did not settle within {_LIMIT_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    took, requests = time.monotonic() - began, observer.requests() - before
    time.sleep(_STILL_SECONDS)
    if not observer.is_settled(members):
        raise RuntimeError("the group moved on after it had settled")
    return {"seconds": round(took, 2), "requests": requests}


def measure_group(members: int, topics: int = 4, partitions: int = 100, processes: int = 2) -> dict[str, Any]:
    """Measure a group of `members` that all join at once. Return the seconds and requests until its assignment is
    complete, and the same after one member has left.
    """
    names = [f"topic-{number}" for number in range(topics)]
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedZooKeeper(Path(directory) / "zookeeper", tick_time_ms=2000) as server,
        ZkSession(server.connect_string) as session,
    ):
        broker = BrokerRegistration(session, BrokerAddress(0, None, "127.0.0.1", 8123))
        broker.register([TopicRegistration(name, partitions) for name in names])
        observer = _Observer(server, session, names)
        shares = [members // processes + (number < members % processes) for number in range(processes)]
        started = [_Process(server.connect_string, names, share) for share in shares]
        try:
            return _join_and_leave(observer, started, members)
        finally:
            for each in started:
                each.stop()


def _join_and_leave(observer: _Observer, processes: list[_Process], members: int) -> dict[str, Any]:
    def ask(line: str) -> None:
        for each in processes:
            each.ask(line)

    result: dict[str, Any] = {"members": members, "join": _measure(observer, members, lambda: ask("join"))}
    result["threads_per_member"] = max(float(each.answer()) for each in processes)
    leaver = observer.first()
    result["leave"] = _measure(observer, members - 1, lambda: ask(f"leave {leaver}"))
    before = observer.requests()
    time.sleep(10.0)
    result["requests_per_second_at_rest"] = (observer.requests() - before) / 10.0
    return result


def _table(results: list[dict[str, Any]]) -> str:
    rows = [
        "| members | joining: s | requests | per member | one leaves: s | requests | per member | threads |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in results:
        members, join, leave = each["members"], each["join"], each["leave"]
        rows.append(
            f"| {members} | {join['seconds']:.1f} | {join['requests']:,} | {join['requests'] / members:.0f} "
            f"| {leave['seconds']:.2f} | {leave['requests']:,} | {leave['requests'] / members:.1f} "
            f"| {each['threads_per_member']:.1f} |"
        )
    return "\n".join(rows)


def _plot(results: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure((8.0, 3.4), layout="constrained")
    FigureCanvasAgg(picture)
    members = [each["members"] for each in results]
    for place, (step, title) in enumerate((("join", "all join together"), ("leave", "one leaves"))):
        axes = picture.add_subplot(1, 2, place + 1)
        axes.plot(members, [each[step]["requests"] for each in results], "o-", color="#d95f02")
        axes.set(title=f"{title}: requests to ZooKeeper", xlabel="members", xlim=(0, None), ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
    picture.savefig(path, dpi=100)


def _write(results: list[dict[str, Any]]) -> None:
    folder = Path(__file__).parent
    _plot(results, folder / "plots" / "groups.png")
    text = (
        "# Large groups\n\n"
        "Written by `python -m bench.groups --write`: 4 topics of 100 partitions, members in 2 processes beside one\n"
        f"ZooKeeper, {os.cpu_count()} processors. Requests are ZooKeeper's own count until each partition has the\n"
        "owner that it should have; the regular proofs of the sessions are in it.\n\n"
        f"{_table(results)}\n\n![requests](plots/groups.png)\n"
    )
    (folder / "GROUPS.md").write_text(text, "utf-8")


@click.command()
@click.option("--write", is_flag=True, help="Write GROUPS.md and plots/groups.png too.")
@click.option("--members", type=int, multiple=True, default=(50, 100, 200, 400), show_default=True)
@click.option("--processes", type=int, default=2, show_default=True, help="In which the members run.")
@click.option("--members-of", hidden=True)
def main(write: bool, members: tuple[int, ...], processes: int, members_of: str | None) -> None:
    """Print a table: seconds, requests and threads of groups that share 4 topics of 100 partitions."""
    if members_of is not None:  # a child that _Process has started
        _serve(*cast(tuple[str, list[str], int], json.loads(members_of)))
        return
    results = []
    for count in members:
        results.append(measure_group(count, processes=processes))
        click.echo(json.dumps(results[-1]))
    click.echo(_table(results))
    if write:
        _write(results)


if __name__ == "__main__":
    main()

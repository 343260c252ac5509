"""Nodes of a broker set as processes, and what operators ask of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metaq import Producer
from metaq.coordination.session import ZkSession
from metaq.coordination.set_view import SetView, read_set
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import RunningBroker
from tests.integration.cli_helpers import Operator
from tests.integration.replication_helpers import broker, same_files, slave
from tests.waiting import DEADLINE, eventually

StartNode = Callable[..., RunningBroker]


@pytest.fixture
def start(chroot: str, tmp_path: Path) -> Iterator[StartNode]:
    """`start(name)` starts a node of set 0; again with the same directory after an end."""
    with ExitStack() as stack:

        def start(name: str, system: str = "", *options: str) -> RunningBroker:
            options = ("--node", name, *options)
            return stack.enter_context(broker(tmp_path / name, chroot, {"t": 2}, *options, system=system))

        yield start


def view(chroot: str) -> SetView:
    with ZkSession(chroot) as session:
        return read_set(session, 0)


def led(chroot: str, leader: str, *in_sync: str) -> SetView:
    """The set once it is led so."""

    def found() -> SetView | None:
        now = view(chroot)
        state = now.state
        good = state and now.master and state.leader == leader and set(state.in_sync) == {leader, *in_sync}
        return now if good else None

    return eventually(found, 2 * DEADLINE, f"{leader} leads with {in_sync}") or view(chroot)


def send(chroot: str, *payloads: bytes) -> None:
    with Producer(chroot) as producer:
        for each in payloads:
            producer.send("t", each, timeout=DEADLINE)


def test_an_asynchronous_slave_follows_the_leader_of_a_set_through_a_failover(
    chroot: str, tmp_path: Path, start: StartNode
):
    first = start("a")
    led(chroot, "a")
    start("b")
    led(chroot, "a", "b")
    with slave(tmp_path, chroot, {"t": 2}):
        send(chroot, b"1", b"2", b"3", b"4")
        eventually(lambda: same_files(tmp_path / "a" / "data", tmp_path / "slave" / "data"), 2 * DEADLINE, "the copy")
        first.kill()
        led(chroot, "b")
        send(chroot, b"5", b"6", b"7", b"8")
        eventually(lambda: same_files(tmp_path / "b" / "data", tmp_path / "slave" / "data"), 2 * DEADLINE, "the rest")


def test_a_reload_changes_the_promise_of_a_leader(chroot: str, start: StartNode):
    node = start("a")
    led(chroot, "a")
    send(chroot, b"taken")
    node.ini.write_text(node.ini.read_text().replace("[topic=t]\n", "[topic=t]\nminInSync=2\n"))
    with node.connect() as connection:
        assert connection.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 1, {})).code == ResponseCode.SUCCESS
        put = connection.ask(b"put t 0 1 0 1\r\nx")
    assert b"minInSync" in put.text.encode() or "in-sync" in put.text, put

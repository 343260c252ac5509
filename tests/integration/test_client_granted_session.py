"""A server that grants a shorter session than was asked for: what is believed of it is what was granted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.client.consumer.watches import SessionWatch
from metaq.client.timers import Timers
from metaq.coordination.group import GroupMembership
from metaq.coordination.local_zookeeper import ZooKeeperProcess
from metaq.coordination.session import ZkSession
from tests.integration.coordination_helpers import session_at
from tests.integration.gate import Gate
from tests.waiting import eventually
from tests.zookeepers import zookeeper_process

ASKED_SECONDS = 30.0
GRANTED_SECONDS = 3.0


@pytest.fixture
def strict_server(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    longest = int(GRANTED_SECONDS * 1000)
    with zookeeper_process(tmp_path / "zk", tick_time_ms=100, max_session_timeout_ms=longest) as server:
        yield server


def test_the_session_timeout_is_the_one_that_was_granted(strict_server: ZooKeeperProcess) -> None:
    session = ZkSession(strict_server.connect_string, session_timeout=ASKED_SECONDS)
    assert session.session_timeout == ASKED_SECONDS
    with session:
        assert session.session_timeout == GRANTED_SECONDS


def test_a_member_that_is_cut_off_hands_nothing_out_when_another_can_own_its_partitions(
    strict_server: ZooKeeperProcess,
) -> None:
    timers = Timers("test")
    with (
        Gate(strict_server.connect_string) as gate,
        session_at(gate.address, ASKED_SECONDS) as cut_off,
        session_at(strict_server.connect_string, ASKED_SECONDS) as other,
    ):
        member = GroupMembership(cut_off, "g", "c1", ["t"], lambda: None)
        member.join()
        assert member.claim("t", "0-0")
        watch = SessionWatch(cut_off, "g", timers, lambda: True)
        watch.prove()
        other_member = GroupMembership(other, "g", "c2", ["t"], lambda: None)
        other_member.join()
        assert not watch.may_have_lost_everything()
        gate.silence()
        began = time.monotonic()
        eventually(lambda: other_member.claim("t", "0-0"), what="taking over")
        assert watch.may_have_lost_everything()
        assert time.monotonic() - began < ASKED_SECONDS / 3  # or it would have noticed anyway
        timers.close()
        cut_off.close(timeout=1.0)

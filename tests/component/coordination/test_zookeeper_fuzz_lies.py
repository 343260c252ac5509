"""The fuzz of the standalone ZooKeeper finds each lie of a server, and no difference between two of a kind."""

from collections.abc import Iterator
from itertools import count

import pytest

from metaq.broker.standalone.in_process import InProcessZooKeeper
from tests.zookeeper_fuzz.campaign import described, random_run, roots
from tests.zookeeper_fuzz.core import CoreServer
from tests.zookeeper_fuzz.lying import LIES, LyingProxy
from tests.zookeeper_fuzz.run import Run
from tests.zookeeper_fuzz.servers import MAX_SESSION_MS, TICK_MS
from tests.zookeeper_fuzz.wires import socket_wires

LENGTH = 300


@pytest.fixture
def server() -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper(tick_time_ms=TICK_MS, max_session_timeout_ms=MAX_SESSION_MS) as server:
        yield server


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_and_shown_in_few_operations(server: InProcessZooKeeper, lie: str):
    """The truth is a core of the server, called; the lies are those of a proxy before the same core with a port."""
    truth, names = CoreServer(), roots()
    with LyingProxy((server.host, server.port), LIES[lie]) as proxy:

        def start() -> Run:
            return Run(truth.connect, socket_wires(proxy.address), next(names))

        for seed in count(1):
            run = start()
            found = random_run(seed, LENGTH, run)
            run.close()
            if found is not None:
                break
        assert found is not None
        text = described(seed, found, start)
    assert "first server:" in text
    assert text.count("\n  client ") <= 12


def test_two_servers_of_a_kind_do_not_differ(server: InProcessZooKeeper):
    run = Run(CoreServer().connect, socket_wires((server.host, server.port)), "/none00001")
    assert random_run(3, 2 * LENGTH, run) is None
    run.close()
    assert len(run.done) > 2 * LENGTH

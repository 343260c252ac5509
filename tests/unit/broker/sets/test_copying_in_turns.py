"""A follower that joins: its leader looks at few partitions at once, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from metaq.broker.sets import catching_up, tuning
from metaq.broker.sets.catching_up import Copying
from tests.unit.broker.harness import Harness, put

PARTITIONS = 9


class Connection:
    name = "b"

    def send(self, buffers: Any) -> None:
        """Into nowhere."""

    async def drained(self) -> None:
        """Always."""


def copying_to(harness: Harness, ends: dict[str, list[int]], live: list[str]) -> Copying:
    """The copy to a follower with these; it tells `live` when its blocks may come."""
    connection: Any = Connection()
    pace: Any = None
    ready = {"partitions": ends, "transactions": [0, ""]}
    return Copying(harness.broker, connection, ready, pace, lambda: lambda: live.append("live"))


@pytest.fixture
def harness(tmp_path: Any) -> Any:
    harness = Harness(tmp_path)
    peer = harness.connect()
    for partition in range(PARTITIONS):
        peer.send(put("wild", partition))
    harness.threads.run()
    yield harness
    harness.close()


@pytest.mark.parametrize("missing", [True, False])
def test_the_logs_are_looked_at_in_turns(harness: Harness, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    async def no_transactions(*_: object) -> int:
        return 0

    def counted(self: Copying, log: Any) -> Any:
        looked[-1] += 1
        return inner(self, log)

    monkeypatch.setattr(tuning, "LOOKED_AT", 2)
    monkeypatch.setattr(catching_up, "send_copy", no_transactions)
    inner, looked = Copying._place, [0]
    monkeypatch.setattr(Copying, "_place", counted)
    ends = {} if missing else {name: [first, end] for name, (first, end, _) in harness.store.ends().items()}
    live: list[str] = []
    copy = copying_to(harness, ends, live)
    done = ensureDeferred(copy.run())
    for _ in range(1000):
        if done.called:
            break
        looked.append(0)
        harness.threads.run()
        calls, harness.reactor.calls = harness.reactor.calls, []
        for call in calls:
            call.called = 1
            call.func(*call.args, **call.kw)
    assert (done.called, live) == (True, ["live"])
    logs = tuple(harness.store.all_logs())
    assert looked[0] == 0  # the message itself was enough for one
    assert max(looked) <= 2
    assert sum(looked) == 2 * len(logs)  # once for what is missing, once for the last round
    assert copy.sent_bytes == (sum(log.end_offset for log in logs) if missing else 0)


def test_a_partition_that_begins_while_the_last_round_runs_is_left_to_the_blocks(harness, monkeypatch) -> None:
    async def new_partition(*_: object) -> int:
        before = len(tuple(harness.store.all_logs()))
        harness.connect().send(put("t", 0))
        assert len(tuple(harness.store.all_logs())) == before + 1
        harness.threads.run()
        return 0

    monkeypatch.setattr(catching_up, "send_copy", new_partition)
    live: list[str] = []
    done = ensureDeferred(copying_to(harness, {}, live).run())
    while not done.called:
        harness.threads.run()
        harness.reactor.advance(0)
    assert live == ["live"]

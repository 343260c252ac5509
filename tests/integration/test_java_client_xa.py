"""XA transactions of the Java client, as an external coordinator drives them, across crashes of the broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.processes import ProcessFailed, Server
from tests.integration.java_sides import Broker, Fields, Side
from tests.waiting import eventually

TOPICS = dict.fromkeys(
    ["two-phase", "one-phase", "undone", "codes", "doubt-close", "doubt-kill", "late", "handed-on"], 1
)
NOT_KNOWN, PROTOCOL = -4, -6


def readable(side: Side, topic: str) -> bool:
    """Whether the client is connected again."""
    try:
        side.browsed(topic)
    except ProcessFailed:
        return False
    return True


class Coordinator:
    """An XA producer; each step of a branch by name."""

    def __init__(self, side: Side, name: str, topic: str) -> None:
        self.app, self.topic = side.app, topic
        self.name = side.app.producer(name, topic, factory="xa")

    def __call__(self, verb: str, branch: str, *options: str) -> Fields:
        return self.app.call("xa", self.name, verb, branch, *options)

    def work(self, branch: str, *data: bytes) -> None:
        """Start the branch, send, end it."""
        assert self("start", branch) == {}
        for each in data:
            result = self.app.send(self.name, self.topic, each)
            assert (result["success"], result["offset"]) == (True, -1), result
        assert self("end", branch) == {}

    @property
    def in_doubt(self) -> list[str]:
        return [each.split(":")[1] for each in self("recover", "")["in_doubt"]]


def test_two_phases(side: Side) -> None:
    xa = Coordinator(side, "two", "two-phase")
    xa.work("a", b"1", b"2")
    assert xa("prepare", "a") == {"vote": 0}
    assert xa.in_doubt == ["a"]
    assert side.browsed("two-phase") == []
    assert xa("commit", "a") == {}
    side.becomes("two-phase", [b"1", b"2"])
    assert xa.in_doubt == []


def test_one_phase_and_a_branch_without_work(side: Side) -> None:
    xa = Coordinator(side, "one", "one-phase")
    xa.work("b", b"1")
    assert xa("commit_one_phase", "b") == {}
    side.becomes("one-phase", [b"1"])
    xa.work("empty")
    assert xa("prepare", "empty") == {"vote": 3}
    assert xa("commit", "empty")["xa_code"] == NOT_KNOWN


def test_rollbacks_before_and_after_prepare(side: Side) -> None:
    xa = Coordinator(side, "undoer", "undone")
    xa.work("c", b"never")
    assert xa("rollback", "c") == {}
    xa.work("d", b"never")
    assert xa("prepare", "d") == {"vote": 0}
    assert xa("rollback", "d") == {}
    xa("start", "e")
    assert side.app.send(xa.name, "undone", b"never")["success"]
    assert xa("fail", "e") == {}
    assert xa("rollback", "e") == {}
    assert side.browsed("undone") == []


def test_the_codes_of_wrong_steps(side: Side) -> None:
    xa = Coordinator(side, "wrong", "codes")
    xa.work("f", b"x")
    early = xa("commit", "f")
    assert (early["xa_code"], early["message"]) == (
        PROTOCOL,
        "Cannot do 2 phase commit if the transaction has not been prepared.",
    )
    xa("prepare", "f")
    assert xa("prepare", "f")["xa_code"] == PROTOCOL
    assert xa("commit", "f") == {}
    for verb in ("commit", "rollback", "prepare"):
        unknown = xa(verb, "nobody")
        assert unknown["xa_code"] == NOT_KNOWN
        assert unknown["message"].startswith("XA transaction 'XID:4660:6e6f626f6479:6272616e6368:")
    assert xa("forget", "nobody") == {}


def test_a_branch_over_its_time_is_rolled_back_and_a_prepared_one_is_not(side: Side) -> None:
    xa = Coordinator(side, "dawdler", "late")
    xa("start", "kept", "timeout=5")
    assert side.app.send(xa.name, "late", b"kept")["success"]
    xa("end", "kept")
    assert xa("prepare", "kept") == {"vote": 0}
    xa("start", "late", "timeout=5")
    assert side.app.send(xa.name, "late", b"never")["success"]
    xa("end", "late")
    # a second phase without the first is refused for as long as the branch is there
    eventually(lambda: xa("commit", "late")["xa_code"] == NOT_KNOWN, 10, "the time-out")
    assert xa("commit", "kept") == {}
    side.becomes("late", [b"kept"])


def test_qualifiers_keep_coordinators_apart(side: Side) -> None:
    mine = Coordinator(side, "mine", "handed-on")
    side.app.call("xa_qualifier", mine.name, "mine")
    mine.work("g", b"1")
    assert mine("prepare", "g") == {"vote": 0}
    other = Coordinator(side, "other", "handed-on")
    side.app.call("xa_qualifier", other.name, "other")
    assert other.in_doubt == []
    same = Coordinator(side, "same", "handed-on")
    side.app.call("xa_qualifier", same.name, "mine")
    assert same.in_doubt == ["g"]
    assert same("commit", "g") == {}
    side.becomes("handed-on", [b"1"])


@pytest.mark.parametrize("end", [Server.close, Server.kill])
def test_prepared_branches_survive_the_broker_and_are_finished_after_recover(
    side: Side, end: Callable[[Broker], None]
) -> None:
    topic = f"doubt-{end.__name__}"
    xa = Coordinator(side, topic, topic)
    for branch in ("h", "i"):
        xa.work(f"{end.__name__}-{branch}", branch.encode())
        assert xa("prepare", f"{end.__name__}-{branch}") == {"vote": 0}
    xa.work("unprepared", b"never")
    side.restart(end)
    eventually(lambda: xa("recover", "").get("in_doubt"), 30, "the client is back")
    assert sorted(xa.in_doubt) == [f"{end.__name__}-h", f"{end.__name__}-i"]
    eventually(lambda: readable(side, topic), 30, "the browser is back")
    assert side.browsed(topic) == []
    assert xa("commit", f"{end.__name__}-h") == {}
    assert xa("rollback", f"{end.__name__}-i") == {}
    assert xa("commit_one_phase", "unprepared")["xa_code"] == NOT_KNOWN
    assert xa.in_doubt == []
    if side.is_java:  # 1.x writes it where the partition ended before its segments were loaded (semantics.md §9)
        return
    side.becomes(topic, [b"h"])
    side.app.send_all(side.app.producer("plain", topic), topic, b"after")
    side.becomes(topic, [b"h", b"after"])

"""Local transactions of the Java client: nothing before the commit, all of it after, nothing after a rollback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.processes import ProcessFailed
from tests.broker_process import server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.integration.java_peers import require_java
from tests.integration.java_sides import Application, Side
from tests.waiting import eventually

TOPICS = {"committed": 2, "undone": 1, "late": 1, "left": 1, "two-1": 1, "two-2": 1, "refused": 1, "prepared": 1}


def test_messages_appear_together_with_the_commit_in_the_order_of_sending(side: Side) -> None:
    sender = side.app.producer("committer", "committed")
    side.app.call("begin", sender)
    results = [side.app.send(sender, "committed", f"{number}".encode()) for number in range(6)]
    assert all(result["success"] for result in results)
    assert {result["offset"] for result in results} == {-1}
    assert {result["id"] for result in results} != {0}
    assert side.browsed("committed") == []
    side.app.call("commit", sender)
    side.becomes("committed", [b"1", b"3", b"5", b"0", b"2", b"4"])
    ids = {message["id"] for message in side.app.call("browse", "committed", 1 << 20)["messages"]}
    assert ids == {result["id"] for result in results}
    outside = side.app.send(sender, "committed", b"without one")
    assert outside["offset"] == 63


def test_a_transaction_spans_the_topics_of_its_broker(side: Side) -> None:
    sender = side.app.producer("spanner", "two-1")
    side.app.producer("spanner", "two-2")
    side.app.call("begin", sender)
    for topic in ("two-1", "two-2", "two-1"):
        assert side.app.send(sender, topic, topic.encode())["success"]
    side.app.call("commit", sender)
    side.becomes("two-1", [b"two-1"] * 2)
    side.becomes("two-2", [b"two-2"])


def test_a_rollback_leaves_nothing(side: Side) -> None:
    sender = side.app.producer("undoer", "undone")
    side.app.call("begin", sender)
    assert side.app.send(sender, "undone", b"never")["success"]
    side.app.call("rollback", sender)
    side.app.send_all(sender, "undone", b"seen")
    side.becomes("undone", [b"seen"])


def test_a_transaction_over_its_time_is_rolled_back(side: Side) -> None:
    sender = side.app.producer("dawdler", "late")
    side.app.call("begin", sender, "timeout=5")
    assert side.app.send(sender, "late", b"never")["success"]
    eventually(lambda: rolled_back(side, sender), 10, "the time-out")
    with pytest.raises(ProcessFailed, match=r"Local transaction 'TX:.*' has (not been started|timed out)"):
        side.app.call("commit", sender)
    assert side.browsed("late") == []


def rolled_back(side: Side, sender: str) -> bool:
    result = side.app.send(sender, "late", b"never")
    assert result["success"] or re.search("has (not been started|timed out)", result["reason"])
    return not result["success"]


def test_refusals_inside_a_transaction_are_those_of_1x(side: Side) -> None:
    sender = side.app.producer("refused", "refused")
    for verb in ("commit", "rollback"):
        with pytest.raises(ProcessFailed, match="There is no transaction begun"):
            side.app.call(verb, sender)
    side.app.call("begin", sender)
    with pytest.raises(ProcessFailed, match="TransactionInProgressException"):
        side.app.call("begin", sender)
    with pytest.raises(ProcessFailed, match="No transaction is started"):  # the broker hears of it with the first send
        side.app.call("commit", sender)
    side.app.call("begin", sender)
    assert side.app.send(sender, "refused", b"fine")["success"]
    side.app.call("commit", sender)
    side.becomes("refused", [b"fine"])


def test_an_application_that_ends_in_a_transaction_leaves_nothing(side: Side) -> None:
    with Application(side.connect, side.directory / "leaver.log") as leaver:
        sender = leaver.producer("leaver", "left")
        leaver.call("begin", sender)
        assert leaver.send(sender, "left", b"never")["success"]
        leaver.kill()
    side.app.send_all(side.app.producer("stayer", "left"), "left", b"after")
    side.becomes("left", [b"after"])


def test_an_application_reads_which_limit_refuses_it(chroot: str, tmp_path: Path) -> None:
    """A limit of ours: the Java client shows the text of a status that it does not expect."""
    require_java()
    ini = server_ini(tmp_path / "data", {"t": ""}, zookeeper=f"zk.zkConnect={chroot}")
    broker = ForkedBroker(tmp_path, f"{ini}[limits]\nopenTransactions=1\n")
    try:
        with Application(chroot, tmp_path / "client.log") as app:
            senders = [app.producer(name, "t") for name in ("first", "second")]
            for sender in senders:
                app.call("begin", sender)
            assert app.send(senders[0], "t", b"1")["success"]
            with pytest.raises(
                ProcessFailed, match=r"too many open transactions.*see openTransactions=1 and addressShare"
            ):
                app.send(senders[1], "t", b"2")
            app.call("commit", senders[0])
            assert app.browsed("t") == [b"1"]
    finally:
        broker.kill()

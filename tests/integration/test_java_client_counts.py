"""Counters of a broker after the same work of the same application: both brokers count the same."""

from __future__ import annotations

from tests.integration.java_sides import Side

TOPICS = {"counted": 1, "wild*": 1}

EXPECTED = {
    "cmd_put": 11,
    "put_failed": 1,
    "tx_begin": 4,
    "tx_xa_begin": 2,
    "tx_commit": 2,
    "tx_rollback": 1,
}


def work(side: Side) -> None:
    sender = side.app.producer("worker", "counted")
    side.app.send_all(sender, "counted", b"12345", b"12345", b"12345")
    url = f"meta://127.0.0.1:{side.broker.port}"
    side.app.call("factory", "direct", "plain", f"server_url={url}")
    refused = side.app.send(side.app.producer("direct", factory="direct"), "nobody-knows", b"x")
    assert not refused["success"]
    for end in ("commit", "rollback"):
        side.app.call("begin", sender)
        side.app.send_all(sender, "counted", b"12345", b"12345")
        side.app.call(end, sender)
    coordinator = side.app.producer("coordinator", "counted", factory="xa")
    for branch in ("a", "b"):
        side.app.call("xa", coordinator, "start", branch)
        if branch == "a":
            side.app.send_all(coordinator, "counted", b"12345", b"12345", b"12345")
        side.app.call("xa", coordinator, "end", branch)
        assert side.app.call("xa", coordinator, "prepare", branch) == {"vote": 0 if branch == "a" else 3}
    side.app.call("xa", coordinator, "commit", "a")


def test_the_same_work_is_counted_the_same(side: Side) -> None:
    work(side)
    (system,) = side.app.call("stats")["brokers"].values()
    assert {name: int(system[name]) for name in EXPECTED} == EXPECTED
    (topic,) = side.app.call("stats", "counted")["brokers"].values()
    assert topic["topic_realtime_put"].startswith("Count=10,Value=10,")
    assert topic["topic_realtime_put_failed"] == "null"
    # 1.x counts a transaction as one message of each partition, and the bytes of single puts only
    assert topic["message_count"] == ("5" if side.is_java else "8")
    sizes = "Count=3,Value=15," if side.is_java else "Count=10,Value=50,"
    assert topic["topic_realtime_message_size"].startswith(sizes)

"""An application of the Java client while its broker is stopped, killed and started again, and with big messages."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest

from bench.processes import ProcessFailed, Server
from metaq.protocol.limits import MAX_BODY_BYTES
from tests.integration.java_peers import NOT_CONNECTED
from tests.integration.java_sides import Broker, Fields, Side
from tests.waiting import eventually

TOPICS = {"stopped": 1, "killed": 1, "ordered": 1, "big": 1, "huge": 1, "stalled": 1}
NO_PARTITION = "There is no aviable partition for topic"
UNANSWERED = "等待响应超时"
STARTING = "broker 0 is starting: try again"
"""Our broker listens before it has read in ZooKeeper which partitions have moved away."""
MAX_RECORD_BODY = (1 << 20) - 20
"""The largest body of a record that fits into one answer, of maxTransferSize bytes."""

ENDS = [pytest.param("stopped", Server.close, id="stopped"), pytest.param("killed", Server.kill, id="killed")]


def outcomes(results: list[Fields]) -> list[str]:
    """What a sending application saw, one entry for each run of equal outcomes."""
    return [name for name, _ in groupby(map(outcome, results))]


def outcome(result: Fields) -> str:
    if result["success"]:
        return "sent"
    return "no partition" if NO_PARTITION in result["reason"] else "failed"


@pytest.fixture
def sending(side: Side) -> Iterator[str]:
    """The name of a producer that is made by the test."""
    yield "background"
    side.app.call("close_producer", "background")


@pytest.mark.parametrize(("topic", "end"), ENDS)
def test_an_application_goes_on_when_the_broker_is_back(
    side: Side, topic: str, end: Callable[[Broker], None], sending: str
) -> None:
    side.app.producer(sending, topic)
    side.app.subscribe(topic, topic, max_delay=100, commit=100)
    side.app.call("start_sending", sending, topic)
    received = side.app.payloads(topic, 10)
    side.restart(end)
    count = len(received)
    received += side.app.payloads(topic, 1)
    received += side.app.payloads(topic, 10)
    results = side.app.call("stop_sending", sending)["results"]
    assert len(received) > count
    seen = outcomes(results)
    assert (seen[0], seen[-1]) == ("sent", "sent")
    # a client that is slower than zk.zkSyncTimeMs still has puts under way when a cleanly stopped broker is gone
    reasons = {result["reason"] for result in results if outcome(result) == "failed"}
    assert {each for each in reasons if not each.endswith(STARTING)} <= {NOT_CONNECTED, UNANSWERED}
    assert topic == "killed" or "no partition" in seen
    acknowledged = [str(number).encode() for number, result in enumerate(results) if result["success"]]
    missing = set(acknowledged) - set(received)
    while missing and (more := side.app.payloads(topic, 1)):
        received += more
        missing -= set(more)
    assert missing == set()
    first_time = list(dict.fromkeys(received))
    assert first_time == sorted(first_time, key=int)
    side.app.unsubscribe(topic)


def test_an_ordered_producer_bridges_a_stop_with_its_local_store(side: Side) -> None:
    side.app.call("factory", "bridging", "ordered", "partitions=ordered:0:1", "recover_ms=1000")
    sender = side.app.producer("bridge", "ordered", factory="bridging", selector="ordered")
    side.app.send_all(sender, "ordered", b"0", b"1")
    stop(side)
    for number in range(2, 6):
        result = side.app.send(sender, "ordered", str(number).encode())
        assert (result["success"], result["offset"], result["reason"]) == (True, -1, "send to local")
    side.start_again()
    side.app.subscribe("ordered", "ordered", max_delay=100)
    received = side.app.payloads("ordered", 6)
    assert received == [b"0", b"1", b"2", b"3", b"4", b"5"]
    result = side.app.send(sender, "ordered", b"6")
    assert (result["success"], result["partition"]) == (True, "0-0")
    assert side.app.payloads("ordered", 1) == [b"6"]
    side.app.unsubscribe("ordered")


def stop(side: Side) -> None:
    """Stop the broker cleanly; return when the application knows."""
    side.broker.close()
    eventually(lambda: side.app.call("partitions", "ordered")["partitions"] == [], 20, "no partitions")


def test_messages_up_to_what_one_answer_holds_are_delivered(side: Side) -> None:
    sender = side.app.producer("big", "big")
    sizes = [1 << 19, MAX_RECORD_BODY, 1]  # 1.x treats 512 KiB and more apart (semantics.md §9)
    side.app.send_all(sender, "big", *[bytes([65 + n]) * size for n, size in enumerate(sizes)])
    side.app.subscribe("big", "big", retries=100, max_delay=100)
    assert [len(data) for data in side.app.payloads("big", 3)] == sizes
    side.app.unsubscribe("big")


def test_larger_messages(side: Side) -> None:
    if side.is_java:
        pytest.skip("1.x takes any size and never delivers what does not fit into maxTransferSize")
    sender = side.app.producer("huge", "huge")
    side.app.send_all(sender, "huge", b"a" * (2 << 20), b"z")
    side.app.subscribe("huge", "huge", size=4 << 20, retries=100, max_delay=100)
    assert [len(data) for data in side.app.payloads("huge", 2)] == [2 << 20, 1]
    side.app.unsubscribe("huge")
    refused = side.app.send(sender, "huge", bytes(MAX_BODY_BYTES + 1))
    assert not refused["success"]
    assert refused["reason"].endswith(
        f"Detail:message of {MAX_BODY_BYTES + 1} bytes is above the limit of {MAX_BODY_BYTES} bytes"
    )
    assert side.app.send(sender, "huge", b"and on")["success"]


def sent_or_without_partition(side: Side, sender: str, data: bytes) -> Fields | None:
    """The result of a send; None if the broker was not registered, when nothing was sent."""
    result = side.app.send(sender, "stalled", data)
    if outcome(result) == "no partition":
        return None
    assert result["success"], result
    return result


# the last one: the broker's session may end long after it
def test_a_broker_that_does_not_answer_is_a_timeout_and_a_late_answer_disturbs_nobody(side: Side) -> None:
    sender = side.app.producer("patient", "stalled")
    side.app.send_all(sender, "stalled", b"before")
    side.broker.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ProcessFailed, match="Send message timeout in 3000 mills"):
            side.app.send(sender, "stalled", b"late")
    finally:
        side.broker.process.send_signal(signal.SIGCONT)
    # a machine that is busy may have stopped it for longer than its session lives
    after = eventually(lambda: sent_or_without_partition(side, sender, b"after"))
    more = eventually(lambda: sent_or_without_partition(side, sender, b"more"))
    assert after is not None
    assert more is not None
    assert after["id"] != more["id"]
    side.app.subscribe("stalled", "stalled", max_delay=100)
    received = side.app.payloads("stalled", 4)
    if side.is_java:  # 1.x may append in another order than that of the requests
        received.sort(key=[b"before", b"late", b"after", b"more"].index)
    assert received == [b"before", b"late", b"after", b"more"]
    side.app.unsubscribe("stalled")

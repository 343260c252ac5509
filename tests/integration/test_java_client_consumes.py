"""Consuming with the Java client: filters, positions, acknowledgements, refused messages, groups, broadcast."""

from __future__ import annotations

import time

import pytest

from bench.processes import ProcessFailed
from bench.server_ini import Topics
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import max_offset
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.java_sides import Side, decoded
from tests.waiting import DEADLINE, eventually

PARTITIONED = ["filtered", "many-1", "many-2", "many-3", "shared", "hashed", "broadcast"]
SINGLE = ["late", "always", "undone", "thrown", "dropped", "recovered", "acked", "pooled", "resumed", "small", "rolled"]
EXPIRING = {"numPartitions": 1, "deletePolicy": "delete,1s", "deleteWhen": "* * * * * ?"}
TOPICS: Topics = {**dict.fromkeys(PARTITIONED, 4), **dict.fromkeys(SINGLE, 1), "expired": EXPIRING}
SYSTEM = {"maxSegmentSize": 4096}
FAST = {"max_delay": 100}


def numbers(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_a_filter_of_the_client_passes_what_it_accepts(side: Side) -> None:
    sender = side.app.producer("filtered", "filtered")
    for number in range(20):
        side.app.send(sender, "filtered", str(number).encode(), "red" if number % 3 == 0 else "blue")
    side.app.subscribe("red", "filtered", filter="red")
    side.app.subscribe("all", "filtered")
    assert sorted(map(int, side.app.payloads("red", 7))) == list(range(0, 20, 3))
    assert len(side.app.payloads("all", 20)) == 20
    assert side.app.unsubscribe("red") == []
    side.app.unsubscribe("all")


def test_one_consumer_reads_many_topics_over_one_connection(side: Side) -> None:
    topics = ["many-1", "many-2", "many-3"]
    for topic in topics:
        side.app.send_all(side.app.producer("many", topic), topic, *numbers(8))
    side.app.subscribe("many", ",".join(topics))
    messages = side.app.taken("many", 24)
    assert sorted((message["topic"], message["data"]) for message in messages) == sorted(
        (topic, data) for topic in topics for data in numbers(8)
    )
    (stats,) = side.app.call("stats")["brokers"].values()
    # the application's only factory shares one connection; Peer's own may have another
    assert int(stats["curr_connections"]) <= 2
    side.app.unsubscribe("many")


def test_an_order_of_one_partition_is_the_order_of_delivery_and_a_new_member_goes_on(side: Side) -> None:
    sender = side.app.producer("resumed", "resumed")
    side.app.send_all(sender, "resumed", *numbers(30))
    side.app.subscribe("resumed", "resumed", size=100)
    assert side.app.payloads("resumed", 30) == numbers(30)
    assert side.app.unsubscribe("resumed") == []
    side.app.send_all(sender, "resumed", b"next")
    side.app.subscribe("resumed", "resumed")
    assert side.app.payloads("resumed", 1) == [b"next"]
    assert side.app.unsubscribe("resumed") == []


def test_a_fetch_smaller_than_a_message_grows_until_it_holds_it(side: Side) -> None:
    sender = side.app.producer("small", "small")
    side.app.send_all(sender, "small", b"x" * 5000, b"after")
    # fetches without a whole message count as tries: with the default of 5 it would be handed to the handler first
    side.app.subscribe("small", "small", size=64, retries=100, **FAST)
    assert side.app.payloads("small", 2) == [b"x" * 5000, b"after"]
    side.app.unsubscribe("small")


def test_consuming_from_the_end_skips_what_is_there_the_first_time_or_always(side: Side) -> None:
    for topic, mode in (("late", "first"), ("always", "always")):
        sender = side.app.producer("late", topic)
        side.app.send_all(sender, topic, b"before")
        side.app.subscribe(topic, topic, from_max=mode, commit=100, **FAST)
        asked(side, topic)
        side.app.send_all(sender, topic, b"while here")
        assert side.app.payloads(topic, 1) == [b"while here"]
        committed_to_the_end(side, topic)  # Java's client may be interrupted in its last commit and then writes none
        assert side.app.unsubscribe(topic) == []
        side.app.send_all(sender, topic, b"while away")
        side.app.subscribe(topic, topic, from_max=mode, **FAST)
        asked(side, topic)
        side.app.send_all(sender, topic, b"again")
    assert side.app.payloads("late", 2) == [b"while away", b"again"]
    assert side.app.payloads("always", 1) == [b"again"]
    for topic in ("late", "always"):
        assert side.app.unsubscribe(topic) == []


def committed_to_the_end(side: Side, topic: str) -> None:
    """Wait until the group of the same name has committed all of the topic's only partition."""
    with Cluster(side.connect) as cluster:
        (partition,) = cluster.partitions(topic)
        end = max_offset(cluster.connection(partition.broker), partition)

        def done() -> bool:
            stored = cluster.committed(topic, partition)
            return stored is not None and stored.offset == end

        eventually(done, what=f"the commit of {topic}")


def asked(side: Side, topic: str) -> None:
    """Wait until the new consumer has asked twice: the first answer told it where the end is."""
    before = gets(side, topic)
    eventually(lambda: gets(side, topic) >= before + 2, 20, "two fetches")


def gets(side: Side, topic: str) -> int:
    (stats,) = side.app.call("stats", topic)["brokers"].values()
    counter: str = stats["topic_realtime_get"]
    return int(counter.removeprefix("Count=").split(",")[0]) if counter.startswith("Count=") else 0


def test_a_message_marked_to_be_rolled_back_comes_again(side: Side) -> None:
    side.app.send_all(side.app.producer("undone", "undone"), "undone", b"1", b"undo", b"3")
    side.app.subscribe("undone", "undone", times=2, **FAST)
    assert side.app.payloads("undone", 5) == [b"1", b"undo", b"undo", b"undo", b"3"]
    side.app.unsubscribe("undone")


def test_a_message_that_keeps_failing_is_handed_to_the_handler_and_the_rest_goes_on(side: Side) -> None:
    sender = side.app.producer("thrown", "thrown")
    side.app.send_all(sender, "thrown", b"throw", b"after")
    side.app.subscribe("thrown", "thrown", retries=2, reject="keep", **FAST)
    # once more than the retries, and once more because it was not known yet that it fails
    assert side.app.payloads("thrown", 4) == [b"throw"] * 3 + [b"after"]
    (rejected,) = decoded(side.app.call("rejected", "thrown")["messages"])
    assert rejected["data"] == b"throw"
    side.app.unsubscribe("thrown")


def test_a_refused_message_is_dropped_or_tried_again_from_the_local_store(side: Side) -> None:
    side.app.call("factory", "recovering", "plain", "recover_ms=1000")
    sender = side.app.producer("refusals", "dropped")
    side.app.producer("refusals", "recovered")
    for topic in ("dropped", "recovered"):
        side.app.send_all(sender, topic, b"throw " + topic.encode(), b"after")
    side.app.subscribe("dropped", "dropped", factory="recovering", retries=0, reject="drop", **FAST)
    side.app.subscribe("recovered", "recovered", factory="recovering", retries=0, times=2, reject="local", **FAST)
    assert side.app.payloads("dropped", 2)[-1] == b"after"
    received = side.app.payloads("recovered", 4)  # from the local store, five seconds after the start at the earliest
    assert received[-1] == b"throw recovered"
    assert received.count(b"throw recovered") == 3
    assert received.count(b"after") == 1
    assert side.app.unsubscribe("dropped") == []
    side.app.unsubscribe("recovered")


def test_an_application_acknowledges_by_itself(side: Side) -> None:
    sender = side.app.producer("acked", "acked")
    side.app.send_all(sender, "acked", b"1", b"2", b"ack", b"4", b"back", b"6")
    side.app.subscribe("acked", "acked", acks="manual", times=1, **FAST)
    # the block ends behind an acknowledgement; rolling back goes to the last acknowledged one
    assert side.app.payloads("acked", 8) == [b"1", b"2", b"ack", b"4", b"back", b"4", b"back", b"6"]
    side.app.unsubscribe("acked")
    side.app.subscribe("acked", "acked", **FAST)
    assert side.app.payloads("acked", 3) == [b"4", b"back", b"6"]
    side.app.unsubscribe("acked")


def test_listeners_run_on_the_application_s_own_threads(side: Side) -> None:
    side.app.send_all(side.app.producer("pooled", "pooled"), "pooled", *numbers(5))
    side.app.subscribe("pooled", "pooled", executor="my-pool")
    messages = side.app.taken("pooled", 5)
    assert {message["thread"] for message in messages} == {"my-pool"}
    side.app.unsubscribe("pooled")


@pytest.mark.parametrize(("topic", "strategy"), [("shared", "DEFAULT"), ("hashed", "CONSIST")])
def test_members_share_the_partitions_and_take_over(side: Side, topic: str, strategy: str) -> None:
    for name in ("first", "second"):  # one group cannot subscribe a topic twice in a factory
        side.app.call("factory", f"{topic}-{name}", "plain")
    sender = side.app.producer("sharing", topic, selector="length")
    options = {"group": topic, "strategy": strategy, "commit": 100, **FAST}
    side.app.subscribe(f"{topic}-1", topic, factory=f"{topic}-first", id="c1", **options)
    eventually(lambda: owners(side, topic) == {"c1": 4}, 20, "the first member owning all")
    side.app.subscribe(f"{topic}-2", topic, factory=f"{topic}-second", id="c2", **options)
    # the ring of CONSIST is drawn from names: golden/assignment.json has its vectors, this is one of their kind
    shares = {"c1": 2, "c2": 2} if strategy == "DEFAULT" else None
    eventually(lambda: len(owned := owners(side, topic)) > 1 and owned == (shares or owned), 20, "sharing")
    side.app.send_all(sender, topic, *[b"x" * partition for partition in range(4)] * 3)
    messages = decoded(side.app.call("taken", f"{topic}-1")["messages"])
    deadline = time.monotonic() + DEADLINE
    while len(messages) < 12 and time.monotonic() < deadline:
        for member in ("1", "2"):
            messages += decoded(side.app.call("taken", f"{topic}-{member}")["messages"])
    assert len({message["id"] for message in messages}) == len(messages) == 12
    left = side.app.unsubscribe(f"{topic}-1")
    assert left == []
    eventually(lambda: owners(side, topic) == {"c2": 4}, 20, "the second member owning all")
    side.app.send_all(sender, topic, *[b"y" * partition for partition in range(4)])
    assert sorted(side.app.payloads(f"{topic}-2", 4)) == [b"", b"y", b"yy", b"yyy"]
    side.app.unsubscribe(f"{topic}-2")


def owners(side: Side, group: str) -> dict[str, int]:
    """How many partitions each member of the group owns, by its consumer id."""
    counts: dict[str, int] = {}
    with ZkSession(side.connect) as session:
        path = f"/meta/consumers/{group}/owners/{group}"
        if session.zk.exists(path):
            for partition in session.zk.get_children(path):
                owner = session.zk.get(f"{path}/{partition}")[0].decode().removeprefix(f"{group}_")
                counts[owner] = counts.get(owner, 0) + 1
    return counts


def test_a_broadcast_consumer_gets_everything_and_keeps_its_offsets_in_a_file(side: Side) -> None:
    sender = side.app.producer("broadcast", "broadcast")
    side.app.send_all(sender, "broadcast", *numbers(8))
    side.app.subscribe("fanout", "broadcast", factory="broadcast", **FAST)
    side.app.subscribe("normal", "broadcast")
    assert sorted(side.app.payloads("fanout", 8)) == sorted(side.app.payloads("normal", 8)) == numbers(8)
    side.app.unsubscribe("fanout")
    side.app.unsubscribe("normal")
    assert '"group":"fanout' not in (offsets := (side.directory / ".meta_offsets").read_text())
    assert '"fanout-' in offsets
    side.app.send_all(sender, "broadcast", b"later")
    side.app.subscribe("fanout", "broadcast", factory="broadcast", **FAST)
    assert side.app.payloads("fanout", 1) == [b"later"]
    side.app.unsubscribe("fanout")


def test_a_topic_is_subscribed_once_by_a_group_in_a_factory(side: Side) -> None:
    side.app.subscribe("once", "many-1")
    with pytest.raises(ProcessFailed, match="has been subscribered by group once"):
        side.app.subscribe("twice", "many-1", group="once")
    side.app.unsubscribe("once")


def test_a_log_of_many_segments_is_read_to_its_end(side: Side) -> None:
    sent = [data + b" " * 200 for data in numbers(100)]
    side.app.send_all(side.app.producer("rolling", "rolled"), "rolled", *sent)
    assert len(list((side.broker.data / "rolled-0").glob("*.meta"))) > 4
    side.app.subscribe("rolled", "rolled", **FAST)
    assert side.app.payloads("rolled", len(sent)) == sent
    side.app.unsubscribe("rolled")


def test_a_consumer_in_front_of_what_is_kept_goes_on_with_the_first_message_there(side: Side) -> None:
    sender = side.app.producer("expiring", "expired")
    results = side.app.send_all(sender, "expired", *[b"%03d" % number + bytes(500) for number in range(30)])
    starts = {result["offset"]: number for number, result in enumerate(results)}

    def segments() -> list[int]:
        return sorted(int(path.stem) for path in (side.broker.data / "expired-0").glob("*.meta"))

    eventually(lambda: len(segments()) == 1, 20, "the deletion of all segments but the last")
    (start,) = segments()
    first = starts.get(start, len(results))
    assert first > 0
    side.app.send_all(sender, "expired", b"new")
    assert side.app.call("browse", "expired", 4096)["messages"] == []  # 1.x's browser takes that for the end
    side.app.subscribe("expired", "expired", **FAST)
    received = side.app.payloads("expired", len(results) - first + 1)
    assert received == [b"%03d" % number + bytes(500) for number in range(first, len(results))] + [b"new"]
    side.app.unsubscribe("expired")

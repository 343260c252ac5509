"""Sending with the Java client: the application sees the same on our broker as on the Java broker."""

from __future__ import annotations

import pytest

from bench.processes import ProcessFailed
from tests.integration.java_sides import Side

NAMES = "plain callback rounds chosen anywhere default oneway ordered partly direct wild*"
TOPICS = dict.fromkeys(NAMES.split(), 4)

CONTENTS = [
    (b"no attribute", None),
    (b"empty attribute", ""),
    (b"text", "red"),
    (b"text", "\u4e2d\u6587"),
    (b"", None),
    (b"", "x"),
]


def test_what_is_sent_is_received_with_its_attribute_id_and_place(side: Side) -> None:
    sender = side.app.producer("sender", "plain")
    sent = [side.app.send(sender, "plain", data, attribute) for data, attribute in CONTENTS]
    side.app.subscribe("reader", "plain")
    received = side.app.taken("reader", len(CONTENTS))
    by_id = {message["id"]: message for message in received}
    assert len(by_id) == len(CONTENTS)
    for (data, attribute), result in zip(CONTENTS, sent, strict=True):
        message = by_id[result["id"]]
        assert (message["data"], message["attribute"]) == (data, attribute)
        assert message["partition"] == result["partition"]
        assert result["reason"] is None
    assert side.app.unsubscribe("reader") == []


def test_partitions_are_used_in_turn_from_the_second_on(side: Side) -> None:
    sender = side.app.producer("rounds", "rounds")
    results = side.app.send_all(sender, "rounds", *[b"12345"] * 8)
    assert [result["partition"] for result in results] == ["0-1", "0-2", "0-3", "0-0"] * 2
    assert [result["offset"] for result in results] == [0] * 4 + [25] * 4


def test_a_selector_chooses_and_may_choose_nothing(side: Side) -> None:
    chooser = side.app.producer("by-length", "chosen", selector="length")
    results = side.app.send_all(chooser, "chosen", b"", b"1", b"22", b"333", b"4444")
    assert [result["partition"] for result in results] == ["0-0", "0-1", "0-2", "0-3", "0-0"]
    anywhere = side.app.producer("random", "anywhere", selector="random")
    assert {result["partition"] for result in side.app.send_all(anywhere, "anywhere", *[b"x"] * 60)} == {
        f"0-{partition}" for partition in range(4)
    }
    nothing = side.app.producer("nothing", "chosen", selector="null")
    with pytest.raises(ProcessFailed, match="There is no aviable partition for topic chosen"):
        side.app.send(nothing, "chosen", b"x")


def test_callbacks_get_the_result_of_each_of_many_sends_under_way(side: Side) -> None:
    sender = side.app.producer("caller", "callback")
    results = side.app.call("send_callback", sender, "callback", 400)["results"]
    assert all(result["success"] for result in results)
    places = [(result["partition"], result["offset"]) for result in results]
    assert len(set(places)) == 400
    if not side.is_java:  # 1.x appends pipelined puts in any order (semantics.md §9); ours keeps it
        for partition in range(4):
            offsets = [offset for name, offset in places if name == f"0-{partition}"]
            assert offsets == sorted(offsets)
    side.app.subscribe("callback-reader", "callback")
    assert sorted(map(int, side.app.payloads("callback-reader", 400))) == list(range(400))
    side.app.unsubscribe("callback-reader")


def test_one_way_sends_arrive(side: Side) -> None:
    sender = side.app.producer("one-way", "oneway", factory="async")
    for number in range(50):
        side.app.call("send_oneway", sender, "oneway", "eA==", str(number))
    side.app.subscribe("oneway-reader", "oneway")
    received = side.app.taken("oneway-reader", 50)
    assert sorted(int(message["attribute"]) for message in received) == list(range(50))
    side.app.unsubscribe("oneway-reader")


def test_a_default_topic_lends_its_partitions_to_topics_never_published(side: Side) -> None:
    side.app.call("factory", "lenders", "plain")  # the default holds for all producers of a factory
    sender = side.app.producer("lender", factory="lenders")
    side.app.call("default_topic", sender, "default")
    # the broker knows the message's own topic by a pattern, and gives it one partition
    results = [side.app.send(sender, "wild-1", b"x") for _ in range(4)]
    assert [result["success"] for result in results] == [False, False, False, True]
    assert {result["reason"].split("Detail:")[1] for result in results[:3]} == {
        f"wrong partition {n}" for n in (1, 2, 3)
    }
    unknown = side.app.send(sender, "nobody-knows", b"x")
    assert unknown["reason"].endswith("Detail:The server do not accept topic nobody-knows")


def test_a_topic_without_partitions_is_an_error_of_the_client(side: Side) -> None:
    sender = side.app.producer("stranger", "nobody-has-it")
    for topic in ("nobody-has-it", "not-even-published"):
        with pytest.raises(ProcessFailed, match=f"There is no aviable partition for topic {topic}"):
            side.app.send(sender, topic, b"x")


def test_without_zookeeper_the_broker_chooses_the_partition(side: Side) -> None:
    url = f"meta://127.0.0.1:{side.broker.port}"
    side.app.call("factory", "to-one-broker", "plain", f"server_url={url}")
    sender = side.app.producer("direct", "direct", factory="to-one-broker")
    results = side.app.send_all(sender, "direct", *[b"12345"] * 60)
    assert {result["partition"].split("-")[-1] for result in results} == {"0", "1", "2", "3"}


def test_an_ordered_producer_sends_in_order_and_keeps_what_has_no_partition_yet(side: Side) -> None:
    side.app.call("factory", "of-orders", "ordered", "partitions=ordered:0:4")
    sender = side.app.producer("orderly", "ordered", factory="of-orders", selector="ordered")
    results = side.app.send_all(sender, "ordered", b"first", b"other!", b"third", b"fourth!!!")
    assert [result["partition"] for result in results] == ["0-1", "0-2", "0-1", "0-1"]
    assert [result["offset"] for result in results] == [0, 0, 25, 50]
    with pytest.raises(ProcessFailed, match="There is no config partitions for topic plain"):
        side.app.send(side.app.producer("orderly", "plain"), "plain", b"x")
    # five partitions are configured, four there: what belongs to the fifth waits in the local store
    side.app.call("factory", "of-more", "ordered", "partitions=partly:0:5")
    waiting = side.app.producer("waiting", "partly", factory="of-more", selector="ordered")
    result = side.app.send(waiting, "partly", b"4444")
    assert (result["success"], result["partition"], result["offset"]) == (True, "0-4", -1)
    assert result["reason"] == "send to local"


def test_a_closed_producer_refuses_and_its_factory_goes_on(side: Side) -> None:
    sender = side.app.producer("closing", "plain")
    side.app.call("close_producer", sender)
    with pytest.raises(ProcessFailed, match="no producer closing"):
        side.app.send(sender, "plain", b"x")
    assert side.app.send(side.app.producer("another", "plain"), "plain", b"x")["success"]


def test_a_topic_that_only_a_pattern_knows_reaches_its_consumers_with_the_first_message(side: Side) -> None:
    side.app.subscribe("early", "wild-born", max_delay=100)
    url = f"meta://127.0.0.1:{side.broker.port}"
    side.app.call("factory", "pioneer", "plain", f"server_url={url}")
    pioneer = side.app.producer("pioneer", "wild-born", factory="pioneer")
    side.app.send_all(pioneer, "wild-born", b"first", b"second")
    assert side.app.payloads("early", 2) == [b"first", b"second"]
    side.app.unsubscribe("early")
    assert side.app.send(side.app.producer("settler", "wild-born"), "wild-born", b"third")["partition"] == "0-0"

"""What is told of a topic that no live broker publishes: once, with the nearest name that does exist."""

from typing import Any

import pytest

from metaq.client.consumer.group_member import MissingTopics
from metaq.client.runtime.nearest import published_nowhere
from metaq.protocol.errors import CoordinationUnavailable


@pytest.mark.parametrize(
    ("topic", "known", "said"),
    [
        ("trade", ["trades", "orders"], "did you mean 'trades'?"),
        ("zzz", ["trades"], "`metaq topics list` shows those that are"),
        ("log-a", ["log-*", "trades"], "the pattern 'log-*' takes its first message"),
        ("log-a", ["log-*", "log-b"], "the pattern 'log-*' takes its first message"),
        ("blog-a", ["log-*"], "`metaq topics list` shows those that are"),  # no topic has the name of a pattern
    ],
)
def test_the_pattern_that_takes_it_or_the_nearest_topic_is_named(topic, known, said):
    assert f"topic {topic!r} is published by no live broker: {said}" in published_nowhere(topic, known)


def test_where_nothing_is_published_the_address_and_the_root_may_be_wrong():
    doubt = "no topic at all is published there, so check ZooKeeper's address with its chroot, and metaq's root"
    assert published_nowhere("trades", []).endswith(doubt)
    assert doubt not in published_nowhere("trades", ["orders"])


# --- a member of a group that subscribes it ---------------------------------------------------------------------------


class View:
    """What ClusterView says of topics; each question counts."""

    def __init__(self, *published, readable=()):
        self.published, self.readable, self.asked, self.failure = list(published), list(readable), 0, None

    def live_topics(self):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.published

    def consumer_partitions(self, topic):
        return ["0-0"] if topic in self.readable else []


def looked(view, *looks):
    """A member has looked so often, each time with these partitions by topic."""
    checked: Any = view
    missing = MissingTopics("g", checked)
    for partitions in looks:
        missing.look(partitions)
    return missing


def warnings(caplog):
    assert all(record.name.startswith("metaq.client.consumer") for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_misspelt_topic_is_told_once_with_the_nearest_that_exists(caplog):
    view = View("trades", "orders")
    looked(view, *[{"trade": (), "orders": ("0-0",)}] * 3)
    (warning,) = warnings(caplog)
    assert "group g: topic 'trade' is published by no live broker: did you mean 'trades'?" in warning
    assert view.asked == 1


def test_each_missing_topic_is_told(caplog):
    looked(View("trades"), {"trade": (), "zzz": ()})
    first, second = warnings(caplog)
    assert "'trade'" in first
    assert "topic 'zzz' is published by no live broker: `metaq topics list` shows those that are" in second


def test_nothing_is_asked_while_every_topic_is_there():
    view = View("trades")
    looked(view, {"trades": ("0-0",)})
    assert view.asked == 0


@pytest.mark.parametrize(
    ("looks", "told"),
    [([(), ("0-0",), ()], 1), ([("0-0",), ()], 0)],
    ids=["one that appears later and goes again, once", "one that was there, never: its brokers are away"],
)
def test_a_topic_that_was_there_is_not_told_again(caplog, looks, told):
    looked(View("trades"), *({"trade": partitions} for partitions in looks))
    assert len(warnings(caplog)) == told


def test_a_topic_that_is_registered_in_this_moment_is_not_told(caplog):
    """The plan may be older than what ZooKeeper says now."""
    view = View(readable=["trades"])
    missing = looked(view, {"trades": ()})
    assert warnings(caplog) == []
    view.readable = []
    missing.look({"trades": ()})
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("topic", "failure", "said"),
    [("trades", None, "acceptSubscribe"), ("trade", CoordinationUnavailable("no answer"), "no answer")],
    ids=["no broker gives it to consumers", "a ZooKeeper that does not answer fails no plan"],
)
def test_why_a_topic_cannot_be_read_is_told(caplog, topic, failure, said):
    view = View("trades")
    view.failure = failure
    looked(view, {topic: ()})
    (warning,) = warnings(caplog)
    assert f"'{topic}'" in warning
    assert said in warning
    assert "did you mean" not in warning

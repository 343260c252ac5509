"""A subscribed topic that does not exist is told once, with the nearest name that does."""

from typing import Any

from metaq.client.consumer.group_member import MissingTopics
from metaq.protocol.errors import CoordinationUnavailable


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


def missing_topics(view) -> MissingTopics:
    checked: Any = view
    return MissingTopics("g", checked)


def warnings(caplog):
    assert all(record.name.startswith("metaq.client.consumer") for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_misspelt_topic_is_told_once_with_the_nearest_that_exists(caplog):
    view = View("trades", "orders")
    missing = missing_topics(view)
    for _ in range(3):
        missing.look({"trade": (), "orders": ("0-0",)})
    (warning,) = warnings(caplog)
    assert "group g: topic 'trade' is published by no live broker: did you mean 'trades'?" in warning
    assert view.asked == 1


def test_each_missing_topic_is_told(caplog):
    missing = missing_topics(View("trades"))
    missing.look({"trade": (), "zzz": ()})
    first, second = warnings(caplog)
    assert "'trade'" in first
    assert "topic 'zzz' is published by no live broker: `metaq topics list` shows those that are" in second


def test_nothing_is_asked_while_every_topic_is_there():
    view = View("trades")
    missing_topics(view).look({"trades": ("0-0",)})
    assert view.asked == 0


def test_a_topic_that_appears_later_and_goes_again_is_not_told_again(caplog):
    missing = missing_topics(View("trades"))
    missing.look({"trade": ()})
    missing.look({"trade": ("0-0",)})
    missing.look({"trade": ()})
    assert len(warnings(caplog)) == 1


def test_a_topic_that_was_there_is_not_misspelt_while_its_brokers_are_away(caplog):
    missing = missing_topics(View("trades"))
    missing.look({"trade": ("0-0",)})
    missing.look({"trade": ()})
    assert warnings(caplog) == []


def test_a_topic_that_is_registered_in_this_moment_is_not_told(caplog):
    """The plan may be older than what ZooKeeper says now."""
    view = View(readable=["trades"])
    missing = missing_topics(view)
    missing.look({"trades": ()})
    assert warnings(caplog) == []
    view.readable = []
    missing.look({"trades": ()})
    assert len(warnings(caplog)) == 1


def test_a_topic_that_no_broker_gives_to_consumers_is_told_as_such(caplog):
    missing_topics(View("trades")).look({"trades": ()})
    (warning,) = warnings(caplog)
    assert "acceptSubscribe" in warning
    assert "did you mean" not in warning


def test_a_zookeeper_that_does_not_answer_fails_no_plan(caplog):
    view = View("trades")
    view.failure = CoordinationUnavailable("no answer")
    missing = missing_topics(view)
    missing.look({"trade": ()})
    (warning,) = warnings(caplog)
    assert "'trade'" in warning
    assert "no answer" in warning

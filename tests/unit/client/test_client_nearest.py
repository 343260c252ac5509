"""What a user is told of a topic that no live broker publishes."""

import pytest

from metaq.client.nearest import published_nowhere


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

"""Topics that ZooKeeper does not take, or with a comma: no broker makes one, and one that is stored stays served."""

import pytest
from twisted.python.failure import Failure

from metaq.broker.partitions.registration import _can_be_registered, _described
from metaq.protocol.errors import ConfigError
from metaq.protocol.statuses import ResponseCode, Status
from tests.unit.broker.harness import Harness, pull, put

TURNED = ["wild\u202e", "wild\u2066b"]
"""Operators would see another name. ZooKeeper takes them."""
STORED = ["wild\U0001f600", "wild\ue000", "wild\x85", "wild,b"]


@pytest.mark.parametrize("topic", [*STORED, *TURNED, "wild\u2028"])
def test_a_pattern_makes_no_such_topic_and_a_stored_one_is_served(tmp_path, harness, topic):
    peer = harness.connect()
    for request in (put(topic, 0), put(topic, -1)):
        assert peer.ask(request).code == Status.BAD_REQUEST
    assert peer.ask_frame(pull(topic, 0, 0)).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.topics_seen == []
    harness.broker.partitions.for_replay(topic, 0)  # as an earlier broker did
    assert peer.ask(put(topic, 0)).code == Status.SUCCESS
    assert harness.topics_seen == [topic]


@pytest.mark.parametrize("topic", [topic for topic in STORED if "\x85" not in topic])  # ends a line of the file
def test_a_section_names_no_such_topic_unless_it_is_stored(tmp_path, harness, topic):
    named = Harness(tmp_path / "named", topics=f"[topic={topic}]\n[topic=x,*]\n")
    with pytest.raises(ConfigError, match=r"server\.ini=\[topic=wild"):
        named.broker.check_sections(named.config, "server.ini")
    assert named.connect().ask(put(topic, 0)).code == Status.BAD_REQUEST
    named.broker.partitions.for_replay(topic, 0)
    named.broker.check_sections(named.config, "server.ini")
    named.close()

    harness.ini += f"[topic={topic}]\n"
    failed: list[Failure] = []
    harness.broker.reload_config().addErrback(failed.append)
    harness.threads.run()
    assert "[topic=wild" in failed[0].getErrorMessage()
    assert topic not in harness.broker.config.topics


@pytest.mark.parametrize("topic", TURNED)
def test_a_section_may_name_what_turns_the_direction_as_in_earlier_versions(tmp_path, topic):
    named = Harness(tmp_path / "named", topics=f"[topic={topic}]\n")
    named.broker.check_sections(named.config, "server.ini")
    assert named.connect().ask(put(topic, 0)).code == Status.SUCCESS
    named.close()


def test_a_slave_and_a_node_of_a_set_keep_such_sections(tmp_path):
    """Their master or leader may have the topic."""
    harness = Harness(tmp_path, topics="[topic=a,b]\n")
    harness.broker.partitions.takes_puts = False
    harness.broker.check_sections(harness.config, "server.ini")
    harness.close()


def test_a_broker_registers_its_other_topics(harness, caplog):
    harness.broker.partitions.for_replay("wild\U0001f600", 0)
    harness.broker.partitions.for_replay("wild,b", 0)
    names = {each.name for each in _described(harness.broker.partitions.served_topics())}
    assert {"t", "wild,b", "wild*"} < names
    assert "wild\U0001f600" not in names
    assert "only clients without ZooKeeper find it" in caplog.text
    assert not _can_be_registered("a\uffff")

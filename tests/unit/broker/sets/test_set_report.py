"""What a node tells operators of itself, and its hand-over to the node that they prefer."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.configuration.served import served_settings
from metaq.broker.configuration.server_ini import parse_config
from metaq.broker.configuration.sources import ConfigTexts
from metaq.broker.sets import tuning
from metaq.broker.sets.leader import FollowerStatus
from metaq.broker.sets.member_state import ROLES, MemberState
from metaq.broker.sets.status import SetReport
from metaq.coordination.records.set_payloads import SetState
from metaq.protocol.errors import CoordinationError, ReplicaDiverged

FOLLOWER = FollowerStatus("b", True, True, True, 0, 0.0, "")
NOTHING: dict[str, Any] = dict.fromkeys(("busy", "stopping", "following", "live", "set_back"), False)
COUNTS: dict[str, Any] = {"epoch": 3, "last_epoch": 3, "elections": 1, "hand_overs": 0}
WORDS: dict[str, Any] = {"leader_url": "", "error": ""}
STATE = SetState(3, "a", {"a": "x", "b": "y"}, "b")
AT_REST = MemberState(STATE, frozenset("ab"), established=True, **NOTHING, **COUNTS, **WORDS)
LED_BY_PREFERRED = replace(STATE, preferred="a")
PREFERRED = int(tuning.PREFERRED_SECONDS)


class Member:
    """A node that is what it is told to be."""

    def __init__(self) -> None:
        self.name = "a"
        self.failure: Exception | None = None
        self.leader: Any = SimpleNamespace(draining=False, copies=2, status=lambda: [FOLLOWER])
        self.leader.core = SimpleNamespace(in_sync={"a", "b"}, followers={"b": None})
        self.state = AT_REST
        self.asked: list[str] = []

    def look(self) -> MemberState:
        return self.state

    async def hand_over(self, target: str) -> str:
        self.asked.append(target)
        raise CoordinationError("b has not taken over within its time")


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def report(harness, member):
    return SetReport(harness.broker, member)


@pytest.fixture
def looking(harness, report):
    """For so many seconds at a call."""
    report.start()
    yield lambda seconds: harness.reactor.pump([1.0] * seconds)
    report.stop()


def test_a_leader_hands_over_to_the_preferred_node_after_a_minute_and_tries_again(looking, member, caplog):
    for seconds, asked in ((PREFERRED - 2, []), (4, ["b"]), (PREFERRED, ["b", "b"])):
        looking(seconds)
        assert member.asked == asked
    assert "the preferred node does not lead: b has not taken over" in caplog.text


@pytest.mark.parametrize(
    ("state", "in_sync"),
    [({"stopping": True}, True), ({"state": LED_BY_PREFERRED}, True), ({}, False), ({"established": False}, True)],
    ids=["it stops", "it is the preferred node", "the preferred node is behind", "it is not established"],
)
def test_a_leader_does_not_hand_over(looking, member, state, in_sync):
    member.state = AT_REST._replace(**state)
    member.leader.status = lambda: [FOLLOWER._replace(in_sync=in_sync)]
    looking(3 * PREFERRED)
    assert member.asked == []


def test_the_role_of_a_node_says_what_it_does(report, member):
    seen = [report.status().role]
    member.state = AT_REST._replace(established=False)
    seen.append(report.status().role)
    member.leader.draining = True
    seen.append(report.status().role)
    member.leader = None
    doing: list[dict[str, Any]] = [{"live": True}, {"following": True}, {"busy": True}, {}]
    for does in doing:
        member.state = AT_REST._replace(error="because", **does)
        seen.append(report.status().role)
    assert report.status().error == "because"
    member.failure = ReplicaDiverged("move it away")
    seen.append(report.status().role)
    assert sorted(seen) == sorted(ROLES)


def test_the_time_of_a_role_is_when_it_began(harness, report, member):
    began = report.status().since_ms
    harness.time += 5
    assert report.status().since_ms == began
    member.leader.draining = True
    assert report.status().since_ms == began + 5_000


def test_topics_count_as_under_replicated_by_their_own_number_or_that_of_the_sets_nodes(harness, report, member):
    broker = harness.broker
    assert report.under_replicated() == []
    member.leader.copies, member.leader.core.in_sync = 1, {"a"}
    member.state = AT_REST._replace(present=frozenset("a"))  # b was dropped, and is a member still
    topics = broker.config.topics
    assert report.under_replicated() == sorted(name for name in topics if "*" not in name)
    single = {name: replace(topic, replicas=1) for name, topic in topics.items()}
    broker.config = replace(broker.config, topics=single)
    assert report.under_replicated() == []
    broker.config = replace(broker.config, topics=topics)
    state = member.state.state
    member.state = member.state._replace(state=replace(state, in_sync={"a": "a"}, members=["a"]))
    assert report.under_replicated() == [], "b is forgotten"
    member.leader = None
    assert report.under_replicated() == []


def test_a_leader_tells_once_which_topics_take_no_messages_and_that_they_do_again(
    harness, report, looking, member, caplog
):
    caplog.set_level(logging.INFO)
    config = harness.broker.config
    harness.broker.config = replace(config, topics={**config.topics, "t": replace(config.topics["t"], min_in_sync=2)})
    looking(3)
    assert "messages are" not in caplog.text
    assert report.status().figures["refusing"] == []
    member.leader.copies = 1
    looking(3)
    assert caplog.text.count("no messages are taken") == 1
    assert "no messages are taken for t: in-sync nodes: 1, fewer than minInSync" in caplog.text
    assert report.status().figures["refusing"] == ["t"]
    member.leader.copies = 2
    looking(3)
    assert caplog.text.count("messages are taken again for t: in-sync nodes: 2") == 1
    member.leader.copies = 1
    member.state = AT_REST._replace(established=False)
    looking(3)
    assert caplog.text.count("no messages are taken") == 1  # it does not lead yet
    member.leader = None
    assert "refusing" not in report.status().figures


def test_more_nodes_wanted_than_the_set_has_are_told_at_the_start_for_topics_without_a_section_too(
    harness, looking, caplog
):
    harness.broker.config = replace(harness.broker.config, system=replace(harness.broker.config.system, min_in_sync=3))
    harness.store.get_or_create("unnamed", 0)
    looking(1)
    assert "no messages are taken for unnamed: in-sync nodes: 2" in caplog.text


def test_a_node_that_waits_says_which_nodes_it_needs(harness, report, looking, member, caplog):
    member.leader = None
    away = SetState(3, "a", {"a": "x", "c": "z"}, "")
    member.state = AT_REST._replace(state=away, present=frozenset("b"), following=True, error="cannot connect to a")
    looking(1)
    assert report.status().error == "no in-sync node is present: start a or c"
    assert "waits" not in caplog.text
    harness.time += 6
    looking(2)
    assert caplog.text.count("waits: no in-sync node is present: start a or c") == 1
    member.state = member.state._replace(present=frozenset("bc"))
    looking(1)
    harness.time += 6
    looking(1)
    assert "of the in-sync nodes a is not present: start it" in caplog.text
    member.state = member.state._replace(set_back=True)
    assert report.status().error == "cannot connect to a", "by an older state it may be the wrong one that is missing"
    member.state = member.state._replace(present=frozenset("abc"))
    looking(1)
    assert (report.status().role, report.status().error) == ("joining", "cannot connect to a")


def test_a_leader_says_loudly_which_topics_it_serves_without_a_section(harness, looking, member, caplog):
    harness.broker.partitions.for_replica("solo", 0, 0)
    looking(3)
    told = "topics with messages here and no section in this node's server.ini: solo. They are served with"
    assert caplog.text.count(told) == 1
    member.leader = None
    looking(2)
    member.leader = Member().leader
    looking(2)
    assert caplog.text.count(told) == 2, "another leadership"


def test_a_node_tells_what_its_file_says_of_what_clients_are_served(harness, report):
    before = report.status().to_json()["configuration"]
    assert before["system"]["maxTransferSize"] == 1000
    assert before["topics"].keys() == {"t", "safe", "wild*", "quiet"}
    assert before["settings"][before["topics"]["safe"]] == {
        "numPartitions": 2,
        "ack": "disk",
        "minInSync": 1,
        "replicas": None,
        "unflushThreshold": 0,
        "acceptPublish": True,
        "acceptSubscribe": True,
        "acceptCompressed": False,
        "deletePolicy": "delete,604800s",
        "deleteWhen": "0 0 6,18 * * ?",
    }
    harness.ini += "[topic=solo]\nminInSync=2\ndeletePolicy=archive,1h,true,size=1k\n[topic=same]\nnumPartitions=3\n"
    harness.broker.reload_config()
    harness.threads.run()
    after = report.status().to_json()["configuration"]
    solo = after["settings"][after["topics"]["solo"]]
    assert (solo["minInSync"], solo["deletePolicy"], solo["unflushInterval"]) == (2, "compress,3600s,size=1024", 10000)
    assert after["topics"]["same"] == after["topics"]["t"], "each combination of settings is told once"


def test_nodes_may_store_and_count_as_they_like():
    """dataPath, stat and the size of segments are each node's own; what a filter's class stands for is not."""
    files = [
        b"[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=%d\nunflushInterval=1\nmaxSegmentSize=%d\n"
        b"maxTransferSize=9\n[zookeeper]\n[topic=t]\nstat=%s\ndataPath=%s\nack=disk\ngroup.g=com.acme.F\n" % each
        for each in ((0, 1 << 20, b"true", b"/a"), (1000, 1 << 21, b"false", b"/b"))
    ]
    maps = [b"[filters]\ncom.acme.F = %s\n" % each for each in (b"*", b"acme:keep")]
    one, other = (
        served_settings(parse_config(ConfigTexts(file, classes)))["settings"]
        for file, classes in zip(files, [maps[0]] * 2, strict=True)
    )
    assert one == other
    changed = served_settings(parse_config(ConfigTexts(files[0], maps[1])))["settings"]
    assert (one[0]["group.g"], changed[0]["group.g"]) == ("*", "acme:keep")

"""What a node tells operators of itself, and its hand-over to the node that they prefer."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.sets import tuning
from metaq.broker.sets.leader import FollowerStatus
from metaq.broker.sets.member_state import ROLES, MemberState
from metaq.broker.sets.status import SetReport
from metaq.coordination.records import SetState
from metaq.protocol.errors import CoordinationError, ReplicaDiverged

FOLLOWER = FollowerStatus("b", True, True, True, 0, 0.0, "")
AT_REST = MemberState(
    SetState(3, "a", ("a", "b"), "b"), frozenset("ab"), 3, 3, "", "", False, False, True, False, False, 1, 0
)


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


def test_a_leader_hands_over_to_the_preferred_node_after_a_minute_and_tries_again(harness, member, caplog):
    report = SetReport(harness.broker, member)
    report.start()
    harness.reactor.pump([1.0] * (int(tuning.PREFERRED_SECONDS) - 2))
    assert member.asked == []
    harness.reactor.pump([1.0] * 4)
    assert member.asked == ["b"]
    assert "the preferred node does not lead: b has not taken over" in caplog.text
    harness.reactor.pump([1.0] * int(tuning.PREFERRED_SECONDS))
    assert member.asked == ["b", "b"]
    report.stop()


@pytest.mark.parametrize("why", ["stopping", "leads itself", "behind", "not established"])
def test_a_leader_does_not_hand_over(harness, member, why):
    state = AT_REST.state
    assert state
    if why == "stopping":
        member.state = AT_REST._replace(stopping=True)
    elif why == "leads itself":
        member.state = AT_REST._replace(state=replace(state, preferred="a"))
    elif why == "behind":
        member.leader.status = lambda: [FOLLOWER._replace(in_sync=False)]
    else:
        member.state = AT_REST._replace(established=False)
    report = SetReport(harness.broker, member)
    report.start()
    harness.reactor.pump([1.0] * int(3 * tuning.PREFERRED_SECONDS))
    assert member.asked == []
    report.stop()


def test_the_role_of_a_node_says_what_it_does(harness, member):
    report = SetReport(harness.broker, member)
    seen = [report.status().role]
    member.state = AT_REST._replace(established=False)
    seen.append(report.status().role)
    member.leader.draining = True
    seen.append(report.status().role)
    member.leader = None
    waiting = AT_REST._replace(error="because")
    for state in (waiting._replace(live=True), waiting._replace(following=True), waiting._replace(busy=True), waiting):
        member.state = state
        seen.append(report.status().role)
    assert report.status().error == "because"
    member.failure = ReplicaDiverged("move it away")
    seen.append(report.status().role)
    assert sorted(seen) == sorted(ROLES)


def test_the_time_of_a_role_is_when_it_began(harness, member):
    report = SetReport(harness.broker, member)
    began = report.status().since_ms
    harness.time += 5
    assert report.status().since_ms == began
    member.leader.draining = True
    assert report.status().since_ms == began + 5_000


def test_topics_count_as_under_replicated_by_their_own_number_or_that_of_the_sets_nodes(harness, member):
    report = SetReport(harness.broker, member)
    assert report.under_replicated() == []
    member.leader.copies = 1
    topics = sorted(name for name in harness.broker.config.topics if "*" not in name)
    assert report.under_replicated() == topics
    system = harness.broker.config.topics
    harness.broker.config = replace(
        harness.broker.config, topics={name: replace(topic, replicas=1) for name, topic in system.items()}
    )
    assert report.under_replicated() == []
    member.leader = None
    assert report.under_replicated() == []

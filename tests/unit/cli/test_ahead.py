"""Groups that have read more than a broker set has after `metaq brokers elect --unclean`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.cli.ahead import Ahead, ahead_of, commanded, diverged_groups, readable_ends, set_back
from metaq.client.records.results import TopicPartition
from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.message_id import UNKNOWN_ID
from tests.unit.broker.harness import Harness
from tests.unit.lost_messages import HERE, SIZE, Connection, lost, store

ELSEWHERE = TopicPartition("t", 7, 0)
NEVER = TopicPartition("gone", 0, 3)
"""A partition that only the lost node had."""


class Cluster:
    """Groups by name, with what they have committed of topic t; asks the broker of a harness."""

    def __init__(self, connection: Connection, groups: Mapping[str, Mapping[TopicPartition, Offset]]) -> None:
        self._connection = connection
        self._groups = groups
        self.owner: dict[str, str] = {}
        self.set: dict[tuple[str, TopicPartition], int] = {}
        self.view = SimpleNamespace(
            groups=lambda: sorted(groups),
            committed_topics=lambda group: sorted({each.topic for each in groups[group]}),
            committed_partitions=lambda group, topic: [str(each) for each in groups[group] if each.topic == topic],
        )

    def committed_many(self, group: str, partitions: Sequence[TopicPartition]) -> list[Offset]:
        return [self._groups[group][each] for each in partitions]

    def owners(self, group: str, topic: str) -> Mapping[str, str]:
        return self.owner

    def ask(self, partition: TopicPartition, question: Callable[[Any], Any]) -> Any:
        return question(self._connection)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.set |= {(group, partition): offset for partition, offset in offsets.items()}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.threads.run()
    harness.close()


@pytest.fixture
def cluster(harness: Harness) -> Cluster:
    """The elected node had two messages, and has taken three more."""
    ids = store(harness, 0, 2) + store(harness, 60, 3)
    groups = {
        "away": {HERE: Offset(lost(1), 4 * SIZE), ELSEWHERE: Offset(lost(1), 4 * SIZE)},
        "behind": {HERE: Offset(ids[0], SIZE)},
        "beyond": {HERE: Offset(UNKNOWN_ID, 9 * SIZE), NEVER: Offset(lost(1), 80)},
        "current": {HERE: Offset(ids[4], 5 * SIZE)},
        "skewed": {HERE: Offset(lost(90), 4 * SIZE)},
        "tool": {HERE: Offset(UNKNOWN_ID, 4 * SIZE)},
    }
    return Cluster(Connection(harness), groups)


ENDS = {HERE: 2 * SIZE}


def test_before_the_election_groups_are_ahead_of_where_the_nodes_partitions_end(cluster):
    found = {(each.group, each.partition): each.back for each in ahead_of(cluster, 0, ENDS)}
    names = ("away", "beyond", "current", "skewed", "tool")
    assert found == {(name, HERE): 2 * SIZE for name in names} | {("beyond", NEVER): 0}


def test_behind_the_election_only_those_count_that_have_read_what_is_lost(cluster):
    """What a tool has set nobody can compare, and what is there is there."""
    found = {(each.group, each.partition): (each.committed, each.back) for each in diverged_groups(cluster, 0, ENDS)}
    assert found == {
        ("away", HERE): (4 * SIZE, 2 * SIZE),
        ("beyond", HERE): (9 * SIZE, 2 * SIZE),
        ("beyond", NEVER): (80, 0),
        ("skewed", HERE): (4 * SIZE, 2 * SIZE),
    }, "skewed: the clock of the lost node was ahead, so the time of its message does not say where to go back to"


def test_groups_go_back_but_those_that_a_member_reads(cluster):
    found = [Ahead("away", HERE, 100, 50), Ahead("busy", HERE, 100, 50, "member")]
    assert set_back(cluster, found) == [found[1]]
    assert cluster.set == {("away", HERE): 50}
    assert commanded("busy", HERE, 50) == "metaq groups seek busy --topic t --partition 0-0 --to 50"


def test_a_node_shows_where_its_partitions_end_though_it_does_not_lead(cluster, harness):
    assert readable_ends(Connection(harness), 0) == {HERE: 5 * SIZE}

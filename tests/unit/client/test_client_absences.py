"""A broker set between two leaders keeps its partitions for some seconds."""

from metaq.client.absences import LEADERLESS_SECONDS, Absences
from metaq.client.values import TopicPartition

SET, ALONE = [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)], [TopicPartition("t", 1, 0)]


class Watched(Absences):
    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        super().__init__(self.sets, lambda: self.now)

    def sets(self) -> list[int]:
        self.asked += 1
        return [0]


def test_nothing_is_asked_while_nothing_is_missing():
    watched = Watched()
    assert watched.kept([*SET, *ALONE], {*SET, *ALONE}) == []
    assert (watched.ends_in, watched.asked) == (None, 0)


def test_a_sets_partitions_are_kept_and_a_single_brokers_are_not():
    watched = Watched()
    assert watched.kept([*SET, *ALONE], set()) == SET
    assert watched.ends_in == LEADERLESS_SECONDS


def test_they_are_given_up_when_no_leader_comes():
    watched = Watched()
    watched.kept(SET, set())
    watched.now = 1.0
    assert watched.kept(SET, set()) == SET
    assert watched.ends_in == LEADERLESS_SECONDS - 1.0
    watched.now = LEADERLESS_SECONDS
    assert watched.kept(SET, set()) == []
    assert watched.ends_in is None


def test_the_time_begins_anew_once_a_leader_has_registered_the_topic():
    watched = Watched()
    watched.kept(SET, set())
    watched.now = LEADERLESS_SECONDS - 1
    assert watched.kept(SET, set(SET)) == []
    watched.now += 2
    assert watched.kept(SET, set()) == SET


def test_a_leader_that_has_fewer_partitions_has_no_absence():
    watched = Watched()
    assert watched.kept(SET, {SET[0]}) == []

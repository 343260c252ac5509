"""A Survey: what the brokers of many partitions say, of which some do not answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.questions.sources import Survey
from metaq.client.records.results import TopicPartition
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.protocol import errors

PARTITIONS = [TopicPartition("t", broker, number) for broker in (0, 1) for number in (0, 1)]
BAD = PARTITIONS[0]


@pytest.fixture
def survey():
    view: Any = SimpleNamespace(
        brokers=lambda: {each: BrokerNodes(BrokerAddress(each, None, "h", 1)) for each in (0, 1)}
    )
    connect: Any = lambda endpoint: endpoint  # noqa: E731
    return Survey(view, connect)


def failing(error, asked):
    def question(connection, partition):
        asked.append(partition)
        if partition == BAD:
            raise error
        return str(partition)

    return question


@pytest.mark.parametrize(
    "error",
    [errors.BrokerUnavailable("x"), errors.RequestTimedOut("x"), errors.NotLeader(0), errors.RemoteProtocolError("x")],
    ids=repr,
)
def test_a_broker_that_cannot_be_asked_is_asked_once_and_the_others_answer(survey, error):
    asked: list[TopicPartition] = []
    assert survey.ask_each(PARTITIONS, failing(error, asked)) == {each: str(each) for each in PARTITIONS[2:]}
    assert asked == [BAD, *PARTITIONS[2:]]
    assert str(error) in survey.silent[0]
    assert not survey.refused


@pytest.mark.parametrize("error", [errors.RequestRefused(500, "no"), errors.TopicNotAccepted("t")], ids=repr)
def test_what_a_broker_refuses_of_one_partition_hides_no_other(survey, error):
    assert survey.ask_each(PARTITIONS, failing(error, [])) == {each: str(each) for each in PARTITIONS[1:]}
    assert (survey.silent, survey.refused) == ({}, {BAD: str(error)})
    survey.ask_each(PARTITIONS, lambda connection, partition: "well")
    assert survey.refused == {}


def test_a_closed_partition_is_neither_silent_nor_refused(survey):
    survey.ask_each(PARTITIONS, failing(errors.PartitionClosed(0, 0), []))
    assert (survey.closed, survey.silent, survey.refused) == ({BAD}, {}, {})


def test_that_zookeeper_is_gone_is_for_the_caller_to_say(survey):
    with pytest.raises(errors.CoordinationUnavailable):
        survey.attempt(BAD, failing(errors.CoordinationUnavailable("gone"), []))


def test_a_broker_that_is_left_out_is_not_asked(survey):
    asked: list[TopicPartition] = []
    survey.leave_out(0, "has no leader")
    assert survey.ask_each(PARTITIONS, failing(None, asked)).keys() == set(PARTITIONS[2:]) == set(asked)

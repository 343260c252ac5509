"""Planning while brokers are away or partitions go to another broker; what ZooKeeper has is set by hand."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.questions.left_out import LeftOut
from metaq.client.values import TopicPartition
from metaq.coordination.move_records import Move, MoveState
from metaq.protocol.errors import BrokerUnavailable, NoPartition
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.planning import PLANNING_SECONDS, check_complete, select, through_failover

ZERO, ONE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
AWAY = LeftOut(ONE, "offsets of group g", "broker 1 is not registered in ZooKeeper: start it")
PERHAPS = LeftOut(
    TopicPartition("t", 0, 7), "offsets of group g", "broker 0 is registered and does not offer it", False
)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"zookeeper": "h:1"} | given, "batch")


def cluster(
    readable: list[list[TopicPartition]],
    away: list[list[LeftOut]] | None = None,
    moves: tuple[Move, ...] = (),
    absent: list[int] | None = None,
) -> Any:
    """Each answer is given once, the last one for ever."""

    def one(answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    view = SimpleNamespace(
        brokers=lambda: {0: None}, absent_brokers=lambda live: absent or [], set_ids=list, topics=lambda: ["t"]
    )
    return SimpleNamespace(
        view=view,
        readable=lambda topic: one(readable),
        left_out=lambda wanted, registered, offered: one(away or [[]]),
        moves=lambda: moves,
        no_partition=lambda topic: NoPartition("nowhere"),
    )


def test_what_would_be_left_out_is_an_error_unless_loss_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    said = r"t 1-0 \(broker 1 is not registered .*: start it; known from offsets of group g\): .*failOnDataLoss=false"
    with pytest.raises(BrokerUnavailable, match=said):
        check_complete(cluster([[ZERO]]), options(subscribe="t"), [AWAY, PERHAPS])
    with caplog.at_level(logging.WARNING):
        check_complete(cluster([[ZERO]]), options(subscribe="t", failOnDataLoss="false"), [AWAY])
    assert "left out: t 1-0 (broker 1 is not registered" in caplog.text


def test_what_a_live_broker_does_not_offer_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_complete(cluster([[ZERO]]), options(subscribe="t"), [PERHAPS])
    assert "left out: t 0-7 (broker 0 is registered and does not offer it" in caplog.text


@pytest.mark.parametrize(("chosen", "told"), [({"subscribe": "t"}, True), ({"assign": '{"t": ["0-0"]}'}, False)])
def test_a_broker_of_which_nothing_is_named_is_a_warning_unless_partitions_are_assigned(
    chosen: dict[str, str], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check_complete(cluster([[ZERO]], absent=[1, 5]), options(failOnDataLoss="false", **chosen), [AWAY])
    assert ("not registered in ZooKeeper: broker 5; partitions" in caplog.text) == told


def test_a_topic_of_which_nothing_is_readable_names_its_broker() -> None:
    with pytest.raises(BrokerUnavailable, match="not readable now: t 1-0"):
        select(cluster([[]], [[AWAY]]), options(subscribe="t"))
    with pytest.raises(NoPartition, match="nowhere"):
        select(cluster([[]], [[PERHAPS]]), options(subscribe="t"))


def test_what_a_live_broker_does_not_offer_is_looked_for_again() -> None:
    later = TopicPartition("t", 0, 7)
    assert select(cluster([[ZERO], [ZERO, later]], [[PERHAPS], []]), options(subscribe="t")) == ([ZERO, later], [])


@pytest.mark.parametrize(("state", "seconds"), [(MoveState.HANDING_OVER, PLANNING_SECONDS), (MoveState.COPYING, 0)])
def test_a_hand_over_is_waited_for(state: MoveState, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(pause: float) -> None:
        now[0] += pause

    def fails() -> None:
        raise BrokerUnavailable("handed over just now")

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("metaq.spark_connector.planning.time", clock)
    with pytest.raises(BrokerUnavailable):
        through_failover(cluster([[]], moves=(Move("t", 0, 0, 1, 1, 1, state, 0),)), fails)
    assert seconds - 1 < now[0] <= seconds

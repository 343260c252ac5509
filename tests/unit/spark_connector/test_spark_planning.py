"""Planning while brokers are away or partitions go to another broker; what ZooKeeper has is set by hand."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.questions.left_out import LeftOut
from metaq.client.records.results import TopicPartition
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.errors import BrokerUnavailable, MetaqError, NoPartition, NotLeader, RequestTimedOut
from metaq.spark_connector import planning
from metaq.spark_connector.options import ReadOptions

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
        planning.check_complete(cluster([[ZERO]]), options(subscribe="t"), [AWAY, PERHAPS])
    with caplog.at_level(logging.WARNING):
        planning.check_complete(cluster([[ZERO]]), options(subscribe="t", failOnDataLoss="false"), [AWAY])
    assert "left out: t 1-0 (broker 1 is not registered" in caplog.text


def test_what_a_live_broker_does_not_offer_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    planning.check_complete(cluster([[ZERO]]), options(subscribe="t"), [PERHAPS])
    assert "left out: t 0-7 (broker 0 is registered and does not offer it" in caplog.text


@pytest.mark.parametrize(("chosen", "told"), [({"subscribe": "t"}, True), ({"assign": '{"t": ["0-0"]}'}, False)])
def test_a_broker_of_which_nothing_is_named_is_a_warning_unless_partitions_are_assigned(chosen, told, caplog):
    planning.check_complete(cluster([[ZERO]], absent=[1, 5]), options(failOnDataLoss="false", **chosen), [AWAY])
    assert ("broker 5 is not registered in ZooKeeper; if it has" in caplog.text) == told


def test_a_topic_of_which_nothing_is_readable_names_its_broker() -> None:
    with pytest.raises(BrokerUnavailable, match="not readable now: t 1-0"):
        planning.select(cluster([[]], [[AWAY]]), options(subscribe="t"), set())
    with pytest.raises(NoPartition, match="nowhere"):
        planning.select(cluster([[]], [[PERHAPS]]), options(subscribe="t"), set())


def test_what_a_live_broker_does_not_offer_is_looked_for_again() -> None:
    later = TopicPartition("t", 0, 7)
    looks = cluster([[ZERO], [ZERO, later]], [[PERHAPS], []])
    assert planning.select(looks, options(subscribe="t"), set()) == ([ZERO, later], [])


def test_what_an_earlier_attempt_has_seen_is_not_left_out_when_its_brokers_session_ends() -> None:
    """No znode names it then. The wait for the broker would turn an error into rows that are missing."""
    seen: set[TopicPartition] = set()
    looks = cluster([[ZERO, ONE], [ZERO]])
    assert planning.select(looks, options(subscribe="t"), seen) == ([ZERO, ONE], [])
    found, away = planning.select(looks, options(subscribe="t"), seen)
    assert (found, [(each.partition, each.exists) for each in away]) == ([ZERO], [(ONE, True)])
    said = r"t 1-0 \(broker 1 is not registered in ZooKeeper: start it; known from this query\)"
    with pytest.raises(BrokerUnavailable, match=f"cannot be read: {said}"):
        planning.check_complete(looks, options(subscribe="t"), away)
    with pytest.raises(BrokerUnavailable, match=f"not readable now: {said}"):
        planning.select(cluster([[]]), options(subscribe="t"), {ONE})
    moved = (replace(Move("t", 1, 0, 1, 0, 1), state=MoveState.DONE, target_first=0),)
    assert planning.select(cluster([[ZERO]], moves=moved), options(subscribe="t"), {ZERO, ONE}) == ([ZERO], [])


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that sleeping moves."""
    now = [0.0]

    def sleep(pause: float) -> None:
        now[0] += pause

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("metaq.spark_connector.planning.time", clock)
    return now


def failing(*errors: MetaqError) -> Callable[[], None]:
    """Raises one after the other, the last for ever."""
    left = list(errors)

    def fails() -> None:
        raise left.pop(0) if len(left) > 1 else left[0]

    return fails


NOWHERE = NoPartition("nowhere")
HANDED_OVER = Move("t", 0, 0, 1, 1, 1, MoveState.HANDING_OVER, 0)


@pytest.mark.parametrize(
    ("move", "runs", "errors", "seconds"),
    [
        (None, False, [BrokerUnavailable("dead")], planning.FAILOVER_SECONDS),
        (None, False, [RequestTimedOut("frozen")], planning.FAILOVER_SECONDS),
        (None, False, [NotLeader(0)], planning.FAILOVER_SECONDS),
        (None, False, [NOWHERE], 0),
        (replace(HANDED_OVER, state=MoveState.COPYING), False, [NOWHERE], 0),
        (HANDED_OVER, False, [NOWHERE], planning.PLANNING_SECONDS),
        (None, True, [NOWHERE], planning.FAILOVER_SECONDS),
        (None, False, [BrokerUnavailable("dead"), NOWHERE], planning.FAILOVER_SECONDS),  # its session has ended
        (HANDED_OVER, False, [NOWHERE, BrokerUnavailable("dead")], planning.FAILOVER_SECONDS),
    ],
)
def test_planning_waits_for_brokers_as_tasks_do_and_not_for_a_topic_that_there_is_not(move, runs, errors, seconds, now):
    with pytest.raises((BrokerUnavailable, NoPartition)) as ended:
        planning.through_failover(cluster([[]], moves=() if move is None else (move,)), failing(*errors), runs=runs)
    assert seconds - 1 < now[0] <= seconds
    if errors[-1] is NOWHERE:
        assert ended.value is NOWHERE
    else:
        assert str(ended.value) == f"the query could not be planned for {seconds:g} s: {errors[-1]}"


def test_one_line_in_some_seconds_says_that_planning_begins_anew(now, caplog):
    with pytest.raises(BrokerUnavailable), caplog.at_level(logging.WARNING):
        planning.through_failover(cluster([[]]), failing(BrokerUnavailable("dead")))
    lines = [each for each in caplog.messages if "planning begins anew" in each]
    assert 2 <= len(lines) <= planning.FAILOVER_SECONDS / planning.WARNING_SECONDS


def test_an_assigned_partition_that_there_is_not_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(NoPartition, match=r"assign: there is no partition t 1-0: choose from t 0-0"):
        planning.selected(cluster([[ZERO]]), options(assign='{"t": ["0-0", "1-0"]}'))

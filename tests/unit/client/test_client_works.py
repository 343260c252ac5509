"""Whose turn it is among the partitions that handlers work on, and what follows a failure: no thread, no clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaq import ConsumerConfig, Retry, RetryLater, TopicPartition
from metaq.client.consumer.retrying import FailedMessages
from metaq.client.consumer.works import Work, Works
from metaq.client.fetching.core import ConsumerCore
from metaq.client.records.message import Message
from metaq.protocol.errors import BrokerUnavailable

HERE = TopicPartition("t", 0, 0)
CONFIG = ConsumerConfig(retry_step_seconds=1.0, retry_max_seconds=2.5)
UNIT = [Message(HERE, offset, offset, 0, b"x") for offset in (0, 30)]


class Run:
    """Works of one core. A cursor that has nothing."""

    def __init__(self) -> None:
        self.core = ConsumerCore("g", CONFIG)
        self.works = Works(CONFIG)

    def claims(self, number: int = 0) -> Work:
        (cursor,) = self.core.claim([HERE._replace(partition=number)], [0], announced=True)
        return self.works.of(cursor)

    def takes(self, work: Work) -> None:
        work.moves = work.cursor.moves
        work.messages.extend(UNIT)


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_partition_has_one_worker_and_is_next_again_if_more_came_meanwhile(run):
    work = run.claims()
    assert (run.works.arrived(work), run.works.arrived(work)) == ([work], [])
    assert run.works.left(work, pauses=False) == [work]
    assert run.works.left(work, pauses=False) == []
    assert run.works.of(work.cursor) is work


def test_a_work_that_pauses_goes_on_only_when_its_pause_is_over(run):
    work = run.claims()
    run.works.arrived(work)
    run.takes(work)
    assert run.works.left(work, pauses=True) == []
    assert run.works.arrived(work) == []
    assert run.works.resumed(work) == [work]


def test_a_later_claim_begins_when_the_work_of_the_former_one_has_ended(run):
    former = run.claims()
    run.works.arrived(former)
    run.core.lose([former.cursor])
    later = run.claims()
    assert run.works.given_up(HERE) == [former.cursor]
    assert run.works.arrived(later) == []
    assert run.works.left(former, pauses=False) == [later]
    run.claims(1)
    assert former.cursor not in run.works.cursors


def test_a_work_is_alone_when_all_others_have_ended_and_none_has_asked_before(run):
    first, second = run.claims(0), run.claims(1)
    for _ in range(2):
        run.works.begun()
    assert (run.works.is_alone(first), run.works.alone) == (False, first)
    run.works.ended()
    assert [run.works.is_alone(work) for work in (first, second)] == [True, False]
    first.care = SimpleNamespace(left=1)
    run.takes(first)
    run.works.done(first, UNIT[:1])
    assert run.works.alone is None
    assert first.cursor.consumed[0] == UNIT[0].next_offset


def test_what_was_taken_before_a_seek_is_dropped(run):
    work = run.claims()
    run.takes(work)
    work.refresh()
    assert list(work.messages) == UNIT
    work.cursor.again()
    work.tries = 3
    work.refresh()
    assert (list(work.messages), work.tries) == ([], 0)


def test_a_failed_batch_is_tried_again_after_growing_pauses_then_one_by_one_and_then_rejected(run, caplog):
    work, pauses = run.claims(), []
    run.takes(work)
    assert work.unit(500) == UNIT
    for work.tries in range(1, 5):
        pauses.append(run.works.failed_here(work, UNIT, UNIT[0], RetryLater(), 3))
    assert pauses == [1.0, 2.0, 2.5, 1.0]
    assert (work.unit(500), work.tries) == (UNIT[:1], 0)
    work.tries = 4
    assert run.works.failed_here(work, UNIT[:1], UNIT[0], ValueError(), 3) is None
    assert caplog.text.count("one by one") == len(caplog.records) == 1


@pytest.mark.parametrize(("ordered", "attempts", "waits"), [(False, 9, False), (True, 9, True), (True, 1, False)])
def test_a_failed_message_leaves_unless_its_partition_waits_for_its_next_attempt(run, ordered, attempts, waits):
    retry = Retry(attempts=attempts, jitter=0, ordered=ordered)
    unused: Any = None
    failed = FailedMessages(retry, "g", unused, unused)
    work = run.claims()
    run.takes(work)
    assert run.works.failed_for_now(work, UNIT, ValueError("x"), failed) == 0.0  # it is not known which of them
    assert work.unit(500) == UNIT[:1]
    work.tries = 1
    assert run.works.failed_for_now(work, UNIT[:1], ValueError("x"), failed) == (retry.first if waits else None)
    assert (work.leaving is None) is waits


def test_a_message_that_could_not_be_stored_avoids_that_broker_and_is_told_once(run, caplog):
    work = run.claims()
    unused: Any = None
    run.works.failed_for_now(work, UNIT[:1], RetryLater("x"), FailedMessages(Retry(), "g", unused, unused))
    leaving = work.leaving
    assert leaving is not None
    for _ in range(2):
        leaving.sending = SimpleNamespace(partition=HERE)
        assert run.works.not_sent(leaving, BrokerUnavailable("away")) == CONFIG.retry_max_seconds
        assert (leaving.sending, leaving.avoided) == (None, (0,))
    assert caplog.text.count("waits with its partition") == 1


def test_before_it_is_known_where_failed_messages_go_no_try_counts(run, caplog):
    assert run.works.failed_too_early(UNIT[0], RetryLater()) == CONFIG.retry_max_seconds
    assert run.works.failed_too_early(UNIT[0], ValueError()) == CONFIG.retry_max_seconds
    assert caplog.text.count("no broker has said yet") == 1

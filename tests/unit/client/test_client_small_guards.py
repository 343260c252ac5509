"""Guards of the client that decide by one look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import metaq
from metaq import ConsumerConfig, SharedConfig
from metaq.client.browsing.dead_letters import _unending
from metaq.client.consumer.core import MemberCore
from metaq.client.fetching.core import ConsumerCore
from metaq.client.producer.queues import BrokerQueue, Flight
from metaq.client.questions.moves import MovesOfCluster
from metaq.client.questions.steady import SteadyView
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.runtime import unclosed
from metaq.client.runtime.unclosed import Closing
from metaq.client.settings.config import ConnectionConfig
from metaq.client.shared.core import Acquiring, SharedCore
from metaq.client.shared.driver import SharedDriver
from metaq.client.shared.terms import SharedTerms
from metaq.client.transport.pool import ConnectionPool
from metaq.coordination.records.move_payloads import Move
from metaq.protocol.errors import ConfigError


def test_what_an_earlier_session_has_claimed_is_held_no_more():
    """Until the consumer has heard that the session is over."""
    core = ConsumerCore("g", ConsumerConfig())
    member = MemberCore("g", "g_me", core)
    core.claim([TopicPartition("t", 0, 0)], [0], fence=11)
    assert [member.holds_claims(session) for session in (11, 12, 11)] == [True, False, True]


def test_a_dead_letter_without_an_end_is_sent_as_it_is():
    message = Message(TopicPartition("t", 0, 0), 0, 7, 0, b"x")
    assert _unending(message) is message


def test_the_same_move_again_goes_on_with_the_one_under_way_and_another_is_refused():
    new: Any = MovesOfCluster.__new__
    moves = new(MovesOfCluster)
    under_way = Move("t", 0, 2, 2, 1, 1000)
    moves._moves = SimpleNamespace(read_all=lambda: [SimpleNamespace(move=under_way)])
    assert moves.plan("t", 0, 1, 500).move is under_way
    assert moves.plan("t", 0, 1, 500, 2).is_under_way
    for target, first in ((3, 2), (1, 1)):
        with pytest.raises(ConfigError, match=r"is being moved already"):
            moves.plan("t", 0, target, 500, first)


def test_a_name_that_metaq_does_not_have_is_told_with_the_modules_name():
    with pytest.raises(AttributeError, match=r"module 'metaq' has no attribute 'Broker'"):
        metaq.Broker  # noqa: B018


def test_a_pool_that_is_closed_in_the_middle_of_a_round_looks_after_no_further_broker():
    """It would connect to it again."""
    pool: Any = ConnectionPool(ConnectionConfig())
    looked: list[object] = []

    def look_after(link: object, due: object) -> None:
        looked.append(link)
        pool._core.closed = True

    pool._housekeeper = SimpleNamespace(is_current=True)
    pool._look_after = look_after
    pool._wake = SimpleNamespace(wait=lambda seconds: None)
    pool._core = SimpleNamespace(
        closed=False, links={1: "first", 2: "second"}, look_at=lambda now: now, due=lambda link, now: None
    )
    pool._keep_house()
    assert looked == ["first"]


def test_what_is_to_go_to_a_broker_that_is_not_registered_is_tried_again():
    core, config = SharedCore(SharedConfig()), SharedConfig()
    core.use([TopicPartition("t", 0, 0)])
    core.waiting[core] = 1
    metadata: Any = SimpleNamespace(view=lambda topic: SimpleNamespace(endpoints={}))
    pool = ConnectionPool(ConnectionConfig())
    driver = SharedDriver(core, config, SharedTerms("g", "m"), ["t"], metadata, pool, clock=lambda: 0.0)
    driver._begin(core.actions(0.0))
    assert [type(each) for each in core.actions(60.0)] == [Acquiring]


@pytest.mark.parametrize(("failed", "missing", "has_gone"), [(True, 1, True), (False, 0, True), (False, 1, False)])
def test_a_flight_that_has_its_outcome_is_not_tried_again_for_an_interrupt(failed, missing, has_gone):
    flight = Flight(BrokerQueue(), [])
    flight.failed, flight.missing = failed, missing
    assert flight.has_gone is has_gone


def test_what_was_read_while_a_broker_set_changed_its_leader_is_read_again():
    session: Any = SimpleNamespace(paths=None, nodes=None)
    slept: list[float] = []
    view: Any = SteadyView(session, 10.0, lambda: 0.0, slept.append)
    leaders = iter([{1: 7}, {1: 8}, {1: 8}, {1: 8}])
    view.set_leaders = lambda: next(leaders)
    found = iter(["some topics", "all topics"])
    assert view._steadily(lambda: next(found)) == "all topics"
    assert len(slept) == 1


class Thing(Closing):
    def close(self) -> None:
        self._closes()


def test_what_was_closed_is_dropped_without_a_word(recwarn: pytest.WarningsRecorder):
    thing = Thing()
    thing.close()
    thing.__del__()
    assert [each for each in recwarn if issubclass(each.category, ResourceWarning)] == []


def test_an_interpreter_that_has_ended_so_far_that_names_are_gone_drops_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("os", "sys"):
        monkeypatch.setattr(unclosed, name, None)
    Thing().__del__()

"""Exactly once: whatever step a driver is killed at, its successor makes each batch visible once."""

import itertools
from collections.abc import Sequence

import pytest

from metaq.client.producer.xa import Recovered, Xid
from metaq.coordination.offsets.decided_batches import DecidedBatch, Versioned
from metaq.protocol.errors import BrokerUnavailable, ClientError, CoordinationUnavailable, XaError
from metaq.protocol.transactions import XaCode
from metaq.spark_connector.exactly_once import (
    COMMIT_SECONDS,
    BatchWrite,
    Coordinator,
    batch_of,
    branch_name,
    broker_of,
    judge,
    xid_of,
)

QUERY = "8f9c2f0e-58f1-4c0e-8f6a-0d9ad0f7b6f1"
BROKERS = (0, 1)


class Killed(BaseException):
    """The driver is gone."""


class World:
    """ZooKeeper and two brokers, from memory; what outlives a driver. A driver may take `steps` steps."""

    def __init__(self) -> None:
        self.found = Versioned(None, None)
        self.in_doubt: list[Xid] = []
        self.visible: list[Xid] = []
        self.steps: int | None = None
        self.down: set[int] = set()
        self.answer: XaError | None = None
        self.forgotten: list[Xid] = []
        self.lose_decisions = False
        self.under_way: list[tuple[Versioned, DecidedBatch]] = []
        self.now = 0.0

    def prepare(self, batch: int, run: str) -> list[str]:
        """What the tasks of one run of a batch do."""
        names = [branch_name(broker, task, 0, 0, run) for task in range(2) for broker in BROKERS]
        self.in_doubt += [xid_of(BatchWrite(QUERY, batch), name) for name in names]
        return names

    def driver(self, steps: int | None = None) -> Coordinator:
        self.steps = steps
        return Coordinator(self, self, QUERY, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        """Before and behind each effect, so that a driver may die without knowing what it did."""
        if self.steps is not None:
            if self.steps == 0:
                raise Killed
            self.steps -= 1

    def names(self, batch: int) -> list[str]:
        return sorted(xid.bqual.decode() for xid in self.visible if batch_of(xid) == batch)

    # --- ZooKeeper --------------------------------------------------------------------------------------------------

    def load(self, query_id: str) -> Versioned:
        assert query_id == QUERY
        self.step()
        return self.found

    def replace(self, query_id: str, found: Versioned, decided: DecidedBatch) -> Versioned | None:
        self.step()
        if self.lose_decisions and decided.pending:
            self.under_way.append((found, decided))
            raise CoordinationUnavailable("no answer")
        if found.version != self.found.version:
            return None
        self.found = Versioned(decided, 0 if found.version is None else found.version + 1)
        self.step()
        return self.found

    def let_lost_decisions_arrive(self) -> None:
        self.lose_decisions = False
        for found, decided in self.under_way:
            self.replace(QUERY, found, decided)

    # --- brokers ----------------------------------------------------------------------------------------------------

    def commit(self, xid: Xid) -> None:
        self.step()
        if self.answer is not None:
            raise self.answer
        self._take(xid)
        self.visible.append(xid)
        self.step()

    def rollback(self, xid: Xid) -> None:
        self.step()
        self._take(xid)
        self.step()

    def forget(self, xid: Xid) -> None:
        self.forgotten.append(xid)
        self._take(xid)

    def recover(self) -> Recovered:
        self.step()
        failures = {broker: BrokerUnavailable("down") for broker in self.down}
        up = [xid for xid in self.in_doubt if broker_of(xid.bqual.decode()) not in self.down]
        return Recovered(tuple(up), failures)

    def recover_from(self, broker: int) -> Sequence[Xid]:
        self.step()
        if broker in self.down:
            raise XaError(XaCode.XAER_RMFAIL, "down")
        return [xid for xid in self.in_doubt if broker_of(xid.bqual.decode()) == broker]

    def _take(self, xid: Xid) -> None:
        if xid not in self.in_doubt:
            raise XaError(XaCode.XAER_NOTA, "no such transaction")
        self.in_doubt.remove(xid)


def test_a_batch_becomes_visible_and_leftovers_of_other_attempts_go():
    world = World()
    world.prepare(0, "zombie")
    names = world.prepare(0, "run")
    later = world.prepare(1, "next")
    assert world.driver().commit(0, names, "out")
    assert world.names(0) == sorted(names)
    assert [xid.bqual.decode() for xid in world.in_doubt] == later
    assert world.found.decided == DecidedBatch(0, (), "out")


def killed_at(step: int, world: World, names: Sequence[str]) -> bool:
    try:
        world.driver(step).commit(0, names, "out")
    except Killed:
        return True
    return False


def test_a_driver_killed_at_any_step_leaves_what_its_successor_completes_once():
    outcomes = set()
    for step in itertools.count():
        world = World()
        first = world.prepare(0, "first")
        killed = killed_at(step, world, first)
        second = world.prepare(0, "second")  # Spark runs the batch again
        world.driver().commit(0, second, "out")
        assert world.names(0) in (sorted(first), sorted(second)), f"killed at step {step}"
        assert world.in_doubt == []
        third = world.prepare(1, "third")
        assert world.driver().commit(1, third, "out")
        assert world.names(1) == sorted(third)
        outcomes.add(world.names(0) == sorted(first))
        if not killed:
            break
    assert outcomes == {True, False}
    assert step > 10


def test_two_drivers_killed_one_after_the_other_at_any_steps():
    for steps in itertools.product(range(24), repeat=2):
        world = World()
        runs = [world.prepare(0, "first")]
        killed_at(steps[0], world, runs[0])
        runs.append(world.prepare(0, "second"))
        killed_at(steps[1], world, runs[1])
        runs.append(world.prepare(0, "third"))
        world.driver().commit(0, runs[2], "out")
        assert world.names(0) in [sorted(each) for each in runs], f"killed at steps {steps}"
        assert world.in_doubt == []


def test_an_abort_drops_what_is_undecided_and_completes_what_is_decided():
    world = World()
    world.prepare(0, "failed")
    world.driver().abort(0)
    assert (world.in_doubt, world.visible) == ([], [])
    names = world.prepare(0, "again")
    assert killed_at(6, world, names)
    assert world.found.decided is not None
    assert world.found.decided.pending
    world.driver().abort(0)
    assert world.names(0) == sorted(names)


def test_a_decision_that_was_lost_on_its_way_cannot_arrive_after_the_abort():
    """Else the next run would take rolled back transactions for committed ones."""
    world = World()
    names = world.prepare(0, "run")
    world.lose_decisions = True
    with pytest.raises(CoordinationUnavailable):
        world.driver().commit(0, names, "out")
    world.driver().abort(0)  # as Spark does
    world.let_lost_decisions_arrive()
    again = world.prepare(0, "again")
    assert world.driver().commit(0, again, "out")
    assert world.names(0) == sorted(again)


def test_a_second_driver_of_the_query_is_refused():
    world = World()
    names = world.prepare(0, "run")
    store_replace = world.replace

    def replaced_by_another(query_id: str, found: Versioned, decided: DecidedBatch) -> Versioned | None:
        store_replace(query_id, found, DecidedBatch(0, (), "out"))
        return store_replace(query_id, found, decided)

    world.replace = replaced_by_another  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="another driver writes batch 0"):
        world.driver().commit(0, names, "out")
    assert world.visible == []


def test_a_decided_batch_waits_for_its_broker_and_goes_on_when_the_query_is_started_again():
    world = World()
    names = world.prepare(0, "run")
    world.down = {1}
    with pytest.raises(ClientError, match=r"broker 1 does not commit it .*: start the broker, then the query"):
        world.driver().commit(0, names, "out")
    assert 0 < world.now <= COMMIT_SECONDS
    world.down = set()
    assert not world.driver().commit(0, world.prepare(0, "again"), "out")
    assert world.names(0) == sorted(names)
    assert world.in_doubt == []


def test_transactions_of_a_broker_that_is_away_are_rolled_back_later():
    world = World()
    world.prepare(0, "zombie")
    names = [name for name in world.prepare(0, "run") if broker_of(name) == 0]
    world.down = {1}
    assert world.driver().commit(0, names, "out")
    assert {broker_of(xid.bqual.decode()) for xid in world.in_doubt} == {1}
    world.down = set()
    world.driver().commit(1, [], "out")
    assert world.in_doubt == []
    assert world.names(0) == sorted(names)


@pytest.mark.parametrize("code", [XaCode.XA_HEURRB, XaCode.XA_HEURMIX, XaCode.XA_HEURHAZ])
def test_rows_that_an_operator_dropped_fail_the_query_once(code: XaCode):
    world = World()
    names = world.prepare(0, "run")[:1]
    world.in_doubt = world.in_doubt[:1]
    world.answer = XaError(code, "completed by hand")
    with pytest.raises(ClientError, match="its rows are missing"):
        world.driver().commit(0, names, "out")
    assert [xid.bqual.decode() for xid in world.forgotten] == names
    world.answer = None
    assert not world.driver().commit(0, [], "out")


def test_a_batch_without_rows_decides_nothing_but_clears_up():
    world = World()
    world.prepare(0, "zombie")
    assert world.driver().commit(0, [], "out")
    assert (world.in_doubt, world.found) == ([], Versioned(None, None))


def test_names_fit_into_an_xid_and_say_where_they_are():
    name = branch_name(2**31 - 1, 99_999, 999, 99_999, "0123abcd")
    xid = xid_of(BatchWrite(QUERY, 2**63 - 1), name)
    assert Xid.parse(xid.key("spark")) == xid
    assert (batch_of(xid), broker_of(name)) == (2**63 - 1, 2**31 - 1)


def test_verdicts_leave_later_batches_alone():
    first, second, third = (xid_of(BatchWrite(QUERY, batch), f"0.0.0.0.{batch}") for batch in range(3))
    verdicts = judge(DecidedBatch(1, ("0.0.0.0.1",)), [first, second, third], 1)
    assert verdicts == ((second,), (first,))

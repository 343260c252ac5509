"""Connections by broker: made by who needs them first, brought back by housekeeping alone."""

import threading
import time
from contextlib import ExitStack, closing

import pytest

from metaq.client.runtime.timers import Timers
from metaq.client.runtime.waiting import Waiter
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.client.transport.pool import ConnectionPool
from metaq.protocol.errors import BrokerUnavailable, LeaderMoved, NotLeader, RequestTimedOut
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker
from tests.component.client.harness import together
from tests.raising import raising
from tests.waiting import DEADLINE, eventually

HERE = Endpoint("127.0.0.1", 1)
FAST = ConnectionConfig(reconnect_min_seconds=0.001, reconnect_max_seconds=0.01)


NEVER = ConnectionConfig(reconnect_min_seconds=1000, reconnect_max_seconds=1000)


def unreachable(endpoint, config, timeout):
    raise BrokerUnavailable("nobody there")


@pytest.fixture
def new_pool():
    with ExitStack() as opened:
        yield lambda config=FAST, **options: opened.enter_context(closing(ConnectionPool(config, **options)))


@pytest.fixture
def pool(new_pool):
    return new_pool()


class Opening:
    """Opens connections by `open_`, and notes what it has opened or tried to."""

    def __init__(self, open_):
        self.tries, self.opened, self.open_ = 0, [], open_

    def __call__(self, *arguments):
        self.tries += 1
        self.opened.append(self.open_(*arguments))
        return self.opened[-1]


def test_one_connection_is_shared(broker, pool):
    found = together(lambda endpoint: pool.connection(endpoint, 3), [broker.endpoint] * 8)
    assert len(set(map(id, found))) == broker.connections == 1


def test_a_broker_that_could_not_be_reached_is_refused_at_once_afterwards(new_pool):
    opening = Opening(unreachable)
    pool = new_pool(NEVER, open=opening)
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="nobody there"):
            pool.connection(HERE, 3)
    assert (opening.tries, pool.down) == (1, {HERE})


def test_an_attempt_that_had_no_time_says_nothing_of_the_broker(broker, new_pool):
    now = [0.0]

    def open_(endpoint, config, timeout):
        if timeout < 0.5:
            now[0] += timeout
            raise BrokerUnavailable("timed out")
        return open_connection(endpoint, config, timeout)

    pool = new_pool(open=open_, clock=lambda: now[0])
    with pytest.raises(RequestTimedOut, match="in time: timed out"):
        pool.connection(broker.endpoint, 0.001)
    assert pool.down == frozenset()
    assert not pool.connection(broker.endpoint, 3).closed


def test_nobody_waits_for_a_broker_that_housekeeping_is_trying_to_reach(new_pool):
    """A connection attempt to a machine that is gone takes seconds; callers go elsewhere meanwhile."""
    trying, give_up, gave_up = threading.Event(), threading.Event(), threading.Event()

    def open_(*arguments):
        if opening.tries > 1:
            trying.set()
            give_up.wait(DEADLINE)
            gave_up.set()
        unreachable(*arguments)

    opening = Opening(open_)
    pool = new_pool(open=opening)
    with pytest.raises(BrokerUnavailable):
        pool.connection(HERE, 3)
    assert trying.wait(DEADLINE)
    with pytest.raises(BrokerUnavailable, match="in the background"):
        pool.connection(HERE, DEADLINE)
    assert not gave_up.is_set()
    give_up.set()


def test_a_broken_connection_is_brought_back(broker, pool):
    first = pool.connection(broker.endpoint, 3)
    broker.drop_connections()
    eventually(lambda: first.closed)  # noticed by housekeeping, nobody uses it
    eventually(lambda: broker.connections == 2 and not pool.down)
    assert pool.connection(broker.endpoint, 3) is not first
    assert not pool.down


def test_a_thread_that_finds_a_connection_broken_leaves_making_another_to_housekeeping(broker, new_pool):
    """Else both make one, and what was sent on the one that is not kept is read by nobody."""
    opening = Opening(open_connection)
    pool = new_pool(NEVER, open=opening)
    first = pool.connection(broker.endpoint, 3)
    tell_pool = first.on_closed
    assert tell_pool is not None
    first.on_closed = lambda connection: None  # it is told later
    broker.drop_connections()
    eventually(lambda: first.closed)
    for connect in (lambda: pool.connection(broker.endpoint, 3), lambda: pool.open_connection(broker.endpoint)):
        with pytest.raises(BrokerUnavailable, match=r"closed the connection \(trying again in the background\)"):
            connect()
    tell_pool(first)
    assert (opening.opened, pool.down) == ([first], {broker.endpoint})


def test_a_closed_pool_refuses(broker, pool):
    connection = pool.connection(broker.endpoint, 3)
    pool.close()
    assert connection.closed
    with pytest.raises(BrokerUnavailable, match="closed"):
        pool.connection(broker.endpoint, 3)


def test_a_request_sent_for_a_caller_that_just_left_is_read_all_the_same(broker):
    """Its caller promised to drive the connection, and reached its deadline a moment before the request was sent."""
    answers: list[object] = []
    with closing(open_connection(broker.endpoint, FAST)) as connection:
        connection.drive(Waiter(), time.monotonic())
        connection.submit(heartbeat, lambda reply, _: answers.append(reply), time.monotonic() + 5, background=False)
        eventually(lambda: answers)


def test_timers_run_in_order_of_time_and_survive_a_failing_action(caplog):
    now = 0.0
    timers, done = Timers("test", clock=lambda: now), threading.Event()
    seen: list[str] = []

    def last() -> None:
        seen.append("late")
        done.set()

    timers.call_later(0.02, last)
    timers.call_later(0.01, raising(ZeroDivisionError))
    timers.call_later(0.005, lambda: seen.append("early"))
    now = 1.0
    assert done.wait(DEADLINE)
    assert seen == ["early", "late"]
    assert "ZeroDivisionError" in caplog.text
    timers.close()
    timers.call_later(0.0, lambda: seen.append("after close"))
    assert seen == ["early", "late"]


# --- broker sets ------------------------------------------------------------------------------------------------------


def heartbeat(opaque):
    return (encode_frame(RequestCode.HEARTBEAT, opaque, {}),)


def test_a_node_that_has_named_its_leader_is_followed(broker, pool):
    with FakeBroker({"t": 1}) as other:
        assert pool.follow(NotLeader(0, str(other.endpoint), str(broker.endpoint))) == 0.0
        assert pool.open_connection(broker.endpoint) is None
        assert pool.connection(broker.endpoint, 3).endpoint == other.endpoint
        assert pool.open_connection(broker.endpoint) is pool.connection(other.endpoint, 3)
        pool.listed({0: broker.endpoint})
        pool.listed({0: other.endpoint})
        assert pool.connection(broker.endpoint, 3).endpoint == broker.endpoint  # who asks for it now knows better
    assert pool.follow(RequestTimedOut("no answer")) is None


def test_a_named_node_that_is_gone_leads_back_to_the_one_that_is_registered(broker, pool):
    with FakeBroker({"t": 1}) as gone:
        gone.stop()
        pool.follow(NotLeader(0, str(gone.endpoint), str(broker.endpoint)))
        with pytest.raises(BrokerUnavailable):
            pool.connection(broker.endpoint, 3)
    assert pool.connection(broker.endpoint, 3).endpoint == broker.endpoint


def test_requests_that_a_former_leader_does_not_answer_end_soon(broker, new_pool):
    pool = new_pool(ConnectionConfig(request_timeout_seconds=1000))
    with FakeBroker({"t": 1}) as other:
        pool.listed({0: broker.endpoint, 1: other.endpoint})
        kept = pool.connection(other.endpoint, 3)
        connection = pool.connection(broker.endpoint, 3)
        broker.silent = True
        call = connection.begin(heartbeat)
        pool.listed({1: other.endpoint})  # no leader is known: it may be the same again
        pool.listed({0: HERE, 1: other.endpoint})
        with pytest.raises(LeaderMoved) as moved:
            connection.finish(call, DEADLINE)
        assert pool.follow(moved.value) == 0.0
        assert broker.endpoint not in pool.down
        assert not kept.closed
        assert kept.call(heartbeat, DEADLINE)


def test_a_former_leader_that_answers_is_heard_first(broker, pool):
    pool.listed({0: broker.endpoint})
    connection = pool.connection(broker.endpoint, 3)
    pool.listed({0: HERE})
    assert connection.call(heartbeat, DEADLINE)
    eventually(lambda: connection.closed)

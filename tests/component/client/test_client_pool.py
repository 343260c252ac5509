"""Connections by broker: made by who needs them first, brought back by housekeeping alone."""

import threading
import time

import pytest

from metaq.client.config import ConnectionConfig
from metaq.client.connection import Endpoint, open_connection
from metaq.client.pool import ConnectionPool
from metaq.client.timers import Timers
from metaq.client.waiting import Waiter
from metaq.protocol.errors import BrokerUnavailable, LeaderMoved, NotLeader, RequestTimedOut
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker
from tests.raising import raising
from tests.waiting import DEADLINE, eventually

HERE = Endpoint("127.0.0.1", 1)
FAST = ConnectionConfig(reconnect_min_seconds=0.001, reconnect_max_seconds=0.01)


def unreachable(endpoint, config, protocol, timeout):
    raise BrokerUnavailable("nobody there")


def test_one_connection_is_shared(broker):
    pool = ConnectionPool(FAST)
    threads = [threading.Thread(target=lambda: found.append(pool.connection(broker.endpoint, 3))) for _ in range(8)]
    found: list[object] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert broker.connections == 1
    pool.close()


def test_a_broker_that_could_not_be_reached_is_refused_at_once_afterwards():
    slow = ConnectionConfig(reconnect_min_seconds=1000, reconnect_max_seconds=1000)
    tries = []

    def open_(*arguments):
        tries.append(arguments)
        return unreachable(*arguments)

    pool = ConnectionPool(slow, open=open_)
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="nobody there"):
            pool.connection(HERE, 3)
    assert len(tries) == 1
    assert pool.down == {HERE}
    pool.close()


def test_an_attempt_that_had_no_time_says_nothing_of_the_broker(broker):
    now = [0.0]

    def open_(endpoint, config, protocol, timeout):
        if timeout < 0.5:
            now[0] += timeout
            raise BrokerUnavailable("timed out")
        return open_connection(endpoint, config, protocol, timeout)

    pool = ConnectionPool(FAST, open=open_, clock=lambda: now[0])
    with pytest.raises(RequestTimedOut, match="in time: timed out"):
        pool.connection(broker.endpoint, 0.001)
    assert pool.down == frozenset()
    assert not pool.connection(broker.endpoint, 3).closed
    pool.close()


def test_nobody_waits_for_a_broker_that_housekeeping_is_trying_to_reach():
    """A connection attempt to a machine that is gone takes seconds; callers go elsewhere meanwhile."""
    trying, give_up, gave_up = threading.Event(), threading.Event(), threading.Event()
    tries = []

    def open_(*arguments):
        tries.append(1)
        if len(tries) > 1:
            trying.set()
            give_up.wait(DEADLINE)
            gave_up.set()
        return unreachable(*arguments)

    pool = ConnectionPool(FAST, open=open_)
    with pytest.raises(BrokerUnavailable):
        pool.connection(HERE, 3)
    assert trying.wait(DEADLINE)
    with pytest.raises(BrokerUnavailable, match="in the background"):
        pool.connection(HERE, DEADLINE)
    assert not gave_up.is_set()
    give_up.set()
    pool.close()


def test_a_broken_connection_is_brought_back(broker):
    pool = ConnectionPool(FAST)
    first = pool.connection(broker.endpoint, 3)
    broker.drop_connections()
    eventually(lambda: first.closed)  # noticed by housekeeping, nobody uses it
    eventually(lambda: broker.connections == 2 and not pool.down)
    second = pool.connection(broker.endpoint, 3)
    assert second is not first
    assert not pool.down
    pool.close()


def test_a_thread_that_finds_a_connection_broken_leaves_making_another_to_housekeeping(broker):
    """Else both make one, and what was sent on the one that is not kept is read by nobody."""
    never = ConnectionConfig(reconnect_min_seconds=1000, reconnect_max_seconds=1000)
    opened = []

    def open_(*arguments):
        opened.append(open_connection(*arguments))
        return opened[-1]

    pool = ConnectionPool(never, open=open_)
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
    assert opened == [first]
    assert pool.down == {broker.endpoint}
    pool.close()


def test_a_broker_that_is_gone_for_good_is_forgotten():
    pool = ConnectionPool(FAST, open=unreachable)
    with pytest.raises(BrokerUnavailable):
        pool.connection(HERE, 3)
    pool.listed({0: HERE})
    assert pool.down == {HERE}
    pool.listed({})
    assert pool.down == frozenset()
    pool.close()


def test_a_closed_pool_refuses(broker):
    pool = ConnectionPool(FAST)
    connection = pool.connection(broker.endpoint, 3)
    pool.close()
    assert connection.closed
    with pytest.raises(BrokerUnavailable, match="closed"):
        pool.connection(broker.endpoint, 3)


def test_a_request_sent_for_a_caller_that_just_left_is_read_all_the_same(broker):
    """Its caller promised to drive the connection, and reached its deadline a moment before the request was sent."""
    connection = open_connection(broker.endpoint, FAST)
    connection.drive(Waiter(), time.monotonic())
    answers = []
    connection.submit(
        lambda opaque: (encode_frame(RequestCode.HEARTBEAT, opaque, {}),),
        lambda reply, error: answers.append(reply),
        time.monotonic() + 5,
        background=False,
    )
    eventually(lambda: answers)
    connection.close()


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


def test_a_node_that_has_named_its_leader_is_followed(broker):
    pool = ConnectionPool(FAST)
    with FakeBroker({"t": 1}) as other:
        assert pool.follow(NotLeader(0, str(other.endpoint), str(broker.endpoint))) == 0.0
        assert pool.open_connection(broker.endpoint) is None
        assert pool.connection(broker.endpoint, 3).endpoint == other.endpoint
        assert pool.open_connection(broker.endpoint) is pool.connection(other.endpoint, 3)
        pool.listed({0: broker.endpoint})
        pool.listed({0: other.endpoint})
        assert pool.connection(broker.endpoint, 3).endpoint == broker.endpoint  # who asks for it now knows better
    assert pool.follow(RequestTimedOut("no answer")) is None
    pool.close()


def test_a_named_node_that_is_gone_leads_back_to_the_one_that_is_registered(broker):
    pool = ConnectionPool(FAST)
    with FakeBroker({"t": 1}) as gone:
        gone.stop()
        pool.follow(NotLeader(0, str(gone.endpoint), str(broker.endpoint)))
        with pytest.raises(BrokerUnavailable):
            pool.connection(broker.endpoint, 3)
    assert pool.connection(broker.endpoint, 3).endpoint == broker.endpoint
    pool.close()


def test_requests_that_a_former_leader_does_not_answer_end_soon(broker):
    pool = ConnectionPool(ConnectionConfig(request_timeout_seconds=1000))
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
    pool.close()


def test_a_former_leader_that_answers_is_heard_first(broker):
    pool = ConnectionPool(FAST)
    pool.listed({0: broker.endpoint})
    connection = pool.connection(broker.endpoint, 3)
    pool.listed({0: HERE})
    assert connection.call(heartbeat, DEADLINE)
    eventually(lambda: connection.closed)
    pool.close()


def test_a_leader_that_is_back_at_once_keeps_its_connection(broker):
    pool = ConnectionPool(FAST)
    pool.listed({0: broker.endpoint})
    connection = pool.connection(broker.endpoint, 3)
    pool.listed({0: HERE})
    pool.listed({0: broker.endpoint})
    time.sleep(0.5)
    assert pool.connection(broker.endpoint, 3) is connection
    pool.close()

"""SendFuture against everything the standard library does with a future."""

import asyncio
import threading
from concurrent import futures
from typing import Any

import pytest

from metaq.client.producer.futures import Outcome, SendFuture
from tests.waiting import DEADLINE


def new_future() -> SendFuture[Any]:
    return SendFuture()


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.fixture
def future() -> SendFuture[Any]:
    return SendFuture()


def test_what_is_there_is_returned_or_raised_at_once(future):
    future.set_result(7)
    assert (future.done(), future.result(0), future.exception(0)) == (True, 7, None)
    failed = new_future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        failed.result(0)


def test_result_waits_for_another_thread(future):
    waiting = []
    thread = in_thread(lambda: waiting.append(future.result(DEADLINE)))
    while not future._bells:  # the thread is about to wait
        pass
    future.set_result(7)
    thread.join(DEADLINE)
    assert waiting == [7]


@pytest.mark.parametrize("seconds", [0, 1e-6])
def test_result_gives_up_after_its_timeout_and_leaves_nothing_behind(future, seconds):
    for _ in range(3):
        with pytest.raises(futures.TimeoutError):
            future.result(seconds)
    assert future._bells is None or future._bells.waiting == []


def test_a_send_cannot_be_cancelled(future):
    assert not future.cancel()
    assert future.running()


def test_callbacks_run_once_whether_added_before_or_after(future):
    seen: list[Any] = []
    future.add_done_callback(lambda done: seen.append(("before", done.result())))
    future.set_result(1)
    future.add_done_callback(lambda done: seen.append(("after", done.result())))
    assert seen == [("before", 1), ("after", 1)]


def test_a_failing_callback_does_not_stop_the_others(future, caplog):
    seen: list[Any] = []
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(seen.append)
    future.set_result(1)
    assert seen == [future]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_would_end_the_thread_that_tells_is_logged_as_any_other(kind, caplog):
    def leave(_done):
        raise kind("in a callback")

    outcome = Outcome()
    seen: list[Any] = []
    three: list[SendFuture[Any]] = [SendFuture(outcome, place) for place in range(3)]
    for future in three:
        future.add_done_callback(leave)
        future.add_done_callback(seen.append)
    outcome.settle(None, [1, 2, 3])
    assert seen == three
    assert len([record for record in caplog.records if "callback" in record.message]) == 3
    with pytest.raises(kind):  # of a future that has ended it runs on the user's own thread
        three[0].add_done_callback(leave)


def test_wait_and_as_completed_work():
    first, second, third = new_future(), new_future(), new_future()
    first.set_result(1)
    done, pending = futures.wait([first, second], timeout=0)
    assert (done, pending) == ({first}, {second})

    def finish() -> None:
        second.set_result(2)
        third.set_exception(OSError())

    thread = in_thread(finish)
    everything: list[futures.Future[Any]] = [first, second, third]
    assert set(futures.as_completed(everything, timeout=DEADLINE)) == {first, second, third}
    thread.join(DEADLINE)
    done, pending = futures.wait([second, third], timeout=5, return_when=futures.FIRST_EXCEPTION)
    assert third in done


def test_asyncio_can_wait_for_it():
    async def main():
        future = new_future()
        wrapped = asyncio.wrap_future(future)
        in_thread(lambda: future.set_result(5))
        return await asyncio.wait_for(wrapped, 5)

    assert asyncio.run(main()) == 5


def test_no_wake_up_is_lost_between_setting_and_waiting():
    """Many races of a setter and a waiter: each waiter returns."""
    for _ in range(300):
        future = new_future()
        thread = in_thread(lambda future=future: future.set_result(1))
        assert future.result(DEADLINE) == 1
        thread.join()


class Watched(threading.Condition):
    """Notes the state of a future whenever somebody gets the lock, as wait() looks at it then."""

    def __init__(self, future: SendFuture[Any]) -> None:
        super().__init__()
        self.seen: list[str] = []
        acquire = self.acquire

        def acquire_and_look(*arguments: Any, **options: Any) -> bool:
            acquired = acquire(*arguments, **options)
            self.seen.append(future._state)
            return acquired

        self.acquire = acquire_and_look  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "finish", [lambda future: future.set_result(1), lambda future: future.set_exception(KeyError())]
)
def test_who_waits_is_told_of_a_change_or_sees_it_never_both(future, finish):
    condition = Watched(future)
    future._make_condition(condition)
    finish(future)
    assert condition.seen == ["RUNNING"]  # else wait() would count the future as done, and be told so once more
    assert future.done()


def test_who_counts_unfinished_futures_for_long_sees_none_of_them_end_meanwhile(future, monkeypatch):
    """As `wait` on thousands does, with all their locks, on a busy machine."""
    monkeypatch.setattr("metaq.client.producer.tuning.CONDITION_SECONDS", 0.001)
    with future._condition:
        in_thread(lambda: future.set_result(7)).join(DEADLINE)
        assert future.done()
        assert future._state == "RUNNING"
    assert futures.wait([future], timeout=DEADLINE).done == {future}


def test_a_condition_that_an_interrupt_has_left_locked_is_given_up(future, monkeypatch):
    monkeypatch.setattr("metaq.client.producer.tuning.CONDITION_SECONDS", 0.001)
    monkeypatch.setattr("metaq.client.producer.tuning.LEFT_LOCKED_SECONDS", 0.001)
    waiter = threading.Event()
    future._waiters.append(type("Waiter", (), {"add_result": lambda self, done: waiter.set()})())
    future._condition.acquire()
    in_thread(lambda: future.set_result(7)).join(DEADLINE)
    assert waiter.wait(DEADLINE)
    assert future._state == "FINISHED"

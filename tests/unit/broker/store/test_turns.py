"""Calls in worker threads take turns by key, and are held back when told to."""

from functools import partial
from typing import Any

import pytest

from metaq.broker.store.worker_turns import Turns
from tests.doubles.store import ManualThreads
from tests.raising import raising


@pytest.fixture
def threads():
    return ManualThreads()


@pytest.fixture
def done():
    return []


def test_keys_take_turns_however_many_calls_one_of_them_has(threads, done):
    turns = Turns(threads, 1)
    for number in range(3):
        turns.run("many", partial("many {}".format, number), done.append)
    turns.run("one", lambda: "one", done.append)
    assert (len(threads), len(turns)) == (1, 3)
    threads.run_all()
    assert done == ["many 0", "many 1", "one", "many 2"]
    assert len(turns) == 0


def test_no_more_than_the_limit_run_at_once(threads):
    turns = Turns(threads, 2)
    for number in range(5):
        turns.run(number, lambda: None, lambda result: None)
    assert len(threads) == 2
    threads.run_one()
    assert len(threads) == 2
    threads.run_all()
    assert len(turns) == 0


def test_a_callback_that_fails_does_not_stop_the_others(threads, done):
    turns = Turns(threads, 1)

    turns.run("a", lambda: None, raising(RuntimeError("bug")))
    turns.run("b", lambda: "b", done.append)
    try:
        threads.run_one()
    except RuntimeError:
        threads.run_all()
    assert done == ["b"]


def test_errors_are_results(threads, done):
    turns = Turns(threads, 1)
    turns.run("a", lambda: 1 // 0, done.append)
    threads.run_all()
    assert isinstance(done[0], ZeroDivisionError)


def test_a_pause_holds_the_next_call_back_once():
    threads, pauses = ManualThreads(), [2.0, 0.0, 0.0]
    later: list[tuple[float, Any]] = []
    turns = Turns(
        threads, 2, pause=lambda: pauses.pop(0), call_later=lambda seconds, function: later.append((seconds, function))
    )
    turns.run("a", lambda: None, lambda result: None)
    turns.run("b", lambda: None, lambda result: None)
    assert len(threads) == 0
    ((seconds, go_on),) = later
    assert seconds == 2.0
    go_on()
    assert len(threads) == 2

"""The event thread and the task that is repeated until it succeeds."""

import threading
from collections.abc import Iterator

import pytest

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.events import EventThread, PersistentTask
from metaq.protocol.errors import CoordinationUnavailable
from tests.waiting import DEADLINE


class NoPause(Backoff):
    """Pauses of a microsecond, counted."""

    def __init__(self) -> None:
        super().__init__(1e-6, 1e-6)
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def events() -> Iterator[EventThread]:
    thread = EventThread("test events")
    thread.start()
    yield thread
    thread.close(DEADLINE)


def run_all(events: EventThread) -> None:
    """Return once everything posted so far has run."""
    done = threading.Event()
    events.post(done.set)
    assert done.wait(DEADLINE)


def test_calls_run_in_order_on_another_thread(events: EventThread):
    seen: list[tuple[int, threading.Thread]] = []
    for number in range(3):
        events.post(lambda number=number: seen.append((number, threading.current_thread())))  # type: ignore[misc]
    run_all(events)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_a_burst_of_equal_calls_becomes_one_and_a_later_one_runs_again(events: EventThread):
    seen: list[int] = []
    gate = threading.Event()

    def call() -> None:
        seen.append(1)

    events.post(lambda: gate.wait(DEADLINE))
    for _ in range(5):
        events.post_once(call)
    gate.set()
    run_all(events)
    assert len(seen) == 1
    events.post_once(call)
    run_all(events)
    assert len(seen) == 2


def test_a_failing_call_is_logged_and_the_next_one_runs(events: EventThread, caplog: pytest.LogCaptureFixture):
    seen: list[int] = []
    events.post(lambda: [][0])
    events.post(lambda: seen.append(1))
    run_all(events)
    assert seen == [1]
    assert "IndexError" in caplog.text


def test_after_close_nothing_runs():
    events = EventThread("test events")
    events.start()
    seen: list[int] = []
    events.close(DEADLINE)
    events.post(lambda: seen.append(1))
    events.post_once(lambda: seen.append(2))
    assert seen == []


def test_the_event_thread_may_close_itself(events: EventThread):
    closed = threading.Event()

    def close_from_within() -> None:
        events.close(DEADLINE)
        closed.set()

    events.post(close_from_within)
    assert closed.wait(DEADLINE)


def test_later_calls_run_in_the_order_of_their_times_and_need_no_thread_of_their_own(events: EventThread):
    seen: list[str] = []
    done = threading.Event()
    threads = threading.active_count()

    def second() -> None:
        seen.append("second")
        done.set()

    events.post_later(3600.0, lambda: seen.append("in an hour"))
    events.post_later(0.02, second)
    events.post_later(0.01, lambda: seen.append("first"))
    events.post(lambda: seen.append("now"))
    assert threading.active_count() == threads
    assert done.wait(DEADLINE)
    assert seen == ["now", "first", "second"]


def test_a_task_at_rest_has_no_thread_and_is_started_again_by_a_trigger():
    runs = threading.Semaphore(0)
    task = PersistentTask("resting", lambda: runs.release())
    for _ in range(2):
        task.trigger()
        assert runs.acquire(timeout=DEADLINE)
        for each in threading.enumerate():
            if each.name == "metaq resting":
                each.join(DEADLINE)
                assert not each.is_alive()


def test_a_try_that_fails_because_of_the_end_is_not_logged(caplog: pytest.LogCaptureFixture):
    started, go_on = threading.Event(), threading.Event()

    def attempt() -> None:
        started.set()
        assert go_on.wait(DEADLINE)
        raise CoordinationUnavailable("closed")

    task = PersistentTask("test", attempt, Backoff(3600, 3600))
    task.trigger()
    assert started.wait(DEADLINE)
    task.close(0.0)
    go_on.set()
    task.close(DEADLINE)
    assert caplog.text == ""


def test_a_task_is_tried_until_it_succeeds_and_its_backoff_begins_again():
    done, backoff = threading.Event(), NoPause()
    outcomes = iter([CoordinationUnavailable("away"), ValueError("a bug"), None])

    def attempt() -> None:
        if error := next(outcomes):
            raise error
        done.set()

    task = PersistentTask("test", attempt, backoff)
    task.trigger()
    assert done.wait(DEADLINE)
    task.close(DEADLINE)
    assert backoff.resets == 1
    assert next(outcomes, "no more") == "no more"


def test_a_task_that_is_never_triggered_never_runs():
    task = PersistentTask("test", lambda: pytest.fail("it ran"))
    task.close(DEADLINE)


@pytest.fixture
def tries() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def failing(tries: threading.Semaphore) -> PersistentTask:
    """It has been tried once, and pauses for an hour."""

    def attempt() -> None:
        tries.release()
        raise CoordinationUnavailable("away")

    task = PersistentTask("test", attempt, Backoff(3600, 3600))
    task.trigger()
    assert tries.acquire(timeout=DEADLINE)
    return task


def test_a_trigger_ends_the_pause_of_a_task(failing: PersistentTask, tries: threading.Semaphore):
    failing.trigger()
    assert tries.acquire(timeout=DEADLINE)
    failing.close(DEADLINE)


def test_a_closed_task_ends_its_pause_and_takes_no_trigger(failing: PersistentTask, tries: threading.Semaphore):
    failing.close(DEADLINE)
    failing.trigger()
    assert not tries.acquire(blocking=False)


def test_a_trigger_while_a_task_runs_leads_to_another_run():
    runs, started, go_on = threading.Semaphore(0), threading.Event(), threading.Event()

    def attempt() -> None:
        started.set()
        assert go_on.wait(DEADLINE)
        runs.release()

    task = PersistentTask("test", attempt)
    task.trigger()
    assert started.wait(DEADLINE)
    task.trigger()
    go_on.set()
    assert runs.acquire(timeout=DEADLINE)
    assert runs.acquire(timeout=DEADLINE)
    task.close(DEADLINE)

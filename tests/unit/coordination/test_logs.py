"""A line is written where no interrupt comes, and looks as if its caller had written it."""

import logging
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from metaq.coordination.runtime import logs
from metaq.coordination.runtime.logs import get_log
from tests.raising import raising
from tests.waiting import DEADLINE

NAME = "metaq.test of logs"


class Keeping(logging.Handler):
    """Keeps records, and on which thread they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: SimpleQueue[tuple[logging.LogRecord, int]] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.written.put((record, threading.get_ident()))

    def next(self) -> tuple[logging.LogRecord, int]:
        return self.written.get(timeout=DEADLINE)


@pytest.fixture
def handler() -> Iterator[Keeping]:
    handler, logger = Keeping(), logging.getLogger(NAME)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


def test_the_main_thread_writes_no_line_itself(handler: Keeping) -> None:
    get_log(NAME).warning("%d of %s", 3, "them")
    record, thread = handler.next()
    assert (record.getMessage(), record.levelname) == ("3 of them", "WARNING")
    assert thread != threading.get_ident()
    assert (record.funcName, record.filename, record.threadName) == (
        "test_the_main_thread_writes_no_line_itself",
        "test_logs.py",
        threading.current_thread().name,
    )


def test_another_thread_writes_its_own(handler: Keeping) -> None:
    def write() -> None:
        get_log(NAME).info("here")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    record, ident = handler.next()
    assert ident == thread.ident
    assert record.funcName == "write"


def test_what_is_not_enabled_is_not_written(handler: Keeping) -> None:
    get_log(NAME).debug("too fine")
    get_log(NAME).info("fine")
    assert handler.next()[0].getMessage() == "fine"


def test_an_exception_is_in_the_line_of_the_thread_that_caught_it(handler: Keeping) -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        get_log(NAME).exception("failed")
        get_log(NAME).warning("failed", exc_info=error)
        get_log(NAME).warning("failed", exc_info=None)
        caught = sys.exception()
    for expected in (caught, caught):
        info = handler.next()[0].exc_info
        assert info is not None
        assert info[1] is expected
    assert handler.next()[0].exc_info is None


def test_what_a_handler_raises_reaches_the_caller_and_holds_up_no_later_line(handler, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(handler, "emit", raising(OSError("no room for the log")))
        with pytest.raises(OSError, match="no room"):
            get_log(NAME).warning("lost")
    get_log(NAME).warning("next")
    assert handler.next()[0].getMessage() == "next"


def test_a_handler_that_the_caller_has_locked_is_not_waited_for_for_ever(handler, monkeypatch):
    """As one that sends with metaq what it is to write."""
    monkeypatch.setattr(logs, "_WRITE_SECONDS", 0.01)
    handler.acquire()
    try:
        get_log(NAME).warning("late")
        assert handler.written.empty()
    finally:
        handler.release()
    assert handler.next()[0].getMessage() == "late"

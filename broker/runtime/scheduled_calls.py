"""Run the work that a broker does at certain times: the store's syncs and checkpoints, and retention on its
schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, cast

from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError

from .reactor import ReactorTime, Timer
from .schedule import Schedule

__all__ = ["ScheduledCalls", "repeat"]

_log = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS = 3600.0
"""While a schedule waits for its next time, the wall clock is read at least once in this many seconds, because somebody
may have set it.
"""


def repeat(seconds: float, function: Callable[[], object], reactor: ReactorTime, name: str) -> LoopingCall:
    """Call `function` every `seconds` until the returned LoopingCall is stopped. Exceptions of `function` are logged,
    and the calls continue. A MetaqError is logged in one line, but not if the call before has failed with the same
    error.
    """
    told = ""

    def guarded() -> None:
        nonlocal told
        try:
            function()
        except MetaqError as error:
            if str(error) != told:
                told = str(error)
                _log.error("%s failed: %s", name, error)
        except Exception:
            _log.exception("%s failed", name)
        else:
            told = ""

    call = LoopingCall(guarded)
    call.clock = cast(Any, reactor)
    call.start(seconds, now=False).addErrback(_report, name)
    return call


def _report(failure: Failure, name: str) -> None:
    _log.error("%s has ended: %s", name, failure.getErrorMessage())


class ScheduledCalls:
    """Calls a function on the reactor thread whenever one of several schedules is due. The function gets the schedule
    that is due as its argument.
    """

    def __init__(
        self,
        schedules: Iterable[Schedule],
        function: Callable[[Schedule], object],
        reactor: ReactorTime,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """now: returns the local time."""
        self._function = function
        self._reactor = reactor
        self._now = now
        self._timers: dict[Schedule, Timer] = {}
        self.replace(schedules)

    def replace(self, schedules: Iterable[Schedule]) -> None:
        """Use exactly these schedules from now on. If a schedule was already in use, the time of its next call stays
        the same.
        """
        wanted = dict.fromkeys(schedules)
        for schedule in self._timers.keys() - wanted.keys():
            self._timers.pop(schedule).cancel()
        for schedule in wanted.keys() - self._timers.keys():
            self._sleep(schedule, schedule.after(self._now()))

    def stop(self) -> None:
        """Cancel all future calls."""
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()

    def _sleep(self, schedule: Schedule, due: datetime | None) -> None:
        self._timers.pop(schedule, None)
        if due is None:
            _log.warning("the schedule %s never comes due", schedule.text)
            return
        delay = min(_LONGEST_SLEEP_SECONDS, max(0.0, (due - self._now()).total_seconds()))
        self._timers[schedule] = self._reactor.callLater(delay, self._wake, schedule, due)

    def _wake(self, schedule: Schedule, due: datetime) -> None:
        if self._now() >= due:
            try:
                self._function(schedule)
            except Exception:
                _log.exception("the task scheduled for %s failed", schedule.text)
        self._sleep(schedule, schedule.after(self._now()))

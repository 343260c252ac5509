"""The clock of a broker's timers."""

import time

import pytest
from twisted.internet.selectreactor import SelectReactor

from metaq.broker.runtime.reactor import elapsed_seconds, measures_elapsed_time


def test_a_wall_clock_that_is_set_back_holds_no_timer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = measures_elapsed_time(SelectReactor())
    called: list[bool] = []
    reactor.callLater(0, called.append, True)
    later = reactor.callLater(10, called.append, False)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 9 < later.getTime() - elapsed_seconds() <= 10
    assert 0 <= reactor.timeout() <= 10
    reactor.runUntilCurrent()
    assert called == [True]
    later.cancel()

"""Lines of the log about what clients do are few, however much they do."""

from __future__ import annotations

import logging
import sys

import pytest
from twisted.internet.task import Clock

from metaq.broker.runtime.few_lines import PERIOD_LINES, PERIOD_SECONDS, FewLines
from metaq.broker.runtime.log_format import LogFormat
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from metaq.protocol.transaction_requests import TransactionRequest

LOG = logging.getLogger("few")


@pytest.fixture(autouse=True)
def _at_info(caplog):
    caplog.set_level(logging.INFO)


def test_the_first_lines_are_written_and_the_others_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    lines = FewLines(LOG, "cups broken", clock)
    for number in range(PERIOD_LINES + 3):
        lines.info(f"cup {number} broken")
    assert caplog.messages == [f"cup {number} broken" for number in range(PERIOD_LINES)]
    caplog.clear()
    clock.advance(PERIOD_SECONDS)
    summed_up = f"3 more cups broken in {PERIOD_SECONDS} seconds, the last: cup {PERIOD_LINES + 2} broken"
    assert caplog.messages == [summed_up]
    caplog.clear()
    lines.info("another")
    clock.advance(PERIOD_SECONDS)
    assert caplog.messages == ["another"]
    assert clock.getDelayedCalls() == []


def sends_rubbish(peer, number):
    peer.send(b"rubbish\r\n" * 2)
    peer.lose()


def leaves_a_transaction(peer, number):
    peer.send(encode_frame(RequestCode.TRANSACTION, 1, TransactionRequest(f"TX:s:{number}", "BEGIN").to_ext()))
    peer.lose()


MORE = 9 * PERIOD_LINES
LEFT = {
    sends_rubbish: ("connection from 127.0.0.1:40000 closed: ", f"{MORE} more connections closed", "conn"),
    leaves_a_transaction: ("TX:s:0 is ", f"{MORE} more transactions rolled back", f"TX:s:{10 * PERIOD_LINES - 1} is "),
    lambda peer, _: peer.session.abort("idle"): ("", f"{MORE} more connections", "conn"),
}


@pytest.mark.parametrize("client", LEFT, ids=["send rubbish", "leave a transaction", "are cut"])
def test_connections_leave_few_lines_that(harness, caplog, client):
    first, summed_up, last = LEFT[client]
    for number in range(10 * PERIOD_LINES):
        client(harness.connect(), number)
    assert len(caplog.messages) == PERIOD_LINES
    assert first in caplog.messages[0]
    caplog.clear()
    harness.reactor.advance(PERIOD_SECONDS)
    (line,) = caplog.messages
    assert line.startswith(summed_up)
    assert f" in {PERIOD_SECONDS} seconds, the last: {last}" in line


def test_the_log_has_no_control_characters_of_clients() -> None:
    record = logging.LogRecord("a", logging.INFO, "a.py", 1, "%s is rolled back", ("TX:\x1b[2J\u202e:1",), None)
    assert LogFormat().format(record).endswith(r" INFO a: TX:\x1b[2J\u202e:1 is rolled back")


def test_a_text_of_a_client_begins_no_line_of_the_log() -> None:
    forged = "t\n2026-01-01 ERROR b: forged"
    record = logging.LogRecord("a", logging.INFO, "", 0, "%s is gone", (forged,), None)
    try:
        raise ValueError(forged)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *others = LogFormat().format(record).splitlines()
    assert first.endswith(" INFO a: t")
    assert others[:2] == ["  2026-01-01 ERROR b: forged is gone", "  Traceback (most recent call last):"]
    assert all(line.startswith("  ") for line in others)
    assert others[-1] == "  2026-01-01 ERROR b: forged"

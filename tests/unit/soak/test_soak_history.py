"""Journals of killed processes are read as far as they are complete, logs of Java consumers for what they did."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.soak.history import Ack, Delivery, JournalLine, Stored, deliveries, fetched_on, read_acks, read_journal


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "acks").write_text("py 0 0-1 120\npy 1 0-2 140\npy 2 0-")
    assert list(read_acks(tmp_path / "acks")) == [Ack("py", 0, "0-1", 120), Ack("py", 1, "0-2", 140)]


def test_a_process_that_never_wrote_has_an_empty_journal(tmp_path: Path) -> None:
    assert list(read_acks(tmp_path / "none")) == []


def test_deliveries_get_their_offset_from_the_log(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("1500000 0-1 -77 java 3\n")
    (line,) = read_journal(tmp_path / "journal")
    assert line == JournalLine(1.5, "0-1", -77, "java", 3)
    log = [Stored("0-2", 10, -77, "other", 1), Stored("0-1", 20, -77, "java", 3)]
    assert deliveries("c", [line], log) == [Delivery(1.5, "c", "0-1", 20, "java", 3)]
    with pytest.raises(KeyError):
        deliveries("c", [line], log[:1])


def logged(*lines: tuple[int, str]) -> Iterable[str]:
    """Lines as log4j of the Java client writes them, at so many milliseconds of one minute, with a trace between."""
    for at, text in lines:
        yield f"2026-11-22 17:59:{at // 1000:02},{at % 1000:03} WARN ConsumerZooKeeper: {text}"
        yield "\tat com.taobao.metamorphosis.client.consumer.ConsumerZooKeeper"


STOP, COMMIT, START = "Stopping fetch runners", "Comitting all offsets", "Starting fetch runners"
FAILED = "rebalance failed,try #0"
MINUTE = time.mktime((2026, 11, 22, 17, 59, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        ([(0, STOP), (1, COMMIT), (2, START)], []),
        ([(2, START), (100, FAILED), (1103, STOP), (1250, COMMIT), (1300, START)], [(0.1, 1.25)]),
        ([(2, START), (100, FAILED), (1100, FAILED), (2103, STOP), (2104, COMMIT)], [(0.1, 2.104)]),
        ([(2, START), (100, FAILED), (1103, f"{STOP},maybe master or slave changed"), (1300, START)], [(0.1, 1.3)]),
        ([(2, START), (50, STOP), (51, COMMIT), (100, FAILED), (1103, STOP), (1104, COMMIT)], []),  # it had stopped
        ([(2, START), (100, FAILED)], [(0.1, math.inf)]),
        ([(100, FAILED)], []),  # it had not begun
    ],
)
def test_a_java_consumer_fetches_on_between_a_try_that_failed_early_and_the_next(lines, spans):
    found = [(span.begin - MINUTE, span.end - MINUTE) for span in fetched_on(logged(*lines))]
    assert found == [pytest.approx(span) for span in spans]

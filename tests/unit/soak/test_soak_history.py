"""Journals of killed processes are read as far as they are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.history import Ack, Delivery, JournalLine, Stored, deliveries, read_acks, read_journal


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

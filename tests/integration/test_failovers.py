"""A short history of failovers under load; `make failovers` does hundreds, and those that need root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kills.children import run_program

SEED = 1
FAILOVERS = 5
END_SECONDS = 800.0
"""It takes a minute where it has a processor for itself."""


@pytest.mark.timeout(900)
def test_sets_lose_nothing_and_repeat_nothing_while_their_leaders_fail_in_turn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["--plain", "--seed", str(SEED), "--failovers", str(FAILOVERS), "--nodes", "2"]
    code = run_program(["-m", "tests.failovers", *words, "--directory", str(tmp_path / "runs")], log, END_SECONDS)
    assert code == 0, log.read_text()
    found = json.loads((tmp_path / "runs" / f"run-{SEED}.json").read_text())
    led_elsewhere = {fault["kind"] for fault in found["faults"] if fault["leader"] and fault["elected"]}
    assert led_elsewhere == {"kill", "stop", "term", "hand-over", "syncs fail"}
    assert found["acknowledged"] > 1000
    assert found["problems"] == {}

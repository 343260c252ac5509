"""A short history of two consumer groups under faults; `python -m tests.history --seeds 50` runs many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kills.children import run_program

SEED = 1
SECONDS = 12
END_SECONDS = 800.0
"""It takes half a minute where it has a processor for itself."""


@pytest.mark.timeout(900)
def test_groups_are_handed_every_message_in_order_while_everything_fails_in_turn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["--seed", str(SEED), "--seconds", str(SECONDS), "--directory", str(tmp_path / "runs")]
    code = run_program(["-m", "tests.history", *words], log, END_SECONDS)
    assert code == 0, log.read_text()
    found = re.search(r"(\d+) faults, (\d+) acknowledged", log.read_text())
    assert found is not None, log.read_text()
    assert int(found[1]) >= 3
    assert int(found[2]) > 100

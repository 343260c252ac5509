"""A short run of `python -m tests.retries`, which kills as often as it is told."""

from pathlib import Path

import pytest

from tests.retries.run import run

KILLS, REDRIVE_KILLS = 5, 4


@pytest.mark.timeout(900)
def test_nothing_is_lost_and_dead_letters_are_complete_while_everything_is_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path, KILLS, seed=7, redrive_kills=REDRIVE_KILLS)
    assert outcome.problems == []
    assert outcome.facts.kills == {"broker": KILLS, "producer": KILLS, "consumer": KILLS}
    assert len(outcome.facts.acked) > 50
    assert len(outcome.facts.letters) > 5

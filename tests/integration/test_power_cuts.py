"""Power cuts and damage at rest, as many as a run of the tests has time for; `make cuts` does thousands."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest

from tests.power.shim import environment

CUTS = 100
FLIPS = 30
"""In each of the two directories."""

SEED = datetime.datetime.now(datetime.UTC).date().toordinal()
"""Another one each day: a seed that has passed tells nothing more."""


def proof(*arguments: str) -> str:
    """The table of a run without failures, with the seed of the day."""
    again = ["-m", "tests.power", "--seed", str(SEED), *arguments]
    done = subprocess.run(
        [sys.executable, *again],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nseed {SEED}, to repeat it: python {' '.join(again)}"
    return done.stdout


def starts(table: str) -> int:
    return int(table.splitlines()[-1].split()[1])


@pytest.mark.timeout(600)
def test_nothing_promised_is_lost_repeated_or_false_after_power_cuts() -> None:
    assert starts(proof("--cuts", str(CUTS), "--only-cuts")) >= CUTS


@pytest.mark.timeout(600)
def test_every_undamaged_message_is_delivered_once_whatever_byte_is_damaged() -> None:
    assert starts(proof("--flips", str(FLIPS), "--only-flips")) >= FLIPS

"""A short mixed soak: Java and Python consumers on Java and Python brokers, killed and stopped, keep the promise."""

from __future__ import annotations

from pathlib import Path

from tests.integration.java_peers import require_java
from tests.soak.mixed import mixed
from tests.soak.report import table

SECONDS = 12.0
SEED = 5


def test_a_mixed_group_loses_nothing_while_members_and_brokers_are_killed(chroot: str, tmp_path: Path) -> None:
    require_java()
    tally = mixed(tmp_path, chroot, SECONDS, SEED, print)
    assert tally.outcome.verdict.ok, table(tally.outcome.history, tally.outcome.verdict)
    assert tally.outcome.verdict.acknowledged > 500
    assert tally.blows

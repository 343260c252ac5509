"""The standalone ZooKeeper answers as Apache's does: some thousand operations of the fuzz, which can do millions.

Killed, it keeps what it has acknowledged."""

import datetime
import subprocess
import sys
from pathlib import Path

from tests.zookeeper_fuzz.kills import kill_often

OPERATIONS = 2000

SEED = datetime.datetime.now(datetime.UTC).date().toordinal() * 1000
"""Others each day: a seed that has passed tells nothing more."""


def test_the_standalone_zookeeper_does_not_differ_from_apaches():
    again = ["-m", "tests.zookeeper_fuzz", "--seed", str(SEED), "--operations", str(OPERATIONS), "--length", "1000"]
    done = subprocess.run([sys.executable, *again], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nto repeat it: python {' '.join(again)}"
    assert int(done.stdout.split()[0]) >= OPERATIONS


def test_nothing_acknowledged_is_lost_when_the_standalone_zookeeper_is_killed(tmp_path: Path):
    found = kill_often(tmp_path / "zookeeper", "standalone", SEED, seconds=3.0)
    assert found.problems == []
    assert min(found.kills, found.acknowledged, found.attached, found.reads) > 0

"""The standalone ZooKeeper answers as Apache's does: some thousand operations of the fuzz, which can do millions."""

import datetime
import subprocess
import sys

OPERATIONS = 3000

SEED = datetime.datetime.now(datetime.UTC).date().toordinal() * 1000
"""Others each day: a seed that has passed tells nothing more."""


def test_the_standalone_zookeeper_does_not_differ_from_apaches():
    again = ["-m", "tests.zookeeper_fuzz", "--seed", str(SEED), "--operations", str(OPERATIONS), "--length", "1000"]
    done = subprocess.run([sys.executable, *again], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nto repeat it: python {' '.join(again)}"
    assert int(done.stdout.split()[0]) >= OPERATIONS

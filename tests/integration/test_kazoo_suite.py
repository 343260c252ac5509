"""kazoo's own tests of its client pass on the standalone ZooKeeper as they do on Apache's.

The others, of its recipes, take minutes: `python -m tests.kazoo_suite standalone`.
"""

import re

import pytest

from tests.kazoo_suite.__main__ import SERVERS, run

LEAST = 100
"""So many tests there are, so that the module is known to have been run."""


@pytest.mark.parametrize("server", SERVERS)
def test_kazoos_tests_of_its_client_pass(server: str):
    ended = run(server, ["kazoo.tests.test_client"])
    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"([0-9]+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST

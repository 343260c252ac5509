"""Members and the broker killed in a loop. `python -m tests.shared_kills --kills 100` is the long run."""

import pytest

from tests.shared_kills.__main__ import SECTIONS
from tests.shared_kills.run import run


@pytest.mark.parametrize("flush", SECTIONS)
def test_nothing_is_lost_and_leases_and_attempts_are_right_over_kills(tmp_path, flush):
    found = run(tmp_path, 3, 6, members=3, topic=SECTIONS[flush])
    assert found.problems == []
    assert found.broker_kills
    assert found.member_kills
    assert found.sent > 20

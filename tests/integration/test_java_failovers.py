"""Applications of the original Java client while leaders fail; `make failovers` does twenty of these failovers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failovers.java import KINDS, run
from tests.integration.java_peers import require_java


@pytest.mark.timeout(600)
def test_java_applications_lose_nothing_and_go_on_by_themselves_when_leaders_fail(tmp_path: Path) -> None:
    require_java()
    found = run(tmp_path, len(KINDS))
    assert found["problems"] == []
    assert [(fault["kind"], fault["elected"]) for fault in found["faults"]] == [(kind, True) for kind in KINDS]
    assert found["acknowledged"] > 500
    assert found["consumers"] == 3

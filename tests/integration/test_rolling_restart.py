"""The documented loop of a rolling restart, under producers of all kinds, a group, queries, transactions and Java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.history.children import Child
from tests.integration.java_peers import require_java

SEED = 1
END_SECONDS = 800.0
"""It takes a minute where it has a processor for itself."""


@pytest.mark.timeout(900)
def test_no_client_of_ours_sees_an_error_while_all_nodes_are_restarted_in_turn(tmp_path: Path) -> None:
    require_java()
    log = tmp_path / "log"
    words = ["--plain", "--rolling", "--java", "--nodes", "2", "--seed", str(SEED), "--failovers", "1"]
    run = Child(["-m", "tests.failovers", *words, "--directory", str(tmp_path / "runs")], log)
    try:
        assert run.wait(END_SECONDS), log.read_text()
    finally:
        run.terminate()
        run.wait(10.0)
        run.kill()
    assert run.process.returncode == 0, log.read_text()
    found = json.loads((tmp_path / "runs" / f"run-{SEED}.json").read_text())
    assert found["problems"] == {}
    assert found["not acknowledged"] == 0
    kinds = [fault["kind"] for fault in found["faults"]]
    assert len(kinds) == 4
    assert "restart of a leader" in kinds
    assert found["acknowledged"] > 500
    assert found["java"]["acknowledged"] > 100

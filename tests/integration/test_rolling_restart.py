"""The documented loop of a rolling restart, under producers of all kinds, a group, queries, transactions and Java."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.java_peers import require_java
from tests.kills.children import run_program

SEED = 1
END_SECONDS = 800.0
"""It takes a minute where it has a processor for itself."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of one run."""
    require_java()
    directory = tmp_path_factory.mktemp("rolling")
    words = ["--plain", "--rolling", "--java", "--nodes", "2", "--seed", str(SEED), "--failovers", "1"]
    log = directory / "log"
    run_program(["-m", "tests.failovers", *words, "--directory", str(directory)], log, END_SECONDS)
    result = directory / f"run-{SEED}.json"
    assert result.exists(), log.read_text()
    summary: dict[str, Any] = json.loads(result.read_text())
    return summary


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_repeated_and_no_send_fails_while_all_nodes_are_restarted_in_turn(
    found: dict[str, Any],
) -> None:
    assert {kind for kind in found["problems"] if kind != "refused"} == set(), found["examples"]
    assert found["not acknowledged"] == 0
    kinds = [fault["kind"] for fault in found["faults"]]
    assert len(kinds) == 4
    assert "restart of a leader" in kinds
    assert found["acknowledged"] > 500
    assert found["java"]["acknowledged"] > 100


@pytest.mark.timeout(900)
def test_no_transaction_and_no_query_is_told_an_error_meanwhile(found: dict[str, Any]) -> None:
    assert found["problems"] == {}, found["examples"]

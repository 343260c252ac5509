"""The documented loop of a rolling restart, under producers of all kinds, a group, queries, transactions and Java."""

from __future__ import annotations

import pytest

from tests.integration.java_peers import require_java
from tests.kills.campaign import Campaign, Result


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of one run, which takes a minute where it has a processor for itself."""
    require_java()
    campaign = Campaign(["restarts"], tmp_path_factory.mktemp("rolling"), {"plain": True})
    campaign.run(1, None, 1)
    assert campaign.results, campaign.failed
    return campaign.results[0]


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_repeated_and_no_send_fails_while_all_nodes_are_restarted_in_turn(
    found: Result,
) -> None:
    assert {kind for kind in found.problems if kind != "refused"} == set(), found
    assert found.figures["not acknowledged"] == 0
    kinds = [fault["kind"] for fault in found.details["faults"]]
    assert len(kinds) == 4
    assert "restart of a leader" in kinds
    assert found.figures["acknowledged"] > 500
    assert found.figures["Java's sends: acknowledged"] > 100


@pytest.mark.timeout(900)
def test_no_transaction_and_no_query_is_told_an_error_meanwhile(found: Result) -> None:
    assert found.problems == {}, found

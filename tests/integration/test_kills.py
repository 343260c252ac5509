"""A short run of each scenario of `python -m tests.kills`; `make proof` does them for as long as one says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.failovers.java import KINDS as JAVA_KINDS
from tests.integration.java_peers import require_java
from tests.kills.campaign import Campaign, Result
from tests.kills.scenarios import SCENARIOS

TODAY = datetime.datetime.now(datetime.UTC).date().toordinal()
"""Another seed each day: one that has passed tells nothing more."""
CUTS, FLIPS = 100, 30

RUNS: Mapping[str, tuple[int, Mapping[str, object], Mapping[str, int]]] = {
    "retries": (
        7,
        {"kills": 5, "redrive_kills": 4},
        {"broker kills": 5, "producer kills": 5, "consumer kills": 5, "acknowledged": 10, "dead letters": 1},
    ),
    "delays": (5, {"kills": 4}, {"broker kills": 4, "producer kills": 4, "acknowledged": 20}),
    "halves": (7, {"kills": 3, "pauses": 0.0}, {"broker kills": 3, "committed": 5, "rolled back": 1}),
    "shared": (6, {"kills": 3, "members": 3, "flush": "async"}, {"broker kills": 1, "member kills": 1, "sent": 20}),
    "shared, group commit": (6, {"kills": 3, "members": 3, "flush": "group-commit"}, {"broker kills": 1, "sent": 20}),
    "groups": (1, {"seconds": 12.0}, {"faults": 1, "acknowledged": 20}),
    "mixed": (5, {"seconds": 12.0}, {"acknowledged": 50, "blows": 1}),
    "power, cuts": (TODAY, {"cuts": CUTS, "only": "cuts"}, {"starts after cuts": CUTS}),
    "fuzz": (1000 * TODAY, {"operations": 2000, "length": 1000}, {"operations": 2000}),
    "zookeeper": (
        1000 * TODAY,
        {"seconds": 3.0},
        {"kills": 1, "writes acknowledged": 1, "values read": 1, "sessions attached again": 1},
    ),
    "hostile": (
        TODAY,
        {"inputs": 800},
        {f"{port}: inputs": 800 for port in ("text", "records", "frames", "user", "http", "https")},
    ),
    "power, flips": (TODAY, {"flips": FLIPS, "only": "flips"}, {"changes at rest": FLIPS}),
}
"""By scenario: a seed, options, and how much must have happened at least, on any machine: that it ran at all."""


def kept(name: str, seed: int, directory: Path, **options: object) -> Result:
    """A run without problems. Else what is printed has the command that repeats it."""
    campaign = Campaign([name], directory, options)
    campaign.run(seed, None, 1)
    assert campaign.failed == []
    return campaign.results[0]


def test_each_scenario_has_a_short_run() -> None:
    elsewhere = {"failovers", "java", "restarts", "moves"}  # in tests of their own, here or beside this
    assert {name.partition(",")[0] for name in RUNS} | elsewhere == SCENARIOS.keys()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUNS)
def test_what_was_promised_is_kept_while_everything_is_killed(tmp_path: Path, name: str) -> None:
    scenario = name.partition(",")[0]
    seed, options, least = RUNS[name]
    if scenario == "mixed":
        require_java()
    figures = kept(scenario, seed, tmp_path, **options).figures
    assert {figure: figures[figure] for figure, value in least.items() if figures[figure] < value} == {}


def elected(result: Result) -> list[str]:
    """The kinds of faults behind which another node was elected."""
    return [fault["kind"] for fault in result.details["faults"] if fault.get("leader", True) and fault["elected"]]


@pytest.mark.timeout(900)
def test_sets_lose_nothing_and_repeat_nothing_while_their_leaders_fail_in_turn(tmp_path: Path) -> None:
    found = kept("failovers", 1, tmp_path, plain=True, failovers=5, nodes=2)
    assert {*elected(found)} == {"kill", "stop", "term", "hand-over", "syncs fail"}
    assert found.figures["acknowledged"] > 100


@pytest.mark.timeout(600)
def test_java_applications_lose_nothing_and_go_on_by_themselves_when_leaders_fail(tmp_path: Path) -> None:
    require_java()
    found = kept("java", 1, tmp_path, failovers=len(JAVA_KINDS))
    assert elected(found) == list(JAVA_KINDS)
    assert found.figures["acknowledged"] > 50
    assert found.figures["consumers"] == 3

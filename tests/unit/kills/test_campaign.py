"""Runs of scenarios in turn: for how long, with which seeds, and what a failure tells."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kills.__main__ import main
from tests.kills.campaign import Campaign, Result, read_result, words_of, write_result
from tests.kills.outcome import Outcome, Problem
from tests.kills.scenarios import SCENARIOS

GOOD = Outcome([], {"kills": 2})
BAD = Outcome([Problem("lost", f"message {number}") for number in range(9)], {"kills": 3})
MINUTE = 60.0


class Runs:
    """Each takes a minute. crashes: seeds of those that write no result."""

    def __init__(
        self, directory: Path, outcome: Outcome = GOOD, crashes: Sequence[int] = (), hangs: bool = False
    ) -> None:
        self.directory = directory
        self.outcome = outcome
        self.crashes = crashes
        self.hangs = hangs
        self.now = 0.0
        self.done: list[str] = []
        self.said: list[str] = []

    def __call__(self, words: Sequence[str], log: Path, seconds: float) -> int:
        self.now += MINUTE
        name, seed = words[2], int(words[4])
        self.done.append(f"{name} {seed}")
        log.write_text("what it wrote")
        assert not self.hangs
        if seed in self.crashes:
            return 1
        write_result(self.directory, Result.of(name, seed, {"kills": 5}, self.outcome, MINUTE))
        return 0

    def campaign(self, *names: str, **options: object) -> Campaign:
        return Campaign(
            names,
            self.directory,
            options,
            program=self,
            clock=lambda: self.now,
            say=lambda text: self.said.append(text),
        )


@pytest.mark.parametrize(
    ("minutes", "rounds", "done"),
    [
        (None, None, ["retries 7", "delays 7"]),
        (None, 2, ["retries 7", "delays 7", "retries 8", "delays 8"]),
        (0.5, None, ["retries 7", "delays 7"]),
        (2.5, None, ["retries 7", "delays 7", "retries 8"]),
        (60.0, 1, ["retries 7", "delays 7"]),
    ],
)
def test_runs_go_on_in_rounds_for_as_long_as_one_says_and_each_comes_once_in_any_case(tmp_path, minutes, rounds, done):
    runs = Runs(tmp_path)
    campaign = runs.campaign("retries", "delays")
    campaign.run(7, minutes, rounds)
    assert runs.done == done
    assert not campaign.has_failed
    assert f"{len(done)} runs, 0 with problems" in campaign.table()


def test_a_failure_says_its_seed_and_the_command_that_repeats_it_and_other_runs_follow(tmp_path: Path) -> None:
    runs = Runs(tmp_path, BAD)
    campaign = runs.campaign("retries", kills=5)
    campaign.run(7, None, 2)
    again = "again: python -m tests.kills retries --seed 7 --kills 5"
    assert campaign.has_failed
    assert runs.said[0].startswith("retries, seed 7: kills 3; 60 s: lost 9\n")
    assert runs.said[0].count("message") == 5
    assert again in runs.said[1]
    assert again in campaign.table()
    assert "| **lost** | **18** |" in campaign.table()
    assert runs.done == ["retries 7", "retries 8"]


@pytest.mark.parametrize(("hangs", "how"), [(False, "ended with 1"), (True, "did not end within 3600 s")])
def test_a_run_without_a_result_has_failed_and_its_log_is_shown(tmp_path: Path, hangs: bool, how: str) -> None:
    runs = Runs(tmp_path, crashes=[7], hangs=hangs)
    campaign = runs.campaign("retries", pauses=False, kills=5)
    campaign.run(7, None, None)
    again = "again: python -m tests.kills retries --seed 7 --no-pauses --kills 5"
    assert runs.said == [f"what it wrote\nretries, seed 7: {how}\n{again}"]
    assert campaign.has_failed


def test_results_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.campaign("retries").run(7, None, 1)
    campaign = runs.campaign("retries")
    campaign.run(7, None, 2)
    assert runs.done == ["retries 7", "retries 8"]
    assert [each.seed for each in campaign.results] == [7, 8]
    assert read_result(tmp_path, "retries", 9) is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"python -m tests.kills {name}" in said
    assert "--seed" in said
    assert said.count("default: ") > 1


def test_a_scenario_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["retires"])
    assert "there is no scenario retires" in capsys.readouterr().err


def test_a_command_repeats_a_run() -> None:
    assert shlex.join(words_of("delays", 3, {"redrive_kills": 2})) == "-m tests.kills delays --seed 3 --redrive-kills 2"

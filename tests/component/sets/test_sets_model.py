"""The protocol of broker sets keeps its invariants in every state of small sets, and needs each of its rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .explore import Exploration, explore
from .model import WORDS, Model
from .mutants import MUTANTS, Mutant

PAGE = (Path(__file__).parents[3] / "docs" / "replication.md").read_text("utf-8")

SETS = {
    "two nodes, two messages, three epochs": (Model(2, 2, 3), None, 420_000),
    "two nodes that lose power": (Model(2, 1, 3, power=True), None, 170_000),
    "two nodes whose machines restart": (Model(2, 1, 2, memory=True), None, 77_000),
    "three nodes, one of them outside, eleven steps": (Model(3, 1, 2, outside="c"), 11, 200_000),
}
"""Model, how deep, and how many states it has at least."""


@pytest.mark.parametrize(("model", "deepest", "states"), SETS.values(), ids=SETS)
def test_every_invariant_holds_in_every_state(model: Model, deepest: int | None, states: int):
    explored = explore(model, deepest)
    assert not explored.broken, str(explored)
    assert explored.states >= states


def test_most_of_a_million_states_are_explored():
    assert sum(least for _, _, least in SETS.values()) >= 850_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.without)
def test_the_set_breaks_without(mutant: Mutant):
    explored = explore(mutant.model, 14, mutant.broken)
    print(f"without the rule: {mutant.without}\n{explored}")
    assert explored.broken[:1] == mutant.broken, str(explored)
    assert explored.trace


def test_a_way_to_a_violation_is_told_in_words():
    (mutant,) = (each for each in MUTANTS if each.without == "a commit needs another node")
    explored = explore(mutant.model)
    assert isinstance(explored, Exploration)
    told = str(explored).splitlines()
    assert re.match(r"\d+ states, 2 steps deep, .* s: broken invariant 2: ", told[0])
    assert told[1:] == ["  1. a appends a message", "  2. a commits"]


def test_every_step_happens():
    only_in_mutants = {"doubt", "let go", "find elected"}
    missing = set(WORDS) - only_in_mutants
    for verb in _verbs(Model(2, 1, 2, memory=True, outside="b")):
        assert verb in WORDS
        assert verb not in only_in_mutants
        missing.discard(verb)
        if not missing:
            break
    assert not missing


def _verbs(model: Model) -> Iterator[str]:
    """What can be done in each state."""
    reached = {model.first()}
    waiting = list(reached)
    for state in waiting:
        for (verb, _, _), following in model.steps(state):
            yield verb
            if following not in reached:
                reached.add(following)
                waiting.append(following)


def test_the_page_names_every_rule_and_every_invariant():
    (section,) = re.findall(r"^## Broker sets: .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.+?) \| (\d) \|", section, re.MULTILINE)
    assert dict(rows) == {mutant.without: mutant.broken for mutant in MUTANTS}
    numbers = re.findall(r"^(\d)\. \*\*", section, re.MULTILINE)
    assert {mutant.broken for mutant in MUTANTS} <= set(numbers)

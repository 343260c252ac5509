"""docs/compatibility.md: every row has a state and a proof, and every proof is a test that exists."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"
RECORDED = json.loads((TESTS / "data/golden/wire/wire.json").read_text())
PROOF = re.compile(r"(?P<file>[\w/]+\.py)::(?P<test>test_\w+)(\[(?P<case>.+)\])?")
REASON = re.compile(r"none: .{20,}")
HEADER = ("feature of 1.x", "state", "how", "proof")
STATES = ("same", "better", "not here")


class Row(NamedTuple):
    feature: str
    state: str
    how: str
    proof: str


def lines() -> list[tuple[str, ...]]:
    """The cells of each line of a table that is neither its header nor the rule below it."""
    _, features = PAGE.read_text("utf-8").split("\n## Wire: commands\n")  # behind the legend of the states
    tables = [line for line in features.splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in tables]
    return [each for each in cells if each != HEADER and set("".join(each)) != {"-"}]


ROWS = [Row(*cells) for cells in lines() if len(cells) == len(Row._fields)]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_line_of_the_tables_is_a_row():
    assert len(lines()) == len(ROWS) > 100


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.feature)
def test_a_row_says_its_state_and_how_it_differs(row: Row):
    assert row.state in STATES
    assert row.how or row.state == "same"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.feature)
def test_a_proof_exists_or_its_absence_has_a_reason(row: Row):
    proof = PROOF.fullmatch(row.proof)
    if proof is None:
        assert REASON.fullmatch(row.proof), row.proof
        return
    assert proof["test"] in functions(proof["file"])
    if proof["case"]:
        assert proof["test"] == "test_answer_is_the_recorded_one"
        assert proof["case"] in {entry["name"] for entry in RECORDED}


def test_no_feature_stands_twice():
    assert len({row.feature for row in ROWS}) == len(ROWS)

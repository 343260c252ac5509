"""docs/filters.md: its table of examples, its grammar and its limits are those of the code."""

import ast
import re
from pathlib import Path

import pytest

from metaq.protocol.where import Where
from metaq.protocol.where import parser as parser_module
from metaq.protocol.where.expression import truth
from metaq.protocol.where.values import FALSE, TRUE, UNKNOWN
from tests.properties import LISTED, body_with

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "filters.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\| `(.+?)` \| `(\{.*?\})` \| (true|false|unknown) \|$", PAGE, re.MULTILINE)
ANSWERS = {"true": TRUE, "false": FALSE, "unknown": UNKNOWN}


def test_the_page_has_examples_of_each_answer():
    assert len(EXAMPLES) >= 20
    assert {answer for _, _, answer in EXAMPLES} == set(ANSWERS)


@pytest.mark.parametrize(("text", "properties", "answer"), EXAMPLES)
def test_an_example_says_what_the_page_says(text, properties, answer):
    values, where = ast.literal_eval(properties), Where(text)
    assert truth(where.expression, values.get) == ANSWERS[answer]
    assert where.holds_for(body_with(values), LISTED) == (answer == "true")


def rules(text):
    """Name -> definition with single blanks, of rules in EBNF, up to the first line that belongs to none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        begun = re.match(r" *(\w+) += (.*)", line)
        if begun:
            name, definition = begun.groups()
            found[name] = definition
        elif line.lstrip().startswith("|"):
            found[name] += line
        else:
            break
    return {name: " ".join(definition.removesuffix(";").split()) for name, definition in found.items()}


def test_the_grammar_of_the_page_is_that_of_the_parser():
    page = rules(PAGE.partition("```ebnf\n")[2])
    code = rules((parser_module.__doc__ or "").partition("(docs/filters.md):\n\n")[2])
    assert len(code) == 7
    assert {name: page[name] for name in code} == code

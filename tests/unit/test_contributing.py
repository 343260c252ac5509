"""CONTRIBUTING.md: each place that a list names is one where its example stands, and a verb has no other places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PRODUCT = ("protocol", "coordination", "broker", "client", "spark_connector", "metaq", "docs")
HISTORY = ("docs/decisions", "docs/spec")


def sections() -> dict[str, str]:
    """By heading."""
    return {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}


def example(section: str) -> re.Pattern[str]:
    """The name of what the list is shown with, as constants, fields or classes have it."""
    (name,) = re.findall(r"example is `(\w+)`", section)
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    return re.compile("_?".join(words), re.IGNORECASE)


def places(section: str) -> list[str]:
    return re.findall(r"^\d+\. `([\w./]+)`", section, re.MULTILINE)


LISTS = {heading: text for heading, text in sections().items() if heading.startswith("Add ")}
NAMED = [(heading, place) for heading, text in LISTS.items() for place in places(text)]


def test_there_is_a_list_for_each_thing_that_is_often_added():
    things = ("a verb", "a kind of message", "a command", "a znode", "an option of a client", "an option of a broker")
    assert list(LISTS) == [f"Add {each}" for each in things]
    assert all(len(places(text)) > 1 for text in LISTS.values())


@pytest.mark.parametrize(("heading", "place"), NAMED)
def test_each_place_of_a_list_has_its_example(heading: str, place: str):
    assert example(LISTS[heading]).search((ROOT / place).read_text("utf-8"))


def test_a_verb_stands_in_the_places_of_its_list_and_in_no_other():
    verb = example(LISTS["Add a verb"])
    files = [path for folder in PRODUCT for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    found = {str(path.relative_to(ROOT)) for path in files if verb.search(path.read_text("utf-8"))}
    found = {name for name in found if not name.startswith(HISTORY)}
    assert found == set(places(LISTS["Add a verb"]))


def test_every_file_and_directory_that_the_page_names_exists():
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", PAGE))
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_makefile_has_every_target_that_the_page_names():
    targets = set(re.findall(r"`?make ([a-z]+)", PAGE))
    assert len(targets) > 6
    assert [name for name in targets if f"\n{name}:" not in (ROOT / "Makefile").read_text()] == []

"""The specification of 1.x: every section that the project cites is there, and so is every recording it names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "docs" / "spec"
PAGES = ("wire", "zookeeper", "storage", "semantics")
ROOMS = ("protocol", "coordination", "broker", "client", "spark_connector", "metaq", "tests", "bench", "docs")
CITATION = re.compile(rf"\b({'|'.join(PAGES)})\.md,? ?§ ?(\d+)")


def texts() -> Iterator[tuple[Path, str]]:
    for room in ROOMS:
        for kind in ("*.py", "*.md", "*.ini"):
            for path in sorted((ROOT / room).rglob(kind)):
                yield path, path.read_text("utf-8")


def sections(page: str) -> set[str]:
    return set(re.findall(r"^## (\d+)\. ", (SPEC / f"{page}.md").read_text("utf-8"), re.MULTILINE))


def test_every_cited_section_exists():
    known = {(page, number) for page in PAGES for number in sections(page)}
    cited = {(path, citation) for path, text in texts() for citation in CITATION.findall(text)}
    assert len(cited) > 50
    assert [(str(path), citation) for path, citation in cited if citation not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_recording_that_a_page_names_exists(page):
    text = (SPEC / f"{page}.md").read_text("utf-8")
    named = re.findall(r"`(tests/data/golden/[^`]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_sections_of_a_page_are_numbered_in_order(page):
    numbers = re.findall(r"^## (\d+)\. ", (SPEC / f"{page}.md").read_text("utf-8"), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]

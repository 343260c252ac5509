"""docs/architecture.md names files that exist, and the index of docs/decisions is complete."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text("utf-8")
DECISIONS = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")
PATH = re.compile(r"`([\w./-]+/[\w.-]*)`")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
MAX_LINES = 240


def named_files(text: str) -> set[str]:
    """Backticked paths from the root of the repository: `broker/session.py`, `broker/handlers/`."""
    return set(PATH.findall(text))


def test_every_file_that_the_architecture_names_exists() -> None:
    named = named_files(ARCHITECTURE)
    assert len(named) > 60
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_file_that_is_gone_is_noticed() -> None:
    assert named_files("see `broker/gone.py`, `a word` and `metaq.cli`") == {"broker/gone.py"}


@pytest.mark.parametrize("way", ["A put", "A pull", "A watch event", "A Spark read"])
def test_the_architecture_describes_each_way_in_numbered_steps(way: str) -> None:
    (body,) = re.findall(rf"^## {way}[^\n]*\n(.*?)(?=^## )", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", body, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 5


def test_the_architecture_is_a_map_of_a_few_pages() -> None:
    assert len(ARCHITECTURE.splitlines()) < MAX_LINES


def test_the_index_of_decisions_has_each_page_with_its_title() -> None:
    index = (DOCS / "decisions" / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d{3}) \| \[(.+)\]\((.+\.md)\) \|$", index, re.MULTILINE)
    titles = {path.name: re.sub(r"^# \d+[.:]? ", "", path.read_text("utf-8").splitlines()[0]) for path in DECISIONS}
    assert {file: title for _, title, file in rows} == titles
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers)) == [file[:3] for _, _, file in rows]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_gives_the_number_of_its_file(path: Path) -> None:
    assert re.fullmatch(r"\d{3}-[a-z0-9-]+", path.stem)
    assert re.match(rf"# {path.stem[:3]}[.:]? \w", path.read_text("utf-8"))


def prose(path: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    dead = []
    for file, anchor in LINK.findall(prose(path)):
        target = path.parent / file if file else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(f"{file}#{anchor}")
    assert dead == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_whole(path: Path) -> None:
    """Each row has as many cells as the rule below its header, and a table stands between blank lines."""
    lines = prose(path).splitlines()
    broken = []
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        former = lines[number - 1] if number else ""
        following = lines[number + 1] if number + 1 < len(lines) else ""
        cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) - 1
        if former.startswith("|"):
            same = cells == len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", former))) - 1
        else:
            same = not former.strip() and re.fullmatch(r"[|:\- ]+", following) is not None
        if not (same and line.rstrip().endswith("|") and (following.startswith("|") or not following.strip())):
            broken.append(line)
    assert broken == []

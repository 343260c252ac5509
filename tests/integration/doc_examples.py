"""Examples in the documentation: found, run, and compared with what the page says they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A command of a `console` block, and the lines that the page shows under it."""

    command: str
    shown: str


class Block(NamedTuple):
    """A code block, and the heading above it."""

    heading: str
    language: str
    body: str


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of `docs/<page>` in a language."""
    return [block.body for block in all_blocks(f"docs/{page}") if block.language == language]


def all_blocks(path: str) -> list[Block]:
    """The code blocks of a file of the repository, from top to bottom."""
    text = (ROOT / path).read_text("utf-8")
    prose = _BLOCK.sub(_blanked, text)
    headings = [(found.start(), found[1]) for found in re.finditer(r"^#+ (.*)$", prose, re.MULTILINE)]
    return [
        Block([name for start, name in headings if start < found.start()][-1], found[1], found[2])
        for found in _BLOCK.finditer(text)
    ]


def _blanked(found: re.Match[str]) -> str:
    """As many characters, none of which is a heading: comments of a shell look like one."""
    return " " * len(found[0])


def console_examples(page: str) -> Iterator[Example]:
    """The commands of all `console` blocks, in order."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield Example(command, shown)


def matches(shown: str, printed: str) -> bool:
    """Whether `printed` is what the page shows: `…` stands for anything, blanks at line ends do not count."""
    pattern = "".join(".*" if piece == "…" else re.escape(piece) for piece in re.split("(…)", _trimmed(shown)))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())

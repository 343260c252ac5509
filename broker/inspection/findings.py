"""The findings of an inspection, and their levels."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """The levels, worst first."""

    DAMAGE = "damage"
    """Messages are lost or cannot be read, or a broker would not start."""
    WARNING = "warning"
    """A start makes changes: a tail is cut, messages are written again."""
    NOTE = "note"
    """Good to know, above all before a Java broker uses the directory again."""


class Finding(NamedTuple):
    """One sentence about one file or directory."""

    level: Level
    place: str
    text: str

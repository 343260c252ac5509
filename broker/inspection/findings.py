"""The findings of an inspection and their severity levels."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How severe a finding is; the levels are listed worst first."""

    DAMAGE = "damage"
    """Messages are lost or cannot be read, or a broker would not start."""
    WARNING = "warning"
    """No acknowledged message is lost, but the next start of a broker will change data; for example, it will cut off
    the end of a partition or write messages again; or other users of the machine may read the data.
    """
    NOTE = "note"
    """The operator need not do anything, but the fact is useful to know, especially before a Java broker uses the
    directory again.
    """


class Finding(NamedTuple):
    """One finding: a text about one file or directory."""

    level: Level
    place: str
    text: str

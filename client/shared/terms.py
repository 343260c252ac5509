"""The part of a shared group member's requests that is the same for all partitions."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SharedTerms"]


class SharedTerms(NamedTuple):
    """Terms of a member; the fields are those of AcquireRequest (protocol/shared.py)."""

    group: str
    member: str
    start: str = "earliest"
    ordered: bool = False
    where: str = ""
    tags: tuple[str, ...] = ()

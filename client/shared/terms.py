"""What a member of a shared group says in its requests, whatever the partition."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SharedTerms"]


class SharedTerms(NamedTuple):
    """As the fields of AcquireRequest (protocol/shared.py)."""

    group: str
    member: str
    start: str = "earliest"
    ordered: bool = False
    where: str = ""
    tags: tuple[str, ...] = ()

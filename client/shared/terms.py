"""The fields that have the same values in all requests of a shared group member, whatever the partition."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SharedTerms"]


class SharedTerms(NamedTuple):
    """The values that a member puts into each of its requests, to whatever broker and partition. Each field has the
    same meaning as in AcquireRequest (protocol/shared.py).
    """

    group: str
    member: str
    start: str = "earliest"
    ordered: bool = False
    where: str = ""
    tags: tuple[str, ...] = ()

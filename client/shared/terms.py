"""The fields of a shared group member's requests that are the same for all partitions."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SharedTerms"]


class SharedTerms(NamedTuple):
    """The fields of a member's requests that are the same for all partitions. They have the same meaning as in
    AcquireRequest (protocol/shared.py).
    """

    group: str
    member: str
    start: str = "earliest"
    ordered: bool = False
    where: str = ""
    tags: tuple[str, ...] = ()

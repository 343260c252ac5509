"""What is declared of each pair of kinds; the modules of cases fill it.

A pair that works has a generator function: it sends, yields once, and then checks. Between the two the fixture runs
what all cases share: Spark's jobs, and the time that messages wait for. A pair that is refused has a function that
tries it and returns the text of the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import World

__all__ = ["KINDS", "PAIRS", "Combination", "declared", "refused", "works"]

KINDS = {
    "delay": r"delay|deliver_at",
    "retry": r"retry",
    "shared": r"shared",
    "check-back": r"send_in_transaction",
    "transaction": r"a transaction",
    "priority": r"priority",
    "filter": r"where",
    "batch": r"batch",
    "compression": r"compress",
    "idempotence": r"idempotent",
    "Spark read": r"Spark",
    "Spark write": r"exactlyOnce|Spark",
    "Java 1.x reader": r"metaq 1\.x",
}
"""The kinds, and by which words an error names each."""

PAIRS = tuple(combinations(KINDS, 2))

Works = Callable[["World", str], Iterator[None]]
Refused = Callable[["World", str], str]


@dataclass(frozen=True, slots=True)
class Combination:
    """One pair, in the order of KINDS. note: one sentence of what holds; of a refusal the error's words.

    case: gets the world and the pair's own topic, of one partition.
    """

    first: str
    second: str
    works: bool
    note: str
    case: Works | Refused

    @property
    def topic(self) -> str:
        return re.sub(r"\W+", "-", f"{self.first} {self.second}".lower())

    def __contains__(self, kind: str) -> bool:
        return kind in (self.first, self.second)


_declared: dict[tuple[str, str], Combination] = {}


def declared() -> dict[tuple[str, str], Combination]:
    """All, by pair, in the order of PAIRS."""
    from . import handling, java, messages, spark  # noqa: F401  # each declares its own

    return {pair: _declared[pair] for pair in PAIRS if pair in _declared}


def works(first: str, second: str, note: str) -> Callable[[Works], Works]:
    """Declare the pair."""

    def declare(case: Works) -> Works:
        _add(Combination(first, second, True, note, case))
        return case

    return declare


def refused(first: str, second: str, words: str) -> Callable[[Refused], Refused]:
    """Declare the pair. words: what the error says, `…` for what differs each time."""

    def declare(case: Refused) -> Refused:
        _add(Combination(first, second, False, words, case))
        return case

    return declare


def _add(combination: Combination) -> None:
    pair = combination.first, combination.second
    assert pair in PAIRS, f"{pair}: two of KINDS, in their order"
    assert pair not in _declared, f"{pair} is declared twice"
    _declared[pair] = combination

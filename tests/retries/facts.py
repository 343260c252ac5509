"""What the processes of a run have noted, one line each, and how a message says what shall become of it.

A message's payload is `number failures`: the handler fails on its first so many attempts. A line is written with one
system call before the process goes on, so a killed process has noted what others can have seen of it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ATTEMPTS", "PAUSE", "Call", "Facts", "Letter", "Note", "failures_of", "payload_of", "read_facts"]

ATTEMPTS = 3
PAUSE = 0.3
"""Seconds between two attempts, without jitter, so that one that comes early shows."""

_FAILURES = (0, 0, 0, 0, 1, 0, 2, ATTEMPTS)
"""Of eight messages one becomes a dead letter."""


def failures_of(number: int) -> int:
    """How many attempts at a message fail; ATTEMPTS: all of them."""
    return _FAILURES[number % len(_FAILURES)]


def payload_of(number: int) -> bytes:
    return b"%d %d" % (number, failures_of(number))


class Note:
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


@dataclass(frozen=True, slots=True)
class Call:
    """A handler got a message. began: Unix seconds."""

    number: int
    attempt: int
    began: float


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. name: where it lies."""

    number: int
    attempts: int
    name: str


@dataclass
class Facts:
    """acked: numbers that the producer's sends of were acknowledged. calls: of all handlers. succeeded: numbers of
    which a handler returned. letters: all that there are at the end. kills: by what was killed."""

    acked: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    succeeded: set[int] = field(default_factory=set)
    letters: list[Letter] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)

    def calls_by_number(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = defaultdict(list)
        for each in self.calls:
            found[each.number].append(each)
        return found

    def unsettled(self) -> set[int]:
        """Acknowledged messages that are neither processed nor dead yet."""
        return self.acked - self.succeeded - {each.number for each in self.letters}


def _lines(paths: Iterable[Path]) -> Iterator[list[str]]:
    for path in paths:
        for line in path.read_text().splitlines():
            yield line.split()


def read_facts(directory: Path) -> Facts:
    """What is noted in `directory` so far, without the dead letters."""
    facts = Facts(acked={int(number) for (number,) in _lines(directory.glob("acked-*"))})
    for kind, number, *rest in _lines(directory.glob("calls-*")):
        if kind == "call":
            facts.calls.append(Call(int(number), int(rest[0]), float(rest[1])))
        else:
            facts.succeeded.add(int(number))
    return facts

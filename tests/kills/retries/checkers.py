"""The intended fate of each message, the records of the processes, and the problems with them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.kills.journal import Line
from tests.kills.outcome import Problem

__all__ = [
    "ATTEMPTS",
    "CHECKERS",
    "PAUSE",
    "Call",
    "Facts",
    "Letter",
    "facts_in",
    "failures_of",
    "judge",
    "judge_redrive",
    "payload_of",
    "repeated",
]

ATTEMPTS = 3
PAUSE = 0.3
"""Seconds between two attempts, without jitter, so that an early one is noticed."""

_FAILURES = (0, 0, 0, 0, 1, 0, 2, ATTEMPTS)
"""Number of failures by message number; one of eight messages becomes a dead letter."""


def failures_of(number: int) -> int:
    """Return the number of failed attempts at a message; ATTEMPTS: all of them fail."""
    return _FAILURES[number % len(_FAILURES)]


def payload_of(number: int) -> bytes:
    return b"%d %d" % (number, failures_of(number))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a handler with a message. began: when, by the journal's clock."""

    number: int
    attempt: int
    began: float


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. name: its name among the dead letters."""

    number: int
    attempts: int
    name: str


@dataclass
class Facts:
    """The records of a run. acked: numbers of messages whose sends were acknowledged. calls: of all handlers.
    succeeded: numbers of messages for which a handler returned. letters: all dead letters at the end."""

    acked: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    succeeded: set[int] = field(default_factory=set)
    letters: list[Letter] = field(default_factory=list)

    def calls_by_number(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = defaultdict(list)
        for each in self.calls:
            found[each.number].append(each)
        return found

    def unsettled(self) -> set[int]:
        """Return the numbers of acknowledged messages that are neither processed nor dead letters yet."""
        return self.acked - self.succeeded - {each.number for each in self.letters}


def facts_in(lines: Iterable[Line]) -> Facts:
    """Return the records so far, without the dead letters."""
    facts = Facts()
    for kind, time, value, *rest in lines:
        if kind == "acked":
            facts.acked.add(value)
        elif kind == "call":
            facts.calls.append(Call(value, rest[0], time))
        elif kind == "done":
            facts.succeeded.add(value)
    return facts


def nothing_is_lost(facts: Facts) -> Iterator[str]:
    """Yield acknowledged messages that are neither processed nor dead letters."""
    for number in sorted(facts.unsettled()):
        yield f"{number} was acknowledged, and was neither processed nor is it a dead letter"


def _deaths(calls: Iterable[Call]) -> int:
    """Return how many attempts at a message may have ended with their process. A death counts if the message was begun
    alone; its first begin, together with others, does not count."""
    return sum(begun > 1 for begun in Counter(each.attempt for each in calls).values())


def only_the_hopeless_are_dead(facts: Facts) -> Iterator[str]:
    calls = facts.calls_by_number()
    dead = {each.number for each in facts.letters}
    for number in sorted(dead):
        if failures_of(number) + _deaths(calls.get(number, ())) < ATTEMPTS:
            yield f"{number} fails {failures_of(number)} times only, and is a dead letter"
    for number in sorted(facts.succeeded):
        if failures_of(number) >= ATTEMPTS:
            yield f"{number} always fails, and was processed"


def dead_letters_have_had_all_attempts(facts: Facts) -> Iterator[str]:
    for each in facts.letters:
        if each.attempts != ATTEMPTS:
            yield f"{each.number} is a dead letter after {each.attempts} attempts, not {ATTEMPTS}"


def attempts_count_from_one(facts: Facts) -> Iterator[str]:
    """Yield messages of which an attempt is missing, or with an attempt after the one that succeeds or is the last. (A
    repetition may begin anew.)"""
    for number, calls in sorted(facts.calls_by_number().items()):
        had = {each.attempt for each in calls}
        most = min(failures_of(number) + 1, ATTEMPTS)
        expected = set(range(1, max(had) + 1))
        if had != expected:
            yield f"{number} had the attempts {sorted(had)}"
        if max(had) > most + _deaths(calls):
            yield f"{number} had attempt {max(had)}, and {most} are right"
        settled = number in facts.succeeded or any(each.number == number for each in facts.letters)
        if settled and max(had) < most:
            yield f"{number} was settled after attempt {max(had)}, and {most} are right"


def nothing_comes_early(facts: Facts) -> Iterator[str]:
    """Yield attempts that begin earlier than the pause after the first begin of the attempt before."""
    for number, calls in sorted(facts.calls_by_number().items()):
        first: dict[int, float] = {}
        for each in calls:
            first[each.attempt] = min(each.began, first.get(each.attempt, each.began))
        for attempt, began in first.items():
            before = first.get(attempt - 1)
            if before is not None and began < before + PAUSE:
                yield f"{number}: attempt {attempt} came {began - before:.3f} s after the one before, not {PAUSE}"


CHECKERS: tuple[Callable[[Facts], Iterator[str]], ...] = (
    nothing_is_lost,
    only_the_hopeless_are_dead,
    dead_letters_have_had_all_attempts,
    attempts_count_from_one,
    nothing_comes_early,
)


def judge(facts: Facts) -> list[Problem]:
    return [Problem(checker.__name__, each) for checker in CHECKERS for each in checker(facts)]


def judge_redrive(sent: Counter[int], expected: Counter[int], kills: int) -> list[Problem]:
    """Return the problems of redrives. sent, expected: how often each number was. kills: number of killed redrives,
    each of which may have sent one message twice."""
    problems = [f"{number} was not redriven" for number in sorted(expected) if sent[number] < expected[number]]
    problems += [f"{number} was redriven and is no dead letter" for number in sorted(sent.keys() - expected.keys())]
    twice = sum((sent - expected).values())
    if twice > kills:
        problems.append(f"{twice} were sent twice by {kills} interrupted redrives: at most one each may be")
    return [Problem("redrive", each) for each in problems]


def repeated(facts: Facts) -> tuple[int, int]:
    """Return how many calls repeat an attempt, and how many dead letters repeat another one; at least once allows
    both."""
    attempts = {(each.number, each.attempt) for each in facts.calls}
    return len(facts.calls) - len(attempts), len(facts.letters) - len({each.number for each in facts.letters})

"""Compare what the senders of delayed messages have recorded with the messages in the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.kills.journal import Line
from tests.kills.outcome import Problem, lost, twice, unmeant
from tests.kills.stored import Stored

__all__ = ["Facts", "facts_in", "judge"]


@dataclass(slots=True)
class Facts:
    """The senders' records. due: of acknowledged messages, Unix ms. undecided: messages that may or may not be
    cancelled."""

    due: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)
    failed: int = 0


def facts_in(lines: Iterable[Line]) -> Facts:
    facts = Facts()
    for kind, _, word, *values in lines:
        if kind == "ack":
            facts.due[word] = values[0]
        elif kind == "fail":
            facts.failed += 1
        elif kind == "cancelling":
            facts.undecided.add(word)
        else:
            facts.undecided.discard(word)
            if kind == "cancelled":
                facts.cancelled.add(word)
    return facts


def judge(facts: Facts, found: Sequence[Stored]) -> list[Problem]:
    """Return the problems. found: all delivered messages."""
    payloads = [each.payload for each in found]
    early = [
        Problem("early", f"{each.payload[:80]} came {due - each.time_ms} ms before its time")
        for each in found
        if (due := facts.due.get(each.payload, each.due_ms)) is not None and each.time_ms < due
    ]
    promised = facts.due.keys() - facts.cancelled - facts.undecided
    return [
        *lost(promised, payloads),
        *twice(payloads),
        *early,
        *unmeant("came although cancelled", payloads, facts.cancelled),
    ]

"""A verdict as a compact table for people, and as what a run has come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.kills.outcome import Outcome, Problem

from .checker import Verdict
from .history import History, Window

__all__ = ["outcome", "table"]

SHOWN = 5
"""How many anomalies of one kind the table names."""

HEADER = ("partition", "stored", "delivered", "again", "claims", "unowned s", "longest s", "unexcused s")


def table(history: History, verdict: Verdict) -> str:
    """One line a partition, then the sums, then the anomalies by name, the first SHOWN of each kind."""
    rows = [HEADER, *_rows(history, verdict)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "", *_sums(verdict), *_anomalies(verdict)])


def outcome(history: History, verdict: Verdict, figures: Mapping[str, int]) -> Outcome:
    """figures: more of them."""
    counted = {
        "acknowledged": verdict.acknowledged,
        "delivered": verdict.delivered,
        "duplicated": verdict.duplicated,
        "stored twice": verdict.stored_twice,
        "fetched on": verdict.fetched_on,
        "claims": len(history.claims),
    }
    problems = [Problem(kind, str(each)) for kind, those in _kinds(verdict).items() for each in those]
    return Outcome(problems, {**figures, **counted}, explanation=table(history, verdict))


def _rows(history: History, verdict: Verdict) -> Iterable[Sequence[str]]:
    stored = Counter(record.partition for record in history.stored)
    delivered = Counter(delivery.partition for delivery in history.deliveries)
    places = {(delivery.partition, delivery.offset) for delivery in history.deliveries}
    once = Counter(partition for partition, _ in places)
    claims = Counter(claim.partition for claim in history.claims)
    for partition in sorted({*stored, *delivered, *claims}):
        unowned = verdict.unowned.get(partition, ())
        yield (
            partition,
            f"{stored[partition]:,}",
            f"{delivered[partition]:,}",
            f"{delivered[partition] - once[partition]:,}",
            f"{claims[partition]}",
            f"{_seconds(unowned):.1f}",
            f"{max((window.seconds for window in unowned), default=0.0):.1f}",
            f"{_seconds(verdict.unexcused.get(partition, ())):.1f}",
        )


def _sums(verdict: Verdict) -> list[str]:
    return [
        f"acknowledged {verdict.acknowledged:,}   delivered {verdict.delivered:,}   lost {len(verdict.lost)}   "
        f"undelivered {len(verdict.undelivered)}   misplaced {len(verdict.misplaced)}",
        f"duplicated {verdict.duplicated:,}, of these illegally {len(verdict.illegally_duplicated)}   "
        f"stored twice {verdict.stored_twice}   fetched on {verdict.fetched_on}   "
        f"out of order {len(verdict.out_of_order)}   out of sequence {len(verdict.out_of_sequence)}",
        f"owned twice {len(verdict.owned_twice)}   "
        f"unowned {sum(map(_seconds, verdict.unowned.values())):.1f} s, "
        f"unexcused {sum(map(_seconds, verdict.unexcused.values())):.1f} s   {'OK' if verdict.ok else 'FAILED'}",
    ]


def _kinds(verdict: Verdict) -> Mapping[str, Sequence[Any]]:
    """What must not be."""
    return {
        "lost": verdict.lost,
        "undelivered": verdict.undelivered,
        "misplaced": verdict.misplaced,
        "illegally duplicated": verdict.illegally_duplicated,
        "out of order": verdict.out_of_order,
        "out of sequence": verdict.out_of_sequence,
        "owned twice": verdict.owned_twice,
        "unexcused": [(partition, window) for partition, those in verdict.unexcused.items() for window in those],
    }


def _anomalies(verdict: Verdict) -> Iterable[str]:
    for kind, those in _kinds(verdict).items():
        yield from (f"{kind}: {each}" for each in those[:SHOWN])
        if len(those) > SHOWN:
            yield f"{kind}: … {len(those) - SHOWN} more"


def _seconds(windows: Iterable[Window]) -> float:
    return sum(window.seconds for window in windows)

"""What a person gets to see of a run, and the table of several for docs/failovers.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.history.facts import Ack
from tests.kills.campaign import Result
from tests.kills.outcome import Outcome, Problem

from .checkers import outcomes
from .cluster import Shape
from .facts import Failover, Failovers
from .java_clients import Findings

__all__ = ["faults_by_kind", "outcome", "pauses", "sends_of", "table"]


def pauses(history: Failovers) -> list[tuple[Failover, float]]:
    """For each fault: the longest time without an acknowledgement of its set, from its begin to its end."""
    times: dict[int, list[float]] = defaultdict(list)
    for each in sorted(history.sends, key=lambda send: send.time):
        if each.ack is not None:
            times[_set_of(each.ack)].append(each.time)
    found = []
    for fault in history.faults:
        own = times[fault.set_id]
        gaps = (after - before for before, after in pairwise(own) if after > fault.begin and before < fault.settled)
        found.append((fault, max(gaps, default=0.0)))
    return found


def _set_of(ack: Ack) -> int:
    return int(ack.partition.partition(" ")[2].partition("-")[0])


def outcome(shape: Shape, history: Failovers, problems: Sequence[Problem], java: Findings | None) -> Outcome:
    """Of one run."""
    faults = [
        {
            "kind": fault.kind,
            "leader": fault.of_leader,
            "beside": fault.second,
            "elected": fault.led_elsewhere,
            "pause": round(pause, 3),
            "started again": len(fault.restarted),
        }
        for fault, pause in pauses(history)
    ]
    figures = {
        "faults of leaders": sum(fault.of_leader for fault in history.faults),
        "faults of followers between them": sum(not fault.of_leader for fault in history.faults),
        "faults of followers at the same time": sum(bool(fault.second) for fault in history.faults),
        "nodes that did not come back by themselves": sum(len(fault.restarted) for fault in history.faults),
        "acknowledged": len(history.sends) - history.groups.failed_sends,
        "not acknowledged": history.groups.failed_sends,
        "stored": sum(map(len, history.groups.stored.values())),
        "handed to consumers and tasks": sum(
            len(call.places) for owner in history.groups.owners for call in owner.calls
        ),
        "reads of single nodes": len(history.gets),
        "acknowledgements of single nodes": sum(put.code == 200 for put in history.puts),
        "elections": len(history.leads),
        "copies of cut ends": history.cut_files,
        **{f"transactions: {end}": number for end, number in sorted(outcomes(history).items())},
    }
    details: dict[str, Any] = {"faults": faults, "nodes": shape.nodes, "minInSync": shape.min_in_sync}
    if java is not None:
        figures |= {f"Java's sends: {name}": value for name, value in sends_of(java).items()}
        details["reasons"] = dict(java.reasons)
    return Outcome(problems, figures, details)


def sends_of(java: Findings) -> dict[str, int]:
    return {
        "acknowledged": java.acknowledged,
        "failed": sum(java.reasons.values()),
        "failed, and stored": java.kept,
        "sent more than once by the client": java.repeated,
    }


def table(found: Iterable[Result]) -> str:
    """Markdown: what befell leaders, and how long nobody got an acknowledgement."""
    rows = [
        "| what befell the leader | times | elections | pause, median | p90 | longest |",
        "|---|---|---|---|---|---|",
    ]
    by_kind = faults_by_kind(found)
    rows += [_row(kind, faults) for kind, faults in by_kind.items()]
    rows.append(_row("all", [fault for faults in by_kind.values() for fault in faults]))
    return "\n".join(rows)


def faults_by_kind(found: Iterable[Result]) -> dict[str, list[Mapping[str, Any]]]:
    """Those of leaders, by what befell these."""
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in (fault for each in found for fault in each.details["faults"]):
        if fault.get("leader", True):
            by_kind[fault["kind"]].append(fault)
    return dict(sorted(by_kind.items()))


def _row(kind: str, faults: Sequence[Mapping[str, Any]]) -> str:
    """Pauses are those of faults that came alone: without two of its nodes a set of three may have to wait for one."""
    begin = f"| {kind} | {len(faults)} | {sum(fault['elected'] for fault in faults)} |"
    times = sorted(fault["pause"] for fault in faults if not fault["beside"])
    if not times:
        return f"{begin} | | |"
    shown = (times[len(times) // 2], times[min(len(times) - 1, len(times) * 9 // 10)], times[-1])
    return f"{begin} {' | '.join(f'{each:.1f} s' for each in shown)} |"

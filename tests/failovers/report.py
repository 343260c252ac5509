"""What a person gets to see: a line a run, and the table of all for docs/reliability.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .checkers import CHECKERS, GROUP_CHECKERS, outcomes
from .facts import Failover, Failovers, Sent
from .java_clients import Findings
from .run import Outcome

__all__ = ["line", "pauses", "summary", "table"]

_SHOWN = 5
_KINDS = (*dict.fromkeys([*CHECKERS, *GROUP_CHECKERS]), "stuck", "crashed", "refused", "java")


def pauses(history: Failovers) -> list[tuple[Failover, float]]:
    """For each fault: the longest time without an acknowledgement of its set, from its begin to its end."""
    times: dict[int, list[float]] = defaultdict(list)
    for each in sorted(history.sent, key=lambda sent: sent.time):
        times[_set_of(each)].append(each.time)
    found = []
    for fault in history.faults:
        own = times[fault.set_id]
        gaps = (after - before for before, after in pairwise(own) if after > fault.begin and before < fault.settled)
        found.append((fault, max(gaps, default=0.0)))
    return found


def _set_of(sent: Sent) -> int:
    return int(sent.ack.partition.partition(" ")[2].partition("-")[0])


def summary(outcome: Outcome) -> dict[str, Any]:
    """Of one run: what is written to its file, and added up by table()."""
    history = outcome.history
    stored = outcome.history.groups.stored
    return {
        "seed": outcome.seed,
        "nodes": outcome.shape.nodes,
        "minInSync": outcome.shape.min_in_sync,
        "seconds": round(outcome.seconds),
        "faults": [
            {
                "kind": fault.kind,
                "leader": fault.of_leader,
                "beside": fault.second,
                "elected": fault.led_elsewhere,
                "pause": round(pause, 3),
                "started again": len(fault.restarted),
            }
            for fault, pause in pauses(history)
        ],
        "acknowledged": len(history.sent),
        "not acknowledged": history.groups.failed_sends,
        "stored": sum(map(len, stored.values())),
        "handed to consumers and tasks": sum(
            len(call.places) for owner in history.groups.owners for call in owner.calls
        ),
        "transactions": dict(outcomes(history)),
        "reads of single nodes": len(history.gets),
        "acknowledgements of single nodes": sum(put.code == 200 for put in history.puts),
        "elections": len(history.leads),
        "copies of cut ends": history.cut_files,
        "java": None if outcome.java is None else _java(outcome.java),
        "problems": dict(Counter(problem.kind for problem in outcome.problems)),
        "examples": [str(problem) for problem in outcome.problems[:20]],
    }


def _java(found: Findings) -> dict[str, Any]:
    return {
        "acknowledged": found.acknowledged,
        "failed": sum(found.reasons.values()),
        "failed, and stored": found.kept,
        "sent more than once by the client": found.repeated,
        "reasons": dict(found.reasons),
    }


def line(found: Mapping[str, Any]) -> str:
    """One run, of its summary."""
    leaders = sum(fault["leader"] for fault in found["faults"])
    wrong = ", ".join(f"{kind} {count}" for kind, count in found["problems"].items()) or "all right"
    said = (
        f"seed {found['seed']}: {found['nodes']} nodes, {leaders} failovers, {found['acknowledged']} acknowledged, "
        f"{found['not acknowledged']} not, {found['stored']} stored, {found['seconds']} s: {wrong}"
    )
    return "\n  ".join([said, *found["examples"][:_SHOWN]])


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: what befell leaders and how long nobody got an acknowledgement, the load, and the problems."""
    rows = [
        "| what befell the leader | times | elections | pause, median | p90 | longest |",
        "|---|---|---|---|---|---|",
    ]
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in found:
        for fault in each["faults"]:
            if fault["leader"]:
                by_kind[fault["kind"]].append(fault)
    for kind, faults in sorted(by_kind.items()):
        rows.append(_row(kind, faults))
    rows.append(_row("all", [fault for faults in by_kind.values() for fault in faults]))
    rows += ["", "| | |", "|---|---|", f"| runs | {len(found)} |"]
    faults = [fault for each in found for fault in each["faults"]]
    rows.append(f"| faults of followers between them | {sum(not fault['leader'] for fault in faults)} |")
    rows.append(f"| faults of followers at the same time | {sum(bool(fault['beside']) for fault in faults)} |")
    rows.append(f"| nodes that did not come back by themselves | {sum(fault['started again'] for fault in faults)} |")
    for name in _sums():
        rows.append(f"| {name} | {sum(each[name] for each in found):,} |")
    transactions: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for each in found:
        transactions.update(each["transactions"])
        problems.update(each["problems"])
    java = [each["java"] for each in found if each.get("java")]
    for name in ("acknowledged", "failed", "failed, and stored", "sent more than once by the client"):
        if java:
            rows.append(f"| Java's sends: {name} | {sum(each[name] for each in java):,} |")
    rows += [f"| transactions: {outcome} | {count:,} |" for outcome, count in sorted(transactions.items())]
    rows += [f"| **{kind}** | **{problems[kind]}** |" for kind in _KINDS]
    return "\n".join(rows)


def _sums() -> Iterable[str]:
    return (
        "acknowledged",
        "not acknowledged",
        "stored",
        "handed to consumers and tasks",
        "reads of single nodes",
        "acknowledgements of single nodes",
        "elections",
        "copies of cut ends",
    )


def _row(kind: str, faults: Sequence[Mapping[str, Any]]) -> str:
    """Pauses are those of faults that came alone: without two of its nodes a set of three may have to wait for one."""
    begin = f"| {kind} | {len(faults)} | {sum(fault['elected'] for fault in faults)} |"
    times = sorted(fault["pause"] for fault in faults if not fault["beside"])
    if not times:
        return f"{begin} | | |"
    shown = (times[len(times) // 2], times[min(len(times) - 1, len(times) * 9 // 10)], times[-1])
    return f"{begin} {' | '.join(f'{each:.1f} s' for each in shown)} |"

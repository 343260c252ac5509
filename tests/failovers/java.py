"""Failovers under applications of the original Java client, and what they saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.history.facts import Delivery, Name, Send
from tests.history.reading import stored_in
from tests.kills.campaign import Result
from tests.kills.journal import Journal
from tests.kills.outcome import Outcome, Problem, Say

from .facts import Failover
from .faults import Fault
from .injuries import Injuries, Unhealed
from .java_clients import TOPIC, TOPICS, JavaClients, judge
from .reading import logs_of_leaders
from .report import faults_by_kind, sends_of
from .run import are_equal, rest
from .sets import Sets

__all__ = ["run", "table"]

KINDS = ("kill", "term", "hand-over", "stop")
_SETS, _NODES = 2, 2
_RESUME_SECONDS = 60.0
_QUIET_SECONDS = 30.0


def run(directory: Path, seed: int, say: Say, *, failovers: int = 4) -> Outcome:
    """Failovers of two sets of two nodes under applications of the original Java client, and what they saw.

    A producer with three threads, a group of two consumers, and a third one that joins in the middle. The leaders of
    both sets in turn get SIGKILL, SIGTERM, a hand-over, and SIGSTOP for longer than their session; the next one when
    the set is whole and each consumer has been handed a message that was sent after that. The seed changes nothing.
    Raises AssertionError if the cluster cannot be started, JavaUnavailable, ProcessFailed.
    """
    problems: list[Problem] = []
    with (
        Sets(directory, _SETS, _NODES, TOPICS) as sets,
        JavaClients(sets.connect, directory) as clients,
    ):
        injuries = Injuries(sets, Journal(directory / "faults.journal"))
        clients.join()
        clients.join()
        clients.send()
        problems += _silent(clients, "the start")
        try:
            for number in range(failovers):
                if number == failovers // 2:
                    clients.join()
                fault = Fault(KINDS[number % len(KINDS)], True, (number + number // len(KINDS)) % _SETS, 0.0, 0)
                done = injuries.do(fault)
                said = f"{done.kind} of {done.victim}, epoch {done.before} -> {done.after}"
                say(f"{number + 1} of {failovers}: {said}")
                problems += _silent(clients, said)
        except Unhealed as error:
            problems.append(Problem("stuck", str(error)))
        clients.finish(_QUIET_SECONDS)
        problems += rest(sets)
        different = [set_id for set_id, nodes in sets.sets.items() if not are_equal(nodes)]
        problems += [Problem("differ", f"the files of set {set_id}") for set_id in different]
        stored = stored_in(logs_of_leaders(sets), [TOPIC])
        attempts, deliveries = clients.sends(), clients.deliveries(stored)
        findings = judge(attempts, stored, deliveries)
    figures = {
        **sends_of(findings),
        "handed out": len(deliveries),
        "handed out more than once": len(deliveries) - len({each.place.name for each in deliveries}),
        "consumers": len(clients.members),
        "consumers started again": len(clients.started_again),
        "silent as the producer was cut off": clients.producer_cut_off,
    }
    details = {"faults": _seen(injuries.done, attempts, deliveries), "reasons": dict(findings.reasons)}
    return Outcome([*problems, *findings.problems], figures, details)


def _silent(clients: JavaClients, since: str) -> list[Problem]:
    silent = clients.wait_until_all_receive(_RESUME_SECONDS)
    return [Problem("silent", f"{name} receives nothing after {since}") for name in silent]


def _seen(faults: Sequence[Failover], attempts: Sequence[Send], deliveries: Sequence[Delivery]) -> list[dict[str, Any]]:
    """Of each fault, until the next one: sends that failed, the longest time without an acknowledgement of the set and
    of any, and the latest delivery of what was acknowledged."""
    first_handed: dict[Name, float] = {}
    for each in sorted(deliveries):
        first_handed.setdefault(each.place.name, each.time)
    ends = [*(fault.begin for fault in faults[1:]), float("inf")]
    found = []
    for fault, end in zip(faults, ends, strict=True):
        part = [each for each in attempts if fault.begin <= each.time < end]
        acknowledged = [each for each in part if each.ack]
        of_set = [
            each for each in acknowledged if each.ack and each.ack.partition.startswith(f"{TOPIC} {fault.set_id}-")
        ]
        late = [first_handed[each.name] - each.time for each in acknowledged if each.name in first_handed]
        found.append(
            {
                "kind": fault.kind,
                "elected": fault.led_elsewhere,
                "failed": len(part) - len(acknowledged),
                "pause of the set": _longest(fault.begin, of_set),
                "pause of all": _longest(fault.begin, acknowledged),
                "latest delivery": round(max(late, default=0.0), 3),
            }
        )
    return found


def _longest(begin: float, acknowledged: Sequence[Send]) -> float:
    times = [begin, *(each.time for each in acknowledged)]
    return round(max((after - before for before, after in pairwise(times)), default=0.0), 3)


def table(found: Iterable[Result]) -> str:
    """Markdown, for docs/failovers.md."""
    rows = [
        "| what befell the leader | times | elections | failed sends, median | most | pause of the set, median "
        "| longest | pause of all sends, longest | latest delivery |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, faults in faults_by_kind(found).items():
        failed, pauses = (sorted(fault[name] for fault in faults) for name in ("failed", "pause of the set"))
        values = [
            len(faults),
            sum(fault["elected"] for fault in faults),
            failed[len(failed) // 2],
            failed[-1],
            *(f"{seconds:.1f} s" for seconds in (pauses[len(pauses) // 2], pauses[-1])),
            *(f"{max(fault[name] for fault in faults):.1f} s" for name in ("pause of all", "latest delivery")),
        ]
        rows.append(f"| {kind} | {' | '.join(map(str, values))} |")
    return "\n".join(rows)

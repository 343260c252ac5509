"""Failovers under applications of the original Java client, and what they saw.

Examples:
  python -m tests.failovers.java --failovers 20

Two sets of two nodes; a producer with three threads, a group of two consumers, and a third one that joins in the
middle. The leaders of both sets in turn get SIGKILL, SIGTERM, a hand-over, and SIGSTOP for longer than their session;
the next one when the set is whole and each consumer has been handed a message that was sent after that.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.kills.journal import Journal

from .facts import Failover
from .faults import Fault
from .injuries import Injuries, Unhealed
from .java_clients import TOPICS, Attempt, Delivery, JavaClients, judge, records_in
from .reading import logs_of_leaders
from .run import are_equal, rest
from .sets import Sets

__all__ = ["run", "table"]

KINDS = ("kill", "term", "hand-over", "stop")
_SETS, _NODES = 2, 2
_RESUME_SECONDS = 60.0
_QUIET_SECONDS = 30.0


def run(directory: Path, count: int, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """`count` failovers. Raises AssertionError if the cluster cannot be started, JavaUnavailable, ProcessFailed."""
    problems: list[str] = []
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
            for number in range(count):
                if number == count // 2:
                    clients.join()
                fault = Fault(kinds[number % len(kinds)], True, (number + number // len(kinds)) % _SETS, 0.0, 0)
                done = injuries.do(fault)
                said = f"{done.kind} of {done.victim}, epoch {done.before} -> {done.after}"
                print(f"{number + 1} of {count}: {said}", file=sys.stderr, flush=True)
                problems += _silent(clients, said)
        except Unhealed as error:
            problems.append(f"stuck: {error}")
        clients.finish(_QUIET_SECONDS)
        problems += [str(problem) for problem in rest(sets)]
        problems += [f"differ: the files of set {each}" for each, nodes in sets.sets.items() if not are_equal(nodes)]
        attempts, deliveries = clients.attempts(), clients.deliveries()
        findings = judge(attempts, records_in(logs_of_leaders(sets)), deliveries)
    return {
        "faults": _seen(injuries.done, attempts, deliveries),
        "acknowledged": findings.acknowledged,
        "failed": len(attempts) - findings.acknowledged,
        "failed, and stored": findings.kept,
        "sent more than once by the client": findings.repeated,
        "handed out": len(deliveries),
        "handed out more than once": len(deliveries) - len({each.text for each in deliveries}),
        "consumers": len(clients.members),
        "consumers started again": len(clients.started_again),
        "reasons": dict(findings.reasons),
        "problems": problems + findings.problems,
    }


def _silent(clients: JavaClients, since: str) -> list[str]:
    return [
        f"silent: {name} receives nothing after {since}" for name in clients.wait_until_all_receive(_RESUME_SECONDS)
    ]


def _seen(
    faults: Sequence[Failover], attempts: Sequence[Attempt], deliveries: Sequence[Delivery]
) -> list[dict[str, Any]]:
    """Of each fault, until the next one: sends that failed, the longest time without an acknowledgement of the set and
    of any, and the latest delivery of what was acknowledged."""
    first_handed: dict[str, float] = {}
    for each in sorted(deliveries):
        first_handed.setdefault(each.text, each.time)
    ends = [*(fault.begin for fault in faults[1:]), float("inf")]
    found = []
    for fault, end in zip(faults, ends, strict=True):
        part = [each for each in attempts if fault.begin <= each.ended < end]
        acknowledged = [each for each in part if each.is_acknowledged]
        of_set = [each for each in acknowledged if each.partition.startswith(f"{fault.set_id}-")]
        late = [first_handed[each.text] - each.ended for each in acknowledged if each.text in first_handed]
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


def _longest(begin: float, acknowledged: Sequence[Attempt]) -> float:
    times = [begin, *(each.ended for each in acknowledged)]
    return round(max((after - before for before, after in pairwise(times)), default=0.0), 3)


def table(found: Mapping[str, Any]) -> str:
    """Markdown, for docs/failovers.md."""
    rows = [
        "| what befell the leader | times | elections | failed sends, median | most | pause of the set, median "
        "| longest | pause of all sends, longest | latest delivery |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in found["faults"]:
        by_kind[fault["kind"]].append(fault)
    for kind, faults in sorted(by_kind.items()):
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
    rows += ["", "| | |", "|---|---|"]
    rows += [f"| {name} | {value:,} |" for name, value in found.items() if isinstance(value, int)]
    rows.append(f"| **problems** | **{len(found['problems'])}** |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.failovers.java", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of faults, in turn")
    parser.add_argument("--directory", type=Path, help="for the result, and for the files of a run with problems")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    above = options.directory or Path(tempfile.mkdtemp(prefix="metaq-failovers-java-"))
    above.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="java-", dir=above))
    found = run(directory, options.failovers, options.kinds)
    (above / "java.json").write_text(json.dumps(found, indent=1))
    print(table(found))
    if found["problems"]:
        print(*found["problems"][:20], f"files: {directory}", sep="\n")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

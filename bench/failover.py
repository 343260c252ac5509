"""Measure how long a producer gets no acknowledgement when the leader ends: `python -m bench.failover`. Prints one JSON
document.

Each round ends the leader while a producer sends pipelined messages, and then waits until all nodes are in sync again.
The time without an acknowledgement has three parts, which are taken from the nodes' logs: detection (from the last
acknowledgement until a node becomes a candidate), election (until that node leads) and first acknowledgement (until the
producer has one).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from .load import Gap, History, load
from .processes import ProcessFailed
from .sets import METAQ, NodeSet, line_time, logged_at, node_set
from .systems import FLUSH, zookeeper

__all__ = ["HOWS", "distribution", "measure_failovers"]

TOPIC = "failover"
HOWS = ("kill", "term", "hand-over", "stop")
_STEADY_SECONDS = 1.0
"""Seconds for which the producer runs before each round."""
_REJOIN_SECONDS = 60.0
_ELECTION_SECONDS = 60.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Round:
    """One round. begun: when the leader was ended; ended: when the producer was sending again; successor: the node that
    led then; load: the machine's load average of the last minute.
    """

    begun: float
    ended: float
    successor: str
    load: float


def measure_failovers(
    directory: Path,
    how: str,
    rounds: int,
    *,
    nodes: int,
    partitions: int,
    window: int,
    size: int,
    synchronous: bool,
    explain_above: float = float("inf"),
) -> dict[str, Any]:
    """Measure everything, with processes and data below `directory`. Raises ProcessFailed. how: one of HOWS.
    explain_above: for gaps longer than this many ms, the nodes' log lines are printed."""
    names = "abc"[:nodes]
    settings = {"ack": "disk" if synchronous else "in-sync", "numPartitions": partitions, **FLUSH[synchronous]}
    with (
        zookeeper(directory) as connect,
        node_set(directory, connect, {TOPIC: settings}, FLUSH[synchronous], names) as node_processes,
        load(connect, directory / "load.log") as producer,
    ):
        producer.start(TOPIC, window, size)
        done = []
        for number in range(rounds):
            time.sleep(_STEADY_SECONDS)
            done.append(_fail_over(node_processes, how, names, connect))
            click.echo(f"round {number + 1} of {rounds}: {done[-1].successor} leads", err=True)
        time.sleep(_STEADY_SECONDS)
        history = producer.stop()
        logs = {name: node_processes.lines(name) for name in names}
    return _result(how, done, history, logs, explain_above)


def _fail_over(nodes: NodeSet, how: str, names: Sequence[str], connect: str) -> Round:
    """Run one round: end the leader, wait until another node leads, then wait until all nodes are in sync again."""
    leader = nodes.leader
    process = nodes.nodes[leader]
    begun = time.monotonic()
    if how == "kill":
        process.kill()
    elif how == "term":
        process.close()
    elif how == "stop":
        process.process.send_signal(signal.SIGSTOP)
    else:
        hand_over(connect)
    try:
        successor = _another_leader(nodes, leader)
        time.sleep(_STEADY_SECONDS)
    finally:
        if how == "stop":
            process.process.send_signal(signal.SIGCONT)
    ended = time.monotonic()
    if how in ("kill", "term"):
        nodes.start(leader)
    nodes.await_in_sync(names, _REJOIN_SECONDS)
    return Round(begun, ended, successor, os.getloadavg()[0])


def hand_over(connect: str) -> None:
    """Hand over the leadership by the command that operators use. Raises RuntimeError."""
    done = subprocess.run(
        [*METAQ, "brokers", "hand-over", "0", "--zk", connect], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"`metaq brokers hand-over 0` ended with code {done.returncode}: {done.stderr.strip()}")


def _another_leader(nodes: NodeSet, former: str) -> str:
    deadline = time.monotonic() + _ELECTION_SECONDS
    while (leader := nodes.leader) in ("", former):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no node has followed {former} after {_ELECTION_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
    return leader


# --- what it was made of ----------------------------------------------------------------------------------------------


def _result(
    how: str, done: Sequence[Round], history: History, logs: dict[str, list[str]], explain_above: float
) -> dict[str, Any]:
    parts: dict[str, list[float]] = {
        "gap": [],
        "around_election": [],
        "detection": [],
        "election": [],
        "first_acknowledgement": [],
    }
    for number, each in enumerate(done, 1):
        gap = history.longest_gap(each.begun, each.ended)
        if (leads := logged_at(logs[each.successor], "leads epoch", each.begun)) is not None:
            parts["around_election"].append(history.gap_at(leads).seconds)
        found = _parts(gap, each.begun, logs[each.successor])
        for name, seconds in found.items():
            parts[name].append(seconds)
        if gap.seconds * 1e3 > explain_above:
            _explain(number, each, gap, found, logs)
    loads = [each.load for each in done]
    return {
        "how": how,
        "rounds": len(done),
        "load_average": {"p50": statistics.median(loads), "max": max(loads)},
        **{f"{name}_ms": distribution(seconds) for name, seconds in parts.items()},
        "rounds_without_parts": len(done) - len(parts["election"]),
        "errors": len(history.errors),
        "first_errors": history.errors[:3],
    }


def _parts(gap: Gap, begun: float, lines: Sequence[str]) -> dict[str, float]:
    """Return the gap and its parts in seconds. If the election since `begun` is not within the gap, the longest gap had
    another cause; then return only the gap.
    """
    stands = logged_at(lines, "stands for election", begun)
    leads = None if stands is None else logged_at(lines, "leads epoch", stands)
    if stands is None or leads is None or not gap.begin <= leads <= gap.end:
        return {"gap": gap.seconds}
    stands = max(stands, gap.begin)  # in a hand-over the last acknowledgements may still arrive later
    return {
        "gap": gap.seconds,
        "detection": stands - gap.begin,
        "election": leads - stands,
        "first_acknowledgement": gap.end - leads,
    }


def _explain(number: int, done: Round, gap: Gap, parts: Mapping[str, float], logs: Mapping[str, Sequence[str]]) -> None:
    """Print, in order of time, the lines that the nodes logged between the end of the leader and the end of the gap.
    Each line has its milliseconds since the last acknowledgement.
    """
    made_of = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in parts.items())
    click.echo(
        f"round {number}, load {done.load:.1f}: {made_of}; told {(done.begun - gap.begin) * 1e3:.0f} ms", err=True
    )
    found = [
        (at, name, line)
        for name, lines in logs.items()
        for line in lines
        if (at := line_time(line)) is not None and min(gap.begin, done.begun) - 0.01 <= at <= gap.end + 0.01
    ]
    for at, name, line in sorted(found):
        click.echo(f"  {(at - gap.begin) * 1e3:7.0f} {name} {line}", err=True)


def distribution(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 (for fewer than 100 values: the maximum) and max in milliseconds; an empty dict if there are no
    values.
    """
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at_99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return {"p50": statistics.median(ordered) * 1e3, "p99": at_99 * 1e3, "max": ordered[-1] * 1e3}


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--how", type=click.Choice(HOWS), default="kill", show_default=True, help="What happens to the leader.")
@click.option("--nodes", type=click.IntRange(2, 3), default=2, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True)
@click.option("--window", type=click.IntRange(1), default=256, show_default=True, help="Messages under way.")
@click.option("--size", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a message.")
@click.option("--synchronous", is_flag=True, help="Acknowledged on the disks of all nodes (ack=disk).")
@click.option(
    "--explain-above",
    type=float,
    default=250.0,
    show_default=True,
    help="Milliseconds; prints the logs of longer gaps.",
)
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=True), help="For data and logs; default: a temporary one."
)
def main(
    rounds: int,
    how: str,
    nodes: int,
    partitions: int,
    window: int,
    size: int,
    synchronous: bool,
    explain_above: float,
    directory: Path | None,
) -> None:
    """Measure the time without an acknowledgement when the leader of a set ends; print one JSON object."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the children end, too
    with tempfile.TemporaryDirectory(prefix="metaq-failover-", dir=directory) as name:
        try:
            result = measure_failovers(
                Path(name),
                how,
                rounds,
                nodes=nodes,
                partitions=partitions,
                window=window,
                size=size,
                synchronous=synchronous,
                explain_above=explain_above,
            )
        except (ProcessFailed, RuntimeError) as error:
            sys.exit(f"bench: {error}")
    click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

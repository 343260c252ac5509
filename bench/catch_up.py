"""Measure how a node that was away copies the missing data while one producer continues: `python -m bench.catch_up`.
Prints one JSON document.

The set has two nodes, `ack=in-sync` and asynchronous flush. One node is stopped, the other receives `--gigabytes`, and
a producer starts at full speed. Then the stopped node comes back.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from .load import History, load
from .processes import ProcessFailed, cpu_seconds
from .sets import NodeSet, logged_at, node_set
from .systems import FLUSH, zookeeper

__all__ = ["measure_catch_up"]

BACKLOG, LOAD = "backlog", "load"
NODES = ("a", "b")
HEADER_BYTES = 20
_LEAVE_SECONDS = 30.0
_COPY_SECONDS = 1800.0
_SETTLED_SECONDS = 2.0
"""Seconds for which the producer continues after the node is in sync; a gap in this time counts."""
_LIVE_SECONDS = 1.0
"""A gap between acknowledgements counts as caused by the change to live replication if it is later than this many
seconds before the end of the copy.
"""


def measure_catch_up(
    directory: Path, *, megabytes: int, seconds: float, size: int, partitions: int, window: int, pause: float
) -> dict[str, Any]:
    """Measure everything, with processes and data below `directory`. Raises ProcessFailed.

    seconds: how long the producer runs before the node comes back; size: bytes of a message; partitions: number for
    each topic; window: messages in flight; pause: seconds between filling and producing, so that the disk can finish
    its writes.
    """
    settings = {"ack": "in-sync", "numPartitions": partitions, **FLUSH[False]}
    topics = {BACKLOG: settings, LOAD: settings}
    with (
        zookeeper(directory) as connect,
        node_set(directory, connect, topics, FLUSH[False], NODES) as nodes,
        load(connect, directory / "load.log") as producer,
    ):
        _say("one node stops")
        nodes.nodes["b"].close()
        nodes.await_in_sync("a", _LEAVE_SECONDS)
        _say(f"{megabytes:,} MB are sent")
        filled = producer.fill(BACKLOG, megabytes, size)
        time.sleep(pause)
        _say("the producer starts")
        producer.start(LOAD, window, size)
        began = time.monotonic()
        time.sleep(1.0 + seconds)
        returns = time.monotonic()
        _say("the node comes back")
        nodes.start("b")
        serves = time.monotonic()
        used = _processor_seconds(nodes)
        nodes.await_in_sync(NODES, _COPY_SECONDS)
        used = [after - before for before, after in zip(used, _processor_seconds(nodes), strict=True)]
        time.sleep(_SETTLED_SECONDS)
        history = producer.stop()
        copied, in_sync = _logged(nodes, returns)
    sent = history.acknowledged(began, copied)
    missing = (filled["messages"] + sent) * (size + HEADER_BYTES)
    return {
        "filled": {**filled, "megabytes": filled["messages"] * size / 1e6, "partitions": partitions},
        "copied_megabytes": missing / 1e6,
        "copy_seconds": copied - serves,
        "copy_megabytes_per_second": missing / 1e6 / (copied - serves),
        **{
            f"{node}_processor_seconds_per_gigabyte": each / missing * 1e9
            for node, each in zip(NODES, used, strict=True)
        },
        "seconds_from_start_to_in_sync": in_sync - returns,
        "seconds_from_copied_to_in_sync": in_sync - copied,
        **_of_producer(history, began + 1.0, returns, serves, copied, in_sync),
    }


def _processor_seconds(nodes: NodeSet) -> list[float]:
    return [cpu_seconds(nodes.nodes[name].pid) for name in NODES]


def _logged(nodes: NodeSet, since: float) -> tuple[float, float]:
    """Return when node b had copied everything, and when it was in sync, according to the leader's log."""
    lines = nodes.lines("a")
    copied = logged_at(lines, "the follower b has copied everything", since)
    in_sync = logged_at(lines, "b is in sync$", since)
    if copied is None or in_sync is None:
        raise ProcessFailed("the leader does not say when the node was in sync", nodes.nodes["a"].log)
    return copied, in_sync


def _of_producer(
    history: History, began: float, returns: float, serves: float, copied: float, in_sync: float
) -> dict[str, Any]:
    before, during = history.rate(began, returns), history.rate(serves, copied)
    live = max(serves, copied - _LIVE_SECONDS)
    return {
        "rate_before": before,
        "rate_during": during,
        "rate_after": history.rate(in_sync, in_sync + _SETTLED_SECONDS),
        "ratio": during / before,
        "longest_gap_before_ms": history.longest_gap(began, returns).seconds * 1e3,
        "longest_gap_during_ms": history.longest_gap(serves, live).seconds * 1e3,
        "longest_gap_going_live_ms": history.longest_gap(live, in_sync + _SETTLED_SECONDS).seconds * 1e3,
        "errors": len(history.errors),
    }


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.option("--gigabytes", type=click.FloatRange(0.01), default=10.0, show_default=True, help="That the node lacks.")
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True, help="Producing before it comes.")
@click.option("--size", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a message.")
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True, help="Of each of the two topics.")
@click.option("--window", type=click.IntRange(1), default=4096, show_default=True, help="Messages under way.")
@click.option("--pause", type=click.FloatRange(0), default=5.0, show_default=True, help="Seconds after filling.")
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=True), help="For data and logs; default: a temporary one."
)
def main(
    gigabytes: float, seconds: float, size: int, partitions: int, window: int, pause: float, directory: Path | None
) -> None:
    """Measure how a node that was away catches up while one producer continues; print one JSON object."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the children end, too
    with tempfile.TemporaryDirectory(prefix="metaq-catch-up-", dir=directory) as name:
        try:
            result = measure_catch_up(
                Path(name),
                megabytes=int(gigabytes * 1000),
                seconds=seconds,
                size=size,
                partitions=partitions,
                window=window,
                pause=pause,
            )
        except ProcessFailed as error:
            sys.exit(f"bench: {error}")
    click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

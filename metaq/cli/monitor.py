"""The command `metaq monitor`: check a cluster once or repeatedly, and report what an operator should know."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from datetime import datetime

import click

from .options import GROUP, POSITIVE_SECONDS, TOPIC, json_option, zk_option
from .output import echo, print_json
from .probes import Monitor, ProbeLevel, ProbeLimits, Seen
from .servers import stop_signal

__all__ = ["monitor"]

EXIT_ALARM = 1


@click.command()
@zk_option
@click.option(
    "--every", type=POSITIVE_SECONDS, help="Look again at this interval until Ctrl-C or SIGTERM; default: once."
)
@click.option(
    "--probe-topic", type=TOPIC, help="Send a message to its first partition on each broker, and read it back."
)
@click.option(
    "--group", "-g", "groups", type=GROUP, multiple=True, help="Only this group; repeat for more. Default: all."
)
@click.option("--ignore-group", "ignored_groups", type=GROUP, multiple=True, help="Not this group; repeat for more.")
@click.option(
    "--ignore-broker",
    "ignored_brokers",
    type=click.IntRange(0),
    multiple=True,
    help="Not this broker (its id), which is out of service for good; repeat for more.",
)
@click.option(
    "--max-lag",
    type=click.IntRange(0),
    default=100_000_000,
    show_default=True,
    metavar="BYTES",
    help="A partition that is farther behind is an alarm.",
)
@click.option(
    "--max-put-failed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="More failed puts of one broker since the last look are an alarm.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="More connections of one broker are an alarm.",
)
@click.option(
    "--max-prepared",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="More prepared transactions of one broker are an alarm.",
)
@click.option(
    "--max-parked",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="More half messages of one broker that wait for an operator's decision are an alarm.",
)
@click.option(
    "--max-disk",
    type=click.IntRange(1, 100),
    default=90,
    show_default=True,
    metavar="PERCENT",
    help="A fuller disk below a --data-dir is an alarm.",
)
@click.option(
    "--min-memory",
    type=click.IntRange(0, 99),
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Less available memory of this machine is an alarm.",
)
@click.option(
    "--data-dir",
    "data_dirs",
    type=click.Path(exists=True, file_okay=False),
    multiple=True,
    help="A broker's dataPath on this machine; repeat for more.",
)
@json_option
def monitor(
    zk: str,
    every: float | None,
    probe_topic: str | None,
    groups: tuple[str, ...],
    ignored_groups: tuple[str, ...],
    ignored_brokers: tuple[int, ...],
    data_dirs: tuple[str, ...],
    as_json: bool,
    **limits: int,
) -> int:
    """Check ZooKeeper, every broker and every group. The exit code is 1 if the last round of checks raised an alarm.

    The command reports servers of --zk that do not answer, and brokers that do not answer or are not registered any
    more. For each broker it reports whether the broker refuses messages because its disk is full or because a write has
    failed. It also reports the numbers of failed puts, connections, prepared transactions and parked half messages,
    with an alarm if one of these numbers is above its limit. For each group it reports a lag above the limit, waiting
    messages without a live member, no progress since the last check (--every), a partition without an owner, an offset
    outside the readable bytes, and messages that a broker has lost after the group had read them. The command also
    reports shared groups without a member, dead letters, broker sets in trouble, full disks and little memory. Each
    problem is reported in one line. Values that cannot be read because of a problem are shown as unknown.

    \b
    Example
      metaq monitor --probe-topic probes
      metaq monitor --every 60 --max-lag 1000000 --json
    """
    watching = Monitor(zk, ProbeLimits(**limits), probe_topic, groups, data_dirs, ignored_groups, ignored_brokers)
    with stop_signal() as stop:
        while True:
            seen = watching.look()
            _print(seen, as_json)
            if every is None or _stopped(stop, every):
                return EXIT_ALARM if any(each.level is ProbeLevel.ALARM for each in seen) else 0


def _stopped(stop: threading.Event, seconds: float) -> bool:
    sys.stdout.flush()
    return stop.wait(seconds)


def _print(seen: list[Seen], as_json: bool) -> None:
    moment = datetime.now().astimezone().isoformat(timespec="seconds")
    if as_json:
        print_json({"time": moment, "findings": [each._asdict() for each in seen]})
        return
    for each in seen:
        echo(f"{moment} {each.level.value:5} {each.what}: {each.text}")
    counts = Counter(each.level for each in seen)
    echo(f"{moment} {', '.join(f'{counts[level]} {level.value}' for level in ProbeLevel)}")

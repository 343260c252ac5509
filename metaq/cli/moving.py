"""The commands `metaq partitions move`, `metaq partitions moves` and `metaq brokers drain`, which move partitions to
other brokers while clients run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from metaq.client.questions.moves import MoveProgress, MovesOfCluster
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.errors import ConfigError, CoordinationError, MetaqError

from .cluster_access import open_session
from .options import TOPIC, Parsed, dry_run_option, json_option, zk_option
from .output import byte_size, counted, echo, say, show

__all__ = ["drain_broker", "list_moves", "move_partitions"]

DEFAULT_RATE = "50MB"
_LOOK_SECONDS = 0.5
_SAY_SECONDS = 2.0
_RATE = re.compile(r"([0-9]{1,12})\s*([kmg]?)b?(?:/s)?\Z", re.IGNORECASE)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


def _rate(text: str) -> int:
    found = _RATE.match(text.strip())
    if not found or not int(found[1]):
        raise ValueError(f"{text!r} is not a number of bytes per second, like 50MB or 500k")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2].lower()]


def _range(text: str) -> tuple[int, int]:
    found = _RANGE.match(text)
    if not found:
        raise ValueError(f"{text!r} is not a range of partitions, like 2-3")
    return int(found[1]), int(found[2] or found[1])


def _brokers(text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise ValueError(f"{text!r} is not a list of broker ids, like 1,2")
    return list(map(int, text.split(",")))


_rate_option = click.option(
    "--rate", type=Parsed("BYTES", _rate), default=DEFAULT_RATE, show_default=True, help="Maximum bytes per second."
)


@contextmanager
def _cluster(zk: str) -> Iterator[MovesOfCluster]:
    with open_session(zk) as session:
        yield MovesOfCluster(session)


@click.command("move")
@zk_option
@dry_run_option
@json_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic of the partitions.")
@click.option("--from", "source", type=click.IntRange(0), required=True, help="Broker, or broker set, that has them.")
@click.option("--to", "target", type=click.IntRange(0), help="Broker, or broker set, that gets them.")
@click.option("--partitions", "chosen", type=Parsed("FIRST-LAST", _range), help="The last ones to move; default: all.")
@_rate_option
@click.option("--cancel", is_flag=True, help="Give up the move that is under way.")
def move_partitions(
    zk: str,
    dry_run: bool,
    as_json: bool,
    topic: str,
    source: int,
    target: int | None,
    chosen: tuple[int, int] | None,
    rate: int,
    cancel: bool,
) -> None:
    """Move partitions of a topic to another broker while producers and consumers run.

    A broker numbers its partitions from 0 without a gap. So only the last partitions of a broker can be moved, and they
    get the next free numbers at the target. Messages keep their offsets, and groups continue at their positions. If
    this command is stopped, the brokers continue the move; if you run the command again, it shows the progress of the
    move. You can cancel a move until the target broker has all messages.

    \b
    Example
      metaq partitions move --topic trades --from 0 --to 1 --rate 50MB
      metaq partitions move --topic trades --from 0 --to 1 --partitions 2-3
      metaq partitions move --topic trades --from 0 --cancel
    """
    with _cluster(zk) as moves:
        if cancel:
            under_way = [each for each in moves.all() if (each.topic, each.source) == (topic, source)]
            wanted = next((each for each in under_way if each.active), under_way[0] if len(under_way) == 1 else None)
            if wanted is None or wanted.state is MoveState.DONE:
                raise ConfigError("--cancel", topic, f"no partitions of broker {source} are being moved")
            if dry_run:
                echo(f"would cancel {wanted}")
                return
            cancelled = moves.cancel(wanted)
            say(as_json, _json(MoveProgress(cancelled)), f"cancelled: {cancelled}")
            return
        if target is None:
            raise click.UsageError("--to is missing: name the broker that gets the partitions")
        planned = moves.plan(topic, source, target, rate, *(chosen or (None, None)))
        if dry_run:
            echo(f"would move {planned.move}")
            return
        done = _follow(moves, moves.begin(planned), as_json)
    say(as_json, _json(MoveProgress(done)), f"moved {done}")


@click.command("moves")
@zk_option
@json_option
def list_moves(zk: str, as_json: bool) -> None:
    """List the moves of partitions that are in progress, and the moves that have ended, with their outcomes.

    LEFT and RATE: the data still to be copied, and the speed, as the target reports them now.

    \b
    Example
      metaq partitions moves --zk 127.0.0.1:2181
    """
    with _cluster(zk) as moves:
        found = [moves.look(each) if each.active else MoveProgress(each, waits_for=each.note) for each in moves.all()]
    columns = ("TOPIC", "FROM", "COUNT", "TO", "STATE", "LEFT", "RATE", "WAITS FOR")
    show(as_json, list(map(_json, found)), columns, map(_row, found))


@click.command("drain")
@zk_option
@dry_run_option
@json_option
@click.argument("broker", type=click.IntRange(0), metavar="ID")
@click.option("--to", "targets", type=Parsed("IDS", _brokers), help="Brokers that may get topics; by default all.")
@_rate_option
def drain_broker(zk: str, dry_run: bool, as_json: bool, broker: int, targets: Sequence[int] | None, rate: int) -> None:
    """Take the broker or broker set ID out of service: move all its topics to other brokers while clients run.

    Each topic is moved to the broker that has the fewest partitions when the topic's move starts. If the broker ID
    still has partitions at the end, the exit code is 1; run the command again to continue.

    \b
    Example
      metaq brokers drain 0 --to 1,2 --rate 100MB
    """
    moved: list[Move] = []
    failed: dict[str, str] = {}
    with _cluster(zk) as moves:
        if dry_run:
            echo(f"would move from broker {broker}: {', '.join(moves.topics_of(broker)) or 'nothing'}")
            return
        while topics := [each for each in moves.topics_of(broker) if each not in failed]:
            try:
                target = _least(moves.partitions_by_broker(), broker, targets)
                running = [each for each in moves.all() if each.active and each.source == broker]
                move = next((each for each in running if each.topic == topics[0]), None)
                if move is None and any(each.topic == topics[0] and not each.first for each in moved):
                    raise CoordinationError("its partitions left, and came back: is another broker drained, too?")
                move = move or moves.begin(moves.plan(topics[0], broker, target, rate))
                moved.append(_follow(moves, move, as_json))
                if not as_json:
                    echo(f"moved {moved[-1]}")
            except MetaqError as error:
                failed[topics[0]] = str(error)
        left = moves.topics_of(broker)
    if left:
        reasons = "; ".join(f"{topic}: {failed.get(topic, 'it came later')}" for topic in left)
        raise CoordinationError(f"broker {broker} still has {counted(len(left), 'topic')}: {reasons}; run this again")
    value = {"broker": broker, "moved": [_json(MoveProgress(each)) for each in moved]}
    say(as_json, value, f"broker {broker} has no topic left: it may be stopped")


def _least(counts: dict[int, int], broker: int, targets: Sequence[int] | None) -> int:
    """Return the id of the broker that has the fewest partitions among the possible targets. counts: the number of
    partitions of each broker.
    """
    able = {each: count for each, count in counts.items() if each != broker and (targets is None or each in targets)}
    if not able:
        raise CoordinationError("no broker that may get the partitions is registered now")
    return min(able, key=lambda each: (able[each], each))


def _follow(moves: MovesOfCluster, move: Move, as_json: bool) -> Move:
    """Show the progress of a move until the move is done, and return the move in its final state. Raises
    CoordinationError if the move was cancelled.
    """
    said, said_at = "", 0.0
    while True:
        progress = moves.look(move)
        state = progress.move.state
        if state is MoveState.DONE:
            return progress.move
        if state is MoveState.CANCELLED:
            raise CoordinationError(
                f"the move of {progress.move} is cancelled: {progress.waits_for or 'by an operator'}"
            )
        text = _told(progress)
        if not as_json and text != said and time.monotonic() - said_at >= _SAY_SECONDS:
            echo(text, err=True)
            said, said_at = text, time.monotonic()
        time.sleep(_LOOK_SECONDS)


def _told(progress: MoveProgress) -> str:
    copying = progress.move.state in (MoveState.COPYING, MoveState.CLOSING) and progress.left is not None
    left = f", {byte_size(progress.left or 0)} left at {byte_size(progress.per_second)}/s" if copying else ""
    waits = f"; waits for: {progress.waits_for}" if progress.waits_for else ""
    return f"{progress.move}: {progress.move.state.value}{left}{waits}"


def _json(progress: MoveProgress) -> dict[str, Any]:
    move = progress.move
    return {
        "topic": move.topic,
        "from": move.name,
        "count": move.count,
        "to": str(move.target) if move.target_first < 0 else f"{move.target}-{move.target_first}",
        "state": move.state.value,
        "left": progress.left,
        "bytes_per_second": progress.per_second,
        "waits_for": progress.waits_for,
    }


def _row(progress: MoveProgress) -> Sequence[object]:
    value = _json(progress)
    left = None if progress.left is None else byte_size(progress.left)
    rate = f"{byte_size(progress.per_second)}/s" if progress.per_second else None
    return [*(value[name] for name in ("topic", "from", "count", "to", "state")), left, rate, progress.waits_for]

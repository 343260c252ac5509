"""The command `metaq partitions`: close and open partitions of a running broker, delete and renumber partitions of a
stopped broker, and move partitions to another broker (moving.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from metaq.broker.inspection import DataDirectory, delete_directory, move_directories
from metaq.client.questions.admin import close_partitions, open_partitions
from metaq.client.transport.connection import Connection
from metaq.protocol.errors import ConfigError, RequestRefused, TopicNotAccepted
from metaq.protocol.statuses import ResponseCode

from .cluster_access import Target, target_options
from .moving import list_moves, move_partitions
from .options import STORED_TOPIC, confirm, dry_run_option, json_option, yes_option
from .output import echo, print_json, say
from .set_look import at_every_node
from .stats import check_topic

__all__ = ["partitions"]

_topic = click.option("--topic", "-t", type=STORED_TOPIC, required=True, help="Topic of the partitions.")
_start = click.option("--start", type=click.IntRange(0), required=True, help="First partition.")
_end = click.option("--end", type=click.IntRange(0), required=True, help="Last partition, inclusive.")
_data_dir = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="dataPath of a broker that is stopped.",
)


def _range(start: int, end: int) -> range:
    if end < start:
        raise ConfigError("--end", end, f"is before --start={start}: name the last partition, inclusive")
    return range(start, end + 1)


@click.group()
def partitions() -> None:
    """Move partitions to another broker; close and open them; delete and renumber directories of a stopped broker.

    \b
    Example
      metaq partitions move --topic trades --from 0 --to 1
      metaq partitions close --topic trades --start 0 --end 3 --broker 0
      metaq partitions renumber --data-dir /data/meta --topic trades --start 4 --end 7 --offset -4
    """


@partitions.command("close")
@target_options
@dry_run_option
@json_option
@_topic
@_start
@_end
def close(target: Target, dry_run: bool, as_json: bool, topic: str, start: int, end: int) -> None:
    """Close the partitions --start to --end of a topic at a broker: it refuses puts and gets on them until you open the
    partitions or restart the broker. The broker's server.ini must contain the topic.

    In a broker set every node closes these partitions, the leader last.

    \b
    Example
      metaq partitions close --topic trades --start 0 --end 3 --broker 0
    """
    chosen = _range(start, end)

    def act(connection: Connection) -> list[int]:
        if dry_run:
            check_topic(connection, topic)
            echo(f"would close {_names(topic, chosen)} on {connection.endpoint}")
            return []
        try:
            return close_partitions(connection, topic, start, end)
        except TopicNotAccepted:
            check_topic(connection, topic)
            raise
        except RequestRefused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise ConfigError("--end", end, str(error)) from error

    closed = _at_target(target, act, "close them", "metaq partitions close")
    if not dry_run:
        say(as_json, {"topic": topic, "closed": closed}, f"closed now: {_names(topic, closed)}")


def _at_target(target: Target, act: Callable[[Connection], list[int]], failed: str, command: str) -> list[int]:
    """Call `act` with a connection to the target broker and return its result. If the target is a broker set, call
    `act` for all of its nodes, the leader last, and return the leader's result. All nodes must be changed: if a node
    that was left out became the leader later, it would serve requests that the present leader refuses. failed,
    command: as in at_every_node.
    """
    endpoint, found = target.found()
    if found is None:
        with target.connected(endpoint) as connection:
            return act(connection)

    def at_node(connection: Connection) -> list[int]:
        try:
            return act(connection)
        except RequestRefused as error:
            if error.code != ResponseCode.NOT_LEADER:
                raise
            echo(f"metaq: {connection.endpoint} is left out: its version takes this only while it leads", err=True)
            return []

    return [done for _, done in at_every_node(*found, at_node, failed, command)][-1]


@partitions.command("open")
@target_options
@dry_run_option
@json_option
@_topic
def open_(target: Target, dry_run: bool, as_json: bool, topic: str) -> None:
    """Open all closed partitions of a topic again.

    \b
    Example
      metaq partitions open --topic trades --broker 0
    """

    def act(connection: Connection) -> list[int]:
        if dry_run:
            check_topic(connection, topic)
            echo(f"would open all closed partitions of {topic} on {connection.endpoint}")
            return []
        opened = open_partitions(connection, topic)
        if not opened:
            check_topic(connection, topic)
        return opened

    opened = _at_target(target, act, "open them", "metaq partitions open")
    if not dry_run:
        say(as_json, {"topic": topic, "opened": opened}, f"opened: {_names(topic, opened)}")


@partitions.command("delete")
@_data_dir
@_topic
@_start
@_end
@yes_option
@dry_run_option
@json_option
def delete(data_dir: Path, topic: str, start: int, end: int, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the directories of partitions --start to --end with everything in them. Unless --yes is given, the command
    asks before it deletes each directory. Deleted data cannot be restored.

    \b
    Example
      metaq partitions delete --data-dir /data/meta --topic trades --start 4 --end 7
    """
    chosen = _range(start, end)
    with DataDirectory(data_dir, lock=not dry_run) as directory:
        paths = directory.existing(topic, chosen)
        _warn_of_replay(directory, topic, chosen)
        for path in paths:
            if dry_run:
                echo(f"would delete {path}")
                continue
            confirm(f"delete {path} with everything in it?", yes=yes)
            delete_directory(path)
            if not as_json:
                echo(f"deleted {path}")
    if as_json:
        print_json({"deleted": [] if dry_run else list(map(str, paths))})


@partitions.command("renumber")
@_data_dir
@_topic
@_start
@_end
@click.option("--offset", type=int, required=True, help="Number to add to each partition number; may be negative.")
@yes_option
@dry_run_option
@json_option
def renumber(
    data_dir: Path, topic: str, start: int, end: int, offset: int, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Rename the directories of partitions --start to --end: `topic-i` becomes `topic-(i+offset)`.

    No directory is renamed if a source directory is missing or a target directory exists. The committed offsets of
    consumer groups keep the old partition numbers: copy them with `metaq offsets copy`.

    \b
    Example
      metaq partitions renumber --data-dir /data/meta --topic trades --start 4 --end 7 --offset -4
    """
    chosen = _range(start, end)
    with DataDirectory(data_dir, lock=not dry_run) as directory:
        moves = directory.plan_move(topic, chosen, offset)
        _warn_of_replay(directory, topic, chosen)
        if not dry_run:
            confirm(f"move {_names(topic, chosen)} by {offset:+d}?", yes=yes)
            move_directories(directory.path, moves)
    value = {"moved": [] if dry_run else [{"from": str(old), "to": str(new)} for old, new in moves]}
    done = "would move" if dry_run else "moved"
    say(as_json, value, "\n".join(f"{done} {old} to {new}" for old, new in moves))


def _warn_of_replay(directory: DataDirectory, topic: str, chosen: Sequence[int]) -> None:
    if named := directory.replayed(topic, chosen):
        echo(
            f"warning: the transaction log of {directory.path} has commits to {', '.join(named)}: a broker would write "
            "those messages again at its start; `metaq check` shows what is in the log",
            err=True,
        )


def _names(topic: str, chosen: Sequence[int]) -> str:
    return ", ".join(f"{topic}-{each}" for each in chosen) or "none"


for _command in (move_partitions, list_moves):
    partitions.add_command(_command)

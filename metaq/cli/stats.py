"""The command `metaq stats`: print the statistics that one broker reports in its answer to 1.x's `stats` command. The
broker may be a Java broker or one of metaq's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from metaq.client.questions.partition_bounds import read_stats
from metaq.client.runtime.nearest import did_you_mean
from metaq.client.transport.connection import Connection
from metaq.protocol.errors import NoPartition

from .cluster_access import Target, target_options
from .options import json_option
from .output import echo, print_json, show

__all__ = ["check_topic", "named_figures", "stats", "stats_rows"]

_ITEMS = (
    "topics",
    "offsets",
    "realtime",
    "journal",
    "certificate",
    "disk",
    "replication",
    "config",
    "help",
    "reset",
    "delayed",
    "halves",
    "shared",
    "access",
)
_TEXT_ITEMS = ("config", "help", "replication", "shared", "access")
_OF_A_TOPIC = "resultCode "
"""The beginning of the second line of the broker's answer if the broker takes the requested item as the name of a
topic, even of a topic that it does not know. The answer for a statistic has no such line. So the command can tell
whether an item that is not in _ITEMS is a topic, or a statistic that only this broker's version has.
"""
_IDENTIFIERS = ("pid", "broker_id", "port", "config_checksum", "part")
_Row = dict[str, object]


@click.command()
@target_options
@json_option
@click.option("--raw", is_flag=True, help="Print the lines as the broker sends them.")
@click.argument("item", default="")
def stats(target: Target, as_json: bool, raw: bool, item: str) -> None:
    """Show statistics of a broker. ITEM: topics, offsets, realtime, journal, disk, certificate, listeners, replication,
    delayed, halves, shared, access, config, help, reset or a topic.

    If ITEM is not given, the command shows the statistics of the broker process itself. The item reset sets the
    statistics of the item realtime to zero.

    \b
    Example
      metaq stats --broker 0
      metaq stats --server 127.0.0.1:8123 offsets --json
    """
    with target.connected() as connection:
        lines = read_stats(connection, item)
        if any(line.startswith(_OF_A_TOPIC) for line in lines[1:2]):
            check_topic(connection, item, _ITEMS)
    if raw or (item in _TEXT_ITEMS and not as_json):
        echo("\n".join(lines))
    elif item in _TEXT_ITEMS:
        print_json({"item": item, "lines": lines})
    elif item in ("topics", "offsets"):
        rows = stats_rows(lines)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[_shown(name, row.get(name)) for name in columns] for row in rows]
        show(as_json, rows, [name.replace("_", " ").upper() for name in columns], cells)
    else:
        figures = named_figures(lines)
        show(as_json, figures, ("NAME", "VALUE"), [(name, _shown(name, value)) for name, value in figures.items()])


def check_topic(connection: Connection, topic: str, others: Sequence[str] = ()) -> None:
    """Raise NoPartition if the broker has no partition of the topic and its server.ini does not contain the topic. The
    error text suggests the most similar name among the broker's topics and `others`.
    """
    known = [str(row["topic"]) for row in stats_rows(read_stats(connection, "topics"))]
    if topic not in known:
        near = did_you_mean(
            topic, [*known, *(each for each in others if each != topic)], "`metaq stats topics` shows those that it has"
        )
        raise NoPartition(f"{connection.endpoint} has no topic {topic!r}: {near}")


def named_figures(lines: Sequence[str]) -> _Row:
    """Parse lines of the form `name value` into a dict. Whole numbers become int. A line of a single word (a topic's
    name) becomes an entry with an empty value.
    """
    return {name: _value(value) for name, _, value in (line.partition(" ") for line in lines if line)}


def stats_rows(lines: Sequence[str]) -> list[_Row]:
    """Parse lines of the form `<topic> name value name value …` into one dict for each line. If a line has `*Empty*`
    instead of values, its dict has only the topic.
    """
    rows: list[_Row] = []
    for line in lines:
        topic, *words = line.split(" ")
        rows.append({"topic": topic, **{k: _value(v) for k, v in zip(words[::2], words[1::2], strict=False)}})
    return rows


def _shown(name: str, value: object) -> object:
    """Return the value as the table shows it. A number that identifies something, such as an id or a port, gets no
    thousands separators; a quantity gets them.
    """
    return str(value) if name in _IDENTIFIERS and value is not None else value


def _value(text: str) -> object:
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else text

"""Types for the values of options, and options that several commands have. These types check a value before the command
opens any file or connection.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from metaq.protocol.errors import ClientError, ConfigError
from metaq.protocol.limits import (
    INT64_MAX,
    MAX_KEY_CHARACTERS,
    check_group,
    check_new_topic,
    check_topic,
    check_zookeeper_group,
    check_zookeeper_topic,
)
from metaq.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from metaq.client.questions.places import Position

__all__ = [
    "BYTES",
    "GROUP",
    "PARTITION",
    "PORT",
    "POSITION",
    "POSITIVE_SECONDS",
    "SECONDS",
    "STORED_GROUP",
    "STORED_TOPIC",
    "TIME",
    "TOPIC",
    "TOPIC_SETTING",
    "TOPIC_WITH_PARTITIONS",
    "ZK_METAVAR",
    "ZK_TIMEOUT_SECONDS",
    "Parsed",
    "PartitionName",
    "Seconds",
    "TopicSetting",
    "TopicSpec",
    "confirm",
    "dry_run_option",
    "json_option",
    "with_options",
    "yes_option",
    "zk_option",
]

MAX_PARTITIONS = 65_536
ZK_METAVAR = "HOST:PORT[,...][/CHROOT]"


T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Parsed(click.ParamType[T]):
    """A type of options that converts the text of a value by `parse`. If `parse` raises a ValueError (InvalidName is
    one), the user sees the text of the ValueError.

    A value that is not a text is left unchanged, because it is a default or click has already converted it.
    """

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return cast(T, value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TopicSpec(NamedTuple):
    """A topic that a user wants to have in server.ini, and its number of partitions on each broker."""

    name: str
    partitions: int


def _topic_spec(text: str) -> TopicSpec:
    """Parse `NAME` or `NAME:PARTITIONS`."""
    name, colon, number = text.rpartition(":")
    if not colon:
        name, number = number, "1"
    if not _is_digits(number) or not 1 <= int(number) <= MAX_PARTITIONS:
        raise ValueError(f"{text!r}: the number of partitions is from 1 to {MAX_PARTITIONS}, like trades:4")
    return TopicSpec(check_new_topic(name), int(number))


class TopicSetting(NamedTuple):
    """A setting to write into a topic's section of server.ini."""

    topic: str
    name: str
    value: str


def _topic_setting(text: str) -> TopicSetting:
    """Parse `TOPIC.NAME=VALUE`. The topic's name may contain dots itself."""
    place, sign, value = text.partition("=")
    topic, dot, name = place.rpartition(".")
    if not (sign and dot and name.isalnum() and value.isprintable()):
        raise ValueError(f"{text!r} is no setting of a topic: write it like logs.acceptCompressed=true")
    return TopicSetting(check_new_topic(topic), name, value)


class PartitionName(NamedTuple):
    """The name of a partition in the form of 1.x: `<brokerId>-<partition>`."""

    broker_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.partition}"


def _partition_name(text: str) -> PartitionName:
    _, broker, partition = TopicPartition.parse("", text)
    return PartitionName(broker, partition)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _moment(text: str) -> datetime | None:
    """Parse a time in ISO 8601; a time without a time zone is a local time. Return None if the text is not a time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _time(text: str) -> datetime:
    if (moment := _moment(text)) is None:
        raise ValueError(f"{text!r} is not a time: write it like 2024-05-01T10:00:00Z")
    return moment


def _position(text: str) -> Position:
    """Parse a position: `earliest`, `latest`, a byte offset, a time, `-COUNT` messages before the end, or a message:
    `id:ID`, `key:KEY`.

    Raises ValueError for any other text; the error text names these choices.
    """
    from metaq.client.questions.places import AtKey, AtMessage, Last  # commands without a cluster do not need it

    if text in ("earliest", "latest"):
        return text
    if _is_digits(text) and int(text) <= INT64_MAX:
        return int(text)
    if text[:1] == "-" and _is_digits(text[1:]) and int(text[1:]) <= INT64_MAX:
        return Last(int(text[1:]))
    if text.startswith("id:") and _is_digits(text[3:].removeprefix("-")) and abs(int(text[3:])) <= INT64_MAX:
        return AtMessage(int(text[3:]))
    if text.startswith("key:") and 0 < len(text[4:]) <= MAX_KEY_CHARACTERS:
        return AtKey(text[4:])
    if (moment := _moment(text)) is None:
        raise ValueError(
            f"{text!r} is not a position: choose earliest, latest, a byte offset like 4096, a time like "
            "2024-05-01T10:00:00Z, -100 for the last 100 messages, id:ID or key:KEY of a message"
        )
    return moment


class Seconds(click.FloatRange):
    """The type of an option whose value is a duration in seconds; 0.5 is half a second."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):  # nan would pass every range check
            self.fail(f"{value!r} is not a number of seconds, like 2.5", param, ctx)
        return seconds


_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _bytes(text: str) -> int:
    """Parse a size in bytes, with an optional unit k, m, g or t (powers of 1,024), for example 512m."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in _UNITS else (text, "")
    if not _is_digits(number):
        raise ValueError(f"{text!r} is not a number of bytes, like 512m or 1g")
    return int(number) << _UNITS[unit]


def _connect(text: str) -> str:
    from metaq.coordination.session.zk_session import check_connect  # kazoo: commands without a cluster do not need it

    try:
        return check_connect(text)
    except ConfigError:
        raise ValueError(f"{text!r} is not a connect string: use host:port[,host:port...][/chroot]") from None


TOPIC = Parsed("TOPIC", check_zookeeper_topic)
GROUP = Parsed("GROUP", check_zookeeper_group)
STORED_TOPIC = Parsed("TOPIC", check_topic)
"""The type of a topic's name in commands that send the name to a broker or look for it in a data directory. This type
also accepts names that are not allowed in ZooKeeper, because brokers of earlier versions created topics with such
names.
"""
STORED_GROUP = Parsed("GROUP", check_group)
"""The type of the name of a shared group. Like STORED_TOPIC, it also accepts names that ZooKeeper does not accept."""
TOPIC_SETTING = Parsed("TOPIC.NAME=VALUE", _topic_setting)
TOPIC_WITH_PARTITIONS = Parsed("NAME[:PARTITIONS]", _topic_spec)
PARTITION = Parsed("BROKER-PARTITION", _partition_name)
POSITION: Parsed[Position] = Parsed("earliest|latest|TIME|OFFSET|-COUNT|id:ID|key:KEY", _position)
TIME = Parsed("TIME", _time)
SECONDS = Seconds(min=0)
POSITIVE_SECONDS = Seconds(min=0, min_open=True)
BYTES = Parsed("BYTES", _bytes)
ZK_TIMEOUT_SECONDS = 10.0
"""Default of --zk-timeout, in seconds."""
PORT = click.IntRange(0, 65535)
"""The type of a TCP port; with 0 the operating system chooses a free port."""


class _ZkOption(click.Option):
    """The option --zk. A user may give its value after the command's name, before the command's name, or in an
    environment variable. If the user gives several values, the first in this order is used.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        in_front = ctx.find_root().params.get("zk")
        return super().resolve_envvar_value(ctx) if in_front is None else str(in_front)


zk_option = click.option(
    "--zk",
    cls=_ZkOption,
    type=Parsed(ZK_METAVAR, _connect),
    metavar=ZK_METAVAR,
    envvar="METAQ_ZK",
    default="127.0.0.1:2181",
    show_default=True,
    show_envvar=True,
    help="ZooKeeper connect string.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask before it is done.")


def with_options(call: Callable[..., Any], command: Callable[..., Any], *options: Decorator) -> Callable[..., Any]:
    """Return a click function that runs `call`, a wrapper of the click function `command`. It has the options of
    `command` and in addition `options`, which its help lists first.
    """
    wrapped: Callable[..., Any] = wraps(command)(call)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user the question on stderr, unless `yes` is set. Raises ClientError if the answer is no or if stdin is
    closed, and click.Abort for Ctrl-C.
    """
    if yes:
        return
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise ClientError("stdin gives no answer, so nothing was changed: add --yes to skip the question") from None
    if not answer:
        raise ClientError("nothing more was changed")

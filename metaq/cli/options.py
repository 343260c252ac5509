"""Option types and options that several commands share. A wrong value is refused before anything is opened."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from metaq.protocol.errors import ClientError, ConfigError, InvalidName
from metaq.protocol.limits import INT64_MAX, MAX_KEY_CHARACTERS, check_group, check_topic
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
    "TIME",
    "TOPIC",
    "TOPIC_WITH_PARTITIONS",
    "ZK_METAVAR",
    "ZK_TIMEOUT_SECONDS",
    "Seconds",
    "TopicSpec",
    "confirm",
    "dry_run_option",
    "json_option",
    "yes_option",
    "zk_option",
]

MAX_PARTITIONS = 65_536
ZK_METAVAR = "HOST:PORT[,...][/CHROOT]"


class _Name(click.ParamType[str]):
    def __init__(self, kind: str, check: Callable[[str], str]) -> None:
        self.name = kind
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return self._check(value)
        except InvalidName as error:
            self.fail(str(error), param, ctx)


class TopicSpec(NamedTuple):
    """A topic to configure and its number of partitions per broker."""

    name: str
    partitions: int


class _TopicWithPartitions(click.ParamType[TopicSpec]):
    """`NAME` or `NAME:PARTITIONS`."""

    name = "NAME[:PARTITIONS]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TopicSpec:
        if isinstance(value, TopicSpec):
            return value
        name, colon, number = str(value).rpartition(":")
        if not colon:
            name, number = number, "1"
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= MAX_PARTITIONS:
            self.fail(f"{value!r}: the number of partitions is from 1 to {MAX_PARTITIONS}, like trades:4", param, ctx)
        return TopicSpec(TOPIC.convert(name, param, ctx), int(number))


class PartitionName(NamedTuple):
    """A partition as 1.x writes it: `<brokerId>-<partition>`."""

    broker_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.partition}"


class _Partition(click.ParamType[PartitionName]):
    name = "BROKER-PARTITION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> PartitionName:
        if isinstance(value, PartitionName):
            return value
        try:
            _, broker, partition = TopicPartition.parse("", str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)
        return PartitionName(broker, partition)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


class _Time(click.ParamType[datetime]):
    """A time in ISO 8601, local time unless it names a zone."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return _moment(str(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: write it like 2024-05-01T10:00:00Z", param, ctx)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class _Position(click.ParamType["Position"]):
    """`earliest`, `latest`, a byte offset, a time in ISO 8601 (local time unless it names a zone), `-COUNT` messages
    before the end, or a message: `id:ID`, `key:KEY`.
    """

    name = "earliest|latest|TIME|OFFSET|-COUNT|id:ID|key:KEY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        from metaq.client.questions.places import AtKey, AtMessage, Last  # not for commands that ask no cluster

        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if value in ("earliest", "latest"):
            return value
        if _is_digits(value) and int(value) <= INT64_MAX:
            return int(value)
        if value[:1] == "-" and _is_digits(value[1:]) and int(value[1:]) <= INT64_MAX:
            return Last(int(value[1:]))
        if value.startswith("id:") and _is_digits(value[3:].removeprefix("-")) and abs(int(value[3:])) <= INT64_MAX:
            return AtMessage(int(value[3:]))
        if value.startswith("key:") and 0 < len(value[4:]) <= MAX_KEY_CHARACTERS:
            return AtKey(value[4:])
        try:
            return _moment(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a position: choose earliest, latest, a byte offset like 4096, a time like "
                "2024-05-01T10:00:00Z, -100 for the last 100 messages, id:ID or key:KEY of a message",
                param,
                ctx,
            )


class Seconds(click.FloatRange):
    """A duration in seconds; 0.5 is half a second."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):  # nan is in every range
            self.fail(f"{value!r} is not a number of seconds, like 2.5", param, ctx)
        return seconds


class _Bytes(click.ParamType[int]):
    """A size in bytes, perhaps with a unit k, m, g or t (of 1,024): 512m."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
        if not (number.isascii() and number.isdecimal()):
            self.fail(f"{value!r} is not a number of bytes, like 512m or 1g", param, ctx)
        return int(number) << _UNITS[unit]


_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

TOPIC = _Name("TOPIC", check_topic)
GROUP = _Name("GROUP", check_group)
TOPIC_WITH_PARTITIONS = _TopicWithPartitions()
PARTITION = _Partition()
POSITION = _Position()
TIME = _Time()
SECONDS = Seconds(min=0)
POSITIVE_SECONDS = Seconds(min=0, min_open=True)
BYTES = _Bytes()
ZK_TIMEOUT_SECONDS = 10.0
"""Default of --zk-timeout."""
PORT = click.IntRange(0, 65535)
"""A TCP port; 0 lets the system choose a free one."""


class _Connect(click.ParamType[str]):
    name = ZK_METAVAR

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaq.coordination.session import check_connect  # kazoo: not for commands that ask no cluster

        try:
            return check_connect(str(value))
        except ConfigError:
            self.fail(f"{value!r} is not a connect string: use host:port[,host:port...][/chroot]", param, ctx)


class _ZkOption(click.Option):
    """Behind the command, else in front of it, else of the environment."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        in_front = ctx.find_root().params.get("zk")
        return super().resolve_envvar_value(ctx) if in_front is None else str(in_front)


zk_option = click.option(
    "--zk",
    cls=_ZkOption,
    type=_Connect(),
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


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr, unless `yes`. Raises ClientError for a no and for a closed stdin; click.Abort for Ctrl-C."""
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

"""The command `metaq consume`: print messages of a topic on stdout, like kcat."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from metaq.client.questions.places import Position
from metaq.client.records.message import Message
from metaq.protocol.errors import CorruptRecord, RequestTimedOut
from metaq.protocol.pulls import TAG_EXPRESSION, is_tag_expression
from metaq.protocol.where import Where, parse_where

from .cluster_access import open_cluster, tell_absent, zk_timeout
from .direct_read import Wanted, read_topic
from .options import GROUP, PARTITION, POSITION, SECONDS, TOPIC, Parsed, PartitionName, zk_option
from .output import FORMAT_HELP, compile_format, echo, json_text, message_fields
from .servers import stop_signal

__all__ = ["consume"]

POLL_SECONDS = 0.5
"""The command waits at most this number of seconds for messages before it checks for Ctrl-C and --timeout again."""
POLL_MESSAGES = 1000
EXIT_INCOMPLETE = 1

MessageFormat = Callable[[Message], bytes]


def _tag(text: str) -> str:
    if is_tag_expression(text):
        raise ValueError(f"{TAG_EXPRESSION} --tag A --tag B")
    return text


@click.command(epilog=f"Fields of --format: {FORMAT_HELP}")
@zk_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic to read.")
@click.option("--group", "-g", type=GROUP, help="Join this consumer group and commit its offsets.")
@click.option(
    "--from",
    "start",
    type=POSITION,
    default="earliest",
    show_default=True,
    help="Where to begin; with --group only in partitions without a committed offset, and not at an OFFSET.",
)
@click.option("--partition", "-p", "only", type=PARTITION, multiple=True, help="Only this partition; repeat for more.")
@click.option("--count", "-c", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=SECONDS, help="Stop when nothing came for this long; fails if --count was not reached.")
@click.option("--follow", "-f", is_flag=True, help="Without --group: go on after the end, until --count or --timeout.")
@click.option(
    "--tag", "tags", type=Parsed("TAG", _tag), multiple=True, help="Only messages with this tag; repeat for more."
)
@click.option(
    "--where",
    "filters",
    type=Parsed("FILTER", parse_where),
    multiple=True,
    help="Only messages whose properties match, as \"region = 'EU' AND amount > 100\" (docs/filters.md).",
)
@click.option(
    "--format",
    "write",
    type=Parsed("FORMAT", compile_format),
    default="%s\\n",
    show_default=True,
    help="How to print a message, as in kcat.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each message as one line of JSON.")
def consume(
    zk: str,
    topic: str,
    group: str | None,
    start: Position,
    only: tuple[PartitionName, ...],
    count: int | None,
    timeout: float | None,
    follow: bool,
    tags: tuple[str, ...],
    filters: tuple[Where, ...],
    write: MessageFormat,
    as_json: bool,
) -> int:
    """Print messages of a topic.

    If --group is not given, the command reads all partitions from --from to their ends, and writes nothing to
    ZooKeeper. If --group is given, the command reads as a member of that consumer group, until --count, --timeout or
    Ctrl-C.

    If a broker does not answer, its partitions are left out and named on stderr. The exit code is then 1 unless --count
    is reached. With --follow, the command reads these partitions later, when the broker answers again.

    \b
    Example
      metaq consume --topic trades --format '%p %o %s\\n'
      metaq consume --topic trades --group audit --count 10 --timeout 30 --json
      metaq consume --topic orders --where "region = 'EU' AND amount > 100"
    """
    wanted = Wanted(topic, start, only, follow, _one_filter(filters))
    output = Output(_json_line if as_json else write, count)
    timer = IdleTimer(timeout)
    left_out: list[str] = []
    if group is None:
        left_out = _consume_directly(zk, wanted, tags, output, timer)
    else:
        _check_group_options(wanted)
        _consume_in_group(zk, group, wanted, tags, output, timer)
    if timer.expired and output.left:
        raise RequestTimedOut(
            f"only {output.printed:,} of --count={count} messages came before --timeout={timeout:g} s"
        )
    return EXIT_INCOMPLETE if left_out and not follow and output.left != 0 else 0


def _one_filter(filters: Sequence[Where]) -> Where | None:
    """Return the filter of the option --where, or None. More than one filter is refused, because it would not be clear
    whether a message must match one or all of them. (--tag may be repeated, because a message needs only one of the
    tags.)
    """
    if len(filters) > 1:
        joined = " AND ".join(f"({each.text})" for each in filters)
        raise click.BadParameter(
            f"it is given {len(filters)} times: join the filters, as {joined!r}", param_hint="--where"
        )
    return filters[0] if filters else None


def _consume_directly(zk: str, wanted: Wanted, tags: tuple[str, ...], output: Output, timer: IdleTimer) -> list[str]:
    """Print messages of the chosen partitions without a consumer group. Return a sentence for each broker that could
    not be read. This function has already printed these sentences on stderr.
    """
    left_out: list[str] = []

    def silent(sentence: str) -> None:
        left_out.append(sentence)
        echo(f"metaq: {sentence}", err=True)

    def may_wait() -> bool:
        output.flush()
        return timer.may_wait()

    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        for message in read_topic(cluster, wanted, idle=may_wait, on_damaged=_warn, on_silent=silent):
            if tags and message.tag not in tags:
                continue
            output.put(message)
            timer.message_came()
            if output.left == 0:
                break
    output.flush()
    return left_out


def _consume_in_group(
    zk: str, group: str, wanted: Wanted, tags: tuple[str, ...], output: Output, timer: IdleTimer
) -> None:
    from metaq import Consumer, ConsumerConfig  # needed only with a group

    with open_cluster(zk) as cluster:
        cluster.choose_partitions(wanted.topic)  # raises for a misspelt topic; a group for it would stay listed
        tell_absent(cluster)
    with (
        stop_signal() as stop,
        Consumer(
            zk,
            group=group,
            topics=[wanted.topic],
            start=wanted.start,
            tags=tags or None,
            where=None if wanted.where is None else wanted.where.text,
            config=ConsumerConfig(damage="skip", on_damaged=_warn, start_timeout_seconds=zk_timeout()),
        ) as consumer,
    ):
        while not stop.is_set() and output.left != 0 and timer.may_wait():
            limit = POLL_MESSAGES if output.left is None else min(POLL_MESSAGES, output.left)
            messages = consumer.poll(max_messages=limit, timeout=POLL_SECONDS)
            for message in messages:
                output.put(message)
            if messages:
                output.flush()  # printed before the offset can be committed
                timer.message_came()
    if stop.interrupted:
        raise KeyboardInterrupt  # the consumer has left its group


def _warn(damage: CorruptRecord) -> None:
    """Print a warning that the command has skipped damaged bytes. The command then continues with the messages after
    these bytes.
    """
    echo(f"metaq: warning: passed over {damage}", err=True)


def _check_group_options(wanted: Wanted) -> None:
    if isinstance(wanted.start, int):
        raise click.BadParameter(
            "is for one partition, but a group reads all; to move its offsets: metaq groups seek", param_hint="--from"
        )
    if wanted.only:
        raise click.BadParameter("the group decides who reads which partition: leave it out", param_hint="--partition")
    if wanted.follow:
        raise click.BadParameter("a group always goes on after the end: leave it out", param_hint="--follow")


class Output:
    """Prints messages on stdout. left: number of messages that may still be printed; it begins with the value of
    --count, and is None without --count.
    """

    def __init__(self, write: MessageFormat, count: int | None, stream: BinaryIO | None = None) -> None:
        self._write = write
        self._stream = stream or sys.stdout.buffer
        self.left = count
        self.printed = 0

    def put(self, message: Message) -> None:
        self._stream.write(self._write(message))
        self.printed += 1
        if self.left is not None:
            self.left -= 1

    def flush(self) -> None:
        self._stream.flush()


class IdleTimer:
    """Decides whether the command continues to wait for messages: without a timeout always, otherwise until `timeout`
    seconds have passed since the last message.
    """

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._last = clock()
        self.expired = False

    def message_came(self) -> None:
        self._last = self._clock()

    def may_wait(self) -> bool:
        self.expired = self._timeout is not None and self._clock() - self._last >= self._timeout
        return not self.expired


def _json_line(message: Message) -> bytes:
    return json_text(message_fields(message)).encode("utf-8") + b"\n"

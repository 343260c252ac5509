"""The command `metaq produce`: send each line of a file or of stdin as a message."""

from __future__ import annotations

import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple

import click

from metaq import Producer, ProducerConfig
from metaq.client.producer.building import SendOptions
from metaq.client.records.batches import split_batches
from metaq.protocol.errors import (
    ClientError,
    CompressionUnknown,
    LocalProtocolError,
    MetaqError,
    NoPartition,
    RequestRefused,
)
from metaq.protocol.limits import MAX_BODY_BYTES, is_utf8
from metaq.protocol.properties import PropertyValue
from metaq.protocol.record import encode_attributes
from metaq.protocol.statuses import ResponseCode

from .cluster_access import naming_topics, open_cluster, zk_timeout
from .options import POSITIVE_SECONDS, TOPIC, Parsed, json_option, zk_option
from .output import byte_size, counted, echo, print_json

__all__ = ["parse_property", "produce"]

READ_BYTES = 1 << 20


def parse_property(text: str) -> tuple[str, PropertyValue]:
    """Parse a property of the form `NAME=VALUE` or `NAME:TYPE=VALUE`. Raises ValueError for a text of another form, and
    for a value that no message can have; the error text says what is wrong.
    """
    name, sign, written = text.partition("=")
    if not sign:
        raise ValueError(f"{text!r} has no '=': write NAME=VALUE")
    name, colon, kind = name.rpartition(":")
    if not colon:
        name, kind = kind, "str"
    if kind not in _PROPERTY_TYPES:
        raise ValueError(f"{text!r}: {kind!r} is no type: choose {', '.join(_PROPERTY_TYPES)}")
    read, remedy = _PROPERTY_TYPES[kind]
    try:
        value = read(written)
    except ValueError:
        raise ValueError(f"{text!r}: {written!r} is no {kind}: write {remedy}") from None
    try:
        encode_attributes(properties={name: value})
    except LocalProtocolError as error:
        if not is_utf8(text):
            raise ValueError(f"{text!r} is no UTF-8: write NAME:bytes=BASE64") from None
        raise ValueError(f"{text!r}: {error}") from None
    return name, value


def _each_once(properties: Iterable[tuple[str, PropertyValue]]) -> dict[str, PropertyValue]:
    """Return the properties as a dict. Raises BadParameter for a repeated property."""
    for name, times in Counter(name for name, _ in properties).items():
        if times > 1:
            wrong = f"{name!r} is given {times} times, and a message has it once: leave one out"
            raise click.BadParameter(wrong, param_hint="'--property'")
    return dict(properties)


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_PROPERTY_TYPES: Mapping[str, tuple[Callable[[str], PropertyValue], str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number, like 7"),
    "float": (float, "a number, like 0.5"),
    "bool": (_bool, "true or false"),
    "bytes": (lambda text: b64decode(text, validate=True), "base64, like /w=="),
}
"""For each TYPE in `NAME:TYPE=VALUE`, the function that parses the value, and a description of valid values."""


class LineChunk(NamedTuple):
    """Lines of the input without their line feeds, and the number of bytes that were read for these lines."""

    lines: list[bytes]
    read_bytes: int


SendLines = Callable[[list[bytes]], tuple[int, Iterable[int | None]]]
"""A function that sends lines as messages and waits until all messages are acknowledged.

The function returns the number of payload bytes, and the different values that SendResult.replicas has for the
messages: how many nodes have a message.
"""


@dataclass(slots=True)
class Progressed:
    """Counts of the messages that were acknowledged so far."""

    messages: int = 0
    payload_bytes: int = 0
    read_bytes: int = 0
    replicas: set[int | None] = field(default_factory=set)
    """The different values of SendResult.replicas for the acknowledged messages: the number of nodes that have a
    message, or None if the broker has not reported this number.
    """
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


@click.command()
@zk_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic to send to.")
@click.option("--tag", help="Tag of every message; consumers can filter on it.")
@click.option(
    "--key-separator", metavar="TEXT", help="Text between key and payload in each line; a key keeps to one partition."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Maximum messages in one request; lines that arrive slowly are sent at once.",
)
@click.option(
    "--property",
    "properties",
    type=Parsed("NAME[:TYPE]=VALUE", parse_property),
    multiple=True,
    help="Property of every message; TYPE is int, float, bool or bytes (base64); default: text. Repeat for more.",
)
@click.option("--ttl", type=POSITIVE_SECONDS, help="Consumers get the messages for this long only.")
@click.option("--compression", type=click.Choice(["zstd"]), help="Compress each message; the topic must allow it.")
@json_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), default="-")
def produce(
    zk: str,
    topic: str,
    tag: str | None,
    key_separator: str | None,
    batch: int,
    properties: tuple[tuple[str, PropertyValue], ...],
    ttl: float | None,
    compression: Literal["zstd"] | None,
    as_json: bool,
    file: Path,
) -> None:
    """Send each line of FILE (default: stdin) as one message, without its line feed. A carriage return at the end of a
    line stays in the message.

    Batches of messages go round robin over the topic's partitions. The command ends when every message is acknowledged.
    If the command fails or is ended by Ctrl-C, it prints how many messages were acknowledged.

    \b
    Example
      seq 1000 | metaq produce --topic numbers
      metaq produce --topic orders --key-separator : orders.txt
    """
    if str(file) == "-" and sys.stdin is None:
        raise click.UsageError("stdin is closed: name a FILE, or give the lines to stdin")
    if key_separator == "":
        raise click.BadParameter("'' separates nothing: give a text like ':'", param_hint="--key-separator")
    progressed = Progressed()
    options = SendOptions(tag=tag, properties=_each_once(properties), ttl=ttl)
    config = ProducerConfig(start_timeout_seconds=zk_timeout(), compression=compression)
    with (
        click.open_file(str(file), "rb") as stream,
        naming_topics(zk, topic),
        Producer(zk, config=config) as producer,
    ):
        send = (
            _batch_sender(producer, topic, options)
            if key_separator is None
            else _keyed_sender(producer, topic, options, key_separator.encode())
        )
        size = file.stat().st_size if file.is_file() else None
        with _progress_bar(f"to {topic}", size) as advance:
            _send_lines(line_chunks(stream), send, batch, progressed, advance)
    if not progressed.messages:  # no line was sent, so no send has checked the topic
        with open_cluster(zk) as cluster:
            cluster.partitions(topic)
    _print_summary(topic, progressed, as_json)


def _send_lines(
    chunks: Iterable[LineChunk],
    send: SendLines,
    group: int,
    progressed: Progressed,
    advance: Callable[[Progressed], None],
) -> None:
    try:
        for chunk in chunks:
            for lines in split_batches(chunk.lines, group):
                payload_bytes, replicas = send(lines)
                progressed.payload_bytes += payload_bytes
                progressed.replicas.update(replicas)
                progressed.messages += len(lines)
            progressed.read_bytes += chunk.read_bytes
            advance(progressed)
    except MetaqError as error:
        if not progressed.messages and isinstance(error, NoPartition):
            raise
        raise ClientError(f"{error}; {_acknowledged(progressed.messages, _stored_nothing(error))}") from error
    except KeyboardInterrupt:
        echo(f"metaq produce: interrupted; {_acknowledged(progressed.messages)}", err=True)
        raise


def _acknowledged(lines: int, is_certain: bool = False) -> str:
    """Return a sentence for the user that tells how many lines are acknowledged, and how to continue. is_certain:
    whether it is certain that no later line is stored.
    """
    twice = "" if is_certain else "; some may come twice"
    if not lines:
        return f"no line is {'stored' if is_certain else 'acknowledged'}: send all again{twice}"
    return (
        f"acknowledged: the first {f'{lines:,} lines' if lines > 1 else 'line'}; to resume: tail -n +{lines + 1}{twice}"
    )


class _BadLine(ClientError):
    """Raised before a send call sends anything if one of its lines is not a valid message."""


def _stored_nothing(error: MetaqError) -> bool:
    """Return whether it is certain that no line of a failed send call is stored.

    The result is False if the request or its answer may have been lost, because the broker may have stored the lines
    nevertheless. It is also False if a 1.x broker refuses a line, because each line is a separate request to a 1.x
    broker and other lines may be stored.
    """
    if isinstance(error, RequestRefused):
        return error.code == ResponseCode.MESSAGE_ILLEGAL
    return isinstance(error, _BadLine | CompressionUnknown | LocalProtocolError)


def line_chunks(stream: IO[bytes]) -> Iterator[LineChunk]:
    """Read `stream` to its end, and yield its lines in chunks. One read returns the bytes that have arrived, at most
    READ_BYTES; the chunk contains the lines that are complete after this read.
    """
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while data := read(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_BODY_BYTES:
            raise _BadLine(f"a line is longer than {MAX_BODY_BYTES:,} bytes, the limit of one message: split it")
        if lines:
            yield LineChunk(lines, len(data))
    if rest:
        yield LineChunk([rest], 0)


def _batch_sender(producer: Producer, topic: str, options: SendOptions) -> SendLines:
    def send(lines: list[bytes]) -> tuple[int, Iterable[int | None]]:
        results = producer.send_batch(topic, lines, **options)
        return sum(map(len, lines)), (results[0].replicas,)

    return send


def _keyed_sender(producer: Producer, topic: str, options: SendOptions, separator: bytes) -> SendLines:
    def send(lines: list[bytes]) -> tuple[int, Iterable[int | None]]:
        pairs = [_split_key(line, separator) for line in lines]
        futures = []
        for key, payload in pairs:
            options["key"] = key
            try:
                futures.append(producer.send_async(topic, payload, **options))
            except MetaqError as error:
                raise _with_others(error, is_alone=not futures) from error
        errors = [failed for each in futures if isinstance(failed := each.exception(), MetaqError)]
        if errors:
            worst = next((each for each in errors if not _stored_nothing(each)), errors[0])
            raise _with_others(worst, is_alone=len(errors) == len(futures)) from worst
        results = [future.result() for future in futures]
        return sum(len(payload) for _, payload in pairs), {result.replicas for result in results}

    return send


def _with_others(error: MetaqError, is_alone: bool) -> MetaqError:
    """Return the error to raise if the send of a line has failed with `error`. If the line was sent alone, return
    `error` itself. Otherwise return a ClientError with the same text, because other lines of the same send call may be
    stored: for a ClientError, `_stored_nothing` returns False, which it may not do for `error`.
    """
    return error if is_alone else ClientError(str(error))


def _split_key(line: bytes, separator: bytes) -> tuple[str, bytes]:
    key, found, payload = line.partition(separator)
    if not found:
        raise _BadLine(f"line {line[:40]!r} has no {separator.decode()!r} to end its key: see --key-separator")
    return key.decode("utf-8", "replace"), payload


@contextmanager
def _progress_bar(title: str, total_bytes: int | None) -> Iterator[Callable[[Progressed], None]]:
    """Show a progress bar on stderr, if stderr is a terminal and the input does not come from a terminal. Yield a
    function that updates the bar.
    """
    if not sys.stderr.isatty() or (total_bytes is None and sys.stdin.isatty()):
        yield lambda _: None
        return
    # not needed by commands without a bar
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from .terminal import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[messages]:,} messages"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(sys.stderr)) as bar:
        task = bar.add_task(title, total=total_bytes, messages=0)
        yield lambda progressed: bar.update(task, completed=progressed.read_bytes, messages=progressed.messages)


def _print_summary(topic: str, progressed: Progressed, as_json: bool) -> None:
    seconds = progressed.seconds
    rate = progressed.messages / seconds
    size = byte_size(progressed.payload_bytes)
    known = sorted(each for each in progressed.replicas if each is not None)
    is_known = known and None not in progressed.replicas
    if as_json:
        print_json(
            {
                "topic": topic,
                "messages": progressed.messages,
                "bytes": progressed.payload_bytes,
                "seconds": round(seconds, 3),
                "messages_per_second": round(rate),
                "replicas": known[0] if is_known else None,
            }
        )
        return
    nodes = ""
    if known:
        number = f"{known[0]} to {known[-1]}" if len(known) > 1 else known[0]
        nodes = ", on one node alone" if known == [1] else f", on {number} nodes"
        nodes += "" if is_known else ", and some of them on brokers that are no set"
    sent = (
        f"sent {counted(progressed.messages, 'message')} ({size}) to {topic} in {seconds:.2f} s: {rate:,.0f}/s{nodes}"
    )
    echo(sent, err=True)

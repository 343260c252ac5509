"""The command `metaq dead-letters`: show messages that a group's handlers could not process, send them again, drop
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any

import click

from metaq.client.admin.known import check_known_group
from metaq.client.browsing.dead_letters import DeadLetter, DeadLetters, Redriven, RedriveTo
from metaq.protocol.errors import MessageNotFound
from metaq.protocol.own_topics import retry_topic
from metaq.protocol.topic_partition import TopicPartition

from .cluster_access import open_cluster, tell_absent, zk_timeout
from .options import GROUP, TIME, Parsed, confirm, dry_run_option, json_option, with_options, yes_option, zk_option
from .output import counted, echo, field_text, message_fields, show

__all__ = ["dead_letters"]

LISTED = 100
"""Maximum number of dead letters that `list` shows by default; this is one or two screens."""

_SHOWN_BYTES = 40


def _name(text: str) -> str:
    """Check that a text is the name of a dead letter, `<broker>-<partition>:<offset>`, and return it."""
    partition, colon, offset = text.partition(":")
    if not colon or not offset.isdecimal():
        raise ValueError(f"{text!r} is not a dead letter: write it as `list` shows it, for example 0-0:4096")
    TopicPartition.parse("", partition)
    return text


NAME = Parsed("NAME", _name)


@click.group("dead-letters")
def dead_letters() -> None:
    """List and show the dead letters of a group; send them again, or drop them.

    A message becomes a dead letter when it has failed as often as `run(retry=Retry(attempts=...))` allows, by default
    16 times. Each dead letter has a NAME, for example 0-0:4096. --since and --until refer to the time of the message's
    last failure.

    \b
    Example
      metaq dead-letters list --group mailer
      metaq dead-letters redrive --group mailer --cause Timeout --yes
    """


def _group_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return zk_option(click.option("--group", "-g", type=GROUP, required=True, help="Their group.")(command))


def _filter_options(limit: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds to a command the options by which the user chooses dead letters. The command
    receives the values of the options as one argument `chosen`, for DeadLetters.read.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def call(
            since: datetime | None,
            until: datetime | None,
            cause: str | None,
            key: str | None,
            limit: int | None,
            **others: Any,
        ) -> Any:
            chosen = {"since": since, "until": until, "cause": cause, "key": key, "limit": limit}
            return command(chosen=chosen, **others)

        return with_options(
            call,
            command,
            click.option("--since", type=TIME, help="Failed last at this time or later."),
            click.option("--until", type=TIME, help="Failed last at this time or earlier."),
            click.option("--cause", help="Text in the cause or its place, in any case."),
            click.option("--key", "-k", help="One of the keys of the message, exactly."),
            click.option(
                "--limit",
                "-n",
                type=click.IntRange(1),
                default=limit,
                show_default=limit is not None,
                help="Maximum number." if limit else "Maximum number; default: all.",
            ),
        )

    return decorate


@contextmanager
def _opened(zk: str, group: str) -> Iterator[DeadLetters]:
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        check_known_group(cluster, group)
    with DeadLetters(zk, group=group, start_timeout_seconds=zk_timeout()) as letters:
        yield letters


@dead_letters.command("list")
@_group_option
@json_option
@_filter_options(LISTED)
def list_letters(zk: str, group: str, as_json: bool, chosen: dict[str, Any]) -> None:
    """List the dead letters of a group, the oldest of each partition first.

    \b
    Example
      metaq dead-letters list --group mailer --since 2026-01-31T08:00:00Z --cause Timeout
    """
    limit: int = chosen.pop("limit")
    with _opened(zk, group) as letters:
        found = list(islice(letters.read(**chosen, limit=limit + 1), limit + 1))
    columns = ("NAME", "TOPIC", "PARTITION", "OFFSET", "FAILED", "ATTEMPTS", "KEYS", "PAYLOAD", "CAUSE")
    show(as_json, [_as_json(each) for each in found[:limit]], columns, map(_row, found[:limit]))
    if len(found) > limit:
        echo("there are more: choose a larger --limit, or narrow --since and --until", err=True)


@dead_letters.command("show")
@_group_option
@json_option
@click.argument("name", type=NAME)
def show_letter(zk: str, group: str, as_json: bool, name: str) -> None:
    """Show one dead letter with all known details.

    The exit code is 1 if there is no dead letter with this NAME, or if it was redriven or dropped.

    \b
    Example
      metaq dead-letters show --group mailer 0-0:4096
    """
    with _opened(zk, group) as letters:
        value = _as_json(letters.get(name))
    show(as_json, value, ("NAME", "VALUE"), [(field, field_text(each)) for field, each in value.items()])


@dead_letters.command("redrive")
@_group_option
@json_option
@_filter_options(None)
@dry_run_option
@yes_option
@click.option(
    "--to",
    type=click.Choice(["topic", "group"]),
    default="topic",
    show_default=True,
    help="Send to the topic, so that all its groups get the letters again, or to this group alone.",
)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
def redrive_letters(
    zk: str,
    group: str,
    as_json: bool,
    chosen: dict[str, Any],
    dry_run: bool,
    yes: bool,
    to: RedriveTo,
    names: tuple[str, ...],
) -> None:
    """Send dead letters again, unchanged, and mark them as done.

    The command sends the named dead letters, or all dead letters that the options choose. Key, tag and properties are
    kept; attempts are counted from zero again. If the command is interrupted, run it again. At most one dead letter is
    then sent twice: the one that was being sent at the interruption.

    \b
    Example
      metaq dead-letters redrive --group mailer --cause Timeout --yes
      metaq dead-letters redrive --group mailer 0-0:4096 --to group --yes
    """
    rows: list[dict[str, object]] = []
    with _opened(zk, group) as letters:
        count = _count(letters, chosen, names)
        if not dry_run and count:
            confirm(f"Send {counted(count, 'dead letter')} of group {group} again, to {_target(to)}?", yes=yes)
        found = letters.read(**chosen, names=names or None)
        try:
            if dry_run:
                rows = [_would_go(each, retry_topic(group) if to == "group" else each.original.topic) for each in found]
            else:
                for letter in found:
                    rows += map(_redriven, letters.redrive([letter], to=to))
        finally:  # also after an error: show the letters that are done
            columns = ("NAME", "WOULD GO TO") if dry_run else ("NAME", "TOPIC", "PARTITION", "OFFSET")
            show(as_json, rows, columns, [tuple(row.values())[: len(columns)] for row in rows])
            _tell(f"{'would send' if dry_run else 'sent'} {counted(len(rows), 'dead letter')} again", as_json)


@dead_letters.command("drop")
@_group_option
@_filter_options(None)
@dry_run_option
@yes_option
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
def drop_letters(zk: str, group: str, chosen: dict[str, Any], dry_run: bool, yes: bool, names: tuple[str, ...]) -> None:
    """Mark dead letters as done without sending them again. The command marks the named dead letters, or all dead
    letters that the options choose.

    \b
    Example
      metaq dead-letters drop --group mailer --until 2026-01-31T08:00:00Z --yes
    """
    with _opened(zk, group) as letters:
        count = _count(letters, chosen, names)
        if not dry_run and count:
            confirm(f"Drop {counted(count, 'dead letter')} of group {group}?", yes=yes)
            count = letters.drop(letters.read(**chosen, names=names or None))
    echo(f"{'would drop' if dry_run else 'dropped'} {counted(count, 'dead letter')} of group {group}")


def _count(letters: DeadLetters, chosen: dict[str, Any], names: Iterable[str]) -> int:
    """Return the number of dead letters that the user has chosen by options or names. Raises MessageNotFound for a name
    that does not exist.
    """
    wanted = set(names)
    missing, count = set(wanted), 0
    for each in letters.read(**chosen, names=wanted or None):
        missing.discard(each.name)
        count += 1
    if missing:
        raise MessageNotFound(
            f"group {letters.group!r} has no dead letter {', '.join(sorted(missing))} that the options choose: "
            f"`metaq dead-letters list --group {letters.group}` shows those that there are"
        )
    return count


def _target(to: RedriveTo) -> str:
    return "this group" if to == "group" else "their topics"


def _tell(text: str, as_json: bool) -> None:
    echo(text, err=as_json)


def _redriven(each: Redriven) -> dict[str, object]:
    partition, offset = each.result.partition, each.result.offset
    return {"name": each.letter.name, "topic": partition.topic, "partition": str(partition), "offset": offset}


def _would_go(letter: DeadLetter, topic: str) -> dict[str, object]:
    """Return the JSON fields that tell where a dead letter would be sent. These fields do not include the partition,
    because it is chosen only when the letter is sent.
    """
    return {"name": letter.name, "topic": topic, "partition": None, "offset": None}


def _as_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "name": letter.name,
        "failed": letter.failed.isoformat(timespec="milliseconds"),
        "attempts": letter.attempts,
        "cause": letter.cause,
        "place": letter.place,
        **message_fields(letter.original),
    }


def _row(letter: DeadLetter) -> tuple[object, ...]:
    original, payload = letter.original, letter.original.payload
    shown = payload[:_SHOWN_BYTES].decode("utf-8", "replace") + ("…" if len(payload) > _SHOWN_BYTES else "")
    place = letter.name, original.topic, str(original.partition), str(original.offset)
    failed = letter.failed.isoformat(" ", "seconds").removesuffix("+00:00") + "Z"
    return (*place, failed, letter.attempts, " ".join(original.keys), shown, letter.cause)

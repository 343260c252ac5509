"""The command `metaq find`: find messages in a topic by their id or by a key."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from metaq.client.questions.finding import FoundMessage, FoundMessages, nothing_found
from metaq.protocol.errors import BrokerUnavailable
from metaq.protocol.limits import INT64_MAX, MAX_FOUND_MESSAGES, MAX_KEY_CHARACTERS
from metaq.protocol.remoting import DEFAULT_FOUND_MESSAGES

from .cluster_access import open_cluster, tell_absent
from .options import TIME, TOPIC, json_option, zk_option
from .output import echo, message_fields, show

__all__ = ["find"]

_SHOWN_BYTES = 60


@click.command()
@zk_option
@json_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic to search.")
@click.option("--id", "message_id", type=click.IntRange(-INT64_MAX - 1, INT64_MAX), help="Id of the message.")
@click.option("--key", "-k", help="One of the keys of the messages, exactly.")
@click.option("--from", "begin", type=TIME, help="With --key: stored at this time or later.")
@click.option("--to", "end", type=TIME, help="With --key: stored at this time or earlier.")
@click.option(
    "--count",
    "-c",
    type=click.IntRange(1, MAX_FOUND_MESSAGES),
    default=DEFAULT_FOUND_MESSAGES,
    show_default=True,
    help="With --key: maximum number of messages, the newest ones.",
)
@click.option("--oldest", is_flag=True, help="With --key: the oldest messages instead.")
def find(
    zk: str,
    as_json: bool,
    topic: str,
    message_id: int | None,
    key: str | None,
    begin: datetime | None,
    end: datetime | None,
    count: int,
    oldest: bool,
) -> int:
    """Find a message by its id, or messages by one of their keys.

    The exit code is 1 if no message is found, if a found message is damaged, or if a broker does not answer. Undamaged
    messages that were found are shown even if the exit code is 1.

    \b
    Example
      metaq find --topic orders --key order-7
      metaq find --topic orders --id 1661382015569625088 --json
    """
    if (message_id is None) == (key is None):
        raise click.UsageError("say what to find: give either --id or --key")
    if message_id is not None and (begin or end or oldest):
        raise click.UsageError("--from, --to and --oldest are for --key: an id names one message")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise click.BadParameter(f"a key has 1 … {MAX_KEY_CHARACTERS} characters", param_hint="--key")
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        finder = cluster.finder()
        if message_id is not None:
            found = FoundMessages([finder.view_message(topic, message_id)])
        else:
            found = finder.query_message(topic, key or "", count, begin, end, oldest_first=oldest, allow_silent=True)
    if not (found.found or found.silent or found.damaged):
        raise nothing_found(f"topic {topic!r} has no message with the key {key!r}", found)
    columns = ("PARTITION", "OFFSET", "ID", "STORED", "KEYS", "BYTES", "PAYLOAD")
    show(as_json, _as_json(found), columns, map(_row, found.found))
    if not as_json:
        _tell_rest(found)
    for damage in found.damaged:
        echo(f"damaged, not shown: {damage}", err=True)
    if found.silent:
        reasons = "; ".join(f"broker {broker} does not answer ({why})" for broker, why in found.silent.items())
        raise BrokerUnavailable(f"{reasons}: its messages were not searched: start that broker")
    return 1 if found.damaged else 0


def _tell_rest(found: FoundMessages) -> None:
    if found.unsearched_bytes:
        text = f"{found.unsearched_bytes:,} bytes could not be looked at: there may be more; try again"
        echo(text, err=True)
    elif found.more:
        echo("there are more: choose a larger --count, or narrow --from and --to", err=True)


def _row(found: FoundMessage) -> tuple[object, ...]:
    message = found.message
    payload = message.payload
    shown = payload[:_SHOWN_BYTES].decode("utf-8", "replace") + ("…" if len(payload) > _SHOWN_BYTES else "")
    stored = (
        ("before " if found.latest else "")
        + datetime.fromtimestamp(found.stored_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
        + "Z"
    )
    ids = (str(message.partition), str(message.offset), str(message.id))
    return (*ids, stored, " ".join(message.keys), len(payload), shown)


def _as_json(found: FoundMessages) -> dict[str, object]:
    return {
        "messages": [
            {**message_fields(each.message), "stored": each.stored_ms, "stored_earlier": each.latest}
            for each in found.found
        ],
        "more": found.more,
        "unsearched_bytes": found.unsearched_bytes,
        "damaged": [
            {"partition": str(each.partition), "offset": each.position, "reason": each.reason} for each in found.damaged
        ],
    }

"""The command `metaq halves`: list half messages, which wait for the outcomes of their transactions, and decide
them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

import click

from metaq.client.admin.completeness import ask_brokers, tell_silent
from metaq.client.admin.known import check_known_topic
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.waiting_halves import WaitingHalf, each_half, end_half, find_half, list_halves
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.nearest import did_you_mean
from metaq.protocol.errors import ClientError, MessageNotFound
from metaq.protocol.half_messages import HalfOutcome, HalfState
from metaq.protocol.limits import MAX_LISTED_HALVES

from .cluster_access import open_cluster
from .delayed import asked_brokers
from .options import PARTITION, STORED_TOPIC, PartitionName, confirm, dry_run_option, json_option, yes_option, zk_option
from .output import counted, echo, field_text, message_fields, preview_fields, say, show

__all__ = ["halves"]


@click.group()
def halves() -> None:
    """List half messages, whose transactions are not decided yet, and decide them.

    \b
    Example
      metaq halves count
      metaq halves list --state parked
      metaq halves show 1661382018505637889
      metaq halves commit --topic transfers --partition 0-1 1661382018505637889
    """


_topic_option = click.option("--topic", "-t", type=STORED_TOPIC, help="Only of this topic; default: all.")
_group_option = click.option("--group", "-g", default="", help="Only of this producer group; default: all.")
_broker_option = click.option("--broker", type=click.IntRange(0), help="Ask this broker only; by default all.")


@halves.command("count")
@zk_option
@_broker_option
@json_option
def count_halves(zk: str, broker: int | None, as_json: bool) -> None:
    """Count the half messages by producer group. WAITING: half messages whose check time has not come, so that no
    producer is asked yet; this is one number for all groups.

    ASKED: half messages whose check time has come, so that producers of the group are asked for their outcomes. PARKED:
    half messages about which producers were asked as often as allowed, so that an operator must decide. ASKERS:
    producers that are connected and can be asked; if the number is 0, the broker can ask nobody. If a broker does not
    answer, the exit code is 1, and only the messages of the other brokers are counted.

    \b
    Example
      metaq halves count
    """
    asked: Counter[str] = Counter()
    parked: Counter[str] = Counter()
    askers: Counter[str] = Counter()
    waiting = 0
    with open_cluster(zk) as cluster:
        found, silent = ask_brokers(
            cluster, asked_brokers(cluster, broker), lambda connection, _: list_halves(connection, limit=0)
        )
        for page in found.values():
            waiting += page.states[HalfState.WAITING]
            for name, figures in page.groups.items():
                asked[name] += figures["asked"]
                parked[name] += figures["parked"]
                askers[name] += figures["askers"]
    rows: list[dict[str, Any]] = [{"group": None, "waiting": waiting, "asked": None, "parked": None, "askers": None}]
    rows += [
        {"group": name, "waiting": None, "asked": asked[name], "parked": parked[name], "askers": askers[name]}
        for name in sorted(askers)
    ]
    columns = ("GROUP", "WAITING", "ASKED", "PARKED", "ASKERS")
    show(as_json, rows, columns, (tuple(row.values()) for row in rows))
    tell_silent(silent)


@halves.command("list")
@zk_option
@_topic_option
@_group_option
@click.option("--state", type=click.Choice([each.value for each in HalfState]), help="In this state; by default any.")
@_broker_option
@click.option("--limit", "-n", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
def list_of_halves(
    zk: str, topic: str | None, group: str, state: str | None, broker: int | None, limit: int, as_json: bool
) -> None:
    """List half messages, ordered by the time of the first check, when a producer is first asked for the outcome. NEXT:
    the time (UTC) at which a producer is asked the next time.

    If a broker does not answer, the exit code is 1, and only the messages of the other brokers are shown.

    \b
    Example
      metaq halves list --topic transfers --state parked
    """
    with open_cluster(zk) as cluster:
        found, silent = ask_brokers(
            cluster,
            asked_brokers(cluster, broker),
            lambda connection, _: list(each_half(connection, topic or "", group, state or "", limit)),
        )
        pairs = ([(each, half) for half in halves] for each, halves in found.items())
        chosen = list(islice(merge(*pairs, key=lambda pair: pair[1].first_check), limit))
        if topic is not None and not chosen:
            check_known_topic(cluster, topic)
        if group and not chosen:
            echo(f"metaq: {_none_of(cluster, found, group)}", err=True)
    columns = ("ID", "TOPIC", "PARTITION", "GROUP", "STATE", "TAKEN", "ASKED", "NEXT", "BYTES", "KEYS", "PAYLOAD")
    show(as_json, [_json(*pair) for pair in chosen], columns, (_row(*pair) for pair in chosen))
    tell_silent(silent)


def _none_of(cluster: Cluster, brokers: Iterable[int], group: str) -> str:
    """Return a sentence that tells the user why no half message is listed. The sentence cannot always say whether the
    user has mistyped the group's name or the group has no half messages, because a broker knows a producer group only
    while it has half messages of the group, or while producers of the group wait to be asked for outcomes
    (CHECK_HALVES).
    """
    known: set[str] = set()
    pages, _ = ask_brokers(cluster, brokers, lambda connection, _: list_halves(connection, limit=MAX_LISTED_HALVES))
    for page in pages.values():
        known.update(page.groups, (half.group for half in page.halves))
    near = "" if group in known else did_you_mean(group, sorted(known), "")
    return f"no such half message of group {group!r} waits{near and ': '}{near}"


def _json(broker: int, half: WaitingHalf) -> dict[str, Any]:
    return {
        "id": half.id,
        "topic": half.topic,
        "partition": f"{broker}-{half.partition}",
        "group": half.group,
        "state": half.state.value,
        "taken": None if half.taken is None else half.taken.isoformat(timespec="milliseconds"),
        "asked": half.asked,
        "next": None if half.next_check is None else half.next_check.isoformat(timespec="milliseconds"),
        "bytes": half.size,
        **preview_fields(half.preview),
    }


def _row(broker: int, half: WaitingHalf) -> tuple[object, ...]:
    number, *others, keys, payload = _json(broker, half).values()
    return (str(number), *others, " ".join(keys), payload)  # users copy the number: do not group it by thousands


@halves.command("show")
@zk_option
@_broker_option
@json_option
@click.option("--raw", is_flag=True, help="Write its payload to stdout, and nothing else.")
@click.argument("half_id", type=click.IntRange(1), metavar="ID")
def show_half(zk: str, broker: int | None, as_json: bool, raw: bool, half_id: int) -> None:
    """Show one half message with all known details. The times are in UTC: TAKEN (when the broker got the message),
    FIRST (of the first check) and NEXT (of the next check).

    The exit code is 1 if no half message with this ID waits for its outcome, for example because its transaction is
    decided already.

    \b
    Example
      metaq halves show 1661382018505637889
      metaq halves show 1661382018505637889 --raw > payload
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other: choose one")
    with open_cluster(zk) as cluster:
        asked = asked_brokers(cluster, broker)
        silent: dict[int, str] = {}
        for each in asked:
            found, unheard = ask_brokers(cluster, [each], lambda connection, _: find_half(connection, half_id))
            silent |= unheard
            if (half := found.get(each)) is not None:
                break
        else:
            tell_silent(silent)
            brokers = ", ".join(map(str, asked)) or "none"
            raise MessageNotFound(
                f"no half message {half_id} waits (asked brokers: {brokers}): its transaction may be decided; `metaq "
                "halves list` shows those that wait"
            )
    assert half.record is not None
    message = Message(TopicPartition(half.topic, each, half.partition), -1, half.id, *half.record)
    if raw:
        sys.stdout.buffer.write(message.payload)
        return
    value = _whole(each, half, message)
    show(as_json, value, ("NAME", "VALUE"), [(name, field_text(content)) for name, content in value.items()])


def _whole(broker: int, half: WaitingHalf, message: Message) -> dict[str, Any]:
    known = _json(broker, half)
    del known["keys"], known["payload_start"]
    known["first"] = half.first_check.isoformat(timespec="milliseconds")
    content = message_fields(message)
    return {**known, **{name: content[name] for name in content if name not in _OF_STORED_MESSAGES}}


_OF_STORED_MESSAGES = "topic", "partition", "offset", "id", "timestamp"


def _decide(
    outcome: HalfOutcome, zk: str, dry_run: bool, yes: bool, as_json: bool, place: TopicPartition, ids: Sequence[int]
) -> None:
    what, where = _WORDS[outcome], f"{place.topic} {place.broker}-{place.partition}"
    if dry_run:
        echo(f"would {what} {counted(len(ids), 'half message')} of {where}; nothing was asked")
        return
    confirm(f"{what.capitalize()} {counted(len(ids), 'half message')} of {where}?", yes=yes)
    with open_cluster(zk) as cluster:
        found = {
            each: HalfOutcome(
                cluster.ask(place, partial(end_half, partition=place, half_id=each, outcome=outcome)).outcome
            )
            for each in ids
        }
    say(as_json, found, "\n".join(f"{each}: {_said(state, outcome)}" for each, state in found.items()))
    left = sum(state is not outcome for state in found.values())
    if left:
        raise ClientError(
            f"{left} of {counted(len(ids), 'half message')} {'is' if left == 1 else 'are'} not {outcome.value}"
        )


_WORDS = {HalfOutcome.COMMITTED: "commit", HalfOutcome.ROLLED_BACK: "roll back"}


def _said(state: HalfOutcome, wanted: HalfOutcome) -> str:
    if state is HalfOutcome.UNKNOWN:
        return "no such half message waits for this partition"
    return state.value if state is wanted else f"{state.value} already"


def _partition_options(command: Any) -> Any:
    for option in (
        click.argument("ids", type=click.IntRange(1), nargs=-1, required=True, metavar="ID..."),
        click.option("--partition", "-p", type=PARTITION, required=True, help="Their partition, as `list` shows it."),
        click.option("--topic", "-t", type=STORED_TOPIC, required=True, help="Their topic."),
        json_option,
        yes_option,
        dry_run_option,
        zk_option,
    ):
        command = option(command)
    return command


@halves.command("commit")
@_partition_options
def commit_halves(
    zk: str, dry_run: bool, yes: bool, as_json: bool, topic: str, partition: PartitionName, ids: Sequence[int]
) -> None:
    """Commit half messages: consumers then see them. Exits with 1 unless all of them are committed.

    \b
    Example
      metaq halves commit --topic transfers --partition 0-1 1661382018505637889 --yes
    """
    place = TopicPartition(topic, partition.broker_id, partition.partition)
    _decide(HalfOutcome.COMMITTED, zk, dry_run, yes, as_json, place, ids)


@halves.command("rollback")
@_partition_options
def roll_back_halves(
    zk: str, dry_run: bool, yes: bool, as_json: bool, topic: str, partition: PartitionName, ids: Sequence[int]
) -> None:
    """Roll half messages back: the broker drops them, so that no consumer ever sees them. Exits with 1 unless all of
    them are dropped.

    \b
    Example
      metaq halves rollback --topic transfers --partition 0-1 1661382018505637889 --yes
    """
    place = TopicPartition(topic, partition.broker_id, partition.partition)
    _decide(HalfOutcome.ROLLED_BACK, zk, dry_run, yes, as_json, place, ids)

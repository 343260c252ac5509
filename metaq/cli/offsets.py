"""The command `metaq offsets`: show the committed offsets of groups, copy them to another broker, or change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy as copied
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import click

from metaq.client.admin.offset_admin import CopiedOffset, OffsetAdmin, StoredOffset, stored_offsets
from metaq.client.records.results import TopicPartition
from metaq.coordination.offsets.sql_offset_store import SqlOffsetStore
from metaq.protocol.errors import ClientError, ConfigError

from .cluster_access import open_cluster, tell_absent
from .groups import seek_group
from .options import GROUP, PARTITION, TOPIC, PartitionName, dry_run_option, json_option, zk_option
from .output import show
from .user_input import read_password

__all__ = ["offsets", "sql_store"]

_topic = click.option("--topic", "-t", type=TOPIC, required=True, help="Topic of the offsets.")
_partitions = click.option(
    "--partition", "-p", "only", type=PARTITION, multiple=True, help="Only this partition; repeat for more."
)


@click.group()
def offsets() -> None:
    """Show, copy, seek and skip the offsets of groups.

    \b
    Example
      metaq offsets show --topic trades --group audit
      metaq offsets copy --topic trades --from-broker 0 --to-broker 1 --start 0 --end 3
      metaq offsets skip audit --topic trades --partition 0-3
    """


def _as_here(command: click.Command) -> click.Command:
    """Return a copy of `command`, a command of `metaq groups`, for use in `metaq offsets`: the examples in its help say
    `metaq offsets` instead of `metaq groups`.
    """
    here = copied(command)
    here.help = (command.help or "").replace("metaq groups ", "metaq offsets ")
    return here


offsets.add_command(_as_here(seek_group), "seek")


# --- show -------------------------------------------------------------------------------------------------------------


@offsets.command("show")
@zk_option
@json_option
@click.option("--topic", "-t", type=TOPIC, help="Only this topic.")
@click.option("--group", "-g", "group", type=GROUP, help="Only this group.")
@_partitions
@click.option("--sql", metavar="URL", help="Read 1.x's SQL table at driver://user@host/database instead.")
@click.option("--sql-password-file", metavar="FILE", help="The file with the password for --sql; - for stdin.")
def show_offsets(
    zk: str,
    as_json: bool,
    topic: str | None,
    group: str | None,
    only: tuple[PartitionName, ...],
    sql: str | None,
    sql_password_file: str | None,
) -> None:
    """Show stored offsets: the byte offset, the id of the last processed message, and the owner of the partition. The
    command asks no broker, so it shows no lag; `metaq groups describe` does.

    \b
    Example
      metaq offsets show --topic trades --group audit --partition 0-3
    """
    if sql_password_file is not None and sql is None:
        raise ConfigError("--sql-password-file", sql_password_file, "leave it out, or add --sql")
    if sql is not None:
        found = _stored_in_sql(sql, sql_password_file, topic, group, only)
    else:
        with open_cluster(zk) as cluster:
            found = OffsetAdmin(cluster).list(group=group, topic=topic, partitions=list(map(str, only)))
    if not found and (group is not None or topic is not None or only):
        raise ClientError("no such offset is stored: `metaq offsets show` alone lists all that are")
    rows = [
        (each.group, each.partition.topic, str(each.partition), each.offset, each.message_id, each.owner)
        for each in found
    ]
    names = ("group", "topic", "partition", "offset", "message_id", "owner")
    columns = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "MESSAGE ID", "OWNER")
    cells = [(*row[:4], str(row[4]), row[5]) for row in rows]
    show(as_json, [dict(zip(names, row, strict=True)) for row in rows], columns, cells)


def _stored_in_sql(
    url: str, password_file: str | None, topic: str | None, group: str | None, only: Sequence[PartitionName]
) -> Sequence[StoredOffset]:
    if topic is None or group is None or not only:
        raise ConfigError("--sql", "…", "names no offset by itself: add --topic, --group and --partition")
    partitions = [TopicPartition(topic, *name) for name in only]
    password = None if password_file is None else read_password(password_file, "--sql-password-file")
    stored = sql_store("--sql", url, password).load_many(group, [(topic, str(each)) for each in partitions])
    return stored_offsets(group, partitions, stored, {})


# --- copy -------------------------------------------------------------------------------------------------------------


@offsets.command("copy")
@zk_option
@json_option
@dry_run_option
@_topic
@click.option("--from-broker", "source", type=click.IntRange(0), required=True, help="Id of the broker to copy from.")
@click.option("--to-broker", "target", type=click.IntRange(0), required=True, help="Id of the broker to copy to.")
@click.option("--start", type=click.IntRange(0), required=True, help="First partition of the broker to copy from.")
@click.option("--end", type=click.IntRange(0), required=True, help="Its last partition, inclusive.")
@click.option(
    "--target-start", type=click.IntRange(0), default=0, show_default=True, help="Target partition of --start."
)
@click.option("--group", "-g", "only", type=GROUP, multiple=True, help="Only this group; repeat for more.")
def copy(
    zk: str,
    as_json: bool,
    dry_run: bool,
    topic: str,
    source: int,
    target: int,
    start: int,
    end: int,
    target_start: int,
    only: tuple[str, ...],
) -> None:
    """Copy the offsets of all groups from one broker's partitions to another broker's partitions, for example after
    `partitions renumber`.

    If a group already has an offset in the target partition, this offset is not changed.

    \b
    Example
      metaq offsets copy --topic trades --from-broker 0 --to-broker 1 --start 4 --end 7 --target-start 0
    """
    if end < start:
        raise ConfigError("--end", end, f"is before --start={start}: name the last partition, inclusive")
    with open_cluster(zk) as cluster:
        rows = OffsetAdmin(cluster).copy(
            topic, source, target, range(start, end + 1), target_start=target_start, groups=only, dry_run=dry_run
        )
    found = [_copied(each, "would be copied" if dry_run else "copied") for each in rows]
    show(as_json, found, ("GROUP", "FROM", "TO", "OFFSET", "RESULT"), [tuple(each.values()) for each in found])


def _copied(each: CopiedOffset, done: str) -> dict[str, object]:
    return {
        "group": each.group,
        "source": str(each.source),
        "target": str(each.target),
        "offset": each.offset,
        "result": done if each.copied else "there already",
    }


# --- skip -------------------------------------------------------------------------------------------------------------


@offsets.command("skip")
@zk_option
@json_option
@dry_run_option
@_topic
@_partitions
@click.argument("group", type=GROUP)
def skip(zk: str, as_json: bool, dry_run: bool, topic: str, only: tuple[PartitionName, ...], group: str) -> None:
    """Skip all messages that GROUP has not read yet: move its committed offset in each partition to the partition's
    end. The command refuses a partition that a consumer owns.

    \b
    Example
      metaq offsets skip audit --topic trades --partition 0-3
    """
    with open_cluster(zk) as cluster:
        found = OffsetAdmin(cluster).skip(group, topic, partitions=map(str, only), dry_run=dry_run)
        if not only:
            tell_absent(cluster, "left as it is")
    rows = [{"partition": str(each.partition), "from": each.before, "to": each.offset} for each in found.partitions]
    value = {"group": group, "topic": topic, "dry_run": dry_run, "partitions": rows}
    show(as_json, value, ("PARTITION", "FROM", "WOULD BE" if dry_run else "TO"), [tuple(row.values()) for row in rows])
    found.check_complete()


# --- the SQL table in which 1.x's MysqlOffsetStorage keeps offsets ----------------------------------------------------

_BACKTICKS = ("pymysql", "MySQLdb", "mysql.connector")
"""Names of the Python modules for databases that quote column names with backticks."""


def sql_store(option: str, url: str, password: str | None = None) -> SqlOffsetStore:
    """Return the store of offsets in an SQL database. url: `driver://user@host:port/database`, or `sqlite3:///path` for
    a file; the file is opened read-only. password: None to connect without one.

    driver: the name of a DB-API 2.0 module that accepts host, port, user, password and database. Raises ConfigError,
    which names `option` but not the URL, because the URL may contain a password; such a URL is refused.
    """
    scheme, slashes, _ = url.partition("://")  # not urlsplit's scheme, which is in lower case
    if not slashes or not scheme.replace(".", "_").isidentifier():
        scheme = "…"  # it may be a password
    try:
        parts = urlsplit(url)
        is_complete = parts.port is None or parts.port >= 0  # the port is parsed only now
    except ValueError:
        is_complete = False
    if not is_complete:
        raise ConfigError(option, "…", "is no URL: write driver://user@host:port/database") from None
    if parts.password is not None:
        remedy = (
            "contains a password, which others see in the list of processes: write it into a file that only you can "
            "read, and add --sql-password-file FILE"
        )
        raise ConfigError(option, "…", remedy)
    try:
        driver = import_module(scheme) if slashes and scheme else None
    except ImportError:
        driver = None
    if driver is None or not hasattr(driver, "paramstyle"):
        remedy = "names no installed DB-API driver: write driver://user@host/database, and install the driver"
        raise ConfigError(option, scheme, remedy)
    marks = "`" if scheme in _BACKTICKS else '"'
    return SqlOffsetStore(_connector(driver, scheme, parts, password), paramstyle=driver.paramstyle, quote=marks)


def _connector(driver: Any, scheme: str, parts: SplitResult, password: str | None) -> Callable[[], Any]:
    if scheme == "sqlite3":
        return partial(driver.connect, f"file:{quote(unquote(parts.path))}?mode=ro", uri=True)
    named = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username and unquote(parts.username),
        "password": password,
        "database": parts.path.strip("/"),
    }
    given = {name: value for name, value in named.items() if value}
    return lambda: driver.connect(**given)  # no partial, whose repr would show the password

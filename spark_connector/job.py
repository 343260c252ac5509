"""The program `metaq-spark`: write topics to Parquet files that are partitioned by day, and send the rows of such files
back to topics. The program can also be run by spark-submit (docs/spark.md).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from metaq.client.producer import Producer
from metaq.client.transport.zookeeper import zk_session
from metaq.coordination.offsets.decided_batches import DecidedBatches
from metaq.coordination.records.paths import DEFAULT_ROOT
from metaq.coordination.session.zk_session import ZkSession, check_connect
from metaq.protocol.errors import ClientError, ConfigError, MetaqError
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.printable import printable

from .columns import COLUMNS
from .exactly_once import Coordinator, qualifier
from .options import OptionValues, ReadOptions, WriteOptions
from .planning import check_published, open_cluster, selected
from .source import register

__all__ = ["DONE", "FAILED", "WRONG_USAGE", "WritingQuery", "forget_query", "main", "writing_queries"]

DONE, FAILED, WRONG_USAGE = 0, 1, 2
"""Exit codes. If a command has ended with FAILED, it can be run again: `drain` then continues after the last batch that
it has written, but `restore` may send rows that it has already sent.
"""

DAY = "day"
"""The partition column of the Parquet files: the date (UTC) on which the broker stored the message; null for messages
of a Java broker, whose ids contain no time.
"""
_PLACE = ("topic", "broker", "partition")
_POLL_SECONDS = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Progress is written to standard error. The result is written to standard
    output as one line of JSON.
    """
    chosen = _parser().parse_args(arguments)
    return _administer(chosen) if "tool" in chosen else _run_in_spark(chosen)


def _tell(error: Exception) -> None:
    print(printable(f"metaq-spark: {error}"), file=sys.stderr)


def _run_in_spark(chosen: argparse.Namespace) -> int:
    try:
        options = chosen.check(chosen)
    except ConfigError as error:
        _tell(error)
        return WRONG_USAGE
    except MetaqError as error:
        _tell(error)
        return FAILED
    spark = _session(chosen.master)
    start = time.monotonic()
    try:
        register(spark)
        done: dict[str, Any] = chosen.run(spark, chosen, options)
    except PySparkException as error:
        _tell(error)
        return FAILED
    finally:
        spark.stop()
    print(json.dumps({**done, "seconds": round(time.monotonic() - start, 3)}))
    return DONE


def _session(master: str | None) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("metaq-spark").config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    return builder.getOrCreate()


def _administer(chosen: argparse.Namespace) -> int:
    try:
        root = OptionValues({"metaq.root": chosen.root}, ("metaq.root",)).root()
        with zk_session(check_connect(chosen.zookeeper), root) as session:
            chosen.tool(session, chosen)
    except ConfigError as error:
        _tell(error)
        return WRONG_USAGE
    except MetaqError as error:
        _tell(error)
        return FAILED
    return DONE


# --- drain ------------------------------------------------------------------------------------------------------------


def _drain_options(chosen: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source for `drain`. Raises ConfigError, NoPartition and CoordinationUnavailable.
    The function asks the cluster for the topics before Spark does, because Spark would report the same errors later,
    and with a long Java stack trace.
    """
    named = {"subscribe": chosen.topic, "subscribePattern": chosen.pattern, "group": chosen.group, "tags": chosen.tags}
    options = {
        "zookeeper": chosen.zookeeper,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "typedHeaders": "true",
        "includeExpired": "true",
        "includePriority": "true",
        "maxBytesPerTrigger": str(chosen.batch_bytes),
        **{name: value for name, value in named.items() if value is not None},
        **dict(chosen.option),
    }
    source = ReadOptions.parse(options, "stream")
    with open_cluster(source) as cluster:
        selected(cluster, source)
    return options


def _drain(spark: SparkSession, chosen: argparse.Namespace, options: dict[str, str]) -> dict[str, Any]:
    """Write each message to the Parquet files exactly once. If the command is run again, it writes no batch a second
    time, because the query's checkpoint and the log of Spark's file sink record which batches are already written.
    """
    messages = spark.readStream.format("metaq").options(**options).load()
    rows = messages.withColumn(DAY, sql.to_date("timestamp"))
    checkpoint = chosen.checkpoint or f"{chosen.directory.rstrip('/')}/_checkpoint"
    query = (
        rows.writeStream.format("parquet")
        .partitionBy(DAY)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(chosen.directory)
    )
    return _watch(query)


def _watch(query: StreamingQuery) -> dict[str, Any]:
    """Write a line about each micro-batch to standard error until the query ends; return the values for the command's
    result. Raises StreamingQueryException.
    """
    seen, rows = -1, 0
    try:
        while True:
            ended = query.awaitTermination(_POLL_SECONDS)
            for progress in query.recentProgress:
                if progress.batchId > seen and progress.numInputRows:
                    seen, rows = progress.batchId, rows + progress.numInputRows
                    rate = progress.processedRowsPerSecond
                    print(f"batch {seen}: {progress.numInputRows:,} messages, {rate:,.0f}/s", file=sys.stderr)
            if ended:
                return {"messages": rows}
    finally:
        query.stop()


# --- restore ----------------------------------------------------------------------------------------------------------


def _restore_options(chosen: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source for `restore`. Raises the errors of _drain_options."""
    options = {
        "zookeeper": chosen.zookeeper,
        "exactlyOnce": str(chosen.exactly_once).lower(),
        "typedHeaders": "true",
        **({} if chosen.topic is None else {"topic": chosen.topic}),
        **dict(chosen.option),
    }
    check_published(WriteOptions.parse(options))
    return options


def _restore(spark: SparkSession, chosen: argparse.Namespace, options: dict[str, str]) -> dict[str, Any]:
    """Send the rows of the Parquet files to topics. All rows with the same topic, broker and partition are sent by one
    task, in the order of their offsets.
    """
    rows = _days(spark.read.parquet(chosen.directory), chosen.since, chosen.until)
    ordered = rows.repartition(*_PLACE).sortWithinPartitions(*_PLACE, "offset")
    left_out = {"topic"} if "topic" in options else set()
    columns = [name for name in COLUMNS if name in rows.columns and name not in left_out]
    count = rows.count()
    print(f"sending {count:,} messages", file=sys.stderr)
    ordered.select(*columns).write.format("metaq").options(**options).mode("append").save()
    return {"messages": count}


def _days(rows: DataFrame, since: str | None, until: str | None) -> DataFrame:
    """Return those rows whose column `day` is not before `since` and is before `until`. If `since` or `until` is None,
    there is no such limit. If at least one limit is given, rows without a day (messages of a Java broker) are left out.
    """
    if since is not None:
        rows = rows.where(sql.col(DAY) >= sql.lit(since).cast("date"))
    if until is not None:
        rows = rows.where(sql.col(DAY) < sql.lit(until).cast("date"))
    return rows


# --- queries that write exactly once ----------------------------------------------------------------------------------


class WritingQuery(NamedTuple):
    """A query that writes, or has written, with exactlyOnce, as its znode in ZooKeeper describes it. batch: the number
    of the last batch that the query has decided to commit. pending: how many transactions of this batch are perhaps not
    committed yet. topic: one of the topics that the query writes.
    """

    query: str
    batch: int
    pending: int
    topic: str


def writing_queries(session: ZkSession) -> Iterator[WritingQuery]:
    """Yield all queries that have a znode below spark/writes. Raises CoordinationUnavailable, and CoordinationError for
    a damaged znode.
    """
    store = DecidedBatches(session)
    for query_id in store.query_ids():
        decided = store.load(query_id).decided
        if decided is not None:
            yield WritingQuery(query_id, decided.batch, len(decided.pending), decided.topic)


def forget_query(session: ZkSession, producer: Producer, query_id: str) -> None:
    """Commit the query's decided transactions, roll back its other prepared transactions, and remove its znode. The
    query must not be running. After this call, the query must never be started again from its checkpoint, because it
    would then write its last batch a second time.

    Raises ClientError if there is no such query, or if a broker does not answer. Raises XaError and
    CoordinationUnavailable.
    """
    store = DecidedBatches(session)
    decided = store.load(query_id).decided
    if decided is None:
        raise ClientError(f"no query {query_id} has written exactly once here: choose one that is listed")
    if decided.topic:
        xa = producer.xa([decided.topic], qualifier=qualifier(query_id))
        Coordinator(store, xa, query_id).abort(INT64_MAX)
    store.remove(query_id)


def _list_queries(session: ZkSession, chosen: argparse.Namespace) -> None:
    for query in writing_queries(session):
        print(json.dumps(query._asdict()))


def _forget(session: ZkSession, chosen: argparse.Namespace) -> None:
    with Producer(chosen.zookeeper, root=chosen.root) as producer:
        forget_query(session, producer, chosen.query)


# --- the command line -------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("metaq-spark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    drain = commands.add_parser("drain", help="Append the new messages of topics to Parquet files, then end.")
    source = drain.add_mutually_exclusive_group(required=True)
    source.add_argument("--topic", help="A topic, or several separated by commas.")
    source.add_argument("--pattern", help="Regular expression that whole names of topics match.")
    drain.add_argument("--group", help="Group whose offsets in ZooKeeper show the progress.")
    drain.add_argument("--tags", help="Only messages with one of these tags, separated by commas.")
    drain.add_argument("--checkpoint", help="Default: _checkpoint in DIRECTORY.")
    drain.add_argument(
        "--batch-bytes", type=_positive, default=1 << 30, help="Maximum of a micro-batch (default 1 GiB)."
    )
    drain.set_defaults(run=_drain, check=_drain_options)
    restore = commands.add_parser("restore", help="Send the messages of Parquet files that drain wrote.")
    restore.add_argument("--topic", help="Topic to send to; default: the topic that each message was in.")
    restore.add_argument("--since", type=_day, metavar="YYYY-MM-DD", help="The first day.")
    restore.add_argument("--until", type=_day, metavar="YYYY-MM-DD", help="The day after the last.")
    restore.add_argument("--exactly-once", action="store_true", help="Consumers see no message until all are sent.")
    restore.set_defaults(run=_restore, check=_restore_options)
    queries = commands.add_parser(
        "queries", help="List the queries that have written exactly once, a line of JSON each."
    )
    queries.set_defaults(tool=_list_queries)
    forget = commands.add_parser("forget", help="Remove the data of a query that will not run again.")
    forget.add_argument("query", metavar="QUERY", help="Its id, as listed by queries.")
    forget.set_defaults(tool=_forget)
    for command in (queries, forget):
        command.add_argument("--zookeeper", required=True, help="Connect string like host:2181/chroot.")
        command.add_argument("--root", default=DEFAULT_ROOT, help="metaq's root in ZooKeeper (default %(default)s).")
    for command in (drain, restore):
        command.add_argument("directory", metavar="DIRECTORY", help="Path or URL that Spark reads and writes.")
        command.add_argument("--zookeeper", required=True, help="Connect string like host:2181/chroot.")
        command.add_argument("--master", help="Spark's master; default: spark-submit's, else local[*].")
        command.add_argument(
            "--option",
            type=_pair,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="Any other option of the source or sink; may be repeated.",
        )
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text!r} has no '=': write NAME=VALUE")
    return name, value


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0")
    return int(text)


def _day(text: str) -> str:
    try:
        time.strptime(text, "%Y-%m-%d")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day: write YYYY-MM-DD") from error
    return text


def run() -> NoReturn:
    """Run the program `metaq-spark` with the process's arguments, and exit with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()

"""Check and decode the options of the data source, on the driver, before any task starts (docs/spark.md).

If Spark's Kafka source has the same option, the option has the same name and meaning here. A wrong value raises
ConfigError, which names the option, the value and the choices. ConfigError is also raised for an unknown option, for an
option of streams in a batch query, and for an option of batch queries in a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NoReturn

import pyarrow as pa

from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig, Protocol
from metaq.client.settings.consumer_config import check_where
from metaq.coordination.records.paths import DEFAULT_ROOT, Paths
from metaq.coordination.session.zk_session import check_connect
from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import INT64_MAX, check_zookeeper_group, check_zookeeper_topic
from metaq.protocol.pulls import TAG_EXPRESSION, is_tag_expression
from metaq.protocol.where import Where

__all__ = [
    "BATCH_NAMES",
    "EARLIEST",
    "LATEST",
    "MAX_TAGS",
    "READ_NAMES",
    "STREAM_NAMES",
    "WRITE_NAMES",
    "At",
    "BatchLimits",
    "Explicit",
    "OptionValues",
    "RangeEnds",
    "ReadMode",
    "ReadOptions",
    "Times",
    "WriteOptions",
]

COMPRESSIONS = ("none", "zstd")
WRITE_NAMES = (
    "zookeeper",
    "topic",
    "exactlyOnce",
    "typedHeaders",
    "compression",
    "metaq.root",
    "metaq.protocol",
    "metaq.batch.messages",
    "metaq.transaction.bytes",
)
SPARK_NAMES = ("checkpointLocation", "queryName")
"""Options of a streaming query that only Spark itself uses. Spark passes them to the data source nevertheless, and the
data source ignores them.
"""
PROVIDER = "provider"
"""Option by which the data source recognizes the statement `CREATE TABLE … USING metaq`, which it refuses: Spark passes
this option only for such a statement.
"""
_NO_TABLES = "Spark reads and writes a table without its options: CREATE TEMPORARY VIEW … USING metaq OPTIONS (…)"
PATH = "path"
"""Name of an option. Its value is the argument of `load("trades")`, `start("trades")` or `save("trades")`; Spark passes
the argument as this option.
"""
MIN_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES = 64 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a write; `topic` is None if each row names its own topic in the column `topic`."""

    zookeeper: str
    topic: str | None = None
    root: str = "/meta"
    protocol: Protocol = "auto"
    batch_messages: int = 1000
    exactly_once: bool = False
    typed_headers: bool = False
    compression: str = "none"
    transaction_bytes: int = 8 << 20

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Check every option of `df.write.format("metaq")`, or of `df.writeStream`. Raises ConfigError."""
        values = OptionValues(options, WRITE_NAMES + (SPARK_NAMES if streaming else ()), path="topic")
        return cls(
            zookeeper=values.zookeeper(),
            topic=values.name("topic", check_zookeeper_topic),
            root=values.root(),
            protocol=values.protocol(),
            batch_messages=values.integer("metaq.batch.messages", 1, 100_000, 1000),
            exactly_once=values.flag("exactlyOnce", False),
            typed_headers=values.flag("typedHeaders", False),
            compression=values.choice("compression", COMPRESSIONS, "none"),
            transaction_bytes=values.integer(
                "metaq.transaction.bytes", MIN_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES, 8 << 20
            ),
        )


class OptionValues:
    """The options that the user gave, by name. Upper and lower case of names are not distinguished, as in Spark."""

    def __init__(
        self, options: Mapping[str, str], names: tuple[str, ...], *, path: str | None = None, listed: str = ""
    ) -> None:
        """names: the valid options. path: the option that the argument of `load("trades")` sets. listed: a text that
        lists the valid names for the error text, "" = all of `names`. Give `listed` if some of the options are valid
        only for batch queries or only for streams.
        """
        self._values = {name.lower(): value for name, value in options.items()}
        if PROVIDER in self._values:
            raise ConfigError(PROVIDER, self._values[PROVIDER], _NO_TABLES)
        if not options:
            raise ConfigError("zookeeper", "", f"is missing, as all options are. {_NO_TABLES}")
        known = {name.lower(): name for name in names}
        if path is not None and PATH in self._values:
            topic = self._values.pop(PATH)
            if self._values.setdefault(path.lower(), topic) != topic:
                raise ConfigError(PATH, topic, f"names another topic than the option {path}")
            known[PATH] = path
        for name in options:
            if name.lower() not in known:
                close = get_close_matches(name.lower(), known, 1)
                guess = f"did you mean {known[close[0]]}? " if close else ""
                choices = listed or ", ".join(names)
                raise ConfigError(name, options[name], f"is not an option here: {guess}choose from {choices}")

    def given(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str, default: str) -> str:
        return self._values.get(name.lower(), default)

    def required(self, name: str, remedy: str) -> str:
        value = self.get(name, "").strip()
        if not value:
            raise ConfigError(name, value, f"is missing: {remedy}")
        return value

    def zookeeper(self) -> str:
        return check_connect(self.required("zookeeper", "give a connect string like host:2181 or host:2181/chroot"))

    def root(self) -> str:
        root = self.get("metaq.root", DEFAULT_ROOT)
        return check_name("metaq.root", root, lambda path: Paths(path).root, root)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.get(name, default)
        if value.lower() not in choices:
            raise ConfigError(name, value, f"choose from {', '.join(choices)}")
        return value.lower()

    def protocol(self) -> Protocol:
        return "text" if self.choice("metaq.protocol", ("auto", "text"), "auto") == "text" else "auto"

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def name(self, option: str, check: Callable[[str], str]) -> str | None:
        name = self.get(option, "")
        return check_name(option, name, check) if name else None

    def count(self, name: str, high: int) -> int | None:
        return self.integer(name, 1, high, 1) if self.given(name) else None

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        text = self.get(name, str(default)).strip()
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(name, text, f"choose an integer from {low} to {high}")
        return int(text)


def check_name(option: str, name: str, check: Callable[[str], str], value: str | None = None) -> str:
    """Return `name` if `check` accepts it; otherwise raise ConfigError. value: the whole value of the option, which the
    error text shows; None if `name` is the whole value.
    """
    try:
        return check(name)
    except InvalidName as error:
        raise ConfigError(option, value or name, str(error)) from error


# --- reading ----------------------------------------------------------------------------------------------------------

EARLIEST, LATEST = -2, -1
"""Numbers that stand for the earliest and the latest offset in offsets given as JSON, as in Spark's Kafka source."""

MIN_FETCH_BYTES, MAX_FETCH_BYTES = 4096, 15 * 1024 * 1024
FETCH_BYTES = 2 << 20
"""Default size of one block, in bytes. A task fetches a block by one request and makes one Arrow batch of it. With
smaller blocks, Python and the broker spend more time on each row; with larger blocks, Spark's JVM spends more time on
each row.
"""
MAX_SPLITS = 1_000_000
MAX_TIMEOUT_SECONDS = 3600
MAX_TAGS = 100
"""Maximum number of tags that a read may name, because every pull request of the read contains all of these tags."""

COMMON_NAMES = (
    "zookeeper",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "group",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "typedHeaders",
    "includeExpired",
    "includePriority",
    "tags",
    "where",
    "metaq.root",
    "metaq.protocol",
    "metaq.fetch.bytes",
    "metaq.check.crcs",
    "metaq.connect.timeout.seconds",
    "metaq.request.timeout.seconds",
)
BATCH_NAMES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters")
STREAM_NAMES = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
READ_NAMES = COMMON_NAMES + BATCH_NAMES + STREAM_NAMES
_LISTED = (
    f"{', '.join(COMMON_NAMES)}, for batch queries also {', '.join(BATCH_NAMES)}, "
    f"for streams also {', '.join(STREAM_NAMES)}"
)

ReadMode = Literal["batch", "stream", "any"]
"""The kind of a read. `any` is used for the checks in load(), where Spark does not tell the data source yet whether the
read is a batch or a stream.
"""


@dataclass(frozen=True, slots=True)
class Explicit:
    """A byte offset for each topic and partition name (`<brokerId>-<partition>`). An offset may also be EARLIEST or
    LATEST.
    """

    offsets: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Times:
    """A time for each topic and partition name, in milliseconds since 1970."""

    times: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class At:
    """The start or the end of a read, given as one time for all partitions, in milliseconds since 1970."""

    time_ms: int


RangeEnds = str | Explicit | Times | At
"""The value of an option that says where a read starts or ends: one of the words `earliest`, `latest` and `committed`;
an offset or a time for each partition; or one time for all partitions.
"""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one micro-batch of a stream; None means no limit. max_delay_seconds: the value of the option
    maxTriggerDelay, in seconds.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay_seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a read. Exactly one of topics, pattern and assigned is set.

    columns: the columns that Spark expects, in Spark's order; None means all columns. The columns come from
    `spark.read.schema(…)`, not from an option.
    """

    zookeeper: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: RangeEnds = "earliest"
    ending: RangeEnds = "latest"
    starting_option: str = "startingOffsets"
    ending_option: str = "endingOffsets"
    unmatched_time: str = "error"
    group: str | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records: int | None = None
    headers: bool = False
    typed_headers: bool = False
    include_expired: bool = False
    include_priority: bool = False
    tags: tuple[str, ...] = ()
    where: Where | None = None
    push_filters: bool = False
    limits: BatchLimits = BatchLimits()
    root: str = "/meta"
    fetch_bytes: int = FETCH_BYTES
    check_crcs: bool = False
    columns: pa.Schema | None = None
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: ReadMode = "batch") -> ReadOptions:
        """Check every option of `spark.read` (batch) or `spark.readStream.format("metaq")`. Raises ConfigError."""
        values = OptionValues(options, READ_NAMES, path="subscribe", listed=_LISTED)
        _refuse_other_mode(values, mode)
        topics, pattern, assigned = _selection(values)
        starting_option, starting = _starting(values, mode)
        ending_option, ending = _ending(values)
        parsed = cls(
            zookeeper=values.zookeeper(),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=starting,
            ending=ending,
            starting_option=starting_option,
            ending_option=ending_option,
            unmatched_time=values.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
            group=values.name("group", check_zookeeper_group),
            fail_on_data_loss=values.flag("failOnDataLoss", True),
            min_partitions=values.count("minPartitions", MAX_SPLITS),
            max_records=values.count("maxRecordsPerPartition", INT64_MAX),
            headers=values.flag("includeHeaders", False),
            include_expired=values.flag("includeExpired", False),
            include_priority=values.flag("includePriority", False),
            typed_headers=values.flag("typedHeaders", False),
            tags=_tags(values),
            where=check_where(values.get("where", "") if values.given("where") else None),
            push_filters=values.flag("pushFilters", False),
            limits=_limits(values),
            root=values.root(),
            fetch_bytes=values.integer("metaq.fetch.bytes", MIN_FETCH_BYTES, MAX_FETCH_BYTES, FETCH_BYTES),
            check_crcs=values.flag("metaq.check.crcs", False),
            connection=_connection(values),
        )
        if parsed.starting == "committed" and parsed.group is None:
            raise ConfigError("startingOffsets", "committed", "needs the option group, whose offsets to start from")
        return parsed


# --- topics and partitions --------------------------------------------------------------------------------------------


def _selection(values: OptionValues) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if values.given(name)]
    if len(given) > 1:
        raise ConfigError(given[1], values.get(given[1], ""), f"choose one of {', '.join(names)}, not also {given[0]}")
    chosen = given[0] if given else "subscribe"
    if chosen == "subscribePattern":
        return (), _pattern(values), ()
    if chosen == "assign":
        return (), None, _assigned(values)
    return _topics(values), None, ()


def _topics(values: OptionValues) -> tuple[str, ...]:
    remedy = "give a topic, or several separated by commas (or the option subscribePattern or assign)"
    text = values.required("subscribe", remedy)
    topics = dict.fromkeys(topic.strip() for topic in text.split(","))
    for topic in topics:
        check_name("subscribe", topic, check_zookeeper_topic, text)
    return tuple(topics)


def _pattern(values: OptionValues) -> str:
    text = values.required("subscribePattern", "give a regular expression that whole topic names match")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError("subscribePattern", text, f"is not a Python regular expression ({error})") from error
    return text


def _assigned(values: OptionValues) -> tuple[TopicPartition, ...]:
    text = values.required("assign", 'give JSON like {"trades":["0-0","0-1"]}')
    found: dict[TopicPartition, None] = {}
    for topic, names in _json_object("assign", text, '{"trades":["0-0","0-1"]}').items():
        check_name("assign", topic, check_zookeeper_topic, text)
        if not isinstance(names, list) or not names:
            raise ConfigError("assign", text, f'{topic} needs a list of partitions, like {{"{topic}":["0-0"]}}')
        for name in names:
            try:
                partition = TopicPartition.parse(topic, name)
            except (ValueError, TypeError) as error:
                raise ConfigError("assign", text, f"{name!r} is not a partition: write <broker>-<number>") from error
            if partition in found:
                raise ConfigError("assign", text, f"names {topic} {partition} twice: name it once")
            found[partition] = None
    if not found:
        raise ConfigError("assign", text, 'names no partition: give JSON like {"trades":["0-0","0-1"]}')
    return tuple(found)


# --- begin and end ----------------------------------------------------------------------------------------------------


def _starting(values: OptionValues, mode: ReadMode) -> tuple[str, RangeEnds]:
    """Return where the read starts, and the name of the option that sets it. If several options are given,
    startingTimestamp takes precedence over startingOffsetsByTimestamp, which takes precedence over startingOffsets.
    Spark's Kafka source has the same precedence.
    """
    if values.given("startingTimestamp"):
        return "startingTimestamp", At(_time(values, "startingTimestamp"))
    if values.given("startingOffsetsByTimestamp"):
        return "startingOffsetsByTimestamp", _times(values, "startingOffsetsByTimestamp")
    words = ("earliest", "committed") if mode == "batch" else ("earliest", "committed", "latest")
    default = "latest" if mode == "stream" else "earliest"
    never = LATEST if mode == "batch" else None
    hint = "; latest and -1 are for streams only" if mode == "any" else ""
    return "startingOffsets", _bounds(values, "startingOffsets", default, words, never, hint)


def _ending(values: OptionValues) -> tuple[str, RangeEnds]:
    if values.given("endingTimestamp"):
        return "endingTimestamp", At(_time(values, "endingTimestamp"))
    if values.given("endingOffsetsByTimestamp"):
        return "endingOffsetsByTimestamp", _times(values, "endingOffsetsByTimestamp")
    return "endingOffsets", _bounds(values, "endingOffsets", "latest", ("latest",), never=EARLIEST)


def _bounds(
    values: OptionValues, option: str, default: str, words: tuple[str, ...], never: int | None, hint: str = ""
) -> RangeEnds:
    """Return the start or the end of a read from the value of `option`. words: the words that are valid values. never:
    which of the numbers EARLIEST and LATEST is an error in this option's JSON; for example, EARLIEST makes no sense as
    the end of a read. None means that both numbers are allowed. hint: a remark about `words` for the error text.
    """
    text = values.get(option, default).strip()
    if text.lower() in words:
        return text.lower()
    number = LATEST if never == EARLIEST else EARLIEST
    if not text.startswith("{"):
        choices = ", ".join((*words, f'JSON like {{"trades":{{"0-0":4096,"0-1":{number}}}}}'))
        raise ConfigError(option, text, f"choose from {choices}{hint}")
    named = {EARLIEST: "earliest", LATEST: "latest"}
    wanted = f"needs a byte offset ({', '.join(f'{each}: {named[each]}' for each in named if each != never)}{hint})"

    def check(offset: int) -> str | None:
        if offset < EARLIEST:
            return wanted
        return f"{offset} has no meaning here, a batch query would be empty" if offset == never else None

    return Explicit(_numbers(option, text, wanted, check))


def _times(values: OptionValues, option: str) -> Times:
    wanted = "needs milliseconds since 1970"
    return Times(_numbers(option, values.get(option, ""), wanted, lambda time: wanted if time < 0 else None))


def _time(values: OptionValues, option: str) -> int:
    return values.integer(option, 0, INT64_MAX, 0)


def _numbers(
    option: str, text: str, wanted: str, check: Callable[[int], str | None]
) -> Mapping[str, Mapping[str, int]]:
    """Parse JSON that has a number for each topic and partition. check: returns an error text for a wrong number, None
    for a good one.
    """
    topics = _json_object(option, text, '{"trades":{"0-0":4096}}')

    def wrong(what: str) -> NoReturn:
        raise ConfigError(option, text, f'{what}: write JSON like {{"trades":{{"0-0":4096}}}}')

    for topic, numbers in topics.items():
        if not isinstance(numbers, dict):
            wrong(f"{topic} needs an object of partitions")
        for partition, number in numbers.items():
            if type(number) is not int or number > INT64_MAX:
                wrong(f"{topic} {partition} {wanted}")
            if (said := check(number)) is not None:
                wrong(f"{topic} {partition} {said}")
    found: dict[str, dict[str, int]] = topics
    return found


def _once(option: str, text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. Raises ConfigError for a repeated name: Python's JSON parser would
    keep only the last value, so the query would ignore a part of the option.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(option, text, f"names {name} twice: name it once")
        found[name] = value
    return found


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=partial(_once, option, text))
    except ValueError as error:
        raise ConfigError(option, text, f"is not JSON ({error}): write JSON like {example}") from error
    if not isinstance(found, dict):
        raise ConfigError(option, text, f"is not an object of topics: write JSON like {example}")
    return found


# --- the rest ---------------------------------------------------------------------------------------------------------


def _refuse_other_mode(values: OptionValues, mode: ReadMode) -> None:
    others = {"batch": STREAM_NAMES, "stream": BATCH_NAMES, "any": ()}[mode]
    kind = "streaming" if mode == "batch" else "batch"
    for name in others:
        if values.given(name):
            raise ConfigError(name, values.get(name, ""), f"is an option of {kind} reads only: leave it out")


def _limits(values: OptionValues) -> BatchLimits:
    limits = BatchLimits(
        values.count("maxOffsetsPerTrigger", INT64_MAX),
        values.count("maxBytesPerTrigger", INT64_MAX),
        values.count("minOffsetsPerTrigger", INT64_MAX),
        _duration(values, "maxTriggerDelay", "15m"),
    )
    if limits.max_messages is not None and (limits.min_messages or 0) > limits.max_messages:
        said = f"is more than maxOffsetsPerTrigger={limits.max_messages}: choose at most that"
        raise ConfigError("minOffsetsPerTrigger", str(limits.min_messages), said)
    return limits


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(values: OptionValues, name: str, default: str) -> float:
    text = values.get(name, default).strip()
    match = re.fullmatch(r"(\d{1,9})\s*([a-z]+)", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(name, text, f"choose a number with one of the units {', '.join(_UNITS)}, like 15m")
    return int(match[1]) * _UNITS[match[2]]


def _connection(values: OptionValues) -> ConnectionConfig:
    default = ConnectionConfig()

    def seconds(name: str, number: float) -> float:
        return float(values.integer(name, 1, MAX_TIMEOUT_SECONDS, int(number)))

    return ConnectionConfig(
        protocol=values.protocol(),
        connect_timeout_seconds=seconds("metaq.connect.timeout.seconds", default.connect_timeout_seconds),
        request_timeout_seconds=seconds("metaq.request.timeout.seconds", default.request_timeout_seconds),
    )


def _tags(values: OptionValues) -> tuple[str, ...]:
    if not values.given("tags"):
        return ()
    text = values.get("tags", "")
    tags = tuple(dict.fromkeys(text.split(",")))
    if any(tag != tag.strip() for tag in tags):
        said = "write A,B without blanks; for tags that begin or end with one use the option where: TAGS IN ('A ', 'B')"
        raise ConfigError("tags", repr(text), said)
    if any(map(is_tag_expression, tags)):
        raise ConfigError("tags", text, f"{TAG_EXPRESSION} A,B")
    if not all(tags) or len(tags) > MAX_TAGS:
        said = f"choose up to {MAX_TAGS} tags separated by commas, none empty"
        raise ConfigError("tags", text, said)
    return tags

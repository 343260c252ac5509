"""Options of the data source, checked on the driver before any task starts.

Names and meanings are those of Spark's Kafka source where it has the option. A wrong value raises ConfigError with the
option, the value and the choices; so does an option that does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import INT64_MAX, check_group, check_topic

__all__ = ["EARLIEST", "LATEST", "Bounds", "Explicit", "ReadOptions", "WriteOptions"]

EARLIEST, LATEST = -2, -1
"""What these numbers mean as an offset in JSON, as in Spark's Kafka source."""

PROTOCOLS = ("auto", "text")
MIN_FETCH_BYTES, MAX_FETCH_BYTES = 4096, 15 * 1024 * 1024

READ_NAMES = (
    "zookeeper",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "group",
    "failOnDataLoss",
    "metaq.root",
    "metaq.protocol",
    "metaq.fetch.bytes",
)
WRITE_NAMES = ("zookeeper", "topic", "metaq.root", "metaq.protocol", "metaq.batch.messages")


@dataclass(frozen=True, slots=True)
class Explicit:
    """Offsets per topic and partition name (`<brokerId>-<partition>`), in bytes; EARLIEST and LATEST are allowed."""

    offsets: Mapping[str, Mapping[str, int]]


Bounds = str | Explicit
"""`earliest`, `latest`, `committed` or offsets per partition."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a batch read."""

    zookeeper: str
    topics: tuple[str, ...]
    starting: Bounds = "earliest"
    ending: Bounds = "latest"
    group: str | None = None
    fail_on_data_loss: bool = True
    root: str = "/meta"
    protocol: str = "auto"
    fetch_bytes: int = 1 << 20

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check every option of `spark.read.format("metaq")`. Raises ConfigError."""
        values = _Values(options, READ_NAMES)
        parsed = cls(
            zookeeper=values.required("zookeeper", "give a connect string like host:2181 or host:2181/chroot"),
            topics=_topics(values),
            starting=_bounds(values, "startingOffsets", "earliest", ("earliest", "committed"), never=LATEST),
            ending=_bounds(values, "endingOffsets", "latest", ("latest",), never=EARLIEST),
            group=_group(values),
            fail_on_data_loss=values.choice("failOnDataLoss", ("true", "false"), "true") == "true",
            root=values.get("metaq.root", "/meta"),
            protocol=values.choice("metaq.protocol", PROTOCOLS, "auto"),
            fetch_bytes=values.integer("metaq.fetch.bytes", MIN_FETCH_BYTES, MAX_FETCH_BYTES, 1 << 20),
        )
        if parsed.starting == "committed" and parsed.group is None:
            raise ConfigError("startingOffsets", "committed", "needs the option group, whose offsets to start from")
        return parsed


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a write; `topic` is None if each row names its own in the column `topic`."""

    zookeeper: str
    topic: str | None = None
    root: str = "/meta"
    protocol: str = "auto"
    batch_messages: int = 1000

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check every option of `df.write.format("metaq")`. Raises ConfigError."""
        values = _Values(options, WRITE_NAMES)
        topic = values.get("topic", "")
        return cls(
            zookeeper=values.required("zookeeper", "give a connect string like host:2181 or host:2181/chroot"),
            topic=_name("topic", topic, check_topic) if topic else None,
            root=values.get("metaq.root", "/meta"),
            protocol=values.choice("metaq.protocol", PROTOCOLS, "auto"),
            batch_messages=values.integer("metaq.batch.messages", 1, 100_000, 1000),
        )


class _Values:
    """Options by name in any case, as Spark treats them."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in names}
        for name in options:
            if name.lower() not in known:
                close = get_close_matches(name.lower(), known, 1)
                guess = f"did you mean {known[close[0]]}? " if close else ""
                raise ConfigError(name, options[name], f"is no option here: {guess}choose from {', '.join(names)}")

    def get(self, name: str, default: str) -> str:
        return self._values.get(name.lower(), default)

    def required(self, name: str, remedy: str) -> str:
        value = self.get(name, "").strip()
        if not value:
            raise ConfigError(name, value, f"is missing: {remedy}")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.get(name, default)
        if value.lower() not in choices:
            raise ConfigError(name, value, f"choose from {', '.join(choices)}")
        return value.lower()

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        text = self.get(name, str(default)).strip()
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(name, text, f"choose an integer from {low} to {high}")
        return int(text)


def _topics(values: _Values) -> tuple[str, ...]:
    text = values.required("subscribe", "give a topic, or several separated by commas")
    topics = dict.fromkeys(topic.strip() for topic in text.split(","))
    for topic in topics:
        _name("subscribe", topic, check_topic, text)
    return tuple(topics)


def _group(values: _Values) -> str | None:
    group = values.get("group", "")
    return _name("group", group, check_group) if group else None


def _name(option: str, name: str, check: Callable[[str], str], value: str | None = None) -> str:
    """`name` if `check` accepts it; `value` is the option's whole value, if that is more than the name."""
    try:
        return check(name)
    except InvalidName as error:
        raise ConfigError(option, value or name, str(error)) from error


def _bounds(values: _Values, option: str, default: str, words: tuple[str, ...], never: int) -> Bounds:
    text = values.get(option, default).strip()
    if text.lower() in words:
        return text.lower()
    if not text.startswith("{"):
        choices = ", ".join((*words, 'JSON like {"trades":{"0-0":4096,"0-1":' + f"{EARLIEST + LATEST - never}" + "}}"))
        raise ConfigError(option, text, f"choose from {choices}")
    return Explicit(_parse_offsets(option, text, never))


def _parse_offsets(option: str, text: str, never: int) -> dict[str, dict[str, int]]:
    def wrong(what: str) -> NoReturn:
        raise ConfigError(option, text, f'{what}: write JSON like {{"trades":{{"0-0":4096}}}}')

    try:
        topics = json.loads(text)
    except ValueError as error:
        wrong(f"is not JSON ({error})")
    for topic, offsets in topics.items():
        if not isinstance(offsets, dict):
            wrong(f"{topic} needs an object of partitions")
        for partition, offset in offsets.items():
            if type(offset) is not int or not EARLIEST <= offset <= INT64_MAX:
                wrong(f"{topic} {partition} needs a byte offset ({EARLIEST}: earliest, {LATEST}: latest)")
            if offset == never:
                wrong(f"{topic} {partition}: {offset} has no meaning here, a batch query would be empty")
    offsets_of: dict[str, dict[str, int]] = topics
    return offsets_of

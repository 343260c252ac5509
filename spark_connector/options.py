"""Options of the data source, checked on the driver before any task starts; those of reading are in read_options.py.

Names and meanings are those of Spark's Kafka source where it has the option. A wrong value raises ConfigError with the
option, the value and the choices; so does an option that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from metaq.coordination.paths import DEFAULT_ROOT, Paths
from metaq.coordination.session import check_connect
from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import check_topic

__all__ = ["PROTOCOLS", "WRITE_NAMES", "OptionValues", "WriteOptions", "check_name"]

PROTOCOLS = ("auto", "text")
WRITE_NAMES = (
    "zookeeper",
    "topic",
    "exactlyOnce",
    "metaq.root",
    "metaq.protocol",
    "metaq.batch.messages",
    "metaq.transaction.bytes",
)
STREAM_NAMES = ("checkpointLocation", "queryName")
"""Spark's own options of a streaming query, which it hands on."""
MIN_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES = 64 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a write; `topic` is None if each row names its own in the column `topic`."""

    zookeeper: str
    topic: str | None = None
    root: str = "/meta"
    protocol: str = "auto"
    batch_messages: int = 1000
    exactly_once: bool = False
    transaction_bytes: int = 8 << 20

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Check every option of `df.write.format("metaq")`, or of `df.writeStream`. Raises ConfigError."""
        values = OptionValues(options, WRITE_NAMES + (STREAM_NAMES if streaming else ()))
        topic = values.get("topic", "")
        return cls(
            zookeeper=values.zookeeper(),
            topic=check_name("topic", topic, check_topic) if topic else None,
            root=values.root(),
            protocol=values.choice("metaq.protocol", PROTOCOLS, "auto"),
            batch_messages=values.integer("metaq.batch.messages", 1, 100_000, 1000),
            exactly_once=values.choice("exactlyOnce", ("true", "false"), "false") == "true",
            transaction_bytes=values.integer(
                "metaq.transaction.bytes", MIN_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES, 8 << 20
            ),
        )


class OptionValues:
    """Options by name in any case, as Spark treats them."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in names}
        for name in options:
            if name.lower() not in known:
                close = get_close_matches(name.lower(), known, 1)
                guess = f"did you mean {known[close[0]]}? " if close else ""
                raise ConfigError(name, options[name], f"is not an option here: {guess}choose from {', '.join(names)}")

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

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        text = self.get(name, str(default)).strip()
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(name, text, f"choose an integer from {low} to {high}")
        return int(text)


def check_name(option: str, name: str, check: Callable[[str], str], value: str | None = None) -> str:
    """`name` if `check` accepts it; `value` is the option's whole value, if that is more than the name."""
    try:
        return check(name)
    except InvalidName as error:
        raise ConfigError(option, value or name, str(error)) from error

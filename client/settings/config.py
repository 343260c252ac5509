"""Every default of the client, in one place. The name of each setting includes its unit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import inf
from numbers import Integral
from typing import Any, Literal, TypeVar

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import (
    INT64_MAX,
    MAX_BATCH_RECORDS,
    MAX_FRAME_BYTES,
    check_zookeeper_group,
    check_zookeeper_topic,
    is_utf8,
)
from metaq.protocol.own_topics import REPLY_TOPIC

from ..runtime.durations import as_setting, is_number
from .tls_config import TlsConfig, profile_tls

__all__ = [
    "BROWSE_BYTES",
    "IDLE_WARNING_SECONDS",
    "MAX_COMPRESSION_LEVEL",
    "MAX_HANDLER_THREADS",
    "MAX_LOCAL_MESSAGES",
    "MAX_RETRIES",
    "RECOVER_FIRST_SECONDS",
    "RECOVER_SECONDS",
    "SEARCH_TIMEOUT_SECONDS",
    "Compression",
    "ConnectionConfig",
    "ProducerConfig",
    "Protocol",
    "Start",
    "check_call_back",
    "check_call_backs",
    "check_number",
    "check_offset",
    "check_settings",
    "check_text",
    "check_texts",
    "check_threads",
    "config_or_default",
]

Protocol = Literal["auto", "text"]

Start = Literal["earliest", "latest"]

Compression = Literal["zstd"]
"""The compression of a producer's payloads."""

SEARCH_TIMEOUT_SECONDS = 30.0
"""Timeout of a search for messages: a broker ends it after 5 seconds, but it may wait for others."""

MAX_COMPRESSION_LEVEL = 22
"""Highest compression level of Zstandard."""

BROWSE_BYTES = 1 << 20
"""Bytes that readers without a group request at once (1.x: the topic browser's maxSize)."""

MAX_RETRIES = 5
"""How often a message that its handler cannot process is retried (1.x: maxFetchRetries)."""

MAX_HANDLER_THREADS = 1024
"""Most handler threads of one run(): more threads cost memory and scheduling, and gain nothing. If you need more, run
several processes."""

IDLE_WARNING_SECONDS = 300.0
"""Seconds without a poll after which the log warns of a group member (Kafka's default max.poll.interval.ms)."""

RECOVER_FIRST_SECONDS = 5.0
RECOVER_SECONDS = 300.0
"""Seconds from the consumer's start to the first try of a LocalRecoverStore's messages, and between tries (1.x: the
same)."""

MAX_BATCH_BODY_BYTES = MAX_FRAME_BYTES - 64 * 1024
"""Limit for the record sizes and records in one batch frame; the rest is room for the header."""

MAX_LOCAL_MESSAGES = 500_000
"""Most messages in one queue of a LocalMessageStore (1.x: of its local store, per topic and partition)."""


_Config = TypeVar("_Config")


def check_texts(option: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of an option that takes several; a single str is one text, not a series of letters. Raises
    ConfigError."""
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if (given and not texts) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(option, repr(given), "name one text (str), or a list of them")
    return texts


def check_call_back(option: str, given: object) -> None:
    """Check that an option is callable. Raises ConfigError."""
    if not callable(given):
        raise ConfigError(option, repr(given), "name a function, without calling it")


def check_call_backs(**given: object) -> None:
    """Check options that may be omitted, as check_call_back."""
    for option, value in given.items():
        if value is not None:
            check_call_back(option, value)


def check_number(
    option: str, value: object, *, whole: bool = True, may_be_0: bool = False, most: float = inf, unit: str = ""
) -> None:
    """Check that `value` is a number above 0 (or at least 0, if `may_be_0`) and at most `most`. Raises ConfigError.
    unit: of the number, for the error."""
    least = f"{'0 or more' if may_be_0 else '1 or more' if whole else 'more than 0'}{unit and ' '}{unit}"
    if not is_number(value) or (whole and not isinstance(value, Integral)):
        raise ConfigError(option, repr(value), f"choose a {'whole number' if whole else 'number'}, {least}")
    if not (value >= 0 if may_be_0 else value > 0):  # also false for NaN
        raise ConfigError(option, value, f"choose {least}")
    if value > most:
        raise ConfigError(option, value, f"choose at most {most:,}{unit and ' '}{unit}")


def check_offset(option: str, value: object) -> None:
    """Check that an option is a byte offset. Raises ConfigError."""
    check_number(option, value, may_be_0=True, most=INT64_MAX, unit="bytes")


def check_text(option: str, value: object, remedy: str = "name it as a text") -> None:
    """Check that an option is a text that UTF-8 can encode. Raises ConfigError."""
    if not isinstance(value, str) or not is_utf8(value):
        raise ConfigError(option, repr(value), remedy)


def check_threads(threads: int) -> None:
    """Check that the `threads` of a run() are 1 … MAX_HANDLER_THREADS. Raises ConfigError."""
    check_number("threads", threads)
    if threads > MAX_HANDLER_THREADS:
        raise ConfigError("threads", threads, f"choose at most {MAX_HANDLER_THREADS}, or run several processes")


def config_or_default(given: _Config | None, kind: type[_Config]) -> _Config:
    """Return the option `config`, or the default settings if it is omitted. Raises ConfigError."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ConfigError("config", repr(given), f"make it a {kind.__name__}(…), which takes each setting by its name")
    return given


def check_settings(config: Any, *may_be_0: str) -> None:
    """Check the settings of a dataclass. Raises ConfigError.

    Each number must be above 0 (or at least 0, if listed in may_be_0), and no `min` or `step` above its `max`. A
    timedelta is replaced by the number in the unit of the setting's name.
    """
    kinds = {each.name: str(each.type).split(" ") for each in fields(config)}
    numbers = {}
    for name, (kind, *others) in kinds.items():
        value = as_setting(name, getattr(config, name), whole=kind == "int")
        object.__setattr__(config, name, value)
        if kind in ("int", "float") and not (value is None and "None" in others):
            check_number(name, value, whole=kind == "int", may_be_0=name in may_be_0)
            numbers[name] = value
        elif kind == "bool" and not others and not isinstance(value, bool):
            raise ConfigError(name, repr(value), "choose True or False")
        elif kind == "ConnectionConfig" and not isinstance(value, ConnectionConfig):
            raise ConfigError(name, repr(value), "make it a ConnectionConfig(…), which takes each setting by its name")
    for name, value in numbers.items():
        most = re.sub("_(min|step)_", "_max_", name)
        if value > numbers[most]:
            raise ConfigError(name, value, f"choose at most {most} ({numbers[most]:g})")


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """One TCP connection to one broker."""

    connect_timeout_seconds: float = 3.0
    """Common time limit for the TCP handshake and the answer to the first request, `version`."""
    request_timeout_seconds: float = 10.0
    """Time limit of one request; a producer may then retry until its own deadline."""
    heartbeat_idle_seconds: float = 10.0
    """The client sends a heartbeat after this time without traffic (1.x: 10 s)."""
    heartbeat_timeout_seconds: float = 5.0
    """Time limit of a heartbeat; without an answer by then the connection counts as broken."""
    max_in_flight_requests: int = 100_000
    """Most unanswered requests on the connection; further ones fail at once without being sent, as in 1.x."""
    max_receive_bytes: int = 1 << 20
    """Most bytes taken from the socket by one system call."""
    reconnect_min_seconds: float = 0.05
    reconnect_max_seconds: float = 2.0
    """Pause before a broken connection is tried again, doubling from min to max, with jitter."""
    protocol: Protocol = "auto"
    """The wire protocol. "auto": frames, or the commands of metaq 1.x with brokers that know no frames. "text": always
    these commands."""
    tls: TlsConfig | None = field(default_factory=profile_tls)
    """TLS to all brokers; None: no TLS. By default as the profile says that METAQ_PROFILE names, and none without
    it."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.tls is not None and not isinstance(self.tls, TlsConfig):
            raise ConfigError("tls", repr(self.tls), "make it a TlsConfig(ca=…), or None for no TLS")
        if self.protocol not in ("auto", "text"):
            raise ConfigError("protocol", repr(self.protocol), "choose 'auto' or 'text'")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """How a producer gathers, sends and retries messages."""

    linger_ms: int = 0
    """How long an asynchronous message may wait for others while its partition is idle; 0 = not at all."""
    max_batch_bytes: int = 1 << 20
    """Most bytes of records in one request; a larger single message goes alone."""
    max_batch_records: int = 10_000
    """Most messages in one request."""
    max_requests_in_flight: int = 2
    """Most requests in flight to one broker. Messages that become ready meanwhile are sent together, for all
    partitions. A broker that does not take many partitions in one request (Java) has one request for each partition."""
    max_buffered_bytes: int = 64 << 20
    """Most bytes of accepted but unanswered messages; beyond it a send waits for room until its deadline."""
    max_buffered_messages: int = 50_000
    """Most accepted but unanswered messages; beyond it a send waits, too. A batch of send_batch_async() counts as
    one."""
    delivery_timeout_seconds: float = 30.0
    """Time from the call to the final answer, including all tries, unless the call has its own timeout."""
    retry_min_seconds: float = 0.02
    retry_max_seconds: float = 1.0
    """Pause before a message is retried, doubling from min to max, with jitter; the first retry is immediate."""
    deliver_at_exit_seconds: float = 10.0
    """How long a program that ends without close() waits for the delivery of sent messages; it reports undelivered ones
    on stderr. All producers of the program share the time. 0 = no waiting."""
    idempotent: bool = True
    """Store a message once, even if its request is repeated because the connection was lost or the answer was late. A
    message with unknown outcome stays with its partition until its deadline. Needs brokers of this version."""
    compression: Compression | None = None
    """"zstd": compress each payload by Zstandard, if that makes it smaller. Only for topics whose section of server.ini
    says acceptCompressed=true. None: no compression."""
    compression_level: int = 3
    """Level 1 … 22; higher levels take more time for slightly less data."""
    compression_from_bytes: int = 512
    """Payloads smaller than this are not compressed."""
    recover_interval_seconds: float = 300.0
    """Longest interval between retries of messages in a local store (1.x: recoverMessageIntervalInMills, 5 min)."""
    ordered_wait_messages: int = 20
    ordered_wait_seconds: float = 0.2
    """How long an ordered message waits if at most ordered_wait_messages saved messages are before it; if there are
    more, it is saved after them (1.x: 20 messages, 2 × 100 ms)."""
    transaction_timeout_seconds: int = 60
    """Time after which a broker rolls back a transaction that was neither prepared nor committed; 0 = never. A broker
    reduces it to its own maxTxTimeoutInSeconds (60)."""
    reply_topic: str = REPLY_TOPIC
    """Topic for replies to this producer's requests: one partition on each broker is enough."""
    producer_group: str | None = None
    """Name of a group of producers; each of them can report the outcome of the others' transactions
    (send_in_transaction). It is unrelated to consumer groups. None: each call names one."""
    transaction_threads: int = 4
    """Number of threads that call `execute` of send_in_transaction_async(); they start when they are needed."""
    session_timeout_seconds: float = 30.0
    """Timeout of the ZooKeeper session. A producer owns nothing in ZooKeeper, so this only limits how long its view of
    the brokers is stale."""
    start_timeout_seconds: float = 15.0
    """How long the start waits for ZooKeeper while a server is slow or a leader is elected. If there can be no
    ZooKeeper (nothing listens, an unknown name, something else listens), the start fails after about a second."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        zero = "linger_ms", "ordered_wait_messages", "ordered_wait_seconds", "deliver_at_exit_seconds"
        check_settings(self, *zero, "transaction_timeout_seconds", "compression_from_bytes")
        check_zookeeper_topic(self.reply_topic)
        if self.producer_group is not None:
            check_zookeeper_group(self.producer_group)
        if self.compression not in ("zstd", None):
            raise ConfigError("compression", repr(self.compression), "choose 'zstd' or None")
        if self.compression_level > MAX_COMPRESSION_LEVEL:
            raise ConfigError("compression_level", self.compression_level, f"choose 1 … {MAX_COMPRESSION_LEVEL}")
        if self.max_batch_bytes > MAX_BATCH_BODY_BYTES:
            raise ConfigError("max_batch_bytes", self.max_batch_bytes, f"choose at most {MAX_BATCH_BODY_BYTES}")
        if self.max_batch_records > MAX_BATCH_RECORDS:
            raise ConfigError("max_batch_records", self.max_batch_records, f"choose at most {MAX_BATCH_RECORDS}")

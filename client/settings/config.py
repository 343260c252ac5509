"""The settings of connections and producers with their defaults, and limits of the client. If a setting has a unit, its
name ends with the unit.
"""

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
from .profile import users_section
from .tls_config import TlsConfig, profile_tls, profile_zookeeper_tls
from .user_config import UserConfig, profile_user, profile_zookeeper_user

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
"""The methods that a producer can use to compress payloads."""

SEARCH_TIMEOUT_SECONDS = 30.0
"""Number of seconds that a client waits for the result of a search for messages. A broker searches for at most 5
seconds, but first it may have to finish the searches of other clients.
"""

MAX_COMPRESSION_LEVEL = 22
"""Highest compression level of Zstandard."""

BROWSE_BYTES = 1 << 20
"""Number of bytes that a reader without a group asks for in one request (1.x: the topic browser's maxSize)."""

MAX_RETRIES = 5
"""Number of retries of a message whose handler fails (1.x: maxFetchRetries)."""

MAX_HANDLER_THREADS = 1024
"""Largest number of handler threads of one run(). More threads would cost memory and scheduling time without any gain.
If you need more threads, run several processes.
"""

IDLE_WARNING_SECONDS = 300.0
"""If a member of a consumer group does not call poll() for this number of seconds, the client logs a warning. Kafka's
max.poll.interval.ms has the same default.
"""

RECOVER_FIRST_SECONDS = 5.0
RECOVER_SECONDS = 300.0
"""A consumer tries the messages in its LocalRecoverStore (messages whose handlers have failed) again this number of
seconds after its start, and then at intervals of the same length. 1.x uses the same number.
"""

MAX_BATCH_BODY_BYTES = MAX_FRAME_BYTES - 64 * 1024
"""Largest sum of the bytes of the records, and of the table of their sizes, in one request with a batch. The other 64
KiB of the largest frame are for the request's header.
"""

MAX_LOCAL_MESSAGES = 500_000
"""Largest number of messages in one queue of a LocalMessageStore. (1.x has the same limit for each topic and partition
in its local store.)
"""


_Config = TypeVar("_Config")

_LISTENER = re.compile(r"[a-z0-9-]{1,32}")


def _profile_listener() -> str | None:
    """Return the name of the listener in the user's profile file; None if there is none. Raises ConfigError if the file
    cannot be used.
    """
    section = users_section("client")
    return None if section is None else section.values.get("listener")


def check_texts(option: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of an option that takes several texts. A single str is taken as one text, not as a sequence of
    one-letter texts. Raises ConfigError.
    """
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if (given and not texts) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(option, repr(given), "name one text (str), or a list of them")
    return texts


def check_call_back(option: str, given: object) -> None:
    """Check that the value of an option is callable. Raises ConfigError if it is not."""
    if not callable(given):
        raise ConfigError(option, repr(given), "name a function, without calling it")


def check_call_backs(**given: object) -> None:
    """Check that the values of these options are callable. A value of None counts as omitted. Raises ConfigError."""
    for option, value in given.items():
        if value is not None:
            check_call_back(option, value)


def check_number(
    option: str, value: object, *, whole: bool = True, may_be_0: bool = False, most: float = inf, unit: str = ""
) -> None:
    """Check that `value` is a number above 0 (or at least 0, if `may_be_0`) and at most `most`. Raises ConfigError.
    unit: the unit that the error's text names.
    """
    least = f"{'0 or more' if may_be_0 else '1 or more' if whole else 'more than 0'}{unit and ' '}{unit}"
    if not is_number(value) or (whole and not isinstance(value, Integral)):
        raise ConfigError(option, repr(value), f"choose a {'whole number' if whole else 'number'}, {least}")
    if not (value >= 0 if may_be_0 else value > 0):  # also false for NaN
        raise ConfigError(option, value, f"choose {least}")
    if value > most:
        raise ConfigError(option, value, f"choose at most {most:,}{unit and ' '}{unit}")


def check_offset(option: str, value: object) -> None:
    """Check that the value of an option is a possible byte offset. Raises ConfigError if it is not."""
    check_number(option, value, may_be_0=True, most=INT64_MAX, unit="bytes")


def check_text(option: str, value: object, remedy: str = "name it as a text") -> None:
    """Check that the value of an option is a str that UTF-8 can encode. Raises ConfigError if it is not."""
    if not isinstance(value, str) or not is_utf8(value):
        raise ConfigError(option, repr(value), remedy)


def check_threads(threads: int) -> None:
    """Check that `threads`, the number of threads of a run(), is 1 … MAX_HANDLER_THREADS. Raises ConfigError if it is
    not.
    """
    check_number("threads", threads)
    if threads > MAX_HANDLER_THREADS:
        raise ConfigError("threads", threads, f"choose at most {MAX_HANDLER_THREADS}, or run several processes")


def config_or_default(given: _Config | None, kind: type[_Config]) -> _Config:
    """Return the settings that a caller has given as the option `config`, or the default settings if `given` is None.
    Raises ConfigError if `given` is not of the class `kind`.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ConfigError("config", repr(given), f"make it a {kind.__name__}(…), which takes each setting by its name")
    return given


def check_settings(config: Any, *may_be_0: str) -> None:
    """Check all settings in the dataclass object `config`. Raises ConfigError if a setting is wrong.

    Each number must be above 0 (or at least 0, if listed in may_be_0). A setting with `min` or `step` in its name must
    not be above the setting whose name has `max` at this place, for example error_min_seconds not above
    error_max_seconds. A timedelta is replaced by a number in the unit that the setting's name states.
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
    """Settings of one TCP connection to one broker."""

    connect_timeout_seconds: float = 3.0
    """Time limit in seconds for opening the connection: the TCP handshake, the TLS handshake, the answer to the first
    request `version`, and the login, as far as the client uses TLS and logs in.
    """
    request_timeout_seconds: float = 10.0
    """Time limit in seconds for the answer to one request. If no answer has come by then, the request fails; a producer
    can send the request's messages again until their deadlines.
    """
    heartbeat_idle_seconds: float = 10.0
    """Number of seconds without traffic on a connection after which the client sends a heartbeat (1.x: 10 s)."""
    heartbeat_timeout_seconds: float = 5.0
    """Time limit in seconds for the answer to a heartbeat. If no answer has come by then, the connection counts as
    broken.
    """
    max_in_flight_requests: int = 100_000
    """Largest number of unanswered requests on the connection. If this number is reached, a further request fails at
    once without being sent, as in 1.x.
    """
    max_receive_bytes: int = 1 << 20
    """Largest number of bytes that one system call takes from the socket."""
    reconnect_min_seconds: float = 0.05
    reconnect_max_seconds: float = 2.0
    """Longest pause in seconds between two attempts to connect to a broker again. The first pause is
    reconnect_min_seconds, and each further pause is twice as long, up to this value, with jitter.
    """
    protocol: Protocol = "auto"
    """The protocol that the client uses with brokers. "auto": the framed protocol, or the text commands of metaq 1.x
    for brokers that do not support frames. "text": always the text commands.
    """
    tls: TlsConfig | None = field(default_factory=profile_tls)
    """TLS settings for all brokers; None: no TLS. The default comes from the user's [profile](security.md#profiles);
    without a profile the default is None.
    """
    zookeeper_tls: TlsConfig | None = field(default_factory=profile_zookeeper_tls)
    """TLS settings for ZooKeeper; None: no TLS. The default comes from the section `[zookeeper]` of the user's
    [profile](security.md#profiles); without a profile the default is None.
    """
    zookeeper_user: UserConfig | None = field(default_factory=profile_zookeeper_user)
    """The user and password by which the client identifies itself to ZooKeeper; None: it does not. Without
    `zookeeper_tls`, only a ZooKeeper on this machine may get the password. The default comes from the section
    `[zookeeper]` of the user's [profile](security.md#acls-in-zookeeper); without a profile the default is None.
    """
    user: UserConfig | None = field(default_factory=profile_user)
    """The user as whom the client logs in at each broker, with the password; None: the client does not log in. A login
    needs `tls`. The default comes from the section `[user]` of the user's [profile](security.md#profiles); without a
    profile the default is None.
    """
    listener: str | None = field(default_factory=_profile_listener)
    """The name of the [listener](security.md#listeners) by which the client connects to each broker that it finds in
    ZooKeeper; None: each broker's main port. The default comes from the section `[client]` of the user's
    [profile](security.md#profiles); without a profile the default is None.
    """

    def __post_init__(self) -> None:
        check_settings(self)
        if self.listener is not None and not (isinstance(self.listener, str) and _LISTENER.fullmatch(self.listener)):
            remedy = "name a listener of the brokers with 1 to 32 of the characters a-z 0-9 -, or None"
            raise ConfigError("listener", repr(self.listener), remedy)
        for name in ("tls", "zookeeper_tls"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, TlsConfig):
                raise ConfigError(name, repr(value), "make it a TlsConfig(ca=…), or None for no TLS")
        for name in ("user", "zookeeper_user"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, UserConfig):
                given = type(value).__name__  # the value may contain a password
                raise ConfigError(name, given, "make it a UserConfig(name=…, password=…), or None for no login")
        if self.user is not None and self.tls is None:
            raise ConfigError("user", self.user.name, "a login needs TLS: set tls, too, or set user=None")
        if self.protocol not in ("auto", "text"):
            raise ConfigError("protocol", repr(self.protocol), "choose 'auto' or 'text'")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a producer: how it gathers, sends and retries messages."""

    linger_ms: int = 0
    """A message of send_async or produce waits this number of milliseconds for other messages that can go in the same
    request, if no request to the message's partition is in flight; 0 means that the message is sent at once.
    """
    max_batch_bytes: int = 1 << 20
    """Largest number of bytes of records in one request. A message that is larger by itself is sent in a request of its
    own.
    """
    max_batch_records: int = 10_000
    """Largest number of messages in one request."""
    max_requests_in_flight: int = 2
    """Largest number of requests in flight to one broker. While this number is reached, further messages for the
    broker, of all its partitions, are collected for the next request. A broker that does not accept several partitions
    in one request (a Java broker) gets one request for each partition.
    """
    max_buffered_bytes: int = 64 << 20
    """Largest sum of the bytes of all messages that the producer has accepted and that no broker has answered yet. If
    this limit is reached, a send waits until enough messages are answered, or until its deadline.
    """
    max_buffered_messages: int = 50_000
    """Largest number of messages that the producer has accepted and that no broker has answered yet. If this limit is
    reached, a send waits, as at the limit max_buffered_bytes. A batch of send_batch_async() counts as one message.
    """
    delivery_timeout_seconds: float = 30.0
    """Longest time in seconds from the call of a send to its result or error, including all retries. The argument
    `timeout` of a call replaces this value.
    """
    retry_min_seconds: float = 0.02
    retry_max_seconds: float = 1.0
    """Longest pause in seconds before a message is sent again. The first retry is immediate; the pause before the
    second is retry_min_seconds, and each further pause is twice as long, up to this value, with jitter.
    """
    deliver_at_exit_seconds: float = 10.0
    """A program that ends without close() waits at most this number of seconds for the delivery of accepted messages; 0
    means that the program does not wait. Undelivered messages are reported on stderr. The limit applies to all
    producers of the program together.
    """
    idempotent: bool = True
    """Whether a message is stored only once even if its request is repeated, because the connection was lost or the
    answer was late. While it is unknown whether a broker has stored a message, the producer repeats the message until
    its deadline, but only to the same partition, because the broker recognizes a repetition only there. Idempotent
    sends need a broker of metaq that announces, when the client connects, that it takes sequence numbers; a Java broker
    does not.
    """
    compression: Compression | None = None
    """"zstd": compress each payload by Zstandard if the compressed payload is smaller. A topic accepts compressed
    messages only if its section of server.ini contains acceptCompressed=true. None: no compression.
    """
    compression_level: int = 3
    """Compression level of Zstandard, 1 … 22. Higher levels take more time and make the data slightly smaller."""
    compression_from_bytes: int = 512
    """Payloads with fewer bytes than this number are not compressed."""
    recover_interval_seconds: float = 300.0
    """A producer with a local store tries to send the messages in the store at least once in this number of seconds
    (1.x: recoverMessageIntervalInMills, 5 min).
    """
    ordered_wait_messages: int = 20
    ordered_wait_seconds: float = 0.2
    """For OrderedProducer: if the local store contains at most ordered_wait_messages earlier messages of the same
    partition, `send` waits up to this number of seconds until they are sent. If there are more, or they are not sent by
    then, the new message is saved after them (1.x: 20 messages, 2 × 100 ms).
    """
    transaction_timeout_seconds: int = 60
    """Number of seconds after which a broker rolls back a transaction that was neither prepared nor committed; 0 means
    never. A broker limits this time to its own setting maxTxTimeoutInSeconds (60 by default).
    """
    reply_topic: str = REPLY_TOPIC
    """The topic that stores the replies to this producer's requests. One partition of this topic on each broker is
    enough.
    """
    producer_group: str | None = None
    """Name of a group of producers. For send_in_transaction: a broker that does not know the outcome of a transaction
    asks any producer of this group. Producer groups have nothing to do with consumer groups. None: each call of
    send_in_transaction must name a group.
    """
    transaction_threads: int = 4
    """Number of threads that call the `execute` functions of send_in_transaction_async(). The threads start when they
    are needed.
    """
    session_timeout_seconds: float = 30.0
    """Timeout of the ZooKeeper session in seconds. A producer owns no znodes, so the timeout has only one effect: it
    limits how long the producer's view of the brokers can be out of date.
    """
    start_timeout_seconds: float = 15.0
    """The constructor waits at most this number of seconds for ZooKeeper while a server is slow or a leader is being
    elected. If there is certainly no ZooKeeper at the address (nothing listens, the host name is unknown, or something
    else listens), the start fails after about a second.
    """
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

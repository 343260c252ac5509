"""Build the records of messages from the arguments of a send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from isal.isal_zlib import crc32

from metaq.protocol.arrays import np
from metaq.protocol.compression import unpacked_if_fitting
from metaq.protocol.errors import ConfigError, LocalProtocolError
from metaq.protocol.limits import MAX_BATCH_RECORDS, MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES, no_text
from metaq.protocol.own_topics import OWN_MARK
from metaq.protocol.properties import PropertyValue
from metaq.protocol.record import (
    CHECK_AFTER_PROPERTY,
    COMPRESSED_FLAG,
    DELAY_PROPERTY,
    DELAYED_FLAG,
    DUE_PROPERTY,
    EXPIRES,
    HALF_PRODUCER_PROPERTY,
    HALF_PROPERTY,
    MAX_PRIORITY,
    PRIORITY_SHIFT,
    TYPE,
    Buffer,
    encode_attributes,
    encode_body,
    encode_key,
    own_bytes,
    payload_bytes,
)

from ..records.message import Message
from ..records.results import TopicPartition
from ..runtime.durations import Duration, check_ttl
from ..runtime.nearest import did_you_mean
from ..runtime.wall_clock import now_ms
from ..settings.config import MAX_BATCH_BODY_BYTES
from .delays import delay_properties, timing_of
from .outgoing import Outgoing, OutgoingBatch
from .packing import Packer
from .routing import key_bytes

if TYPE_CHECKING:
    from metaq.protocol.half_messages import HalfTerms

__all__ = [
    "OwnOptions",
    "SendOptions",
    "build_batch",
    "build_body",
    "build_half",
    "build_message",
    "list_of",
    "with_body",
]

_T = TypeVar("_T")
_SEPARATORS = ("\x01", "\x02")  # separators within the record's properties


class SendOptions(TypedDict, total=False):
    """Options of a message, or of all messages of a batch. Producer.send describes them."""

    tag: str | None
    keys: Sequence[str] | None
    attribute: str | None
    properties: Mapping[str, PropertyValue] | None
    ttl: Duration | None
    content_type: str | None
    key: str | bytes | None
    partition: TopicPartition | None
    deliver_at: datetime | None
    delay: Duration | None
    priority: int


class OwnOptions(SendOptions, total=False):
    """Options of a send: those of SendOptions, and the option that only metaq's own code may use. reserved: metaq's own
    properties, by their full names.
    """

    reserved: Mapping[str, str] | None


def list_of(payloads: Iterable[_T], what: str = "payloads") -> list[_T]:
    """Return the items of a batch as a list. Raises TypeError if the caller has passed a single message instead of a
    batch. what: the argument's name, for the error.
    """
    if isinstance(payloads, Iterable) and not isinstance(payloads, str | bytes | bytearray | memoryview):
        return list(payloads)
    raise TypeError(f"{what} of a batch are a list or another iterable, not {type(payloads).__name__}")


def build_message(
    topic: str, payload: Buffer, deadline: float, options: SendOptions, packer: Packer | None = None
) -> Outgoing:
    """Build one message from its payload and options. packer: compresses the payload; it is None if the payload is not
    to be compressed.

    Raises TypeError if the payload is not bytes, if an attribute is not a string, or if an option is unknown. Raises
    LocalProtocolError if the message is too large, or if one of `keys` contains a blank.
    """
    if type(payload) is not bytes:
        payload = payload_bytes(payload)
    return with_body(topic, payload, *build_body(payload, options, packer), deadline, options)


def build_half(
    payload: bytes, options: SendOptions, terms: HalfTerms, packer: Packer | None = None
) -> tuple[int, bytes]:
    """Build the flag and the body of a half message's record. packer: compresses the payload; it is None if the payload
    is not to be compressed. Raises the same errors as `build_message`.
    """
    if options:
        flag, attribute = _encode(**options, reserved=_half_properties(terms))
    else:
        flag, attribute = _encode_half(terms)
    if packer is not None:
        packed, payload = packer.pack(payload)
        flag |= packed
    flag |= DELAYED_FLAG
    body = encode_body(payload, flag, attribute)
    if len(body) > MAX_BODY_BYTES:
        _check_size(flag, body)
    return flag, body


def with_body(topic: str, payload: bytes, flag: int, body: bytes, deadline: float, options: SendOptions) -> Outgoing:
    """Build one message whose flag and body `build_body` or `build_half` has returned."""
    outgoing = Outgoing(topic, flag, crc32(body) & 0x7FFFFFFF, body, deadline)
    outgoing.message = payload
    if options:
        outgoing.key, outgoing.fixed = options.get("key"), options.get("partition")
        if flag & DELAYED_FLAG:
            outgoing.timing = timing_of(flag, body)
    return outgoing


def build_body(payload: bytes, options: SendOptions, packer: Packer | None = None) -> tuple[int, bytes]:
    """Build the flag and the body of a message's record. Raises the same errors as `build_message`."""
    if packer is not None:
        return _build_packed(payload, options, packer)
    flag = 0
    body = payload
    if options:
        if "delay" in options and len(options) == 1 and isinstance(delay := options["delay"], int | float):
            flag, text = _encode_delay(delay)
        else:
            flag, text = _encode(**options)
        if flag:
            body = encode_body(payload, flag, text)
    if len(body) > MAX_BODY_BYTES:
        _check_size(flag, body)
    return flag, body


def _build_packed(payload: bytes, options: SendOptions, packer: Packer) -> tuple[int, bytes]:
    packed, payload = packer.pack(payload)
    flag, body = build_body(payload, options)
    return flag | packed, body


def build_batch(
    topic: str,
    items: list[Buffer | Message],
    deadline: float,
    options: SendOptions,
    packer: Packer | None = None,
) -> OutgoingBatch:
    """Build a batch of messages that are sent together. The options apply to every payload, but an item that is a
    Message keeps its own attributes. If this producer does not compress, a compressed payload of a Message is
    decompressed, because the topic may not accept compressed messages.

    items: the batch's payloads and Messages; in this list, the function replaces payloads that are not `bytes` objects
    by `bytes`. Raises the same errors as `build_message`, and LocalProtocolError if a frame cannot hold the messages.
    """
    flag, text = _encode(**options)
    if flag & DELAYED_FLAG and any(isinstance(item, Message) for item in items):
        raise LocalProtocolError(
            "deliver_at or delay is given, and a Message keeps its own attributes: send its payload, or without a delay"
        )
    flags: list[int] | int = flag
    waiting = 0
    if not flag and packer is None and set(map(type, items)) == {bytes}:  # the usual case, without a loop
        bodies = cast(list[bytes], items)
    else:
        bodies, flags = [], [flag] * len(items)
        for index, item in enumerate(items):
            if type(item) is bytes:
                payload = item
            elif isinstance(item, Message):
                item_flag, body = item.flag, item.body if type(item.body) is bytes else payload_bytes(item.body)
                if item_flag & COMPRESSED_FLAG and packer is None:
                    item_flag, body = unpacked_if_fitting(body, item_flag)
                flags[index] = item_flag
                waiting += item_flag & DELAYED_FLAG
                bodies.append(body)
                continue
            else:
                items[index] = payload = payload_bytes(item)
            if packer is not None:
                packed, payload = packer.pack(payload)
                flags[index] |= packed
            bodies.append(encode_body(payload, flag, text) if flag else payload)
    if max(map(len, bodies)) > MAX_BODY_BYTES:
        for index, body in enumerate(bodies):
            if len(body) > MAX_BODY_BYTES:
                _check_size(flags if isinstance(flags, int) else flags[index], body, topic)
    checksums = np.fromiter(map(crc32, bodies), dtype=np.uint32, count=len(bodies)) & np.uint32(0x7FFFFFFF)
    outgoing = OutgoingBatch(topic, flags, checksums, bodies, deadline)
    if outgoing.size + 4 * outgoing.count > MAX_BATCH_BODY_BYTES or outgoing.count > MAX_BATCH_RECORDS:
        raise LocalProtocolError(
            f"a batch of {outgoing.count} messages, {outgoing.size} bytes, is above one frame's "
            f"{MAX_BATCH_RECORDS} messages and {MAX_BATCH_BODY_BYTES} bytes: send it in parts"
        )
    outgoing.message, outgoing.key, outgoing.fixed = items, options.get("key"), options.get("partition")
    if waiting:
        kinds = {timing_of(each, body) for each, body in zip(cast(list[int], flags), bodies, strict=True)}
        if len(kinds) > 1:
            raise LocalProtocolError(
                "the batch mixes deliver_at, delay, and messages without a time: send a batch of each kind"
            )
        (outgoing.timing,) = kinds
    elif flag & DELAYED_FLAG:
        outgoing.timing = timing_of(flag, bodies[0])
    return outgoing


def _encode(
    tag: str | None = None,
    key: str | bytes | None = None,
    partition: TopicPartition | None = None,
    **more: Any,
) -> tuple[int, bytes]:
    """Return the flag and the encoded attribute of a message with these options. Unlike encode_attributes, this
    function adds the words of `key` to the message's keys, and the bits of the priority to the flag. Raises TypeError,
    LocalProtocolError.
    """
    if partition is not None and not isinstance(partition, TopicPartition):
        raise _no_partition_of_a_topic(partition)
    if key is not None and not isinstance(key, (str, bytes)):
        raise TypeError(f"key={key!r}: a key is a text or bytes, not {type(key).__name__}: write str(...)")
    if not more:  # the usual case
        if key is None:
            if tag is None:
                return 0, b""
            if type(tag) is str:
                return encode_attributes(None, tag)
        elif tag is None and (encoded := encode_key(key_bytes(key))) is not None:
            return encoded
    return _encode_more(tag, key, **more)


def _encode_more(
    tag: str | None,
    key: str | bytes | None,
    *,
    keys: Sequence[str] | None = (),
    attribute: str | None = None,
    properties: Mapping[str, PropertyValue] | None = None,
    priority: int = 0,
    **own: Any,
) -> tuple[int, bytes]:
    """Do what `_encode` does for messages that have rarely used options."""
    reserved = _own_properties(**own) if own else None
    if keys is None:
        keys = ()
    _check_options(tag, keys, attribute, properties)
    if key is not None:
        keys = [*keys, *(word for word in _words(key) if word not in keys)]
    flag, text = encode_attributes(attribute, tag, keys, properties, reserved)
    if reserved and (DUE_PROPERTY in reserved or DELAY_PROPERTY in reserved):
        flag |= DELAYED_FLAG
    if priority:
        flag |= _checked_priority(priority) << PRIORITY_SHIFT
    return flag, text


@lru_cache(maxsize=64, typed=True)
def _encode_delay(delay: Duration) -> tuple[int, bytes]:
    """Do what `_encode` does for messages whose only option is a delay. The results are cached, because programs use
    few different delays.
    """
    return _encode(delay=delay)


def _half_properties(terms: HalfTerms) -> Mapping[str, str]:
    properties = {HALF_PROPERTY: terms.group}
    if terms.check_after_ms is not None:
        properties[CHECK_AFTER_PROPERTY] = str(terms.check_after_ms)
    if terms.producer:
        properties[HALF_PRODUCER_PROPERTY] = terms.producer
    return properties


@lru_cache(maxsize=64)
def _encode_half(terms: HalfTerms) -> tuple[int, bytes]:
    """Do what `_encode` does for half messages without other options. The results are cached, because programs use few
    different terms.
    """
    return _encode(reserved=_half_properties(terms))


def _checked_priority(priority: int) -> int:
    if type(priority) is not int:
        raise TypeError(f"priority={priority!r} is no whole number but {type(priority).__name__}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise LocalProtocolError(f"priority={priority} is none: choose 0 (ordinary) … {MAX_PRIORITY} (most urgent)")
    return priority


def _own_properties(
    *,
    ttl: Duration | None = None,
    content_type: str | None = None,
    deliver_at: datetime | None = None,
    delay: Duration | None = None,
    reserved: Mapping[str, str] | None = None,
    **unknown: object,
) -> Mapping[str, str]:
    """Return, for the given options, the message properties that metaq itself defines. Raises TypeError, ConfigError,
    LocalProtocolError.
    """
    for name in unknown:
        raise _no_option(name)
    own = dict(reserved or {})
    if ttl is not None:
        ttl = check_ttl(ttl)
        own[EXPIRES] = str(now_ms() + max(1, round(ttl * 1000)))
    if content_type is not None:
        if not isinstance(content_type, str):
            raise no_text("content_type", content_type)
        if not (content_type.isascii() and content_type.isprintable() and content_type):
            raise ConfigError("content_type", repr(content_type), "name it in printable ASCII, as application/json")
        own[TYPE] = content_type
    if deliver_at is not None or delay is not None:
        own.update(delay_properties(deliver_at, delay))
        if ttl is not None:
            _check_outlives(ttl, deliver_at, delay, own)
    return own


def _check_outlives(ttl: float, deliver_at: datetime | None, delay: Duration | None, own: Mapping[str, str]) -> None:
    """Raise LocalProtocolError if the time to live of a message ends before its delivery, because then no consumer
    would get the message.
    """
    wait_ms = int(own[DUE_PROPERTY]) - now_ms() if delay is None else int(own[DELAY_PROPERTY])
    if ttl * 1000 <= wait_ms:
        option = f"deliver_at={deliver_at}" if delay is None else f"delay={delay}"
        raise LocalProtocolError(
            f"ttl={ttl} counts from the send, so it is over before {option}, and nobody would get the message: "
            "choose a longer ttl, or an earlier time"
        )


def _no_option(name: str) -> TypeError:
    names = ("timeout", *SendOptions.__annotations__)
    meant = did_you_mean(name, names, f"there are {', '.join(names)}")
    return TypeError(f"a message has no option {name!r}: {meant}")


def _words(key: str | bytes) -> list[str]:
    """Return the words of `key`, which become keys by which the message can later be looked up. Return [] if a record
    cannot store these words as keys.
    """
    try:
        text = key if isinstance(key, str) else key.decode("utf-8")
    except UnicodeDecodeError:
        return []
    return [] if any(mark in text for mark in _SEPARATORS) else list(dict.fromkeys(text.split()))


def _check_options(tag: object, keys: object, attribute: object, properties: Any) -> None:
    """Check the types of a message's options. If one is wrong, raise TypeError with the option's name, its value and
    the right form.
    """
    for name, value in (("tag", tag), ("attribute", attribute)):
        if value is not None and not isinstance(value, str):
            raise no_text(name, value)
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys={keys!r}: keys is a list of texts: write keys=[{keys!r}], or key={keys!r}")
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys={keys!r} is no list of texts but {type(keys).__name__}: write keys=[{str(keys)!r}]")
    for key in keys:
        if not isinstance(key, str):
            raise no_text("keys", key)
    if properties is not None and not isinstance(properties, Mapping):
        remedy = "write {name: value}"
        raise TypeError(f"properties={properties!r} is no dict but {type(properties).__name__}: {remedy}")
    for name in properties or ():
        if not isinstance(name, str):
            raise no_text("the name of a property", name)


def _no_partition_of_a_topic(value: object) -> TypeError:
    if isinstance(value, tuple) and len(value) == len(TopicPartition._fields):
        remedy = f"write {TopicPartition(*value)!r}"
    else:
        remedy = "take one of Producer.partitions(topic), or write TopicPartition(topic, broker, partition)"
    return TypeError(f"partition={value!r} is no TopicPartition but {type(value).__name__}: {remedy}")


def _check_size(flag: int, body: bytes, topic: str = "") -> None:
    """Raise LocalProtocolError if the body of a message is too large. Without the properties that metaq has added, it
    may have MAX_BODY_BYTES; with them, it may have MAX_RECORD_BODY_BYTES.

    topic: the topic if it is one of metaq's own topics, or "" if it is a user's topic. In a topic of metaq's own, only
    the limit MAX_RECORD_BODY_BYTES holds, because such a message was accepted earlier as a user's message and may have
    become larger since. For example, its attribute may have been turned into properties.
    """
    size = len(body) - own_bytes(body, flag)
    if size > MAX_BODY_BYTES and topic[:1] != OWN_MARK:
        raise LocalProtocolError(f"a message of {size} bytes is above the limit of {MAX_BODY_BYTES}: send it in parts")
    if len(body) > MAX_RECORD_BODY_BYTES:
        raise LocalProtocolError(
            f"a message of {len(body)} bytes with metaq's own properties is above the limit of "
            f"{MAX_RECORD_BODY_BYTES}: send it in parts"
        )

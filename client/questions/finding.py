"""Find stored messages by id and by key, on all brokers that have the topic. Any thread may search. A search sends one
request to each of these brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from numbers import Integral
from types import MappingProxyType
from typing import NamedTuple

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.protocol.errors import (
    BrokerUnavailable,
    CannotConnect,
    ConfigError,
    CorruptRecord,
    MessageNotFound,
    MetaqError,
    RequestTimedOut,
    SearchIncomplete,
)
from metaq.protocol.limits import INT64_MAX, MAX_FOUND_MESSAGES
from metaq.protocol.remoting import (
    ALL_PARTITIONS,
    DEFAULT_FOUND_MESSAGES,
    FoundReply,
    QueryMessageRequest,
    ViewMessageRequest,
    decode_found,
)
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..records.message import Message
from ..records.results import TopicPartition
from ..settings.config import SEARCH_TIMEOUT_SECONDS, check_number, check_text
from ..transport.connection import Endpoint
from .asking import Asked, Follow, ask, following, need_frames
from .sources import brokers_of

__all__ = ["FoundMessage", "FoundMessages", "MessageFinder", "check_key", "check_message_id", "nothing_found"]


def check_message_id(option: str, message_id: int) -> None:
    """Check that `message_id` is a possible message id. Raises ConfigError."""
    if type(message_id) is bool or not isinstance(message_id, Integral) or not -INT64_MAX <= message_id <= INT64_MAX:
        raise ConfigError(option, repr(message_id), "give the whole number that SendResult.message_id or Message.id is")


def check_key(option: str, key: str) -> None:
    """Check that `key` is a text that may be one of a message's keys. Raises ConfigError."""
    remedy = "name one of the message's keys, as a text"
    check_text(option, key, remedy)
    if not key:
        raise ConfigError(option, repr(key), remedy)


class FoundMessage(NamedTuple):
    """A message that was found, and the time when it was stored, in milliseconds since 1970. latest: true if this time
    is only an upper limit (the message was stored then or earlier). The exact time is unknown, for example, for
    messages that a Java broker has stored.
    """

    message: Message
    stored_ms: int
    latest: bool = False


class FoundMessages(NamedTuple):
    """The result of a search, with the messages in the requested order.

    unsearched_bytes: number of bytes of stored data that were not searched, because an index was being rebuilt or a
    limit was reached; if the same search is repeated, it searches some of these data. more: whether the brokers have
    further messages with the key. silent: by broker id, the reason why a broker with the topic did not answer. It is
    empty unless the caller has set `allow_silent`; without this option, such a broker leads to an error. damaged: an
    error for each matching message that the result lacks because its stored bytes are damaged. absent: ids of brokers
    that are not registered now, so that their messages were not searched.
    """

    found: list[FoundMessage]
    unsearched_bytes: int = 0
    more: bool = False
    silent: Mapping[int, str] = MappingProxyType({})
    damaged: tuple[CorruptRecord, ...] = ()
    absent: tuple[int, ...] = ()

    @property
    def messages(self) -> list[Message]:
        return [each.message for each in self.found]


class MessageFinder:
    """Searches one topic on all brokers that have the topic. The brokers are asked one after the other."""

    def __init__(
        self, view: ClusterView, connect: Callable[[Endpoint], Asked], follow: Follow = lambda _: None
    ) -> None:
        self._view = view
        self._connect = connect
        self._follow = follow

    def view_message(self, topic: str, message_id: int) -> FoundMessage:
        """Return the message with this id (SendResult.message_id, Message.id). If several messages have this id (Java
        brokers may give the same id to several messages), return the oldest of them.

        If a broker does not answer and no other broker has the message, this method raises the error of the broker that
        did not answer. Raises MessageNotFound and NoPartition. Raises SearchIncomplete if the message may be in data
        that was not searched. Raises CorruptRecord if the message is damaged. Raises RequestRefused if a broker cannot
        search (a Java broker). Also raises BrokerUnavailable, RequestTimedOut, and the errors of refusals.py.
        """
        check_message_id("message_id", message_id)
        ext = ViewMessageRequest(topic, message_id, ALL_PARTITIONS).to_ext()
        answers: list[FoundMessages] = []
        silent: MetaqError | None = None
        sources = brokers_of(self._view, topic)
        for broker_id, endpoint in sources.endpoints.items():
            try:
                answers.append(self._search(endpoint, broker_id, topic, RequestCode.VIEW_MESSAGE_BY_ID, ext))
            except (BrokerUnavailable, CannotConnect, RequestTimedOut) as error:
                silent = silent or error
                continue
            if answers[-1].found and message_id > 0:
                break
        found = _merged(answers, MAX_FOUND_MESSAGES, oldest_first=True)
        if silent is not None and not (found.found and message_id > 0):
            raise silent
        otherwise = f"topic {topic!r} has no message with the id {message_id}"
        return _first(found._replace(absent=sources.absent), otherwise)

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = DEFAULT_FOUND_MESSAGES,
        begin: datetime | None = None,
        end: datetime | None = None,
        *,
        oldest_first: bool = False,
        allow_silent: bool = False,
    ) -> FoundMessages:
        """Return at most `max_messages` messages with this key that were stored from `begin` to `end`. If `begin` or
        `end` is None, the time has no limit on this side. If more messages match, the result contains the newest ones,
        newest first. If `oldest_first` is true, the result contains the oldest ones, oldest first.

        The result is empty if nothing is found. allow_silent: if true, the result's `silent` names brokers that did not
        answer; if false, the first such broker leads to an error. Raises ConfigError, NoPartition, and the errors of
        view_message.
        """
        check_number("max_messages", max_messages, most=MAX_FOUND_MESSAGES)
        check_key("key", key)
        first, last = _milliseconds("begin", begin, 0), _milliseconds("end", end, INT64_MAX)
        ext = QueryMessageRequest(topic, key, max_messages, first, last, oldest_first=oldest_first).to_ext()
        answers: list[FoundMessages] = []
        silent: dict[int, str] = {}
        sources = brokers_of(self._view, topic)
        for broker_id, endpoint in sources.endpoints.items():
            try:
                answers.append(self._search(endpoint, broker_id, topic, RequestCode.QUERY_MESSAGE, ext))
            except (BrokerUnavailable, CannotConnect, RequestTimedOut) as error:
                if not allow_silent:
                    raise
                silent[broker_id] = str(error)
        return _merged(answers, max_messages, oldest_first)._replace(silent=silent, absent=sources.absent)

    def oldest_with_key(self, topic: str, key: str) -> FoundMessage:
        """Return the oldest message with a key. Raises the errors of view_message."""
        found = self.query_message(topic, key, 1, oldest_first=True)
        return _first(found, f"topic {topic!r} has no message with the key {key!r}")

    def _search(
        self, endpoint: Endpoint, broker_id: int, topic: str, code: RequestCode, ext: Mapping[str, str | int]
    ) -> FoundMessages:
        return following(self._follow, lambda: self._search_on(endpoint, broker_id, topic, code, ext))

    def _search_on(
        self, endpoint: Endpoint, broker_id: int, topic: str, code: RequestCode, ext: Mapping[str, str | int]
    ) -> FoundMessages:
        """Send one search to one broker, and return the broker's answer. The answer to a search by id contains several
        messages only if Java brokers gave these messages the same id.
        """
        from .stored_records import decode_records  # imports NumPy: only commands that decode records need it

        connection = self._connect(endpoint)
        need_frames(connection, "cannot search for messages", "read the topic instead")
        partition = TopicPartition(topic, broker_id, int(ext["partition"]))
        frame = ask(connection, code, ext, partition, SEARCH_TIMEOUT_SECONDS, (ResponseCode.QUERY_NOT_FOUND,))
        reply = FoundReply.from_ext(frame.ext)
        found, damaged = [], []
        for row, record in decode_found(frame.body, reply.messages):
            partition = TopicPartition(topic, broker_id, row.partition)
            try:
                message, *more = decode_records(record, partition, row.offset)
                if more or message.next_offset != row.offset + len(record):
                    raise CorruptRecord.of(partition, row.offset, "wrong size")
            except CorruptRecord as error:
                damaged.append(error)
            else:
                found.append(FoundMessage(message, abs(row.time_ms), row.time_ms < 0))
        return FoundMessages(found, reply.unsearched, reply.more, damaged=tuple(damaged))


def _milliseconds(option: str, moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    if moment.tzinfo is None:
        raise ConfigError(option, moment, "give it a time zone, for example datetime.now(UTC)")
    return max(0, int(moment.timestamp() * 1000))


def _merged(answers: Iterable[FoundMessages], max_messages: int, oldest_first: bool) -> FoundMessages:
    found: list[FoundMessage] = []
    damaged: list[CorruptRecord] = []
    unsearched, more = 0, False
    for answer in answers:
        found += answer.found
        damaged += answer.damaged
        unsearched += answer.unsearched_bytes
        more |= answer.more
    found.sort(key=_order, reverse=not oldest_first)
    return FoundMessages(found[:max_messages], unsearched, more or len(found) > max_messages, damaged=tuple(damaged))


def _first(answer: FoundMessages, otherwise: str) -> FoundMessage:
    if answer.found:
        return min(answer.found, key=_order)
    if answer.damaged:
        raise answer.damaged[0]
    raise nothing_found(otherwise, answer)


def nothing_found(what: str, answer: FoundMessages) -> MessageNotFound | SearchIncomplete:
    """Return the error to raise if a search has found no message: SearchIncomplete if some data were not searched or a
    broker is not registered, otherwise MessageNotFound. what: the first sentence of the error's text, which says that
    there is no such message, without a full stop.
    """
    left = []
    if answer.unsearched_bytes:
        left.append(f"{answer.unsearched_bytes:,} bytes are left, try again")
    if answer.absent:
        left.append(f"broker {', '.join(map(str, answer.absent))} is not registered, start it")
    if left:
        return SearchIncomplete(f"{what} in the part that was searched: {'; '.join(left)}", answer.unsearched_bytes)
    return MessageNotFound(what)


def _order(found: FoundMessage) -> tuple[int, TopicPartition, int]:
    return found.stored_ms, found.message.partition, found.message.offset

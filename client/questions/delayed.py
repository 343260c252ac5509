"""Ask a broker about delayed messages, for operators and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import simplejson

from metaq.protocol.delays import ListDelayedRequest
from metaq.protocol.errors import RemoteProtocolError, RequestRefused
from metaq.protocol.limits import MAX_LISTED_DELAYED
from metaq.protocol.previews import Preview
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..records.results import TopicPartition
from .asking import Asked, ask, need_frames

__all__ = ["DelayedPage", "WaitingMessage", "each_delayed", "list_delayed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WaitingMessage(NamedTuple):
    """A delayed message that waits at a broker. id: the message's id, as in SendResult.message_id. due: the time at
    which the message is to be delivered. taken: the time at which the broker accepted the message. size: number of
    bytes of the body. preview: the message's keys and the beginning of its payload.
    """

    id: int
    topic: str
    partition: int
    due: datetime
    taken: datetime | None
    size: int
    preview: Preview


class DelayedPage(NamedTuple):
    """One page of the list of delayed messages of a broker. total: number of waiting messages of the topic, or of all
    topics. topics: number of waiting messages of each topic. late: for each partition into which the broker cannot put
    messages that are already due, the number of these messages and the reason. Each key is `<topic>-<partition>`. next:
    the argument `after` for the next page, or 0 if this is the last page.
    """

    total: int
    topics: Mapping[str, int]
    late: Mapping[str, Mapping[str, Any]]
    messages: list[WaitingMessage]
    next: int


def list_delayed(
    connection: Asked, topic: str = "", limit: int = 100, after: int = 0, timeout: float | None = None
) -> DelayedPage:
    """Return one page of the broker's list of waiting delayed messages: their total number, and at most `limit` (0 …
    1000) of them, in the order of their delivery times.

    topic: return only messages of this topic; "" means all topics. after: the field `next` of the previous page, or 0
    for the first page. A page may contain fewer messages than `limit` if many messages belong to other topics. Raises
    RequestRefused if the broker keeps no delayed messages (a Java broker, or an earlier version).
    """
    need_frames(connection, "keeps no delayed messages", "ask one of ours")
    request = ListDelayedRequest(topic, limit, after)
    frame = ask(
        connection,
        RequestCode.LIST_DELAYED,
        request.to_ext(),
        TopicPartition(topic, -1, -1),
        timeout,
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    )
    if frame.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RequestRefused(frame.code, f"{connection.endpoint} keeps no delayed messages: it is older, update it")
    try:
        return _page(simplejson.loads(bytes(frame.body)))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"{connection.endpoint} answered with no list of messages: {error!r}") from error


def each_delayed(
    connection: Asked, topic: str = "", most: int | None = None, timeout: float | None = None
) -> Iterator[WaitingMessage]:
    """Yield the broker's waiting delayed messages in the order of their delivery times. `most` is the maximum number of
    messages; None means that there is no limit. The messages are requested page by page. Each page is requested only
    when the caller needs its first message. Raises the errors of `list_delayed`.
    """
    after = 0
    while most is None or most > 0:
        page = list_delayed(connection, topic, min(MAX_LISTED_DELAYED, most or MAX_LISTED_DELAYED), after, timeout)
        yield from page.messages
        if most is not None:
            most -= len(page.messages)
        after = page.next
        if not after:
            return


def _page(said: Mapping[str, Any]) -> DelayedPage:
    messages = [
        WaitingMessage(
            int(each["id"]),
            str(each["topic"]),
            int(each["partition"]),
            _time(each["due"]),
            None if each["taken"] is None else _time(each["taken"]),
            int(each["bytes"]),
            Preview.of(each),
        )
        for each in said["messages"]
    ]
    return DelayedPage(int(said["count"]), dict(said["topics"]), dict(said["late"]), messages, int(said["next"]))


def _time(ms: Any) -> datetime:
    return _EPOCH + timedelta(milliseconds=int(ms))

"""What requests need: for each verb a function that returns the Needs of a request (protocol/access.py). The gate asks
for each of them whether the sender of the request may do it.

The functions read a request before it is decoded. If a field is missing or wrong, they use the value "", and the
decoder refuses the request afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from metaq.protocol.access import AccessOperation, Need
from metaq.protocol.errors import AccessRefused
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_CHECKED_TOPICS, MAX_NAME_BYTES
from metaq.protocol.own_topics import INBOX_CHARACTERS, REPLY_TOPIC
from metaq.protocol.pulls import READER_GROUP, TAG_SEPARATOR
from metaq.protocol.put_run import PutRun
from metaq.protocol.sends import announced_topics
from metaq.protocol.text import Stats, TransactionCommand
from metaq.protocol.transactions import NULL_KEY, TX_KEY, TransactionType, is_xa

if TYPE_CHECKING:
    from .gate import PageRequest

__all__ = [
    "ADMIN",
    "COOPERATE",
    "KNOWN",
    "NEED_OF_INBOX",
    "NOTHING",
    "REPLICATE",
    "SEE",
    "TRANSACT",
    "Needs",
    "consumes",
    "inbox_of",
    "lists_halves",
    "need_to_consume",
    "of_checks",
    "of_many",
    "of_page",
    "of_run",
    "of_stats",
    "of_transaction",
    "pulls",
    "sees_group",
    "sees_messages",
    "sends",
    "sends_in_transaction",
    "shows",
]

Needs: TypeAlias = Callable[[Any], Iterable[Need]]
"""Returns what a request needs, without repetitions, and at least one item."""


def _always(operation: AccessOperation) -> Needs:
    needs = (Need(operation),)
    return lambda request: needs


NOTHING = _always(AccessOperation.NOTHING)
ADMIN = _always(AccessOperation.ADMIN)
SEE = _always(AccessOperation.SEE)
TRANSACT = _always(AccessOperation.TRANSACT)
REPLICATE = _always(AccessOperation.REPLICATE)
COOPERATE = _always(AccessOperation.COOPERATE)
KNOWN = _always(AccessOperation.KNOWN)
SOME_SEND = _always(AccessOperation.SEND)

MAX_TOPICS = 2048
"""Largest number of topics that one request may name if the broker checks grants. Checking so many takes some
milliseconds.
"""


def _field(request: Any, name: str) -> str:
    found = request.ext.get(name, "") if type(request) is Frame else getattr(request, name, "")
    return _name(found) if isinstance(found, str) else ""


def _name(text: str) -> str:
    """Return a name as a need contains it, or "" for what no topic and no group is called: refusals keep needs in
    memory, and a client may send a name of a megabyte.
    """
    return text if len(text) <= MAX_NAME_BYTES else ""


_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


def sends(request: Any) -> Iterable[Need]:
    topic = request.ext.get("topic", "") if type(request) is Frame else request.topic
    return (_new(Need, (AccessOperation.SEND, _name(topic), "")),)


def sends_in_transaction(request: Any) -> Iterable[Need]:
    """For a message with a transaction's key. Any client may put a message into an XA transaction whose key it knows,
    so that needs `transact`, too.
    """
    tx_key = request.ext[TX_KEY] if type(request) is Frame else request.tx_key
    return (*sends(request), *TRANSACT(request)) if is_xa(tx_key) else sends(request)


def consumes(request: Any) -> Iterable[Need]:
    return (need_to_consume(_field(request, "topic"), _field(request, "group")),)


def need_to_consume(topic: str, group: str) -> Need:
    """Return what is needed to read a topic in a group. group: "" or READER_GROUP means without a group."""
    return Need(AccessOperation.CONSUME, topic, "" if group == READER_GROUP else group)


def pulls(frame: Frame) -> Iterable[Need]:
    """For PULL."""
    topic, group = _field(frame, "topic"), _field(frame, "group")
    is_inbox = topic == REPLY_TOPIC and inbox_of(group, frame.ext.get("tags", ""), frame.ext.get("where", "")) != ""
    return (NEED_OF_INBOX if is_inbox else need_to_consume(topic, group),)


NEED_OF_INBOX = Need(AccessOperation.REPLIES, REPLY_TOPIC)


def inbox_of(group: str, tags: str, where: str) -> str:
    """Return the inbox whose replies a pull of the topic of replies asks for, or "" if it asks for others, too. tags,
    where: the texts of these fields.
    """
    is_one = len(tags) >= INBOX_CHARACTERS and TAG_SEPARATOR not in tags
    return tags if is_one and not where and group in ("", READER_GROUP) else ""


def shows(request: Any) -> Iterable[Need]:
    """For a request about offsets and counts of a topic."""
    return (Need(AccessOperation.SEE, _field(request, "topic")),)


def sees_messages(request: Any) -> Iterable[Need]:
    """For a request that shows messages of a topic, or of all topics if it names none."""
    return (Need(AccessOperation.CONSUME, _field(request, "topic")),)


def lists_halves(request: Any) -> Iterable[Need]:
    """For LIST_HALVES, whose answer also has the numbers and the groups of all half messages of the broker."""
    return (*sees_messages(request), *SEE(request))


def sees_group(request: Any) -> Iterable[Need]:
    return (Need(AccessOperation.SEE, None, _field(request, "group")),)


def of_run(run: PutRun) -> Iterable[Need]:
    return _to_topics(run.topics)


def of_many(frame: Frame) -> Iterable[Need]:
    return _to_topics(topic or "" for topic in announced_topics(frame.ext))


def of_checks(frame: Frame) -> Iterable[Need]:
    """For CHECK_HALVES, which returns half messages of the topics that it names, or of all topics if it names none."""
    return _to_topics(frame.ext.get("topics", "").split(" ", MAX_CHECKED_TOPICS))


def _to_topics(topics: Iterable[str]) -> Iterable[Need]:
    """Raises AccessRefused if these are so many topics that checking them would take too long."""
    names = dict.fromkeys(topics)
    if len(names) > MAX_TOPICS:
        raise AccessRefused(
            f"the request names {len(names)} topics: if it has users and grants, a broker takes requests with at most "
            f"{MAX_TOPICS} topics"
        )
    return [Need(AccessOperation.SEND, _name(topic)) for topic in names]


def of_transaction(request: Any) -> Iterable[Need]:
    """For a verb of 1.x's transactions. Whoever may send to some topic may begin and end local transactions; the
    messages in them need `send` to their topics. An XA transaction can be ended by any client that knows its key, so
    ending one needs `transact`, and so does RECOVER, which lists them.
    """
    if type(request) is TransactionCommand:
        key, is_recover = request.key, request.type is TransactionType.RECOVER
    else:
        key, is_recover = _field(request, TX_KEY), request.ext.get("type") == TransactionType.RECOVER.name
    return TRANSACT(request) if is_recover or (key or NULL_KEY) == NULL_KEY or is_xa(str(key)) else SOME_SEND(request)


def of_page(page: PageRequest) -> Iterable[Need]:
    """For a page of the dashboard."""
    words = page.words
    if not page.changes and (words == ["topics"] or (words[:1] == ["stats"] and words[1:] in _PARTLY)):
        return KNOWN(page)
    if (
        page.changes
        or (words and words[0] in _PAGES_OF_ADMINS)
        or (words[:1] == ["stats"] and not _ITEMS_OF_ADMINS.isdisjoint(words[1:]))
    ):
        return ADMIN(page)
    return (Need(AccessOperation.SEE, words[1]),) if words[:1] == ["topics"] and len(words) > 1 else SEE(page)


_PAGES_OF_ADMINS = frozenset(("config", "logging", "thread-dump", "properties", "java-properties"))
_PARTLY = ["topics"], ["offsets"]
"""Items of STATS that leave out the topics that their asker may not see."""
_ITEMS_OF_ADMINS = frozenset(("config", "access", "reset"))


def of_stats(seen: frozenset[str | None]) -> Needs:
    """Return the function for STATS. seen: the items about the whole broker; any other item is the name of a topic."""

    def needs(request: Stats | Frame) -> Iterable[Need]:
        item = _field(request, "item")
        if item in _ITEMS_OF_ADMINS:
            return ADMIN(request)
        if [item] in _PARTLY:
            return KNOWN(request)
        return SEE(request) if not item or item in seen else (Need(AccessOperation.SEE, item),)

    return needs

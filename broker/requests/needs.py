"""What requests need: for each verb a function that returns the Needs of a request (protocol/access.py). The gate asks
for each of them whether the sender of the request may do it.

The functions read a request before it is decoded. If a field is missing or wrong, they use the value "", and the
decoder refuses the request afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from metaq.protocol.access import AccessOperation, Need
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_CHECKED_TOPICS
from metaq.protocol.put_run import PutRun
from metaq.protocol.sends import announced_topics
from metaq.protocol.text import Stats, TransactionCommand
from metaq.protocol.transactions import NULL_KEY, TX_KEY, is_xa

if TYPE_CHECKING:
    from .gate import PageRequest

__all__ = [
    "ADMIN",
    "COOPERATE",
    "KNOWN",
    "NOTHING",
    "REPLICATE",
    "SEE",
    "TRANSACT",
    "Needs",
    "consumes",
    "of_checks",
    "of_many",
    "of_page",
    "of_run",
    "of_stats",
    "of_transaction",
    "sees_group",
    "sees_messages",
    "sends",
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


def _field(request: Any, name: str) -> str:
    found = request.ext.get(name, "") if type(request) is Frame else getattr(request, name, "")
    return found if isinstance(found, str) else ""


_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


def sends(request: Any) -> Iterable[Need]:
    topic = request.ext.get("topic", "") if type(request) is Frame else request.topic
    return (_new(Need, (AccessOperation.SEND, topic, "")),)


def consumes(request: Any) -> Iterable[Need]:
    return (Need(AccessOperation.CONSUME, _field(request, "topic"), _field(request, "group")),)


def shows(request: Any) -> Iterable[Need]:
    """For a request about offsets and counts of a topic."""
    return (Need(AccessOperation.SEE, _field(request, "topic")),)


def sees_messages(request: Any) -> Iterable[Need]:
    """For a request that shows messages of a topic, or of all topics if it names none."""
    return (Need(AccessOperation.CONSUME, _field(request, "topic")),)


def sees_group(request: Any) -> Iterable[Need]:
    return (Need(AccessOperation.SEE, None, _field(request, "group")),)


def of_run(run: PutRun) -> Iterable[Need]:
    return [Need(AccessOperation.SEND, topic) for topic in dict.fromkeys(run.topics)]


def of_many(frame: Frame) -> Iterable[Need]:
    return (Need(AccessOperation.SEND, topic or "") for topic in announced_topics(frame.ext))


def of_checks(frame: Frame) -> Iterable[Need]:
    """For CHECK_HALVES, which returns half messages of the topics that it names, or of all topics if it names none."""
    topics = _field(frame, "topics").split(" ", MAX_CHECKED_TOPICS)
    return (Need(AccessOperation.SEND, topic) for topic in dict.fromkeys(topics))


def of_transaction(request: Any) -> Iterable[Need]:
    """For a verb of 1.x's transactions. Everybody who is known may begin and end local transactions; the messages in
    them need `send`. An XA transaction can be ended by any client that knows its key, so ending one needs `transact`.
    """
    key = (request.key if type(request) is TransactionCommand else _field(request, TX_KEY)) or NULL_KEY
    return TRANSACT(request) if key == NULL_KEY or is_xa(key) else KNOWN(request)


def of_page(page: PageRequest) -> Iterable[Need]:
    """For a page of the dashboard."""
    words = page.words
    if (
        page.changes
        or (words and words[0] in _PAGES_OF_ADMINS)
        or (words[:1] == ["stats"] and not _ITEMS_OF_ADMINS.isdisjoint(words[1:]))
    ):
        return ADMIN(page)
    return (Need(AccessOperation.SEE, words[1]),) if words[:1] == ["topics"] and len(words) > 1 else SEE(page)


_PAGES_OF_ADMINS = frozenset(("config", "logging", "thread-dump", "properties", "java-properties"))
_ITEMS_OF_ADMINS = frozenset(("config", "access", "reset"))


def of_stats(seen: frozenset[str | None]) -> Needs:
    """Return the function for STATS. seen: the items about the whole broker; any other item is the name of a topic."""

    def needs(request: Stats | Frame) -> Iterable[Need]:
        item = _field(request, "item")
        if item in _ITEMS_OF_ADMINS:
            return ADMIN(request)
        return SEE(request) if not item or item in seen else (Need(AccessOperation.SEE, item),)

    return needs

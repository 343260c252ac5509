"""A shared group's filter on a topic: one filter for all members, stored in the internal log `/shared`.

The first member that asks for messages of the topic sets the filter. While the filter is in use, the request of a
member with another filter is refused. So the filter in use is the filter of all members: no member wants the messages
that it excludes, and these messages count as done. The code does no I/O and reads no clock.
"""

from __future__ import annotations

from sys import getsizeof
from typing import NamedTuple

import simplejson

from metaq.protocol.errors import SharedRefused, StoreError
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.where import parse_where

from .. import tuning

__all__ = ["MAX_FILTER_BYTES", "GroupFilter", "TopicFilter"]

MAX_FILTER_BYTES = 60_000
"""The maximum size of a stored filter in bytes. A filter of this size still fits into a section of a record in the
internal log (rows.py).
"""

_SHOWN = 1000
"""How many characters of a filter an error message shows."""


class GroupFilter(NamedTuple):
    """A shared group's filter on one topic. where: a filter by content, or "" if there is none. tags: the tags of the
    messages that the group wants, sorted, or () if it wants messages with any tag or none. ordered: whether messages
    with the same key are leased one after another, in the partition's order.
    """

    where: str = ""
    tags: tuple[str, ...] = ()
    ordered: bool = False

    @classmethod
    def of(cls, request: AcquireRequest) -> GroupFilter:
        """Return the filter that a member has sent in its request."""
        return cls(request.where.strip(), tuple(sorted(set(request.tags))), request.ordered)

    def __str__(self) -> str:
        """Return the filter as text for people, written like the arguments of a SharedConsumer. A long text is
        shortened.
        """
        parts = [f"where={self.where!r}"] if self.where else []
        if self.tags:
            parts.append(f"tags={list(self.tags)}")
        text = ", ".join([*parts, f"ordered_by_key={self.ordered}"])
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    @property
    def held_bytes(self) -> int:
        """The memory that the filter uses, in bytes."""
        return sum(map(getsizeof, (self.where, self.tags, *self.tags))) if self.where or self.tags else 0

    def check(self) -> None:
        """Raise InvalidWhere if the filter by content is invalid."""
        if self.where:
            parse_where(self.where)

    def to_text(self) -> str:
        """Return the filter as the text that is stored."""
        return simplejson.dumps(self._asdict(), ensure_ascii=False, tuple_as_array=True)

    @classmethod
    def from_text(cls, text: str) -> GroupFilter:
        """Return the filter from which `to_text` has made this text. Raises StoreError if it cannot be read."""
        try:
            found = simplejson.loads(text)
            return cls(str(found["where"]), tuple(map(str, found["tags"])), bool(found["ordered"]))
        except (ValueError, KeyError, TypeError) as wrong:
            raise StoreError(f"the filter of a shared group cannot be read: {wrong}") from wrong


class TopicFilter:
    """The filter of one group on one topic of this broker. Used on the reactor thread."""

    def __init__(self, group: str, topic: str, now: float, known: GroupFilter | None = None) -> None:
        """now: the present time in seconds of the caller's clock, as in the methods. known: the stored filter, or None
        if no member has set a filter yet.
        """
        self.filter = known
        self._group = group
        self._topic = topic
        self._asked_at = now

    def is_in_use(self, now: float) -> bool:
        """Return whether a member has asked for messages in the last SHARED_MEMBER_SECONDS. Also return True if this
        object was created less than SHARED_MEMBER_SECONDS ago, because a member may have asked shortly before the
        broker was restarted.
        """
        return now - self._asked_at < tuning.SHARED_MEMBER_SECONDS

    def agree(self, wanted: GroupFilter, member: str, now: float, *, has_leases: bool) -> bool:
        """Let `wanted`, the filter in a member's request, become the group's filter. If the group has another filter
        that is in use, refuse the request. Return whether the group's filter has changed.

        has_leases: whether a member has leased messages of the topic or waits for such messages; then the present
        filter counts as in use. Raises SharedRefused, InvalidWhere.
        """
        changes = wanted != self.filter
        if changes:
            wanted.check()
            if self.filter is not None and (has_leases or self.is_in_use(now)):
                raise SharedRefused(
                    f"group {self._group} takes messages of {self._topic} with {self.filter}, and this member "
                    f"({member}) wants {wanted}: give all members the same where, tags and "
                    "ordered_by_key. To change what the group takes, stop all members: others begin "
                    f"{tuning.SHARED_MEMBER_SECONDS:g} s after the last one has asked, when no message is leased"
                )
            size = len(wanted.to_text().encode("utf-8"))
            if size > MAX_FILTER_BYTES:
                raise SharedRefused(
                    f"group {self._group} on {self._topic}: where and tags have {size} bytes together; at most "
                    f"{MAX_FILTER_BYTES} are kept: name fewer tags, or filter by content"
                )
            self.filter = wanted
        self._asked_at = now
        return changes

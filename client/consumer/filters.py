"""Find members of a group that have different filters for a topic. If the owner of a partition filters a message out,
no member gets the message, even if the filters of other members would accept it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metaq.coordination.records.payloads import ConsumerFilter
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.own_topics import is_own_topic

__all__ = ["GroupFilters"]

log = get_log(__name__)

_ALL = ConsumerFilter()


class GroupFilters:
    """Logs a warning if the members of a group have different filters for a topic. Each member logs the warning once
    for each change of the filters, not at each rebalance. The object must be used by one thread only.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._others: dict[str, frozenset[ConsumerFilter]] = {}  # by topic: filters that differ from this member's

    def look(
        self,
        me: str,
        consumers: Mapping[str, Sequence[str]],
        filters: Mapping[str, Mapping[str, ConsumerFilter]],
    ) -> None:
        """Compare the filters of the members. consumers: by topic, the ids of all members that read it. filters: see
        GroupSnapshot.
        """
        for topic, members in consumers.items():
            if is_own_topic(topic):
                continue  # messages that wait for another attempt are not filtered
            found = {filters.get(each, {}).get(topic, _ALL): each for each in reversed(members)}
            mine = filters.get(me, {}).get(topic, _ALL)
            found.pop(mine, None)
            former, others = self._others.get(topic, frozenset()), frozenset(found)
            self._others[topic] = others
            if others and others != former:
                other = min(found, key=lambda each: found[each])
                log.warning(
                    "group %s: members filter topic %s differently: %s takes %s, and %s takes %s. What a member leaves "
                    "out of its partitions reaches nobody: give all members the same tags and where, or each filter a "
                    "group of its own",
                    *(self._group, topic, me, _text(mine), found[other], _text(other)),
                )
            elif former and not others:
                log.info("group %s: all members filter topic %s alike again", self._group, topic)


def _text(one: ConsumerFilter) -> str:
    parts = [f"tags {', '.join(one.tags)}"] if one.tags else []
    if one.where:
        parts.append(f"what has {one.where}")
    return " and of these ".join(parts) or "all messages, or does not say which (Java, an older version)"

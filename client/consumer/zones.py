"""Assign partitions by zones. The members of a group agree on a zone for each broker, and then decide which member
reads which partition. The code does no I/O; it may be used by only one thread at a time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from metaq.coordination.groups.assignment import range_assignment, zone_assignment
from metaq.coordination.groups.group_view import GroupZones
from metaq.coordination.records.java_order import java_sorted
from metaq.coordination.runtime.logs import get_log

__all__ = ["ByZone"]

log = get_log(__name__)


class ByZone:
    """Computes the assignment by zones for one member of the group.

    All members must compute the assignment from the same zones of brokers. So the group keeps the zones in a znode,
    which members write by compare-and-set. If a node in another zone becomes the leader of a broker set, the members
    that own the set's partitions keep them until the leader has been in the new zone for `settle_seconds`. So a short
    change of the leader, for example during a restart, causes no rebalance.
    """

    def __init__(self, group: str, settle_seconds: float) -> None:
        self.ends_in: float | None = None
        """A broker's change to another zone must last for some time (`settle_seconds`) before update() returns it. This
        is the number of seconds until update() may return the next such change. It is None if no change is waiting.
        """
        self._group = group
        self._settle_seconds = settle_seconds
        self._moved: dict[int, tuple[str, float]] = {}  # by broker: its zone now, and since when
        self._others: dict[str, tuple[str, ...]] = {}  # by topic: members with another strategy

    def update(self, me: str, zones: GroupZones, registered: Container[int], now: float) -> dict[int, str] | None:
        """Return the zones that the group should agree on now, or None if the agreed zones need no change.
        registered: ids of brokers with a master. now: monotonic seconds.

        If the group has no zone for a broker yet, the broker's zone is included at once. If a broker has moved to
        another zone, its new zone is included only after `settle_seconds`. The first member of the group writes the
        change to the znode. If the first member has not written the change after 2 × `settle_seconds`, the other
        members write it.
        """
        seen = {each: zones.brokers.get(each, "") for each in zones.agreed if each in registered}
        moved = {each: zone for each, zone in seen.items() if zone != zones.agreed[each]}
        known = self._moved
        self._moved = {
            each: known[each] if each in known and known[each][0] == zone else (zone, now)
            for each, zone in moved.items()
        }
        first = [me] == java_sorted(zones.members)[:1]
        patience = self._settle_seconds if first else 2 * self._settle_seconds
        left = {each: since + patience - now for each, (_, since) in self._moved.items()}
        self.ends_in = min((each for each in left.values() if each > 0), default=None)
        settled = {each: moved[each] for each, seconds in left.items() if seconds <= 0}
        new = {each: zone for each, zone in zones.brokers.items() if each not in zones.agreed}
        if not settled and not new:
            return None
        return {each: zone for each, zone in {**zones.agreed, **new, **settled}.items() if zone}

    def share(
        self, me: str, topic: str, consumers: Sequence[str], partitions: Sequence[str], zones: GroupZones
    ) -> list[str]:
        """Return the partitions of `topic` that the member `me` should own. They are assigned by zones if all members
        of the group have the strategy "zone". While some member has another strategy, they are assigned by the strategy
        "range", because all members must compute the same assignment.
        """
        others = tuple(each for each in consumers if each not in zones.members)
        self._tell(topic, others)
        if others:
            return range_assignment(me, consumers, partitions)
        return zone_assignment(me, consumers, partitions, zones.members, zones.agreed)

    def _tell(self, topic: str, others: tuple[str, ...]) -> None:
        former, self._others[topic] = self._others.get(topic, ()), others
        if others == former:
            return
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            log.warning(
                "group %s: %s%s reads topic %s without strategy='zone', so the group shares it as 'range': a member of "
                "Java, or one of another strategy",
                *(self._group, others[0], more, topic),
            )
        else:
            log.info("group %s: topic %s is shared by zones again", self._group, topic)

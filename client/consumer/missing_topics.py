"""Subscribed topics that nobody publishes: told once, because a misspelt name would only ever be silent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from metaq.coordination.brokers import ClusterView
from metaq.coordination.logs import get_log
from metaq.protocol.errors import MetaqError

from ..nearest import published_nowhere

__all__ = ["MissingTopics"]

log = get_log(__name__)


class MissingTopics:
    """Warns of each topic that has had no partition yet, once. One thread.

    A topic that was there is not misspelt: its brokers are away, and it is not told.
    """

    def __init__(self, group: str, view: ClusterView) -> None:
        self._group = group
        self._view = view
        self._settled: set[str] = set()
        """Topics that were there once, or that were told."""

    def look(self, partitions: Mapping[str, Collection[str]]) -> None:
        """partitions: by topic, as a plan knows them. Asks ZooKeeper only if a topic is missing for the first time."""
        self._settled |= {topic for topic, each in partitions.items() if each}
        missing = partitions.keys() - self._settled
        if not missing:
            return
        try:
            known = self._view.live_topics()
            told = {topic: self._trouble(topic, known) for topic in sorted(missing)}
        except MetaqError as error:  # a hint must not fail the plan
            told = {
                topic: f"topic {topic!r} has no partition; which topics there are is unknown: {error}"
                for topic in missing
            }
        for topic, trouble in told.items():
            if trouble is not None:
                self._settled.add(topic)
                log.warning("group %s: %s", self._group, trouble)

    def _trouble(self, topic: str, known: Collection[str]) -> str | None:
        """None: it was registered after the plan was made."""
        if self._view.consumer_partitions(topic):
            return None
        if topic in known:
            return (
                f"topic {topic!r} is given to consumers by no live broker: set acceptSubscribe=true in its server.ini"
            )
        return published_nowhere(topic, known)

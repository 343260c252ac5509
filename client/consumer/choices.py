"""What a consumer's options may be, checked and made into what the parts of a consumer take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from metaq.coordination.assignment import Strategy, consistent_hash_assignment, range_assignment
from metaq.coordination.group import GroupMembership
from metaq.coordination.offset_store import LocalOffsetStore, OffsetStore, OwnerCheckedStore, ZooKeeperOffsetStore
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import check_topic

from ..questions.partitions import max_offset
from ..questions.places import Locate
from .cursor import Reached

__all__ = ["StartPosition", "check_topics", "offset_store_for", "start_position", "strategy_named"]

_STRATEGIES: dict[str, Strategy] = {"range": range_assignment, "consist": consistent_hash_assignment}


class StartPosition(NamedTuple):
    """Where a newly owned partition begins: at what is committed, if `resume` and there is such; else at `offset`, or
    where `offset` finds it.
    """

    offset: int | Locate
    resume: bool = True

    def begins(self, stored: Iterable[Reached | None]) -> list[int | Locate]:
        """Of partitions with these committed offsets."""
        return [each[0] if self.resume and each is not None else self.offset for each in stored]


_STARTS = {
    "earliest": StartPosition(0),
    "latest": StartPosition(max_offset),
    "always_latest": StartPosition(max_offset, resume=False),
}


def check_topics(topics: Iterable[str]) -> list[str]:
    """The topics as a list. Raises ConfigError for none, InvalidName."""
    wanted = [topics] if isinstance(topics, str) else list(topics)
    if not wanted:
        raise ConfigError("topics", "[]", "name at least one topic")
    for topic in wanted:
        check_topic(topic)
    return wanted


def start_position(start: str | int | Locate) -> StartPosition:
    """Of the option `start`. Raises ConfigError."""
    if callable(start):
        return StartPosition(start)
    if isinstance(start, int) and start >= 0:
        return StartPosition(start)
    found = _STARTS.get(start) if isinstance(start, str) else None
    if found is None:
        raise ConfigError("start", start, f"choose {', '.join(map(repr, _STARTS))} or an offset of 0 or more bytes")
    return found


def strategy_named(strategy: Strategy | str) -> Strategy:
    """Of the option `strategy`. Raises ConfigError."""
    if callable(strategy):
        return strategy
    found = _STRATEGIES.get(strategy)
    if found is None:
        raise ConfigError("strategy", strategy, f"choose {', '.join(map(repr, _STRATEGIES))} or a function of your own")
    return found


def offset_store_for(
    own: OffsetStore | None,
    broadcast: bool,
    offsets_file: str | Path | None,
    session: ZkSession,
    membership: GroupMembership,
) -> OffsetStore:
    """Of the options `offset_store`, `broadcast` and `offsets_file`. Raises ConfigError."""
    if offsets_file is not None and (own is not None or not broadcast):
        raise ConfigError(
            "offsets_file", offsets_file, "it is for broadcast=True without offset_store; see LocalOffsetStore"
        )
    if own is not None:
        return OwnerCheckedStore(own, membership)
    if broadcast:
        return OwnerCheckedStore(LocalOffsetStore(offsets_file), membership)
    return ZooKeeperOffsetStore(session)

"""The partitions of a broker: which partitions exist, which of them accept puts and gets, and their logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from metaq.protocol.access import NO_USER, Quota
from metaq.protocol.errors import (
    AccountSpent,
    BrokerStarting,
    ConfigError,
    InvalidName,
    NotMaster,
    PartitionClosed,
    PartitionNotFound,
    StoreError,
    TopicNotAccepted,
    WrongPartition,
)
from metaq.protocol.limits import check_made_topic, check_new_topic, check_topic
from metaq.protocol.own_topics import is_own_topic

from .. import tuning
from ..configuration.server_ini import BrokerConfig, TopicConfig
from ..runtime.account import NOBODY, Account
from ..store.partition_log import PartitionLog
from ..store.segment import MAX_OFFSET
from ..store.store import Store
from .move_table import NO_MOVES, MoveTable

__all__ = ["ANY", "Partitions"]

ANY = -1
"""The partition number in a put for which the broker must choose the partition."""


class Partitions:
    """The partitions of all topics of the broker. Used only on the reactor thread.

    A topic is accepted if it is configured, if a pattern matches it, or if it is one of metaq's own topics
    (protocol/own_topics.py). A node of a broker set also accepts each topic of which it has data, even if its own
    server.ini does not accept the topic: an earlier leader, whose server.ini may name other topics, has acknowledged
    messages of this topic. A topic always has at least as many partitions as the data directories contain, even if
    fewer are configured. So consumers see the messages of all stored partitions (in 1.x, they do not see partitions
    above the configured number). The list of closed partitions is stored only in memory (storage.md §6).
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        rng: random.Random | None = None,
        on_log: Callable[[PartitionLog], None] | None = None,
        on_topic: Callable[[str, TopicConfig], None] | None = None,
        account: Account | None = None,
    ) -> None:
        """on_log: called for each log before its first use. on_topic: called when a topic gets its first log. account:
        limits how many topics without a section in server.ini each client address may create. If it is None, there is
        no limit.
        """
        self._account = account
        self._config = config
        self._store = store
        self._rng = rng or random.Random()
        self._on_log = on_log
        self._on_topic = on_topic
        self._writable: dict[tuple[str, int], PartitionLog] = {}
        self._stored: dict[str, int] = {}  # by topic with a log: the highest partition + 1
        self._stat: dict[str, bool] = {}
        self._compressed: dict[str, bool] = {}
        self._any_compressed = _any_compressed(config)
        self._closed: dict[str, set[int]] = {}
        self._moves = NO_MOVES
        self.takes_puts = True
        """Whether clients' puts are accepted; False for an asynchronous slave. This attribute must be set before the
        first put.
        """
        for log in store.logs():
            self._learn(log)

    @property
    def broker_id(self) -> int:
        return self._config.broker_id

    # --- topics -------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicConfig:
        """Return the settings of an accepted topic. Raises TopicNotAccepted, InvalidName."""
        if not self._accepts(name):
            raise TopicNotAccepted(name)
        if name not in self._stored:
            check = check_new_topic if name in self._config.topics else check_made_topic
            check(name)  # the name becomes that of a directory and a znode
        return self._settings(name)

    def _accepts(self, topic: str) -> bool:
        return self._config.topic(topic) is not None or (self._config.node is not None and topic in self._stored)

    def stored_topics(self) -> list[str]:
        """Return the topics that have a log, sorted."""
        return sorted(self._stored)

    def settings(self, topic: str) -> TopicConfig:
        """Return the settings of a topic that has a log. If neither a section nor a pattern of server.ini accepts the
        topic, it has the settings of [system]. A call takes some microseconds, so a caller that needs the settings of
        thousands of topics must do its work in slices.
        """
        return self._settings(topic)

    def served_topics(self) -> dict[str, TopicConfig]:
        """Return the topics that clients may use, with their settings. First come the topics and patterns of
        server.ini, then the other topics that have a log.
        """
        return {name: self._settings(name) for name in (*sorted(self._config.topics), *sorted(self._stored))}

    def kept(self) -> list[str]:
        """Return a warning for each topic of which the data directories contain more partitions than the topic's
        section configures.
        """
        stored = sorted((log.topic, log.partition) for log in self._store.logs())
        return [
            _kept(name, config.partitions, [number for topic, number in stored if topic == name])
            for name, config in sorted(self._config.topics.items())
            if self._stored.get(name, 0) > config.partitions
        ]

    def check_sections(self, config: BrokerConfig, file: str) -> None:
        """Raise ConfigError if a section of `config`, read from `file`, names a topic that cannot be created. The name
        of a topic that has a log already is not checked. The name of a topic that only a pattern accepts is checked
        when the topic is created.
        """
        for name in sorted(config.topics.keys() - self._stored.keys()):
            try:
                if "*" not in name:
                    check_new_topic(name)
            except InvalidName as error:
                raise ConfigError(file, f"[topic={name}]", str(error)) from error

    def unnamed(self) -> list[str]:
        """Return a sorted list of the topics that have a log although no section of server.ini accepts them. The broker
        uses the settings of [system] for these topics.
        """
        return sorted(name for name in self._stored if self._config.topic(name) is None)

    def _settings(self, name: str) -> TopicConfig:
        config = self._config.topic(name) or self._config.system
        stored = self._stored.get(name, 0)
        if self._moves.concerns(name):
            counts = self._moves.counts(name, max(config.partitions, stored))
            return replace(config, partitions=counts.publish, readable_partitions=counts.subscribe)
        return config if stored <= config.partitions else replace(config, partitions=stored)

    def takes_compressed(self, topic: str) -> bool:
        """Return whether the topic accepts messages with compressed payloads. If it does, a reader of the topic must be
        able to read such messages.
        """
        if not self._any_compressed:
            return False  # the usual case; each `get` asks
        taken = self._compressed.get(topic)
        if taken is None:
            config = self._config.topic(topic) or (self._config.system if topic in self._stored else None)
            taken = config is not None and config.accept_compressed
            if topic in self._stored or topic in self._config.topics:  # as in has_stat
                self._compressed[topic] = taken
        return taken

    def has_stat(self, topic: str) -> bool:
        """Return whether realtime counters are kept for a topic."""
        stat = self._stat.get(topic)
        if stat is None:
            stat = self._config.has_stat(topic)
            if topic in self._stored or topic in self._config.topics:  # not for any name that a client sends
                self._stat[topic] = stat
        return stat

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use a new configuration, which may have other topics, numbers of partitions and values of `stat`."""
        self._config = config
        self._writable.clear()
        self._stat.clear()
        self._compressed.clear()
        self._any_compressed = _any_compressed(config)

    # --- logs ---------------------------------------------------------------------------------------------------------

    def choose(self, topic: str) -> int:
        """Choose a random partition of the topic for a put with the partition number ANY, and return its number."""
        count = self._moves.open_count(topic, self._settings(topic).partitions)
        return self._rng.randrange(count) if count else 0  # partition 0 is then refused

    def for_put(self, topic: str, partition: int, *, chosen: bool = False) -> PartitionLog:
        """Return the log to which a put for this partition is to be appended. The log is created on its first use.

        chosen: whether the broker has chosen the partition (`choose`); if so, the put is accepted even if an operator
        has closed the partition, as in 1.x. Raises PartitionClosed, TopicNotAccepted, InvalidName, WrongPartition,
        NotMaster, BrokerStarting, AccountSpent, DiskFull, StoreError.
        """
        log = self._writable.get((topic, partition))
        if log is None:
            log = self._open(topic, partition, chosen)
        elif self._store.space.full:
            self._store.space.check(log.directory, journaled=log.has_group_commit)
        return log

    def for_puts(self, topics: Sequence[str], partitions: Sequence[int]) -> list[PartitionLog] | None:
        """Return the result of `for_put` for each topic and partition. Missing logs are created; but if there are more
        of them than one turn may create, return None and create none. Raises the error of the first refused put.
        """
        if not self._store.space.full:
            places = list(zip(topics, partitions, strict=True))
            found = list(map(self._writable.get, places))
            if all(found):
                return cast(list[PartitionLog], found)
            if len({place for place, log in zip(places, found, strict=True) if log is None}) > tuning.STEP_NEW_LOGS:
                return None
        return list(map(self.for_put, topics, partitions))

    def for_replay(self, topic: str, partition: int) -> PartitionLog:
        """Return a partition's log; create it if there is none. The topic need not be configured, because the messages
        of a committed transaction must be stored in any case.

        Raises InvalidName, StoreError.
        """
        log = self._store.get_or_create(topic, partition)
        self._learn(log)
        return log

    def for_waiting(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition that will get delayed or half messages, or None if the partition's topic is no
        longer accepted. A missing log is created. It can be missing although the partition has existed: a follower of a
        broker set does not copy a partition without messages, and a power failure can remove an empty log.

        Raises StoreError.
        """
        if (log := self._store.find(topic, partition)) is not None or not self._accepts(topic):
            return log
        return self.for_replay(topic, partition)

    def stored(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition regardless of the configuration, or None if it has no log."""
        return self._store.find(topic, partition)

    def for_read(self, topic: str, partition: int) -> PartitionLog:
        """Return the log that a get of this partition reads. Raises PartitionClosed, PartitionNotFound (also for a
        partition without data), and WrongPartition for a partition whose move to this broker is not complete.
        """
        if partition in self._closed.get(topic, ()):
            raise PartitionClosed(self.broker_id, partition)
        if self._moves.is_incoming(topic, partition):
            raise WrongPartition(partition)
        return self._store.get(topic, partition)

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """Like for_read, but return None for a configured partition that has no data yet.

        Raises PartitionClosed, TopicNotAccepted, InvalidName, WrongPartition.
        """
        try:
            return self.for_read(topic, partition)
        except PartitionNotFound:
            topic_config = self.topic(topic)
            if not 0 <= partition < max(topic_config.partitions, topic_config.readable_partitions or 0):
                raise WrongPartition(partition) from None
            return None

    def check(self, topic: str, partition: int) -> None:
        """Check whether a put may name this partition. Raises TopicNotAccepted, InvalidName, WrongPartition,
        NotMaster.
        """
        if not self.takes_puts:
            raise NotMaster(self.broker_id, "an asynchronous slave")
        if not 0 <= partition < self.topic(topic).partitions:
            raise WrongPartition(partition)

    def for_replica(self, topic: str, partition: int, first_offset: int) -> PartitionLog:
        """Return the log into which a slave copies a partition of its master. A missing log is created and begins at
        `first_offset`.

        The slave's own configuration of the topic is ignored. Raises InvalidName, StoreError.
        """
        check_topic(topic)
        if first_offset > MAX_OFFSET:
            raise StoreError(f"{topic}-{partition} cannot begin at {first_offset}: that is beyond all offsets")
        log = self._store.get_or_create(topic, partition, first_offset)
        self._learn(log)
        return log

    def _open(self, topic: str, partition: int, chosen: bool) -> PartitionLog:
        closed = partition in self._closed.get(topic, ())
        if not self._moves.known:
            raise BrokerStarting(self.broker_id)
        if (closed and not chosen) or self._moves.has_left(topic, partition):
            raise PartitionClosed(self.broker_id, partition)
        self.check(topic, partition)
        if self._store.space.full:
            directory = self._store.directory_for(topic, partition)
            self._store.space.check(directory, journaled=self.topic(topic).has_group_commit)
        log = self._make(topic, partition)
        if not closed:
            self._writable[topic, partition] = log
        return log

    def _make(self, topic: str, partition: int) -> PartitionLog:
        """Create the log of a partition. If the topic has no section in server.ini and no log yet, the log creates the
        topic. Raises AccountSpent if clients of the requesting client's address may create no more topics, and
        QuotaExceeded if the user may create no more of metaq's own topics.
        """
        address, user = NOBODY, NO_USER
        if self._account is not None and topic not in self._stored and topic not in self._config.topics:
            address = self._account.asker
            if (why := self._account.made_topics.why_not(address)) is not None:
                raise AccountSpent(why)
            if is_own_topic(topic):
                user = self._account.asker_user
                self._account.users.check(user, Quota.OWN_TOPICS)
        log = self._store.get_or_create(topic, partition)
        self._learn(log, address)
        if self._account is not None:
            self._account.users.add(user, Quota.OWN_TOPICS)
        return log

    def _learn(self, log: PartitionLog, address: str = NOBODY) -> None:
        if self._on_log is not None:
            self._on_log(log)
        known = self._stored.get(log.topic, 0)
        self._stored[log.topic] = max(known, log.partition + 1)
        if not known and self._account is not None and log.topic not in self._config.topics:
            self._account.made_topics.add(address, 1)
        if not known and self._on_topic is not None:
            self._on_topic(log.topic, self._settings(log.topic))

    # --- moving -------------------------------------------------------------------------------------------------------

    def use_moves(self, moves: MoveTable) -> None:
        """Use these moves from now on. The moves decide which partitions the broker offers to clients, and which
        partitions accept messages. Raises StoreError if the log of an arrived partition is missing and cannot be
        created.
        """
        self._moves = moves
        self._writable.clear()
        for topic, partition, end in moves.arrived():
            if self.takes_puts and self._store.find(topic, partition) is None:
                self.for_replica(topic, partition, end)

    def is_leaving(self, topic: str, partition: int) -> bool:
        """Return whether the partition will move or has moved to another broker (MoveTable.is_leaving)."""
        return self._moves.is_leaving(topic, partition)

    def stored_count(self, topic: str) -> int:
        """Among the partitions of the topic that have a log, find the highest number, and return it plus one; return 0
        if there is no such partition.
        """
        return self._stored.get(topic, 0)

    def serves(self, topic: str) -> bool:
        """Return whether clients may use the topic."""
        return topic in self._config.topics or topic in self._stored

    # --- closing ------------------------------------------------------------------------------------------------------

    def close(self, topic: str, start: int, end: int) -> None:
        """Close the partitions start … end of a configured topic: refuse puts to them and gets from them, until an
        operator opens them or the broker is restarted.

        Raises TopicNotAccepted for a topic without a section, WrongPartition for numbers outside the topic.
        """
        if topic not in self._config.topics:
            raise TopicNotAccepted(topic)
        count = self._settings(topic).partitions
        if not 0 <= start <= end < count:
            raise WrongPartition(end, count)
        self._closed.setdefault(topic, set()).update(range(start, end + 1))
        for partition in range(start, end + 1):
            self._writable.pop((topic, partition), None)

    def closed(self, topic: str) -> list[int]:
        """Return the numbers of the topic's partitions that an operator has closed, sorted."""
        return sorted(self._closed.get(topic, ()))

    def open(self, topic: str) -> None:
        """Open all closed partitions of a topic."""
        self._closed.pop(topic, None)


def _any_compressed(config: BrokerConfig) -> bool:
    return any(topic.accept_compressed for topic in (config.system, *config.topics.values()))


def _kept(topic: str, configured: int, stored: Sequence[int]) -> str:
    beyond = ", ".join(f"{topic}-{number}" for number in stored if number >= configured)
    return (
        f"[topic={topic}] numPartitions={configured} would hide {beyond} of the data directory: {stored[-1] + 1} "
        "partitions are served; to have fewer, stop the broker and delete those with `metaq partitions delete`"
    )

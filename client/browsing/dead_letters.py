"""A group's dead letters: looking at them, sending them again, and dropping them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from metaq.coordination.logs import get_log
from metaq.protocol.errors import ConfigError, CorruptRecord, MessageNotFound, OffsetOutOfRange
from metaq.protocol.limits import check_zookeeper_group
from metaq.protocol.own_topics import dead_topic, retry_topic
from metaq.protocol.retries import (
    MAX_DONE_OFFSETS,
    Done,
    Failure,
    done_of,
    encode_done,
    encode_failed,
    without_expiry,
)

from ..producer.building import SendOptions
from ..producer.producer import Producer
from ..producer.routing import partition_for_key
from ..questions.cluster import Cluster
from ..questions.partitions import max_offset, min_offset
from ..questions.records import read_messages
from ..records.message import Message, RetriedMessage, as_original, failure_in
from ..records.values import SendResult, TopicPartition
from ..runtime.durations import Duration, check_wait
from ..runtime.unclosed import Closing
from ..runtime.wall_clock import now_ms
from ..settings.config import BROWSE_BYTES, ConnectionConfig, ProducerConfig, check_number, config_or_default

__all__ = ["DeadLetter", "DeadLetters", "RedriveTo", "Redriven", "count_dead_letters"]

log = get_log(__name__)

RedriveTo = Literal["topic", "group"]
"""Where dead letters are sent again: to their topic, where all its groups get them, or to their group alone."""


class DeadLetter(NamedTuple):
    """One message that failed for the last time.

    partition, offset: where it lies among the dead letters. original: the message as it was, with its own partition,
    offset and id. attempts: how often it failed. cause: type and text of what was raised last; place: where, as
    `file:line in function`. failed: when that was.
    """

    partition: TopicPartition
    offset: int
    original: Message
    attempts: int
    cause: str
    place: str
    failed: datetime

    @property
    def name(self) -> str:
        """Names it among the group's dead letters: `<broker>-<partition>:<offset>`."""
        return f"{self.partition}:{self.offset}"


class Redriven(NamedTuple):
    """A dead letter that was sent again, and where that was stored."""

    letter: DeadLetter
    result: SendResult


class DeadLetters(Closing):
    """The dead letters of one group. Use as a context manager; one thread.

    Reading goes through all that lies in the group's topic `%DEAD%<group>`, twice, and keeps only the positions of
    those that are done. Several programs may read at once. If two redrive the same letter at once, it is sent twice.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        root: str = "/meta",
        start_timeout_seconds: Duration = 15.0,
        config: ConnectionConfig | None = None,
    ) -> None:
        """connect: ZooKeeper's connect string; root: metaq's own root below it. start_timeout_seconds: how long to wait
        for ZooKeeper. Raises ConfigError, InvalidName, TypeError, CoordinationUnavailable.
        """
        self.group = check_zookeeper_group(group)
        self.topic = dead_topic(group)
        self._retry_topic = retry_topic(group)
        self._config = config_or_default(config, ConnectionConfig)
        self._connect, self._root = connect, root
        self._producer: Producer | None = None
        self._cluster = Cluster(
            connect, root=root, start_timeout_seconds=start_timeout_seconds, config=self._config, starts=False
        )
        self._cluster.start()
        self._opened()

    # --- reading ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """How many there are. Raises as `read`."""
        return count_dead_letters(self._cluster, self.group)

    def read(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        cause: str | None = None,
        key: str | None = None,
        names: Collection[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[DeadLetter]:
        """Those that there are when this is called, partition by partition, the oldest of each first.

        since, until: when they failed last, aware datetimes, both included. cause: a part of the cause or the place,
        whatever its case. key: one of the keys of the message. names: only these (DeadLetter.name). limit: at most so
        many. What is damaged is left out, and logged. Raises ConfigError, BrokerUnavailable, RequestTimedOut,
        CoordinationUnavailable.
        """
        for option, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigError(option, moment, "give it a time zone, such as datetime.now(UTC)")
        if limit is not None:
            check_number("limit", limit)
        wanted = _Wanted(since, until, cause and cause.casefold(), key, names)
        return self._read(wanted, limit)

    def get(self, name: str) -> DeadLetter:
        """The one of this name. Raises MessageNotFound; else as `read`."""
        for letter in self.read(names=[name], limit=1):
            return letter
        raise MessageNotFound(f"group {self.group!r} has no dead letter {name}: it may have been redriven or dropped")

    def _read(self, wanted: _Wanted, limit: int | None) -> Iterator[DeadLetter]:
        count = 0
        for partition, end, is_open in _look(self._cluster, self.topic):
            for message in _messages(self._cluster, partition, end):
                if message.offset not in is_open:
                    continue
                letter = _letter(message)
                if letter is not None and wanted.takes(letter):
                    yield letter
                    count += 1
                    if count == limit:
                        return

    # --- what becomes of them -----------------------------------------------------------------------------------------

    def redrive(self, letters: Iterable[DeadLetter], *, to: RedriveTo = "topic") -> list[Redriven]:
        """Send each again, as it was when it was sent first, and mark it as done; return the outcomes.

        to: "topic" sends it to its own topic, with its key, tag and properties, and so to all groups that read it.
        "group" has only this group get it again. Its attempts begin anew. One that has expired is sent without an end,
        as nobody would get it otherwise. Of very many, `read` a `limit` at a time.

        If this ends in the middle, by whatever cause, each letter is either open, or done and sent. Only the one that
        was under way may be both sent and open: it is sent once more by the next redrive. Raises NoPartition (nobody
        publishes its topic now), RequestTimedOut, RequestRefused, ConfigError (also for "group" while the group's live
        members only poll: none of them would get it).
        """
        if to not in ("topic", "group"):
            raise ConfigError("to", repr(to), "choose 'topic' or 'group'")
        if to == "group":
            self._require_retrying()
        return [self._redrive(letter, to) for letter in letters]

    def _require_retrying(self) -> None:
        """Without live members a letter waits for the next one, and shared groups, which are no members of this kind,
        take theirs in run(). Raises ConfigError."""
        members = self._cluster.view.consumers(self.group)
        if members and not any(self._retry_topic in topics for topics in members.values()):
            remedy = "have a member run(handler), without retry=None, or choose to='topic'"
            raise ConfigError("to", "'group'", f"no live member of {self.group!r} reads what waits for it: {remedy}")

    def _checked(self, letter: DeadLetter) -> DeadLetter:
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"{letter!r:.80} is no DeadLetter: give what read() or get() return")
        if letter.partition.topic != self.topic:
            raise ConfigError("letters", f"{letter.name} of {letter.partition.topic}", f"give those of {self.topic}")
        return letter

    def _redrive(self, letter: DeadLetter, to: RedriveTo) -> Redriven:
        original = _unending(self._checked(letter).original)
        producer = self._sender()
        if to == "topic":
            topic, message, options = original.topic, original, _options(original, producer)
        else:
            failure = Failure(original.origin, 0, letter.cause, int(letter.failed.timestamp() * 1000))
            flag, body = encode_failed(original.flag, original.body, failure)
            topic, message, options = self._retry_topic, Message(original.partition, 0, 0, flag, body), SendOptions()
        (result,) = producer.send_batch(topic, [message], **options)
        self._mark(letter.partition, Done("redriven", (letter.offset,)))
        return Redriven(letter, result)

    def drop(self, letters: Iterable[DeadLetter]) -> int:
        """Mark them as done without sending them; return how many. Raises as `redrive`."""
        by_partition: dict[TopicPartition, list[int]] = {}
        count = 0
        for letter in map(self._checked, letters):
            offsets = by_partition.setdefault(letter.partition, [])
            offsets.append(letter.offset)
            count += 1
            if len(offsets) == MAX_DONE_OFFSETS:
                self._mark(letter.partition, Done("dropped", tuple(offsets)))
                offsets.clear()
        for partition, offsets in by_partition.items():
            if offsets:
                self._mark(partition, Done("dropped", tuple(offsets)))
        return count

    def _mark(self, partition: TopicPartition, done: Done) -> None:
        flag, body = encode_done(done)
        self._sender().send_batch(self.topic, [Message(partition, 0, 0, flag, body)], partition=partition)

    def _sender(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(self._connect, root=self._root, config=ProducerConfig(connection=self._config))
        return self._producer

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, timeout: Duration = 10.0) -> None:
        """End the sessions and all connections. Idempotent."""
        seconds = check_wait("timeout", timeout)
        self._closes()
        if self._producer is not None:
            self._producer.close(seconds / 2)
        self._cluster.close(seconds / 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class _Wanted(NamedTuple):
    since: datetime | None
    until: datetime | None
    cause: str | None
    key: str | None
    names: Collection[str] | None

    def takes(self, letter: DeadLetter) -> bool:
        return (
            (self.since is None or letter.failed >= self.since)
            and (self.until is None or letter.failed <= self.until)
            and (self.cause is None or self.cause in f"{letter.cause}\n{letter.place}".casefold())
            and (self.key is None or self.key in letter.original.keys)
            and (self.names is None or letter.name in self.names)
        )


def count_dead_letters(cluster: Cluster, group: str) -> int:
    """How many dead letters a group has; reads all that lies in their topic. Raises as DeadLetters.read."""
    return sum(len(is_open) for _, _, is_open in _look(cluster, dead_topic(group)))


def _look(cluster: Cluster, topic: str) -> list[tuple[TopicPartition, int, set[int]]]:
    """Each partition of the dead letters, where it ends now, and the positions of the letters that are not done."""
    partitions = cluster.readable(topic)
    ends = {each: cluster.ask(each, partial(max_offset, partition=each)) for each in partitions}
    found = []
    for partition, end in ends.items():
        is_open: set[int] = set()
        for message in _messages(cluster, partition, end):
            done = done_of(message.flag, message.body)
            if done is not None:
                is_open.difference_update(done.offsets)
            elif failure_in(message) is not None:
                is_open.add(message.offset)
        found.append((partition, end, is_open))
    return found


def _messages(cluster: Cluster, partition: TopicPartition, end: int) -> Iterator[Message]:
    """All in front of `end`, but what is damaged."""
    ask = partial(cluster.ask, partition)
    position = ask(partial(min_offset, partition=partition))
    while position < end:
        read = partial(read_messages, partition=partition, offset=position, max_bytes=BROWSE_BYTES)
        try:
            messages = ask(read)
        except OffsetOutOfRange as error:
            if error.first <= position:
                return
            position = error.first  # deleted meanwhile
            continue
        except CorruptRecord as error:
            if error.end is None:
                raise
            log.warning("dead letters may be lost: %s", error)
            position = error.end
            continue
        if not messages:
            return
        yield from (each for each in messages if each.offset < end)
        position = messages[-1].next_offset


def _letter(message: Message) -> DeadLetter | None:
    """None for what is damaged."""
    original, failure = as_original(message), failure_in(message)
    if failure is None or not isinstance(original, RetriedMessage):
        return None
    cause, _, place = failure.cause.partition("\n")
    failed = datetime.fromtimestamp(failure.failed_ms / 1000, UTC)
    return DeadLetter(message.partition, message.offset, original, failure.attempts, cause, place, failed)


def _unending(original: Message) -> Message:
    """The same without the time from which on it is handed out no more, if that is over."""
    if not original.has_expired(now_ms()):
        return original
    place = original.partition, original.offset, original.id
    return RetriedMessage(*place, *without_expiry(original.flag, original.body))


def _options(original: Message, producer: Producer) -> SendOptions:
    """How it is sent so that it gets to the partition to which messages with its key go now.

    What the key was is not stored, but its words are among the keys. If none of these leads to the partition in which
    it was, it had no key, or the partitions have changed since.
    """
    partitions: Sequence[TopicPartition] = producer.partitions(original.topic)
    keys = original.keys
    for key in (" ".join(keys), *keys) if keys and partitions else ():
        if partition_for_key(key, partitions) == original.partition:
            return SendOptions(key=key)
    if original.partition in partitions:
        return SendOptions(partition=original.partition)
    return SendOptions(key=keys[0]) if keys else SendOptions()

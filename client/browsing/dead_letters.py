"""Read, redrive and drop a group's dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from metaq.coordination.runtime.interrupts import begin_elsewhere
from metaq.coordination.runtime.logs import get_log
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
from ..questions.partition_bounds import max_offset, min_offset
from ..questions.stored_records import read_messages
from ..records.message import Message, RetriedMessage, as_original, failure_in
from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, check_wait
from ..runtime.unclosed import Closing
from ..runtime.wall_clock import now_ms
from ..settings.config import BROWSE_BYTES, ConnectionConfig, ProducerConfig, check_number, config_or_default

__all__ = ["DeadLetter", "DeadLetters", "RedriveTo", "Redriven", "count_dead_letters"]

log = get_log(__name__)

RedriveTo = Literal["topic", "group"]
"""The destination of redriven dead letters: their topic, so that all groups of the topic get them, or only their own
group.
"""


class DeadLetter(NamedTuple):
    """A message on which the group's handlers have failed the maximum number of times.

    partition, offset: where the dead letter is stored. original: the original message with its own partition, offset
    and id. attempts: how many times the message failed. cause: type and text of the last handler's exception. place:
    where the exception was raised, as `file:line in function`. failed: time of the last failure.
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
        """A name that identifies the letter among the group's dead letters: `<broker>-<partition>:<offset>`."""
        return f"{self.partition}:{self.offset}"


class Redriven(NamedTuple):
    """A dead letter that was sent again, and the partition and offset where the broker has stored the new message."""

    letter: DeadLetter
    result: SendResult


class DeadLetters(Closing):
    """Reads, redrives and drops the dead letters of one group. Use it as a context manager, and on one thread only.

    A letter is open until it is redriven or dropped. Reading scans the group's topic `%DEAD%<group>` twice: first to
    find the offsets of the open letters, which are kept in memory, and then to read these letters. Several programs may
    read at once. If two programs redrive the same letter at once, the letter is sent twice.
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
        """connect: the addresses of the ZooKeeper servers, `host:port,host:port/chroot`. root: the path of metaq's
        nodes below the chroot. start_timeout_seconds: how long to wait for the connection to ZooKeeper. Raises
        ConfigError, InvalidName, TypeError, CoordinationUnavailable.
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
        try:
            self._cluster.start()
            self._opened()
        except BaseException:
            begin_elsewhere((self._cluster.close,))
            raise

    # --- reading ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return the number of open dead letters. Raises the same errors as `read`."""
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
        """Yield the dead letters that are open at the time of the call, partition by partition, and the oldest letter
        of each partition first.

        since, until: limits for the time of the last failure, as datetimes with a time zone; a letter that failed
        exactly at a limit is yielded, too. cause: a text that the cause or the place must contain, ignoring case. key:
        one of the keys of the original message.
        names: yield only letters with these names (DeadLetter.name). limit: the maximum number of letters to yield.
        Letters whose stored message is damaged are not yielded, but logged. Raises ConfigError, BrokerUnavailable,
        RequestTimedOut, CoordinationUnavailable.
        """
        for option, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigError(option, moment, "give it a time zone, such as datetime.now(UTC)")
        if limit is not None:
            check_number("limit", limit)
        wanted = _Wanted(since, until, cause and cause.casefold(), key, names)
        return self._read(wanted, limit)

    def get(self, name: str) -> DeadLetter:
        """Return the letter with this name. Raises MessageNotFound, and the errors of `read`."""
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

    # --- redriving and dropping -------------------------------------------------------------------------------------

    def redrive(self, letters: Iterable[DeadLetter], *, to: RedriveTo = "topic") -> list[Redriven]:
        """Send the original message of each letter again, mark the letter as done, and return where the new messages
        are stored.

        to: "topic" sends each original message to its own topic, with its key, tag and properties, and so to all groups
        that read the topic. "group" sends it only to this group. The number of attempts begins at zero again. A message
        whose time to live is over is sent without a time to live, because otherwise no consumer would get it. The
        result of a call contains all letters that were passed to it. So if there are very many letters, pass them in
        several calls (use the argument `limit` of `read`).

        If the call ends early, for whatever reason, each letter is either still open, or sent and marked as done. There
        is one exception: the letter that was just being sent may be both sent and open, and then the next redrive sends
        it a second time. Raises NoPartition (no broker has the topic of a letter now), RequestTimedOut, RequestRefused,
        ConfigError. ConfigError is also raised for "group" if all live members of the group use poll() and not run(),
        because none of them would get the letter.
        """
        if to not in ("topic", "group"):
            raise ConfigError("to", repr(to), "choose 'topic' or 'group'")
        if to == "group":
            self._require_retrying()
        return [self._redrive(letter, to) for letter in letters]

    def _require_retrying(self) -> None:
        """Check that some live member of the group would get a letter that is sent to the group. Raises ConfigError if
        none would.

        If the group has no live members, a letter waits for the next member, and no error is raised. Members of shared
        groups are not checked; they get such letters in run().
        """
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
        """Mark letters as done without sending them, and return their number. Raises the same errors as `redrive`."""
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
        """Close the ZooKeeper sessions and all connections. Idempotent."""
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
    """Read the whole topic of a group's dead letters, and return the number of open ones. Raises the same errors as
    DeadLetters.read.
    """
    return sum(len(is_open) for _, _, is_open in _look(cluster, dead_topic(group)))


def _look(cluster: Cluster, topic: str) -> list[tuple[TopicPartition, int, set[int]]]:
    """Scan the topic of dead letters. For each partition of the topic, return the partition, the byte offset where it
    ends now, and the offsets of its open letters.
    """
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
    """Yield all messages of the partition before the position `end`, except damaged ones."""
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
    """Return the dead letter that a message of the topic contains, or None if the message is damaged."""
    original, failure = as_original(message), failure_in(message)
    if failure is None or not isinstance(original, RetriedMessage):
        return None
    cause, _, place = failure.cause.partition("\n")
    failed = datetime.fromtimestamp(failure.failed_ms / 1000, UTC)
    return DeadLetter(message.partition, message.offset, original, failure.attempts, cause, place, failed)


def _unending(original: Message) -> Message:
    """Return the message unchanged if it has not expired. Otherwise return the message without its expiry time."""
    if not original.has_expired(now_ms()):
        return original
    place = original.partition, original.offset, original.id
    return RetriedMessage(*place, *without_expiry(original.flag, original.body))


def _options(original: Message, producer: Producer) -> SendOptions:
    """Return options for sending the original message again. With these options the message goes to the partition that
    messages with the same key go to now.

    A message does not state which of its keys has chosen its partition. So this function looks for one of its keys for
    which the producer would choose the partition of the original message. If there is none, the message was sent
    without a key, or the topic's partitions have changed since. In this case the options name the original partition if
    it exists, otherwise the partition for the first key.
    """
    partitions: Sequence[TopicPartition] = producer.partitions(original.topic)
    keys = original.keys
    for key in (" ".join(keys), *keys) if keys and partitions else ():
        if partition_for_key(key, partitions) == original.partition:
            return SendOptions(key=key)
    if original.partition in partitions:
        return SendOptions(partition=original.partition)
    return SendOptions(key=keys[0]) if keys else SendOptions()

"""A consumer without I/O: events go in, and actions come out.

| event | method | what comes out |
|---|---|---|
| partitions were claimed, lost | `claim`, `lose` | `next_wanting`, `notices` |
| partitions will be handed over, or are kept after all | cursor `revoke`, `keep` | `is_out` says whether to wait |
| a partition may need a request | `next_wanting` | a cursor; send its `next_request(now)` to `source` |
| an answer begins, has come, will not come | `answer_begins`, `answered`, `found`, `failed` | seconds to wait |
| a read message may be lost | cursor `take_doubt`, then `looked_into` | what to ask the broker (divergence.py) |
| the beginnings of partitions were committed | `recorded` | `next_wanting`, `notices` |
| the user polls | `acknowledge`, `take`, `take_batch` | messages |
| poll() has returned the messages | `under_way = False` | |
| an exception ended the poll | `settle` | the messages are delivered again |
| a handler works on a partition | cursor `hold`, `next_messages`, cursor `consumed_to`, `let_go` | messages |
| the user seeks | cursor `moved_to` | `next_wanting` |
| the session is doubted, or proved | `in_doubt` | nothing is delivered |
| it is time to commit | `changes`, then cursor `committed_to` | what to write, and on which session |

The drivers make no decisions of their own: fetcher.py sends requests over connections, group_member.py moves partitions
as rebalance.py says, consumer.py is the caller's poll(), listener.py calls handlers. To drive the core in one thread,
from asyncio or from a simulator with a clock of its own, repeat

    while (cursor := core.next_wanting()) is not None:
        if (request := cursor.next_request(now)) is not None:
            send(request)                                   # core.codec makes the bytes; Ask is the kind of request
    …                                                       # when an answer has come, or none will
    seconds = core.answered(request, reply, endpoint, now)  # or core.failed(request, error, now)
    if seconds is not None: call_at(now + seconds, core.want, request.cursor)

**Threads.** Any thread may call any method, with one exception: taking messages. Either one thread takes messages, or
the threads of several handlers do, each from its own partitions. poll() holds `lock` while it takes messages. So when
the rebalance thread holds `lock`, either all messages of a poll are taken or none. **Interrupts**: as in cursor.py.
When a cursor begins to need a request, the same statement also puts it into the queue of `next_wanting`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import random
from typing import TYPE_CHECKING

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    CannotConnect,
    CoordinationRefused,
    CorruptRecord,
    MetaqError,
    NotOwner,
)
from metaq.protocol.frames import Frame
from metaq.protocol.own_topics import RETRY_PREFIX
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Result
from metaq.protocol.where import Where

from ..questions.places import Locate
from ..records.decoding import WRONG_LENGTH
from ..records.message import Message, ValueMessage
from ..records.results import TopicPartition
from ..runtime.wall_clock import WallClock, now_ms
from ..settings.consumer_config import ConsumerConfig
from ..transport.connection import Endpoint, Reply
from .chunk import Chunk
from .codec import NotWhole, PullCodec
from .cursor import Ask, PartitionCursor, Reached, Request
from .nearest_nodes import NearestNodes
from .notices import Notice, Notices
from .pauses import Pauses

if TYPE_CHECKING:
    import pyarrow

    from ..serializers.base import ValueReader

__all__ = ["Accept", "ConsumerCore", "changes"]

log = get_log(__name__)

Accept = Callable[[Message], bool]


class ConsumerCore:
    """Holds the state of a consumer and decides what it does next, without I/O; see the module.

    owned: the partitions that the consumer owns now; a new dict at each change, so any thread may read it. notices:
    pending calls of the user's callbacks. pauses: what the user has paused. in_doubt: whether another member may own
    the partitions; while it is true, nothing is delivered. under_way: whether a poll has taken messages and has not
    returned them yet. The poll itself assigns False to this attribute just before its `return`, without calling a
    method, because a signal handler may run and raise an exception when a call of a method returns, but not between an
    assignment and the following `return`.
    nearest: chooses the nodes from which partitions of broker sets are read, if these need not be the leaders; the
        driver sets it.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        *,
        tags: frozenset[str] | None = None,
        where: Where | None = None,
        accept: Accept | None = None,
        is_slave: Callable[[Endpoint], bool] = lambda _: False,
        follow: Callable[[MetaqError], float | None] = lambda _: None,
        random: Callable[[], float] = random,
        wall_clock: WallClock = now_ms,
        reader: ValueReader | None = None,
    ) -> None:
        """accept: the user's filter; messages that it refuses are skipped and count as consumed. Exceptions of accept
        and on_damaged are raised by `take`. follow: see ConnectionPool.follow. reader: decodes `message.value`.
        """
        self.group = group
        self.owned: Mapping[TopicPartition, PartitionCursor] = {}
        self.notices = Notices()
        self.pauses = Pauses()
        self.in_doubt = False
        self.under_way = False
        self.nearest: NearestNodes | None = None
        self.codec = PullCodec(group, tags, config, is_slave, "" if where is None else where.text)
        self.lock = threading.Lock()
        self.config = config
        self._random = random
        self._wall_clock = wall_clock
        self._reader = reader
        self._follow = follow
        self._tags = tags
        self._retry_topic = f"{RETRY_PREFIX}{group}"  # The group's retry topic; the name is not checked yet.
        self._where = where
        self._accept = accept
        self._on_damaged = config.on_damaged
        self._check_messages, self._check_batches = config.check_crcs is not False, config.check_crcs is True
        self._wanting: deque[PartitionCursor] = deque()
        self._ready: dict[PartitionCursor, None] = {}
        self._ready_lock = threading.Lock()
        self._refused: dict[PartitionCursor, AccessRefused] = {}  # refusals of which the user does not know yet
        self._refused_membership: CoordinationRefused | None = None  # likewise
        self._telling = threading.Lock()  # held while deciding whether the user hears of a partition
        self._touched: dict[PartitionCursor, None] = {}  # cursors whose messages the user has, or was about to get

    # --- ownership --------------------------------------------------------------------------------------------------

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        begins: Sequence[int | Locate],
        stored: Sequence[Reached | None] | None = None,
        consumed: Sequence[Reached | None] | None = None,
        *,
        recorded: Sequence[bool] | None = None,
        fence: int = 0,
        announced: bool = False,
    ) -> Sequence[PartitionCursor]:
        """Become the owner of these partitions, and begin to read at the positions `begins`. stored, consumed and
        recorded have an item for each partition. stored: the partition's committed offset. consumed: messages before
        this offset already count as consumed. recorded: false if the offset where the group begins must be committed
        first; the user is told of the partition only after that. announced: if true, messages are delivered without
        calling on_assigned for the partitions.
        """
        unknown = [None] * len(partitions)
        cursors = [
            PartitionCursor(
                partition,
                self.config,
                begin,
                fence=fence,
                stored=committed,
                consumed=reached,
                recorded=is_recorded,
                announced=announced,
                wanting=self._wanting,
                random=self._random,
            )
            for partition, begin, committed, reached, is_recorded in zip(
                partitions,
                begins,
                stored or unknown,
                consumed or unknown,
                [True] * len(partitions) if recorded is None else recorded,
                strict=True,
            )
        ]
        self.owned = {**self.owned, **{each.partition: each for each in cursors}}
        for each in cursors:  # after `owned`: a thread that calls `pause` meanwhile finds the cursor, or this finds it
            each.paused = self.pauses.holds(each.partition)
        self._wanting.extend(cursors)
        if not announced:
            self._announce([each for each in cursors if each.recorded])
        return cursors

    def _announce(self, cursors: Sequence[PartitionCursor]) -> None:
        if not cursors:
            return

        def told(some: Sequence[TopicPartition]) -> None:
            for cursor in cursors:
                if cursor.partition in some:
                    cursor.announce()
                    self.make_ready(cursor)

        self.notices.put(Notice(True, [each.partition for each in cursors], told))

    def recorded(self, requests: Iterable[Request]) -> None:
        """Begin to read the partitions of these RECORD requests, and tell the user that they are assigned. Called when
        the offsets where the group begins to read these partitions are committed.
        """
        with self._telling:
            cursors = [each.cursor for each in requests if each.cursor.begin_recorded(each)]
            self._announce(cursors)
        self._wanting.extend(cursors)

    def told(self, cursors: Iterable[PartitionCursor]) -> list[TopicPartition]:
        """Return the partitions of `cursors` that were, or will be, reported to the user as assigned. A partition that
        was revoked before the offset where the group begins was committed is left out, because the user never hears of
        it. Call this when partitions are revoked or lost.
        """
        with self._telling:
            return [each.partition for each in cursors if each.recorded]

    def lose(self, cursors: Iterable[PartitionCursor]) -> None:
        """Remove the partitions of these cursors from `owned`, and drop their fetched data, because this consumer no
        longer owns them.
        """
        lost = {cursor.partition: cursor for cursor in cursors}
        self.owned = {each: cursor for each, cursor in self.owned.items() if lost.get(each) is not cursor}
        for cursor in lost.values():
            cursor.lose()
            self._refused.pop(cursor, None)

    def pause(self, pauses: Pauses) -> None:
        """Pause exactly the partitions that `pauses` names, also those that this consumer gets later. The others are
        fetched and delivered again.
        """
        self.pauses = pauses
        for partition, cursor in self.owned.items():
            if pauses.holds(partition):
                cursor.pause()
            elif cursor.paused:
                cursor.resume()
                self.make_ready(cursor)

    def cursor(self, partition: TopicPartition) -> PartitionCursor:
        """Return the cursor of an owned partition. Raises NotOwner, TypeError."""
        cursor = self.owned.get(partition)
        if cursor is None:
            if not isinstance(partition, TopicPartition):
                raise TypeError(f"{partition!r:.80} is no TopicPartition: give one of assignment()")
            raise NotOwner(f"{partition.topic} {partition} is not assigned to this consumer: see assignment()")
        return cursor

    def is_out(self, cursors: Iterable[PartitionCursor]) -> bool:
        """Return whether the user's code has got messages of any of these partitions that do not count as consumed
        yet.
        """
        with self.lock:
            return any(cursor.is_out for cursor in cursors)

    # --- requests ---------------------------------------------------------------------------------------------------

    def want(self, cursor: PartitionCursor) -> None:
        """Put a cursor into the queue of `next_wanting`, because the pause before its next request is over."""
        self._wanting.append(cursor)

    def next_wanting(self) -> PartitionCursor | None:
        """Return the next cursor that may need a request, or None if there is none. The cursor's `next_request` returns
        the request if one is needed.
        """
        try:
            return self._wanting.popleft()
        except IndexError:
            return None

    def source(self, request: Request, leader: Endpoint | None, down: Collection[Endpoint], now: float) -> Endpoint:
        """Return the endpoint of the broker that shall get the request. leader: the partition's leader according to
        ZooKeeper. down: endpoints of brokers that cannot be reached. Raises BrokerUnavailable.
        """
        partition = request.cursor.partition
        if self.nearest is not None and request.ask is Ask.PULL:
            leader = self.nearest.choose(partition, leader, down, now)
        if leader is None:
            raise BrokerUnavailable(f"broker {partition.broker} is not registered")
        return leader

    def nearest_changed(self, broker_id: int) -> None:
        """Choose anew from which nodes the partitions of a broker set are read, because the set's nodes in the
        consumer's zone have changed.
        """
        for partition, cursor in self.owned.items():
            if partition.broker == broker_id:
                cursor.ask_anew()

    def patience(self, frames: bool) -> float:
        """Return the seconds within which a pull must be answered. frames: whether it uses the framed protocol;
        otherwise it uses the text protocol.
        """
        wait_ms = self.config.long_poll_ms if frames else 0
        return wait_ms / 1000 + self.config.connection.request_timeout_seconds

    def answer_begins(self, request: Request, head: Frame) -> Request | None:
        """Process the header of an answer before its body has arrived. The header tells where the answer's data end, so
        the next request can be sent now. Return the next request, or None if no request shall be sent yet. If the next
        request is sent this early, the broker can work on it while the body arrives and the user consumes the messages.
        """
        end = self.codec.end_of(head)
        return None if end is None else request.cursor.next_ahead(request, end)

    def answered(self, request: Request, reply: Reply, endpoint: Endpoint, now: float) -> float | None:
        """Process the answer to a pull. Return the seconds until the request's partition needs the next request, or
        None if it needs none.
        """
        cursor = request.cursor
        if isinstance(reply, Frame) and reply.code == ResponseCode.NOT_LEADER:
            self._avoid(endpoint, now)
        if not cursor.awaits(request):
            return None
        try:
            chunks, pause = self.codec.read(request, reply, endpoint)
        except NotWhole as error:
            return 0.0 if cursor.not_whole(request, error) else None
        except MetaqError as error:
            return self.failed(request, error, now)
        if _only_moves(reply):
            pause = cursor.was_moved()
        elif isinstance(reply, Frame):
            if chunks:
                cursor.whole_records_came()
            else:
                pause = cursor.waited_in_vain(request, now)
        for chunk in chunks:
            if cursor.arrived(request, chunk):
                self.make_ready(cursor)
        return self._recovered(request, now, pause)

    def found(self, request: Request, what: int | CorruptRecord | None, now: float) -> float | None:
        """Process the answer to a request that is not a pull. Return the seconds until the partition needs the next
        request, or None if it needs none.

        what: the offset or the damage that the broker has found; it is None if the broker was asked for damage and has
        found none.
        """
        cursor = request.cursor
        if not cursor.awaits(request):
            return None
        if request.ask is Ask.DAMAGE:
            if what is None:
                error = cursor.undamaged(request)
                if error is not None:
                    return self.failed(request, error, now)
                reason = "it comes damaged from a broker that finds it good"
                what = CorruptRecord.of(cursor.partition, request.offset, reason)
            assert isinstance(what, CorruptRecord)
            if cursor.damage_found(request, Chunk.damaged(what, request.offset)):
                self.make_ready(cursor)
        else:
            assert isinstance(what, int)
            # For a position after the end a Java broker answers as for one at the end: with nothing. After a restart it
            # reports the end 0 for a partition until the next put opens it.
            if request.ask is Ask.END and 0 < what < request.offset:
                log.warning(
                    "%s: the position %d lies behind the end %d, so nothing comes: seek to 'latest', for example",
                    cursor,
                    request.offset,
                    what,
                )
            cursor.offset_found(request, what)
        return self._recovered(request, now, 0.0)

    def failed(self, request: Request, error: MetaqError, now: float, endpoint: Endpoint | None = None) -> float | None:
        """Process the failure of a request: its answer is wrong or did not come. Return the seconds until the partition
        needs another request, or None if it needs none. endpoint: the node that was asked. If another node of its
        broker set can answer such requests, `endpoint` gets no requests for some seconds.
        """
        cursor = request.cursor
        self._avoid(endpoint, now)
        follows = self._follow(error)
        if follows is not None:
            return follows if cursor.put_off(request, now, follows) else None
        trouble = cursor.failed(request, now, str(error))
        if trouble is None:
            return None
        pause, is_new = trouble
        # with nearest nodes, the next request goes to another node, perhaps with other settings
        goes_on = is_new and self.nearest is not None and isinstance(error, CannotConnect)
        if isinstance(error, AccessRefused) and not goes_on:
            self._refused[cursor] = error
        if is_new:
            log.warning("fetching %s failed, next try in %.2f s: %s", cursor, pause, error)
        return pause

    @property
    def is_refused(self) -> bool:
        """Whether a broker has refused a request since the last call of `take_refusal`."""
        return bool(self._refused)

    def refuse_membership(self, error: CoordinationRefused) -> None:
        """Let `take_refusal` return an error with which ZooKeeper has refused to let this member work in its group. The
        rebalance thread calls this method.
        """
        self._refused_membership = error

    def take_refusal(self) -> AccessRefused | CoordinationRefused | None:
        """Return the error with which a broker has refused a request since the last call, because this client may not
        read a partition or could not log in; None if there is none. The thread that takes messages calls this if there
        are none, and raises the error to the user. The request is sent again after a pause, because an operator may
        grant it; if it is refused again, `take_refusal` returns that error, too. The same holds for ZooKeeper.
        """
        by_zookeeper, self._refused_membership = self._refused_membership, None
        if by_zookeeper is not None:
            return by_zookeeper
        refused, self._refused = self._refused, {}
        return next((error for cursor, error in list(refused.items()) if cursor.active), None)

    def unanswered(
        self, request: Request, error: MetaqError, now: float, endpoint: Endpoint | None = None
    ) -> float | None:
        """Process the failure of a request that got no answer, or whose answer was being processed when an interrupt
        came. Return the same value as `failed`. Data that had arrived before the failure are kept.
        """
        cursor = request.cursor
        cursor.forget_lead()
        if cursor.has_next:
            self.make_ready(cursor)
        return self.failed(request, error, now, endpoint)

    def _avoid(self, endpoint: Endpoint | None, now: float) -> None:
        if self.nearest is not None and endpoint is not None:
            self.nearest.failed(endpoint, now)

    def looked_into(self, partition: TopicPartition, doubt: Reached, found: int | MetaqError | None) -> None:
        """Write a log line if the broker has lost messages that this consumer has read, or if it is unknown whether it
        has lost some. The driver calls this after it has asked the broker (divergence.py). It asks only if the message
        that the broker now has directly before the position `doubt` is not the message that this consumer read there.

        If the broker has stored new messages at the offsets of lost messages, this consumer does not read them, because
        it is past these offsets. Without the log line nobody would notice. found: the first offset of the new messages.
        It is None if nothing is lost, and an error if it is unknown whether messages are lost.
        """
        place = f"{partition.topic} {partition}"
        if isinstance(found, MetaqError):
            log.warning("%s: whether it has lost what group %s has read is unknown: %s", place, self.group, found)
        elif found is not None:
            log.error(
                "%s: messages are lost that group %s had read. It goes on at %d, and may skip new messages from "
                "%d on: stop its members and run `metaq groups seek %s --topic %s --partition %s --to %d`",
                *(place, self.group, doubt[0], found),
                *(self.group, partition.topic, partition, found),
            )

    def _recovered(self, request: Request, now: float, pause: float) -> float:
        if self._refused:
            self._refused.pop(request.cursor, None)
        if request.cursor.answered(request, now, pause):
            log.info("fetching %s works again", request.cursor)
        return pause

    # --- whose turn it is -------------------------------------------------------------------------------------------

    def make_ready(self, cursor: PartitionCursor) -> None:
        """Mark a cursor as ready, because it may have messages to deliver. The cursor stays ready until the thread that
        takes messages finds nothing to deliver in it. So a cursor whose data may not be delivered now (`in_doubt`) is
        still ready later, when the data may be delivered.
        """
        with self._ready_lock:
            self._ready[cursor] = None

    def next_ready(self) -> PartitionCursor | None:
        """Return the first of the ready cursors, without removing it. Return None if no cursor is ready."""
        with self._ready_lock:
            return next(iter(self._ready), None)

    def hand_over(self, cursor: PartitionCursor) -> None:
        """Remove a cursor from the ready ones, because a handler will take its messages. The cursor becomes ready again
        when new data for it comes.
        """
        with self._ready_lock:
            self._ready.pop(cursor, None)

    def _pass_over(self, cursor: PartitionCursor) -> None:
        """Move the cursor to the end of the queue of ready cursors."""
        with self._ready_lock:
            if cursor in self._ready:
                del self._ready[cursor]
                self._ready[cursor] = None

    def _discard_unless_ready(self, cursor: PartitionCursor) -> None:
        """Called when a ready cursor had nothing to deliver: remove it from the ready ones, unless data for it has come
        meanwhile. If an interrupt comes, the removal is done completely or not at all.
        """
        with self._ready_lock:
            if not cursor.has_next:
                self._ready.pop(cursor, None)

    def _next(self) -> tuple[PartitionCursor, Chunk] | None:
        while not self.in_doubt and (cursor := self.next_ready()) is not None:
            chunk = cursor.next_chunk()
            if chunk is not None:
                return cursor, chunk
            self._discard_unless_ready(cursor)  # used up, lost, or moved by a seek
        return None

    # --- the polling thread -----------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        """Count as consumed all messages that the last poll has returned. If an exception ended the last poll, its
        messages did not reach the user and do not count.
        """
        self.settle()
        if self._touched:
            with self.lock:
                for cursor in self._touched:
                    cursor.acknowledge()
                self._touched.clear()

    def settle(self) -> None:
        """If an exception ended the last poll, put back the messages that it had taken. May be called repeatedly."""
        if self.under_way:
            with self.lock:
                for cursor in self._touched:
                    cursor.take_back()
                self._touched.clear()
                self.under_way = False

    def take(self, limit: int, *, unpacks: bool = False) -> list[Message]:
        """Return at most `limit` fetched messages. The messages are taken chunk by chunk, and the partitions take
        turns.

        unpacks: whether to decompress the payloads at once; a payload that cannot be decompressed counts as damage.
        Raises CorruptRecord, and exceptions of `accept` and on_damaged.
        """
        messages: list[Message] = []
        with self.lock:
            while len(messages) < limit and (found := self._next()) is not None:
                cursor, chunk = found
                self._begin(cursor)
                try:
                    messages += self._take_from(cursor, chunk, limit - len(messages), unpacks)
                except CorruptRecord as error:
                    self._damaged(cursor, chunk, error, report=not messages)
                    if messages:
                        break
                except _Refused as refused:  # deliver the good messages first; the next call asks the filter again
                    if messages:
                        break
                    self.under_way = False
                    raise refused.error from None
            self.under_way = bool(messages)
        return messages

    def take_batch(self, limit: int) -> pyarrow.RecordBatch:
        """Take messages as `take` does, but return them as one record batch (arrow.SCHEMA), which may be empty.

        An answer that contains a table of record sizes becomes one batch. If an answer has no such table, or if the
        consumer must apply a filter, the messages are collected one by one.
        """
        from ..records.arrow import EMPTY, record_batch  # pyarrow is an extra

        with self.lock:
            while (
                (found := self._next()) is not None
                and found[1].gives_batches
                and not (self._tags or self._where or self._accept)
            ):
                cursor, chunk = found
                self._begin(cursor)
                try:
                    batch = chunk.take_batch(cursor.partition, limit, self._check_batches, self._wall_clock())
                    self._handed_out(cursor, chunk, chunk.last_id)
                except CorruptRecord as error:
                    self._damaged(cursor, chunk, error, report=True)
                    return EMPTY
                if batch.num_rows:
                    return batch
        messages = self.take(limit, unpacks=True)
        return record_batch(messages) if messages else EMPTY

    def _begin(self, cursor: PartitionCursor) -> None:
        self.under_way = True
        self._touched[cursor] = None
        cursor.handing_out()

    def _take_from(self, cursor: PartitionCursor, chunk: Chunk, limit: int, unpacks: bool) -> list[Message]:
        taken = self.next_messages(cursor, chunk, limit)
        if unpacks:
            taken = chunk.keep_unpackable(taken)
        messages = self.living(taken) if chunk.may_expire else taken
        if messages and self._accept is not None:
            try:
                messages = list(filter(self._accept, messages))
            except Exception as error:
                chunk.give_back(taken)
                raise _Refused(error) from None
        self._handed_out(cursor, chunk, taken[-1].id if taken else None)
        return messages

    def _handed_out(self, cursor: PartitionCursor, chunk: Chunk, last_id: int | None) -> None:
        cursor.handed_out(chunk.reached, last_id)
        if not chunk.bytes_left:
            cursor.used_up(chunk)
            self._pass_over(cursor)

    def _damaged(self, cursor: PartitionCursor, chunk: Chunk, error: CorruptRecord, report: bool) -> None:
        """Handle damaged data. If the end of the damage is not known yet, fetch the data again, to check them again. If
        the end is known and the setting `damage` allows it, skip the damaged range. If the setting does not allow it,
        raise the error at each poll until the user seeks.

        report: whether the poll has no other messages to return, so that the error may be raised.
        """
        if report:  # otherwise messages were taken; they are delivered again if on_damaged raises
            self.under_way = False
        unreadable = chunk.damage is None and error.end is not None  # it arrived exactly as its producer made it
        if chunk.damage is None and not unreadable:
            cursor.damaged_at(error.position)
            return
        self._pass_over(cursor)
        if self.passes_damage(cursor, error):
            if unreadable:
                chunk.pass_unreadable()
            self._handed_out(cursor, chunk, chunk.last_id if unreadable else None)
        elif report:
            raise error

    # --- on the thread that takes -----------------------------------------------------------------------------------

    def living(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages without the messages that have expired."""
        now = self._wall_clock()
        return [message for message in messages if not message.has_expired(now)]

    def next_messages(self, cursor: PartitionCursor, chunk: Chunk, limit: int) -> list[Message]:
        """Return at most `limit` messages of `chunk`, the cursor's oldest chunk, and remove them from it. Raises
        CorruptRecord.
        """
        tags, where = self._tags, self._where
        if (tags or where) and cursor.partition.topic == self._retry_topic:
            tags = where = None  # messages that wait for another attempt have passed them already
        messages = chunk.take(cursor.partition, limit, tags, self._check_messages, where)
        if chunk.bytes_left and not messages:
            raise CorruptRecord.of(cursor.partition, chunk.offset, WRONG_LENGTH)
        return messages if self._reader is None else self.readable(messages)

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the user gets them: if the consumer has a deserializer, a message decodes its payload
        when the user reads its `value`.
        """
        reader = self._reader
        return list(messages) if reader is None else [ValueMessage.of(message, reader) for message in messages]

    def passes_damage(self, cursor: PartitionCursor, damage: CorruptRecord) -> bool:
        """Return whether reading continues after the damaged range, as the configuration says. Return False if the end
        of the damage is not known.

        The user's on_damaged is called once for each damaged range; its exceptions are raised.
        """
        passes = self.config.damage == "skip" and damage.end is not None
        if cursor.report(damage.position):
            if passes:
                log.warning("damaged bytes are passed over: %s", damage)
            if self._on_damaged is not None:
                self._on_damaged(damage)
        return passes


def changes(cursors: Iterable[PartitionCursor]) -> Mapping[int, Sequence[tuple[PartitionCursor, Reached]]]:
    """Return the consumed offsets of these cursors that are not committed yet, grouped by the id of the ZooKeeper
    session on which they must be written. After a commit the caller must call `committed_to` of each cursor.
    """
    changed: dict[int, list[tuple[PartitionCursor, Reached]]] = {}
    for cursor in cursors:
        reached = cursor.to_commit()
        if reached is not None:
            changed.setdefault(cursor.fence, []).append((cursor, reached))
    return changed


def _only_moves(reply: Reply) -> bool:
    """Return whether this answer to a pull contains no records, but only the offset at which to go on, or the report of
    damage.
    """
    if isinstance(reply, Frame):
        return reply.code == ResponseCode.PULL_OFFSET_MOVED
    return isinstance(reply, Result) and reply.code == Status.MOVED


class _Refused(Exception):  # internal
    """Carries an exception that the user's filter has raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error

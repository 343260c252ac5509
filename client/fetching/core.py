"""A consumer without I/O: events go in, and what is to be done comes out.

| event | method | what comes out |
|---|---|---|
| partitions were claimed, lost | `claim`, `lose` | `next_wanting`, `notices` |
| they shall be handed over, or are kept after all | cursor `revoke`, `keep` | `is_out` says whether to wait |
| a partition may need a request | `next_wanting` | a cursor; its `next_request(now)` is what to send |
| an answer begins, is there, will not come | `answer_begins`, `answered`, `found`, `failed` | seconds to the next one |
| where partitions begin was committed | `recorded` | `next_wanting`, `notices` |
| the user polls | `acknowledge`, `take`, `take_batch` | messages |
| poll() has returned them | `under_way = False` | |
| an exception ended the poll | `settle` | they come again |
| a handler works on a partition | cursor `hold`, `next_messages`, cursor `consumed_to`, `let_go` | messages |
| the user seeks | cursor `moved_to` | `next_wanting` |
| the session is doubted, or proved | `in_doubt` | nothing is handed out |
| it is time to commit | `changes`, then cursor `committed_to` | what to write, and on which session |

The drivers are thin: fetcher.py sends requests over connections, group_member.py moves partitions as rebalance.py says,
consumer.py is the caller's poll(), listener.py calls handlers. To drive it in one thread, from asyncio or from a
simulator with a clock of its own, repeat

    while (cursor := core.next_wanting()) is not None:
        if (request := cursor.next_request(now)) is not None:
            send(request)                                   # core.codec makes the bytes; Ask says what is to be asked
    …                                                       # on an answer, or none
    seconds = core.answered(request, reply, endpoint, now)  # or core.failed(request, error, now)
    if seconds is not None: call_at(now + seconds, core.want, request.cursor)

**Threads.** Any thread may call anything, but for what the user does: one thread takes, or several handlers, each its
own partitions. `lock` is held while poll() takes, so that the rebalance thread sees all of its messages handed out or
none. **Interrupts**: as in cursor.py; a cursor that may need a request stands in the queue of `next_wanting` in the
same step in which it came to need one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import random
from typing import TYPE_CHECKING

from metaq.coordination.logs import get_log
from metaq.protocol.errors import CorruptRecord, MetaqError, NotOwner
from metaq.protocol.frames import Frame
from metaq.protocol.own_topics import RETRY_PREFIX
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Result
from metaq.protocol.where import Where

from ..questions.places import Locate
from ..records.decoding import WRONG_LENGTH
from ..records.message import Message, ValueMessage
from ..records.values import TopicPartition
from ..runtime.wall_clock import WallClock, now_ms
from ..settings.consumer_config import ConsumerConfig
from ..transport.connection import Endpoint, Reply
from .answers import NotWhole, PullCodec
from .chunk import Chunk
from .cursor import Ask, PartitionCursor, Reached, Request
from .notices import Notice, Notices

if TYPE_CHECKING:
    import pyarrow

    from ..serializers.base import ValueReader

__all__ = ["Accept", "ConsumerCore", "OnDamaged", "changes"]

log = get_log(__name__)

Accept = Callable[[Message], bool]

OnDamaged = Callable[[CorruptRecord], object]
"""Called once for each damaged range that a consumer meets."""


class ConsumerCore:
    """See the module.

    owned: what the consumer owns now; a new dict at each change, so any thread may read it.
    notices: what the user is to be told of.
    in_doubt: another member may own the partitions: nothing is handed out.
    under_way: a poll has taken messages and not returned them yet. It is an attribute, because a signal's handler may
    run when a call returns, but not between an assignment and a return.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        *,
        tags: frozenset[str] | None = None,
        where: Where | None = None,
        accept: Accept | None = None,
        on_damaged: OnDamaged | None = None,
        is_slave: Callable[[Endpoint], bool] = lambda _: False,
        follow: Callable[[MetaqError], float | None] = lambda _: None,
        random: Callable[[], float] = random,
        wall_clock: WallClock = now_ms,
        reader: ValueReader | None = None,
    ) -> None:
        """accept: the user's filter; what it refuses is passed over and counts as consumed. `take` raises what it, and
        on_damaged, raise. follow: as ConnectionPool.follow. reader: of `message.value`."""
        self.group = group
        self.owned: Mapping[TopicPartition, PartitionCursor] = {}
        self.notices = Notices()
        self.in_doubt = False
        self.under_way = False
        self.codec = PullCodec(group, tags, config, is_slave, "" if where is None else where.text)
        self.lock = threading.Lock()
        self.config = config
        self._random = random
        self._wall_clock = wall_clock
        self._reader = reader
        self._follow = follow
        self._tags = tags
        self._retry_topic = f"{RETRY_PREFIX}{group}"  # not checked yet
        self._where = where
        self._accept = accept
        self._on_damaged = on_damaged
        self._check_messages, self._check_batches = config.check_crcs is not False, config.check_crcs is True
        self._wanting: deque[PartitionCursor] = deque()
        self._ready: dict[PartitionCursor, None] = {}
        self._ready_lock = threading.Lock()
        self._telling = threading.Lock()  # held while it is decided whether the user hears of a partition
        self._touched: dict[PartitionCursor, None] = {}  # something of them is with the user, or was to be

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
        """These are ours from now on, and begin at `begins`. stored: what is committed of each. consumed: what counts
        as consumed already. recorded: whether the group need not commit where it begins first; the user hears only then
        of a partition. announced: nobody is to be told before messages come."""
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
        """What these RECORD was committed: the user may be told of the partitions, and they may be read."""
        with self._telling:
            cursors = [each.cursor for each in requests if each.cursor.begin_recorded(each)]
            self._announce(cursors)
        self._wanting.extend(cursors)

    def told(self, cursors: Iterable[PartitionCursor]) -> list[TopicPartition]:
        """Those of which the user has heard, or will: not those that were revoked before it was recorded where they
        begin. Call it when they are revoked or lost."""
        with self._telling:
            return [each.partition for each in cursors if each.recorded]

    def lose(self, cursors: Iterable[PartitionCursor]) -> None:
        """These are not ours any more."""
        lost = {cursor.partition: cursor for cursor in cursors}
        self.owned = {each: cursor for each, cursor in self.owned.items() if lost.get(each) is not cursor}
        for cursor in lost.values():
            cursor.lose()

    def cursor(self, partition: TopicPartition) -> PartitionCursor:
        """Of a partition that is ours. Raises NotOwner, TypeError."""
        cursor = self.owned.get(partition)
        if cursor is None:
            if not isinstance(partition, TopicPartition):
                raise TypeError(f"{partition!r:.80} is no TopicPartition: give one of assignment()")
            raise NotOwner(f"{partition.topic} {partition} is not assigned to this consumer: see assignment()")
        return cursor

    def is_out(self, cursors: Iterable[PartitionCursor]) -> bool:
        """Whether messages of these are with the user."""
        with self.lock:
            return any(cursor.is_out for cursor in cursors)

    # --- requests ---------------------------------------------------------------------------------------------------

    def want(self, cursor: PartitionCursor) -> None:
        """It may need a request, as its time has come."""
        self._wanting.append(cursor)

    def next_wanting(self) -> PartitionCursor | None:
        """A partition that may need a request; look at its `next_request`."""
        try:
            return self._wanting.popleft()
        except IndexError:
            return None

    def answer_begins(self, request: Request, head: Frame) -> Request | None:
        """An answer says where it ends before its body is there. Returns what to ask for now, so that the broker works
        on that while the body comes in and the user consumes."""
        end = self.codec.end_of(head)
        return None if end is None else request.cursor.next_ahead(request, end)

    def answered(self, request: Request, reply: Reply, endpoint: Endpoint, now: float) -> float | None:
        """The answer to a pull. Returns seconds until its partition needs the next request, None if it does not."""
        cursor = request.cursor
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
        """The answer to anything but a pull: an offset, or the damage; None: the broker finds nothing damaged.
        Returns as `answered`."""
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
            # a Java broker answers a position behind the end as it answers the end: with nothing. One that was started
            # again may not have opened the partition yet, which its next put does: its end is 0
            if request.ask is Ask.END and 0 < what < request.offset:
                log.warning(
                    "%s: the position %d lies behind the end %d, so nothing comes: seek to 'latest', for example",
                    cursor,
                    request.offset,
                    what,
                )
            cursor.offset_found(request, what)
        return self._recovered(request, now, 0.0)

    def failed(self, request: Request, error: MetaqError, now: float) -> float | None:
        """No answer came, or a wrong one. Returns seconds until its partition needs another request."""
        cursor = request.cursor
        follows = self._follow(error)
        if follows is not None:
            return follows if cursor.put_off(request, now, follows) else None
        trouble = cursor.failed(request, now, str(error))
        if trouble is None:
            return None
        pause, is_new = trouble
        if is_new:
            log.warning("fetching %s failed, next try in %.2f s: %s", cursor, pause, error)
        return pause

    def unanswered(self, request: Request, error: MetaqError, now: float) -> float | None:
        """As `failed`, if no answer came, or its taking was interrupted at any line: what has arrived stays."""
        cursor = request.cursor
        cursor.forget_lead()
        if cursor.has_next:
            self.make_ready(cursor)
        return self.failed(request, error, now)

    def _recovered(self, request: Request, now: float, pause: float) -> float:
        if request.cursor.answered(request, now, pause):
            log.info("fetching %s works again", request.cursor)
        return pause

    # --- whose turn it is -------------------------------------------------------------------------------------------

    def make_ready(self, cursor: PartitionCursor) -> None:
        """It may have something to hand out. It stays so until the taking thread has looked at it and found nothing:
        data that may not be handed out now are found later."""
        with self._ready_lock:
            self._ready[cursor] = None

    def next_ready(self) -> PartitionCursor | None:
        """The one whose turn it is, left in place; None if there is none."""
        with self._ready_lock:
            return next(iter(self._ready), None)

    def hand_over(self, cursor: PartitionCursor) -> None:
        """A handler looks at it from now on: data that came before this call are not announced again."""
        with self._ready_lock:
            self._ready.pop(cursor, None)

    def _pass_over(self, cursor: PartitionCursor) -> None:
        """The others first."""
        with self._ready_lock:
            if cursor in self._ready:
                del self._ready[cursor]
                self._ready[cursor] = None

    def _discard_unless_ready(self, cursor: PartitionCursor) -> None:
        """It had nothing. It stays if it has by now: that is one step, which no interrupt divides."""
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
        """What was handed out counts as consumed, but for what an exception has kept from the user."""
        self.settle()
        if self._touched:
            with self.lock:
                for cursor in self._touched:
                    cursor.acknowledge()
                self._touched.clear()

    def settle(self) -> None:
        """If an exception ended the last poll, what it took comes again. May be repeated."""
        if self.under_way:
            with self.lock:
                for cursor in self._touched:
                    cursor.take_back()
                self._touched.clear()
                self.under_way = False

    def take(self, limit: int, *, unpacks: bool = False) -> list[Message]:
        """At most `limit` messages that are there now, chunk by chunk of each partition in turn. unpacks: their
        payloads are wanted at once, so one that cannot be unpacked is damage. Raises CorruptRecord, and what `accept`
        and on_damaged raise."""
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
                except _Refused as refused:  # first what is good; the filter is asked again at the next call
                    if messages:
                        break
                    self.under_way = False
                    raise refused.error from None
            self.under_way = bool(messages)
        return messages

    def take_batch(self, limit: int) -> pyarrow.RecordBatch:
        """As `take`, as one record batch (arrow.SCHEMA) of what is there now, empty if nothing is.

        An answer with record sizes becomes one batch; what came in smaller answers, or must go through a filter here,
        is gathered message by message.
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
        """Have what fails here fetched and looked at again. Where it is known to be damaged, pass over it or tell the
        user, at each poll, until there is a seek.
        """
        if report:  # else there are messages, which come again if on_damaged raises
            self.under_way = False
        unreadable = chunk.damage is None and error.end is not None  # it has come as its producer made it
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

    # --- on whichever thread takes ----------------------------------------------------------------------------------

    def living(self, messages: Sequence[Message]) -> list[Message]:
        """Those that have not expired."""
        now = self._wall_clock()
        return [message for message in messages if not message.has_expired(now)]

    def next_messages(self, cursor: PartitionCursor, chunk: Chunk, limit: int) -> list[Message]:
        """At most `limit` messages of its oldest chunk, which moves behind them. Raises CorruptRecord."""
        tags, where = self._tags, self._where
        if (tags or where) and cursor.partition.topic == self._retry_topic:
            tags = where = None  # what waits for another attempt has passed them already
        messages = chunk.take(cursor.partition, limit, tags, self._check_messages, where)
        if chunk.bytes_left and not messages:
            raise CorruptRecord.of(cursor.partition, chunk.offset, WRONG_LENGTH)
        return messages if self._reader is None else self.readable(messages)

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """The same, with a `value` if there is a reader."""
        reader = self._reader
        return list(messages) if reader is None else [ValueMessage.of(message, reader) for message in messages]

    def passes_damage(self, cursor: PartitionCursor, damage: CorruptRecord) -> bool:
        """Whether to go on behind the damage: nobody can if its end is not known. Tells the user once, and raises what
        on_damaged raises, but does not call it again then.
        """
        passes = self.config.damage == "skip" and damage.end is not None
        if cursor.report(damage.position):
            if passes:
                log.warning("damaged bytes are passed over: %s", damage)
            if self._on_damaged is not None:
                self._on_damaged(damage)
        return passes


def changes(cursors: Iterable[PartitionCursor]) -> Mapping[int, Sequence[tuple[PartitionCursor, Reached]]]:
    """What of these counts as consumed and is not written, by the ZooKeeper session that must be alive to write it.
    Tell each cursor by `committed_to`."""
    changed: dict[int, list[tuple[PartitionCursor, Reached]]] = {}
    for cursor in cursors:
        reached = cursor.to_commit()
        if reached is not None:
            changed.setdefault(cursor.fence, []).append((cursor, reached))
    return changed


def _only_moves(reply: Reply) -> bool:
    """Whether this answer to a pull brings nothing but another position, or damage."""
    if isinstance(reply, Frame):
        return reply.code == ResponseCode.PULL_OFFSET_MOVED
    return isinstance(reply, Result) and reply.code == Status.MOVED


class _Refused(Exception):  # internal
    """What the user's filter raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error

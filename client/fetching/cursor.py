"""The state of one partition while a consumer owns it: the consumer's position, the fetched data, and the next request
to the broker.

A cursor does no I/O, starts no thread and has no clock; callers pass `now`. Each method is named after what its caller
does or wants. The callers and their methods are:

- the driver of requests (fetcher.py, a simulator): `next_request`, `next_ahead`, `arrived`, `answered`, `failed`, …;
- the thread that takes messages (in poll(), or a handler's thread): `next_chunk`, `handed_out`, `consumed_to`,
  `damaged_at`, …;
- the rebalance thread: `revoke`, `keep`, `lose`;
- the committing thread: `to_commit`, `committed_to`, `may_record`, `begin_recorded`.

Invariants (test_client_cursor.py checks them with random calls):
- the fetched data have no gap: they reach from `position`, or from the end of the data being taken, to `fetch_offset`;
- at most two requests are in flight; the second was sent ahead, while the answer to the first was arriving;
- each seek, each return to an earlier position and the loss of the partition increase a number, the generation; the
  answer to a request that was made in an older generation is ignored;
- `consumed` is never beyond the delivered messages, except after a seek;
- nothing is fetched before the offset where the group begins is committed.

**Interrupts.** An interrupt may come at any line of a user's thread (interrupts.py). Fields that belong together are
changed under `lock` by statements that contain no call. So an interrupt finds either all of them changed or none.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import random
from typing import NamedTuple

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import MetaqError

from ..questions.places import Locate
from ..records.results import TopicPartition
from ..settings.consumer_config import ConsumerConfig
from .chunk import Chunk
from .tuning import DAMAGE_TRIES, EMPTY_GETS, LARGEST_GET_BYTES, WAITED_SHARE

__all__ = ["NOWHERE", "UNKNOWN_MESSAGE_ID", "Ask", "PartitionCursor", "Reached", "Request"]

UNKNOWN_MESSAGE_ID = -1
NOWHERE = -1
"""The value that stands for no offset."""

_ROUNDING = 1e-6
"""A request may be sent this many seconds before its pause is over, because a clock that adds up intervals has rounding
errors and may be slightly late.
"""

Reached = tuple[int, int]
"""A position: an offset, and the id of the last message before this offset."""


class Ask(Enum):
    """Kinds of requests to a partition's broker."""

    PULL = auto()
    BEGIN = auto()
    """Find the position where reading begins, with the function `PartitionCursor.locate`."""
    RECORD = auto()
    """Send no request to the broker. The group has no committed offset for this partition and must commit one first
    (beginnings.py).
    """
    DAMAGE = auto()
    """Find the end of the damaged bytes that begin at the request's offset."""
    END = auto()
    """Find the end of the partition, because no data has come for a long time."""
    NOTHING = auto()
    """Send no request: the data are damaged from here on, and the end of the damage is unknown."""


class Request(NamedTuple):
    """A request to a broker. The driver sends the request, and then calls a method of the cursor with the request and
    its result.

    verify: whether the broker must check the record at `offset`. size: number of bytes to request over the text
    protocol. last_id: id of the message that this consumer has read directly before `offset`; the broker compares it
    with the id of the message that the broker has directly before `offset`. UNKNOWN_MESSAGE_ID means that the broker
    shall not compare the ids. asked_at: time at which the request was made. It is −inf if the time does not matter.
    """

    cursor: PartitionCursor
    generation: int
    ask: Ask
    offset: int
    verify: bool = False
    size: int = 0
    last_id: int = UNKNOWN_MESSAGE_ID
    asked_at: float = -math.inf


class PartitionCursor:
    """The state of one partition while this consumer owns it; see the module. Any thread may read the attributes
    without an underscore; only methods change them.
    """

    def __init__(
        self,
        partition: TopicPartition,
        config: ConsumerConfig,
        begin: int | Locate = 0,
        *,
        fence: int = 0,
        stored: Reached | None = None,
        consumed: Reached | None = None,
        recorded: bool = True,
        announced: bool = True,
        wanting: deque[PartitionCursor] | None = None,
        random: Callable[[], float] = random,
    ) -> None:
        """begin: the first position, or a function that finds it. fence: the id of the ZooKeeper session on which this
        consumer has created the partition's owner znode; the consumer commits the partition's offset only on this
        session. stored: the committed offset. consumed: messages before this offset already count as consumed.
        recorded: false if the group must commit `begin` before data may be read. announced: whether the user was told
        that the partition is assigned; nothing is delivered before that. wanting: the queue to which the cursor is
        appended whenever it may need a request.
        """
        self.partition = partition
        self.fence = fence
        self.lock = threading.Lock()
        self.active = True
        self.revoking = False
        self.paused = False
        self.announced = announced
        self.recorded = recorded
        self.locate: Locate | None = None if isinstance(begin, int) else begin
        self.opened = self.locate is None
        self.moves = 0
        self.fetch_offset = self.position = begin if isinstance(begin, int) else 0
        reached = consumed or stored
        self.last_id = reached[1] if reached is not None and reached[0] == begin else UNKNOWN_MESSAGE_ID
        self._proved = False  # whether the broker has already confirmed the message before the position
        self._doubt: Reached | None = None  # a position before which the broker has another message than the one read
        self.consumed = consumed
        self.committed = self.claimed_at = stored
        self._found: Reached | None = None  # the position that `locate` found
        self._begins_at_0 = not recorded and begin == 0
        self.asking = False
        self.backoff = Backoff(config.error_min_seconds, config.error_max_seconds, random)
        self._config = config
        self._generation = 0
        self._chunks: deque[Chunk] = deque()
        self._wanting: deque[PartitionCursor] = deque() if wanting is None else wanting
        # requests
        self._ask = self._next_ask if self.opened else Ask.BEGIN
        self._not_before = 0.0
        self._ahead = NOWHERE  # start of the request that was sent while an answer was arriving
        self._complaint = ""  # the last logged error, so that a repeated error is logged once
        self._led_back_from = NOWHERE
        # For the text protocol: requests grow while no record fits in an answer, and the broker does not hold them
        # open.
        self._get_bytes = config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False  # the last answer only moved the position
        # messages that the user has
        self._began: Reached | None = None  # delivered messages begin here …
        self._handed: Reached | None = None  # … and end here
        self._held = False  # a handler works on this partition
        # damage
        self._suspect = NOWHERE  # fetched data at this offset failed their check: the broker must check them too
        self._failed_checks = 0  # in a row
        self._unless: MetaqError | None = None  # the error to report if the broker finds no damage
        self.reported = NOWHERE

    def __repr__(self) -> str:
        return f"{self.partition.topic} {self.partition}"

    @property
    def _next_ask(self) -> Ask:
        """Return the kind that this cursor's next request must have. The position must be known."""
        return Ask.PULL if self.recorded else Ask.RECORD

    # --- position ---------------------------------------------------------------------------------------------------

    def _restart(
        self,
        position: int | None,
        *,
        ask: Ask = Ask.PULL,
        moves: int | None = None,
        suspect: int = NOWHERE,
        last_id: int | None = None,
        seeks: bool = False,
        takes_back: bool = False,
    ) -> bool:
        """Drop the fetched data, ignore the answers to requests in flight, and continue at `position`. If `position` is
        None, continue at the current position. Return whether this was done.

        moves: the value of `self.moves` that the caller has seen last. If `self.moves` has another value now, do
        nothing and return False.
        """
        empty: deque[Chunk] = deque()
        with self.lock:
            if moves is not None and moves != self.moves:
                return False
            self._wanting.append(self)  # does no harm if an interrupt comes here; no further call, see the module
            if position is None:
                position = self.position
            if last_id is not None:
                self.last_id = last_id
            if seeks:
                self.consumed = (position, UNKNOWN_MESSAGE_ID)
                self._failed_checks = 0
                self.reported = NOWHERE
            if takes_back:
                self._began = self._handed = None
            self._generation += 1
            self.moves += 1
            self._chunks = empty
            self.asking = False
            self._not_before = 0.0
            self._ask = ask if self.recorded else Ask.RECORD
            self._ahead = NOWHERE
            self._suspect = suspect
            self.fetch_offset = self.position = position
            self.opened = True
            return True

    def moved_to(self, offset: int) -> None:
        """Move to `offset`, because the user has called seek. Everything before `offset` now counts as consumed, and
        nothing from `offset` on does. Damage that was reported before will be reported again.
        """
        self._restart(offset, last_id=UNKNOWN_MESSAGE_ID, seeks=True, takes_back=True)

    def again(self) -> None:
        """Drop the fetched data, and fetch the data after the current position a second time. If messages after this
        position were taken already, they are delivered a second time.
        """
        if self.opened and self.active and not self.revoking:
            self._restart(None)

    def offset_found(self, request: Request, offset: int) -> None:
        """Process the answer to a BEGIN or END request. The answer to BEGIN is ignored if the user has called seek
        meanwhile.
        """
        with self.lock:
            if self.awaits(request):
                if not self.opened:
                    self.fetch_offset = self.position = offset
                    self._found = offset, UNKNOWN_MESSAGE_ID
                    self.opened = True
                self._ask = self._next_ask

    def revoke(self) -> None:
        """Stop fetching and delivering, because the partition will be handed over to another member."""
        with self.lock:
            self.revoking = True

    def keep(self) -> None:
        """Undo `revoke`: fetch and deliver again, because the partition will not be handed over after all."""
        if self.revoking:
            self.revoking = False
            self._wanting.append(self)  # it may have no position yet, and must ask for it
            self.again()

    def pause(self) -> None:
        """Deliver nothing and fetch nothing until `resume`, because the user has paused the partition. Data that are
        fetched already are kept.
        """
        self.paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._wanting.append(self)

    def place(self, *, by_commits: bool) -> Reached | None:
        """Return the position where the next owner of the partition should begin: the position after the consumed
        messages. Return None if this position is unknown.

        by_commits: if true, return the position after the committed messages instead. The user may still finish
        delivered messages after the partition is lost; then a later call returns a later position.
        """
        consumed = None if by_commits else self.consumed
        return consumed or self.committed or self._found

    def announce(self) -> None:
        """Allow delivery, because the user was told that the partition is assigned."""
        self.announced = True

    def lose(self) -> None:
        """Drop all fetched data, because this consumer no longer owns the partition."""
        with self.lock:
            self.active = False
            self._generation += 1
            self.moves += 1
            self._chunks.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request(self, now: float) -> Request | None:
        """Return the next request, which the caller must send. Return None if a request is in flight, if the pause
        after the last request is not over, or if the fetched data fill the buffer.
        """
        with self.lock:
            if (
                self.asking
                or not self.active
                or self.revoking
                or now < self._not_before - _ROUNDING
                or self.buffered_bytes >= self._config.max_buffered_bytes
                or self._ask is Ask.NOTHING
                or (self.paused and self._ask is Ask.PULL)
            ):
                return None
            self.asking = True
            verify = self._suspect == self.fetch_offset
            last_id = UNKNOWN_MESSAGE_ID if self._proved or self.fetch_offset != self.position else self.last_id
            return Request(self, self._generation, self._ask, self.fetch_offset, verify, self._get_bytes, last_id, now)

    def next_ahead(self, request: Request, offset: int) -> Request | None:
        """Return the request that the caller sends while the answer to `request` is still arriving. It begins at
        `offset`, where this answer will end. Return None if no such request shall be sent now.
        """
        with self.lock:
            coming = offset - self.fetch_offset
            if (
                not self.awaits(request)
                or self.revoking
                or self.paused
                or coming <= 0
                or self.buffered_bytes + coming >= self._config.max_buffered_bytes
            ):
                return None
            self._ahead = offset
            return Request(self, self._generation, Ask.PULL, offset)

    def awaits(self, request: Request) -> bool:
        """Whether the answer to this request is needed. The answer is not needed if the partition was lost, its
        position was moved, or the request was replaced by a new one.
        """
        return request.generation == self._generation and self.active

    def arrived(self, request: Request, chunk: Chunk) -> bool:
        """Store a chunk of data that has arrived. If the partition was lost or its position moved meanwhile, drop the
        data and return False.
        """
        with self.lock:
            if self.revoking or not self.awaits(request):
                return False
            # The only call comes last: an interrupt comes before or after the whole step.
            self.fetch_offset = chunk.end_offset
            self._chunks.append(chunk)
            return True

    def answered(self, request: Request, now: float, pause: float = 0.0) -> bool:
        """Record that the answer to `request` has arrived completely, so that the next request can be made. pause:
        seconds before it may be sent. Return whether an earlier request has failed since the previous answer, so that
        its error was logged.
        """
        with self.lock:
            if self.awaits(request):
                self._proved = self._proved or request.ask is Ask.PULL
                if self._ahead != NOWHERE:  # the next request is already in flight
                    self._ahead = NOWHERE
                else:
                    self.asking = False
                    self._not_before = now + pause
        self.backoff.reset()
        complaint, self._complaint = self._complaint, ""
        return bool(complaint)

    def failed(self, request: Request, now: float, complaint: str) -> tuple[float, bool] | None:
        """Process the failure of a request: its answer is wrong or did not come. If two requests are in flight, the
        answers of both are ignored, and a single new request replaces them. complaint: the error's text.

        Return the seconds until the new request, and whether this error differs from the last logged one. Return None
        if the answer is no longer needed.
        """
        pause = self.backoff.next()
        if not self.put_off(request, now, pause):
            return None
        is_new, self._complaint = complaint != self._complaint, complaint
        return pause, is_new

    def put_off(self, request: Request, now: float, pause: float) -> bool:
        """Ignore the answers to the requests in flight, and request again in `pause` seconds. Called instead of
        `failed` for an error whose cause is not this partition or its data, for example that the broker cannot be
        reached. Return False if the answer is no longer needed.
        """
        with self.lock:
            if not self.awaits(request) or not self.asking:
                return False
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = now + pause
        return True

    def ask_anew(self) -> None:
        """Make the cursor send its request again at once, and ignore the answer to the request in flight, if there is
        one. Called if an interrupt ended the sending of the request, or if the partition is read from another broker
        from now on.
        """
        with self.lock:
            self._wanting.append(self)
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = 0.0
            self._proved = False

    # --- what brokers say -------------------------------------------------------------------------------------------

    def doubt(self, request: Request) -> None:
        """Record a doubt about the message directly before the request's offset: the broker now has another message
        there than the one that this consumer has read.
        """
        self._doubt = request.offset, request.last_id

    def take_doubt(self) -> Reached | None:
        """Return the position that `doubt` has recorded, with the id of the message that this consumer read before it,
        and forget both. Return None if `doubt` was not called since the last call of this method.
        """
        doubt, self._doubt = self._doubt, None
        return doubt

    def was_led_back(self) -> bool:
        """Record that the requested offset is inside a record, and that the broker's answer says to go back to this
        record's first byte. Return whether the last such answer was for the same offset. If it was, the caller must not
        move the position back again, because the same messages would be delivered endlessly.
        """
        former, self._led_back_from = self._led_back_from, self.fetch_offset
        return former == self.fetch_offset

    def forget_lead(self) -> None:
        """Forget what `was_led_back` recorded. Called if an interrupt ended the processing of the broker's answer, so
        that it is unknown whether the position was moved.
        """
        self._led_back_from = NOWHERE

    @property
    def stood_at_0(self) -> bool:
        """Whether the committed offset is 0 for one of two reasons: this consumer has read it as 0 in the offset store,
        or the user has moved to 0 by a seek. The result is False if the group had no committed offset and therefore
        begins at 0.
        """
        return self.committed is not None and self.committed[0] == 0 and not self._begins_at_0

    def whole_records_came(self) -> None:
        """Set the size of requests and the pauses between them to their first values again, because complete records
        came. The method is also called for an answer of the framed protocol that only moves the position.
        """
        self._get_bytes = self._config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False

    def ask_for_more(self, came: int) -> bool:
        """Double the size of the next request (text protocol), because the last answer, with `came` bytes, contains no
        complete record. Return False without a change if a larger request cannot help: the answer was smaller than
        requested, or the size has its maximum.
        """
        if came < self._get_bytes or self._get_bytes >= LARGEST_GET_BYTES:
            return False
        self._get_bytes = min(2 * self._get_bytes, LARGEST_GET_BYTES)
        return True

    def nothing_came(self) -> float:
        """Count an empty answer (text protocol). Return the seconds to wait before the next request. The wait grows
        with each empty answer, as in 1.x.
        """
        self._empty_gets += 1
        if self._empty_gets == EMPTY_GETS and self.fetch_offset:
            self._ask = Ask.END
        return self._idle()

    def _idle(self) -> float:
        config = self._config
        self._idle_ms = min(self._idle_ms + config.text_idle_step_ms, config.text_idle_max_ms)
        return self._idle_ms / 1000

    def was_moved(self) -> float:
        """Record that an answer contains no data and only moves the position. Return the seconds to wait before the
        next request: 0.0, or a growing pause if the previous answer also only moved the position.
        """
        again, self._moved = self._moved, True
        return self._idle() if again else 0.0

    def waited_in_vain(self, request: Request, now: float) -> float:
        """Process an empty answer that does not move the position (framed protocol). Return the seconds to wait before
        the next request. The result is 0.0 if the broker had waited for data before it answered (at least WAITED_SHARE
        of the requested time). Otherwise it grows with each empty answer, as for the text protocol.
        """
        if now - request.asked_at < self._config.long_poll_ms / 1000 * WAITED_SHARE:
            return self._idle()
        self._idle_ms = 0
        return 0.0

    # --- taking -----------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Number of fetched bytes that are not delivered yet."""
        return sum(each.bytes_left for each in list(self._chunks))  # on any thread: list() copies in one step

    @property
    def has_next(self) -> bool:
        """Whether the cursor has fetched data that may be delivered now."""
        return bool(self._chunks) and self.announced and self.active and not self.revoking and not self.paused

    def next_chunk(self) -> Chunk | None:
        """Return the oldest fetched chunk, without removing it (`used_up` removes it). Return None if there is no
        chunk, or if it may not be delivered now.
        """
        with self.lock:
            return self._chunks[0] if self.has_next else None

    def used_up(self, chunk: Chunk) -> None:
        """Remove the chunk, because all of its messages were taken."""
        with self.lock:
            self._wanting.append(self)
            if self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()

    def handing_out(self) -> None:
        """Remember the position before a poll takes messages. If poll() does not return them to the user, `take_back`
        returns to this position.
        """
        if self._began is None:
            self._began = (self.position, self.last_id)

    def handed_out(self, position: int, last_id: int | None = None) -> None:
        """Record that all messages before `position` are delivered or filtered out. These messages count as consumed
        after the next `acknowledge`.

        last_id: id of the last message before `position`; None means that the id is unchanged.
        """
        if last_id is not None:
            self.last_id = last_id
            self._failed_checks = 0
        self.position = position
        self._handed = (position, self.last_id)

    def acknowledge(self) -> None:
        """Count the delivered messages as consumed."""
        handed = self._handed
        if handed is not None:
            self.consumed = handed
        self._began = self._handed = None

    def consumed_before(self, offset: int) -> None:
        """Count the messages before `offset` as consumed, and those from `offset` on as not consumed, because the user
        commits this offset.
        """
        with self.lock:
            self.consumed = (offset, self.last_id if offset == self.position else UNKNOWN_MESSAGE_ID)

    def may_commit(self, offset: int) -> bool:
        """Return whether the user's code has got all messages before `offset`."""
        # while a handler works, the position is before the messages that it has got
        return self.opened and offset <= (self.fetch_offset if self._held else self.position)

    def take_back(self) -> None:
        """Return to the position that `handing_out` has remembered, because an exception ended the poll and its
        messages did not reach the user. They are delivered again.
        """
        began = self._began
        if began is not None and self.active:
            self._restart(began[0], last_id=began[1], takes_back=True)
        else:
            self._began = self._handed = None

    def consumed_to(self, position: int, last_id: int, moves: int) -> None:
        """Count everything before `position` as consumed, because a handler has processed it.

        moves: the value of `self.moves` when the handler got the messages. If `self.moves` has another value now, or
        the partition was lost, nothing is done.
        """
        with self.lock:
            if self.moves == moves and (self.position, self.last_id) != (position, last_id):
                self.position, self.last_id = position, last_id
                self.consumed = (position, last_id)
                self._failed_checks = 0

    def hold(self) -> bool:
        """Mark the partition as being processed by a handler. Return False, without the mark, if this consumer no
        longer owns the partition or will hand it over.
        """
        with self.lock:
            self._held = self.active and not self.revoking
            return self._held

    def let_go(self) -> None:
        """End the mark that `hold` has set, because the handler has returned."""
        self._held = False

    @property
    def is_out(self) -> bool:
        """Whether the user's code has got messages of this partition that do not count as consumed yet, or a handler
        works on it.
        """
        return self._held or self._handed is not None

    # --- damage -----------------------------------------------------------------------------------------------------

    def damaged_at(self, offset: int, moves: int | None = None, *, anew: bool = False) -> None:
        """Called if the record at `offset` has a wrong checksum: drop the fetched data, and fetch the record again with
        a request that makes the broker check it, too.

        If the checksum is still wrong after DAMAGE_TRIES fetches, the next request asks the broker how far the damage
        goes. The cursor then stores the damaged range as a chunk without records. moves: as in consumed_to. anew:
        whether to count the fetches from 1 again; the caller sets it for damage that was found earlier and may have
        been repaired since.
        """
        checks = 1 if anew else self._failed_checks + 1
        ask = Ask.PULL if checks <= DAMAGE_TRIES else Ask.DAMAGE
        if self._restart(offset, ask=ask, moves=moves, suspect=offset):
            self._failed_checks = checks
            self._unless = None

    def not_whole(self, request: Request, error: MetaqError) -> bool:
        """Handle a record that the broker does not deliver completely: let the next request ask the broker whether this
        record is damaged. If the broker finds no damage, `error` is reported to the user. Return False if the answer to
        `request` is no longer needed, because the partition was lost or its position was moved.
        """
        with self.lock:
            if current := self.awaits(request):
                self._generation += 1
                self.asking = False
                self._ahead = NOWHERE
                self._ask = Ask.DAMAGE
                self._unless = error
            return current

    def undamaged(self, request: Request) -> MetaqError | None:
        """Process a broker's answer to a DAMAGE request that says that the record is not damaged. The consumer then
        requests the record again. Return the error that was passed to `not_whole`. Return None if `not_whole` was not
        called: then the record had a wrong checksum when this consumer got it, although the broker has it intact.
        """
        with self.lock:
            if self._unless is not None and self.awaits(request):
                self._ask = Ask.PULL
            return self._unless

    def damage_found(self, request: Request, chunk: Chunk) -> bool:
        """Store `chunk`, which stands for the damaged range that a DAMAGE request has found. Return False if the
        partition was lost or its position moved meanwhile.
        """
        found = self.arrived(request, chunk)
        with self.lock:
            if found and request.generation == self._generation:
                self._ask = Ask.PULL if chunk.end_offset > chunk.offset else Ask.NOTHING
        return found

    def report(self, offset: int) -> bool:
        """Record that damage at `offset` is reported to the user. Return False if it was reported before."""
        former, self.reported = self.reported, offset
        return former != offset

    # --- commits ----------------------------------------------------------------------------------------------------

    def to_commit(self) -> Reached | None:
        """Return the position to commit, or None if the position has not changed since the last commit."""
        consumed = self.consumed
        return consumed if self.active and consumed != self.committed else None

    def committed_to(self, reached: Reached) -> None:
        """Record that the position `reached` was committed."""
        self.committed = reached

    def may_record(self, request: Request) -> bool:
        """Return whether the offset of this RECORD request may be committed. The offset may not be committed if the
        user has moved the position by a seek. It may also not be committed if the partition was lost or will be handed
        over, because the commit could overwrite the offset where the next owner begins.
        """
        return self.awaits(request) and not self.revoking

    def begin_recorded(self, request: Request) -> bool:
        """Record that the offset of this RECORD request was committed, and allow reading. Return False, without
        allowing it, if the partition was lost, if its position was moved, or if it will be handed over. If the result
        is False, the user is not told that the partition was assigned.
        """
        with self.lock:
            self.committed = (request.offset, UNKNOWN_MESSAGE_ID)
            if not self.may_record(request):
                return False
            self.recorded = True
            self.asking = False
            self._ask = Ask.PULL
            return True

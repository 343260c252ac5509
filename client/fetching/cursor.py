"""One claim of one partition: the consumer's position, the fetched data, and the next request to the broker.

A cursor does no I/O, starts no thread and has no clock; callers pass `now`. Each method is named after its caller's
action or intention. The callers are:

- the driver of requests (fetcher.py, a simulator): `next_request`, `next_ahead`, `arrived`, `answered`, `failed`, …;
- the thread that takes messages (poll(), a handler's): `next_chunk`, `handed_out`, `consumed_to`, `damaged_at`, …;
- the rebalance thread: `revoke`, `keep`, `lose`;
- the committing thread: `to_commit`, `committed_to`, `may_record`, `begin_recorded`.

Invariants (test_client_cursor.py drives them at random):
- fetched data are gapless from `position`, or the end of the data being taken, to `fetch_offset`;
- at most one request is in flight, and one more that was sent ahead while the answer to the first was arriving;
- a seek, a step back or the loss begins a new generation, and an answer to a request of an older one changes nothing;
- `consumed` is never beyond the delivered messages, except after a seek;
- nothing is fetched before the beginning of the group is recorded.

**Interrupts.** An interrupt may come at any line of a user's thread (interrupts.py). Related fields are changed by
statements without a call, under `lock`, so an interrupt finds all of them changed or none.
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
"""No offset."""

_ROUNDING = 1e-6
"""Tolerance in seconds for a clock that adds up intervals and may be early."""

Reached = tuple[int, int]
"""An offset, and the id of the last message before it."""


class Ask(Enum):
    """Kinds of requests to a partition's broker."""

    PULL = auto()
    BEGIN = auto()
    """Find the first position, as `PartitionCursor.locate` does."""
    RECORD = auto()
    """Ask nothing: the group has no offset here and must write one first (beginnings.py)."""
    DAMAGE = auto()
    """Find the end of the damage at the offset."""
    END = auto()
    """Find the end of the partition: nothing has come for long."""
    NOTHING = auto()
    """Damaged from here on, to an unknown end."""


class Request(NamedTuple):
    """A request to a broker; give it back with its result.

    verify: the broker must check the record at `offset`. size: bytes to ask for over the text protocol. last_id: id of
    the message before `offset`, so that the broker compares it; UNKNOWN_MESSAGE_ID: no comparison. asked_at: time of
    sending; −inf if it does not matter.
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
    """See the module. Attributes without an underscore may be read on any thread; only methods change them."""

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
        """begin: the first position, or how to find it. fence: the ZooKeeper session of the owner node, which proves
        the claim to a commit. stored: the committed offset. consumed: the offset already consumed. recorded: whether
        the group need not commit `begin` before anything is read. announced: whether the user knows of the claim;
        nothing is delivered before. wanting: gets the cursor whenever it may need a request."""
        self.partition = partition
        self.fence = fence
        self.lock = threading.Lock()
        self.active = True
        self.revoking = False
        self.announced = announced
        self.recorded = recorded
        self.locate: Locate | None = None if isinstance(begin, int) else begin
        self.opened = self.locate is None
        self.moves = 0
        self.fetch_offset = self.position = begin if isinstance(begin, int) else 0
        reached = consumed or stored
        self.last_id = reached[1] if reached is not None and reached[0] == begin else UNKNOWN_MESSAGE_ID
        self._proved = False  # the broker has the message before the position, as far as it knows
        self._doubt: Reached | None = None  # a position before which it has another message
        self.consumed = consumed
        self.committed = self.claimed_at = stored
        self._found: Reached | None = None  # where `locate` begins
        self._begins_at_0 = not recorded and begin == 0
        self.asking = False
        self.backoff = Backoff(config.error_min_seconds, config.error_max_seconds, random)
        self._config = config
        self._generation = 0
        self._chunks: deque[Chunk] = deque()
        self._wanting: deque[PartitionCursor] = deque() if wanting is None else wanting
        # asking
        self._ask = self._next_ask if self.opened else Ask.BEGIN
        self._not_before = 0.0
        self._ahead = NOWHERE  # begin of the request that was sent while an answer was arriving
        self._complaint = ""  # the last logged error, so that one trouble gives one line
        self._led_back_from = NOWHERE
        # for the text protocol: requests grow while no record fits, and cannot wait at the broker
        self._get_bytes = config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False  # the last answer only moved the position
        # with the user
        self._began: Reached | None = None  # delivered messages begin here …
        self._handed: Reached | None = None  # … and ends
        self._held = False  # a handler works on it
        # damage
        self._suspect = NOWHERE  # fetched data here failed their check: the broker must check them too
        self._failed_checks = 0  # in a row
        self._unless: MetaqError | None = None  # the error if nothing is damaged
        self.reported = NOWHERE

    def __repr__(self) -> str:
        return f"{self.partition.topic} {self.partition}"

    @property
    def _next_ask(self) -> Ask:
        """The kind of request needed at a known position."""
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
        """Drop fetched data and pending answers, and continue at `position` (None: the current one). Do nothing if the
        cursor has moved since there were `moves`. Return whether it was done."""
        empty: deque[Chunk] = deque()
        with self.lock:
            if moves is not None and moves != self.moves:
                return False
            self._wanting.append(self)  # in vain if an interrupt comes here; no further call, see the module
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
        """Move to the user's position: everything before `offset` counts as consumed, delivered messages do not, and
        damage is reported again."""
        self._restart(offset, last_id=UNKNOWN_MESSAGE_ID, seeks=True, takes_back=True)

    def again(self) -> None:
        """Fetch again from the position on: messages taken from there come again."""
        if self.opened and self.active and not self.revoking:
            self._restart(None)

    def offset_found(self, request: Request, offset: int) -> None:
        """Take the answer to BEGIN, which holds unless the user has sought meanwhile, or to END."""
        with self.lock:
            if self.awaits(request):
                if not self.opened:
                    self.fetch_offset = self.position = offset
                    self._found = offset, UNKNOWN_MESSAGE_ID
                    self.opened = True
                self._ask = self._next_ask

    def revoke(self) -> None:
        """Stop fetching and delivering: another member gets the partition."""
        with self.lock:
            self.revoking = True

    def keep(self) -> None:
        """Continue: the partition is not handed over after all."""
        if self.revoking:
            self.revoking = False
            self._wanting.append(self)  # it may have no position yet, and must ask for it
            self.again()

    def place(self, *, by_commits: bool) -> Reached | None:
        """Where the next owner should begin: after consumed or committed messages; None if unknown. by_commits:
        only committed messages count. It may advance after the loss, because the user may still work on delivered
        messages."""
        consumed = None if by_commits else self.consumed
        return consumed or self.committed or self._found

    def announce(self) -> None:
        """Note that the user was told of the assignment."""
        self.announced = True

    def lose(self) -> None:
        """Drop all fetched data: the partition is not ours any more."""
        with self.lock:
            self.active = False
            self._generation += 1
            self.moves += 1
            self._chunks.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request(self, now: float) -> Request | None:
        """Return the next request, which the caller sends. None: a request is in flight, the pause after one is not
        over, or enough was fetched."""
        with self.lock:
            if (
                self.asking
                or not self.active
                or self.revoking
                or now < self._not_before - _ROUNDING
                or self.buffered_bytes >= self._config.max_buffered_bytes
                or self._ask is Ask.NOTHING
            ):
                return None
            self.asking = True
            verify = self._suspect == self.fetch_offset
            last_id = UNKNOWN_MESSAGE_ID if self._proved or self.fetch_offset != self.position else self.last_id
            return Request(self, self._generation, self._ask, self.fetch_offset, verify, self._get_bytes, last_id, now)

    def next_ahead(self, request: Request, offset: int) -> Request | None:
        """Return the request to send already now, because the arriving answer ends at `offset`."""
        with self.lock:
            coming = offset - self.fetch_offset
            if (
                not self.awaits(request)
                or self.revoking
                or coming <= 0
                or self.buffered_bytes + coming >= self._config.max_buffered_bytes
            ):
                return None
            self._ahead = offset
            return Request(self, self._generation, Ask.PULL, offset)

    def awaits(self, request: Request) -> bool:
        """Whether anybody would use the answer to this request."""
        return request.generation == self._generation and self.active

    def arrived(self, request: Request, chunk: Chunk) -> bool:
        """Store arrived data. Return False, and drop them, if the partition was lost or moved meanwhile."""
        with self.lock:
            if self.revoking or not self.awaits(request):
                return False
            # The only call comes last: an interrupt comes before or after the whole step.
            self.fetch_offset = chunk.end_offset
            self._chunks.append(chunk)
            return True

    def answered(self, request: Request, now: float, pause: float = 0.0) -> bool:
        """Note that the whole answer has arrived. pause: seconds before the next request. Return whether an earlier
        request had failed."""
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
        """Note a missing or wrong answer. If two requests are in flight, both are dropped for a single new one.

        Return the seconds until then, and whether this error differs from the last logged one; None: nobody waits for
        it.
        """
        pause = self.backoff.next()
        if not self.put_off(request, now, pause):
            return None
        is_new, self._complaint = complaint != self._complaint, complaint
        return pause, is_new

    def put_off(self, request: Request, now: float, pause: float) -> bool:
        """As `failed`, if the partition itself has no trouble: it is asked again in `pause` seconds. False: nobody
        waits for it."""
        with self.lock:
            if not self.awaits(request) or not self.asking:
                return False
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = now + pause
        return True

    def ask_anew(self) -> None:
        """Send the request in flight, if any, again at once and drop its answer: it was interrupted, or the partition
        is read from another broker."""
        with self.lock:
            self._wanting.append(self)
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = 0.0
            self._proved = False

    # --- what brokers say -------------------------------------------------------------------------------------------

    def doubt(self, request: Request) -> None:
        """Note that the broker has another message before the position than the one read there."""
        self._doubt = request.offset, request.last_id

    def take_doubt(self) -> Reached | None:
        """Return the position of the last `doubt` since the last call, and the id of the message before it."""
        doubt, self._doubt = self._doubt, None
        return doubt

    def was_led_back(self) -> bool:
        """Note that the broker leads back to the start of the record that contains the position. Return whether it does
        so again: then read messages would come for ever."""
        former, self._led_back_from = self._led_back_from, self.fetch_offset
        return former == self.fetch_offset

    def forget_lead(self) -> None:
        """Forget the broker's lead: its answer was interrupted, so it is unknown whether it was followed."""
        self._led_back_from = NOWHERE

    @property
    def stood_at_0(self) -> bool:
        """Whether the group had committed that it begins at offset 0, before this claim or by a seek."""
        return self.committed is not None and self.committed[0] == 0 and not self._begins_at_0

    def whole_records_came(self) -> None:
        """Note that records came, or over the framed protocol an answer that moves the position."""
        self._get_bytes = self._config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False

    def ask_for_more(self, came: int) -> bool:
        """Text protocol: `came` bytes hold no whole record. Return whether a larger request may help."""
        if came < self._get_bytes or self._get_bytes >= LARGEST_GET_BYTES:
            return False
        self._get_bytes = min(2 * self._get_bytes, LARGEST_GET_BYTES)
        return True

    def nothing_came(self) -> float:
        """Text protocol: note an empty answer. Return the seconds to wait before the next request, which grow, as in
        1.x."""
        self._empty_gets += 1
        if self._empty_gets == EMPTY_GETS and self.fetch_offset:
            self._ask = Ask.END
        return self._idle()

    def _idle(self) -> float:
        config = self._config
        self._idle_ms = min(self._idle_ms + config.text_idle_step_ms, config.text_idle_max_ms)
        return self._idle_ms / 1000

    def was_moved(self) -> float:
        """Note that the answer only moves the position. Return the seconds to wait before asking there. Records are
        there, unless the broker keeps moving the position."""
        again, self._moved = self._moved, True
        return self._idle() if again else 0.0

    def waited_in_vain(self, request: Request, now: float) -> float:
        """Framed protocol: nothing came, and the position stays. Return the seconds to wait before asking again: those
        of the text protocol if the broker was asked to wait but did not."""
        if now - request.asked_at < self._config.long_poll_ms / 1000 * WAITED_SHARE:
            return self._idle()
        self._idle_ms = 0
        return 0.0

    # --- taking -----------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes fetched and not delivered."""
        return sum(each.bytes_left for each in list(self._chunks))  # any thread: copied in one step

    @property
    def has_next(self) -> bool:
        """Whether there are fetched data that may be delivered."""
        return bool(self._chunks) and self.announced and self.active and not self.revoking

    def next_chunk(self) -> Chunk | None:
        """Return the oldest fetched chunk, which stays until `used_up`; None if nothing may be delivered."""
        with self.lock:
            return self._chunks[0] if self.has_next else None

    def used_up(self, chunk: Chunk) -> None:
        """Drop the chunk: nothing of it is left."""
        with self.lock:
            self._wanting.append(self)
            if self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()

    def handing_out(self) -> None:
        """Note that the polling thread is about to deliver; only its return tells whether it did, and what."""
        if self._began is None:
            self._began = (self.position, self.last_id)

    def handed_out(self, position: int, last_id: int | None = None) -> None:
        """Everything before `position` is delivered, or filtered out; last_id: of the last message before it, None: as
        before. It counts as consumed with `acknowledge`."""
        if last_id is not None:
            self.last_id = last_id
            self._failed_checks = 0
        self.position = position
        self._handed = (position, self.last_id)

    def acknowledge(self) -> None:
        """Count delivered messages as consumed."""
        handed = self._handed
        if handed is not None:
            self.consumed = handed
        self._began = self._handed = None

    def take_back(self) -> None:
        """Put delivered messages back that did not reach the user: they come again."""
        began = self._began
        if began is not None and self.active:
            self._restart(began[0], last_id=began[1], takes_back=True)
        else:
            self._began = self._handed = None

    def consumed_to(self, position: int, last_id: int, moves: int) -> None:
        """A handler has processed everything before `position`: count it as consumed, unless the partition was lost or
        moved since there were `moves`."""
        with self.lock:
            if self.moves == moves and (self.position, self.last_id) != (position, last_id):
                self.position, self.last_id = position, last_id
                self.consumed = (position, last_id)
                self._failed_checks = 0

    def hold(self) -> bool:
        """Give the partition to a handler; return False if it is not ours any more."""
        with self.lock:
            self._held = self.active and not self.revoking
            return self._held

    def let_go(self) -> None:
        """Note that the handler has returned."""
        self._held = False

    @property
    def is_out(self) -> bool:
        """Whether the user has messages of it."""
        return self._held or self._handed is not None

    # --- damage -----------------------------------------------------------------------------------------------------

    def damaged_at(self, offset: int, moves: int | None = None, *, anew: bool = False) -> None:
        """Data fetched at `offset` fail their check: fetch them again, which may be enough, and let the broker check
        them, too. After some tries ask how far the damage goes; it comes as a chunk of its own. moves: as in
        consumed_to. anew: the damage was known, and was expected to be repaired.
        """
        checks = 1 if anew else self._failed_checks + 1
        ask = Ask.PULL if checks <= DAMAGE_TRIES else Ask.DAMAGE
        if self._restart(offset, ask=ask, moves=moves, suspect=offset):
            self._failed_checks = checks
            self._unless = None

    def not_whole(self, request: Request, error: MetaqError) -> bool:
        """The broker does not deliver a whole record: ask whether it is damaged. If not, `error` says what is wrong.
        Return False if the partition was lost or moved meanwhile."""
        with self.lock:
            if current := self.awaits(request):
                self._generation += 1
                self.asking = False
                self._ahead = NOWHERE
                self._ask = Ask.DAMAGE
                self._unless = error
            return current

    def undamaged(self, request: Request) -> MetaqError | None:
        """The broker finds no damage where a record was not whole. Return the error, which is followed by another try;
        None: a record failed its check here although the broker has it intact."""
        with self.lock:
            if self._unless is not None and self.awaits(request):
                self._ask = Ask.PULL
            return self._unless

    def damage_found(self, request: Request, chunk: Chunk) -> bool:
        """Take the answer to DAMAGE. Return False if the partition was lost or moved meanwhile."""
        found = self.arrived(request, chunk)
        with self.lock:
            if found and request.generation == self._generation:
                self._ask = Ask.PULL if chunk.end_offset > chunk.offset else Ask.NOTHING
        return found

    def report(self, offset: int) -> bool:
        """Note that the user is told of damage at `offset`. Return False if that was done before."""
        former, self.reported = self.reported, offset
        return former != offset

    # --- commits ----------------------------------------------------------------------------------------------------

    def to_commit(self) -> Reached | None:
        """Return the offset to write; None if nothing has changed."""
        consumed = self.consumed
        return consumed if self.active and consumed != self.committed else None

    def committed_to(self, reached: Reached) -> None:
        """Note a written offset."""
        self.committed = reached

    def may_record(self, request: Request) -> bool:
        """Whether the offset of RECORD may still be written: not if another member is to get the partition, because it
        could replace that member's beginning."""
        return self.awaits(request) and not self.revoking

    def begin_recorded(self, request: Request) -> bool:
        """The offset of RECORD was written. Return False if the partition was lost or moved meanwhile, or is to be
        handed over: then the user is not told of it."""
        with self.lock:
            self.committed = (request.offset, UNKNOWN_MESSAGE_ID)
            if not self.may_record(request):
                return False
            self.recorded = True
            self.asking = False
            self._ask = Ask.PULL
            return True

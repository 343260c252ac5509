"""One claim of one partition: where the consumer stands in it, what was fetched, what its broker is to be asked next.

A cursor does no I/O, starts no thread and knows no clock but the `now` that it is given. Each method is named after
what its caller has done or intends. The callers are:

- the driver of requests (fetcher.py, a simulator): `next_request`, `next_ahead`, `arrived`, `answered`, `failed`, …;
- the thread that takes messages (poll(), a handler's): `next_chunk`, `handed_out`, `consumed_to`, `damaged_at`, …;
- the rebalance thread: `revoke`, `keep`, `lose`;
- the committing thread: `to_commit`, `committed_to`, `may_record`, `begin_recorded`.

Invariants (test_client_cursor.py drives them at random):
- what was fetched lies without a gap between `position`, or the end of what is being taken, and `fetch_offset`;
- at most one request is under way, and one more that was sent ahead while the answer to the first was coming in;
- a seek, a step back or the loss begins a new generation, and an answer to a request of an older one changes nothing;
- `consumed` never passes what was handed out, but for a seek;
- nothing is fetched before it is recorded where the group begins.

**Interrupts.** A user's thread may leave any line (interrupts.py). What belongs together is changed by statements
without a call, under `lock`, so an interrupt finds all of it done or nothing.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import random
from typing import NamedTuple

from metaq.coordination.backoff import Backoff
from metaq.protocol.errors import MetaqError

from ..questions.places import Locate
from ..records.values import TopicPartition
from ..settings.consumer_config import ConsumerConfig
from .chunk import Chunk
from .tuning import DAMAGE_TRIES, EMPTY_GETS, LARGEST_GET_BYTES, WAITED_SHARE

__all__ = ["NOWHERE", "UNKNOWN_MESSAGE_ID", "Ask", "PartitionCursor", "Reached", "Request"]

UNKNOWN_MESSAGE_ID = -1
NOWHERE = -1
"""No offset."""

_ROUNDING = 1e-6
"""Seconds that a clock made of sums may be early."""

Reached = tuple[int, int]
"""An offset, and the id of the last message in front of it."""


class Ask(Enum):
    """What a partition's broker is to be asked."""

    PULL = auto()
    BEGIN = auto()
    """Where the first position is, as `PartitionCursor.locate` finds it."""
    RECORD = auto()
    """Nothing: the group's offset is to be written first, as the group has none for it (beginnings.py)."""
    DAMAGE = auto()
    """How far the damage at the offset goes."""
    END = auto()
    """Where the partition ends: nothing has come for long."""
    NOTHING = auto()
    """It is damaged from here on, as far as anybody knows."""


class Request(NamedTuple):
    """What to ask a broker; give it back with what came of it.

    verify: the broker shall check the record at `offset`. size: bytes to ask for over the text protocol. last_id: of
    the message in front of `offset`, for the broker to say whether it has that; UNKNOWN_MESSAGE_ID: it need not.
    asked_at: when it is sent; −inf if that does not matter.
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
        the claim to a commit. stored: what is committed. consumed: what counts as consumed already. recorded: whether
        the group need not commit `begin` before anything is read. announced: whether the user knows of the claim;
        nothing is handed out before. wanting: gets the cursor whenever it may need a request."""
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
        self._proved = False  # the broker has the message in front of the position, as far as it could say
        self._doubt: Reached | None = None  # a position in front of which it has another message
        self.consumed = consumed
        self.committed = self.claimed_at = stored
        self._found: Reached | None = None  # where `locate` has it begin
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
        self._ahead = NOWHERE  # where the request begins that was sent while an answer was coming in
        self._complaint = ""  # the last error that was told, so that one trouble gives one line
        self._led_back_from = NOWHERE
        # the text protocol, whose requests grow while no record fits, and which cannot wait at the broker
        self._get_bytes = config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False  # the last answer only moved the position
        # with the user
        self._began: Reached | None = None  # where what is with the user begins …
        self._handed: Reached | None = None  # … and ends
        self._held = False  # a handler works on it
        # damage
        self._suspect = NOWHERE  # what was fetched here has failed its check: the broker shall look at it too
        self._failed_checks = 0  # in a row
        self._unless: MetaqError | None = None  # what is wrong if nothing is damaged
        self.reported = NOWHERE

    def __repr__(self) -> str:
        return f"{self.partition.topic} {self.partition}"

    @property
    def _next_ask(self) -> Ask:
        """What is needed at a known position."""
        return Ask.PULL if self.recorded else Ask.RECORD

    # --- where it is ------------------------------------------------------------------------------------------------

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
        """Drop what was fetched and the answers under way, and go on at `position`, None: where it is. Not if there was
        a move since there were `moves`; whether it was done."""
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
        """The user has moved the position: everything in front of `offset` counts as consumed, what is with the user
        does not, and damage is told again."""
        self._restart(offset, last_id=UNKNOWN_MESSAGE_ID, seeks=True, takes_back=True)

    def again(self) -> None:
        """Fetch anew from the position on: what was taken from there comes again."""
        if self.opened and self.active and not self.revoking:
            self._restart(None)

    def offset_found(self, request: Request, offset: int) -> None:
        """The answer to BEGIN, which holds unless there was a seek meanwhile, or to END."""
        with self.lock:
            if self.awaits(request):
                if not self.opened:
                    self.fetch_offset = self.position = offset
                    self._found = offset, UNKNOWN_MESSAGE_ID
                    self.opened = True
                self._ask = self._next_ask

    def revoke(self) -> None:
        """Another member shall get it: nothing is fetched or handed out any more."""
        with self.lock:
            self.revoking = True

    def keep(self) -> None:
        """It is not handed over after all."""
        if self.revoking:
            self.revoking = False
            self._wanting.append(self)  # it may have no position yet, and ask for that
            self.again()

    def place(self, *, by_commits: bool) -> Reached | None:
        """Where the next owner should begin: behind what counts as consumed, or is committed; None if that is unknown.
        by_commits: only what is committed counts. It may move on after the loss: the user may be at work on what was
        handed out."""
        consumed = None if by_commits else self.consumed
        return consumed or self.committed or self._found

    def announce(self) -> None:
        """The user was told that it is assigned."""
        self.announced = True

    def lose(self) -> None:
        """It is not ours any more: drop everything fetched."""
        with self.lock:
            self.active = False
            self._generation += 1
            self.moves += 1
            self._chunks.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request(self, now: float) -> Request | None:
        """What to ask the broker now; the caller sends it. None: nothing, as a request is under way, the pause after
        one is not over, or enough was fetched."""
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
        """The answer that is coming in ends at `offset`: what to ask for already."""
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
        """Whether anything would be made of its answer."""
        return request.generation == self._generation and self.active

    def arrived(self, request: Request, chunk: Chunk) -> bool:
        """Data came; False if the partition was lost or moved meanwhile, and they are dropped."""
        with self.lock:
            if self.revoking or not self.awaits(request):
                return False
            # the one call comes last: an interrupt comes before all of it, or after
            self.fetch_offset = chunk.end_offset
            self._chunks.append(chunk)
            return True

    def answered(self, request: Request, now: float, pause: float = 0.0) -> bool:
        """All of the answer has arrived. pause: seconds before the next request. Whether an earlier one had failed."""
        with self.lock:
            if self.awaits(request):
                self._proved = self._proved or request.ask is Ask.PULL
                if self._ahead != NOWHERE:  # the next one is under way already
                    self._ahead = NOWHERE
                else:
                    self.asking = False
                    self._not_before = now + pause
        self.backoff.reset()
        complaint, self._complaint = self._complaint, ""
        return bool(complaint)

    def failed(self, request: Request, now: float, complaint: str) -> tuple[float, bool] | None:
        """No answer, or a wrong one: of two requests under way both are dropped, so that one takes their place.

        Returns seconds until then, and whether this is not what was complained of last; None: nobody waits for it.
        """
        pause = self.backoff.next()
        if not self.put_off(request, now, pause):
            return None
        is_new, self._complaint = complaint != self._complaint, complaint
        return pause, is_new

    def put_off(self, request: Request, now: float, pause: float) -> bool:
        """As `failed`, for what is no trouble of the partition's: it is asked for again in `pause` seconds. False:
        nobody waits for it."""
        with self.lock:
            if not self.awaits(request) or not self.asking:
                return False
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = now + pause
        return True

    def ask_anew(self) -> None:
        """Have the request under way, if there is one, sent again at once, and its answer dropped: it was interrupted,
        or the partition is read from another broker."""
        with self.lock:
            self._wanting.append(self)
            self._generation += 1
            self.asking = False
            self._ahead = NOWHERE
            self._not_before = 0.0
            self._proved = False

    # --- what brokers say -------------------------------------------------------------------------------------------

    def doubt(self, request: Request) -> None:
        """The broker has another message in front of the position than the one that was read there."""
        self._doubt = request.offset, request.last_id

    def take_doubt(self) -> Reached | None:
        """The position that `doubt` was told of since the last call, and the id of the message in front of it."""
        doubt, self._doubt = self._doubt, None
        return doubt

    def was_led_back(self) -> bool:
        """The broker leads back to the start of the record that has the position. Whether it does so again: then what
        was read already would come for ever."""
        former, self._led_back_from = self._led_back_from, self.fetch_offset
        return former == self.fetch_offset

    def forget_lead(self) -> None:
        """Whether the broker's lead was followed is not known: its answer was interrupted."""
        self._led_back_from = NOWHERE

    @property
    def stood_at_0(self) -> bool:
        """Whether the group had committed that it begins at offset 0, before this claim or by a seek."""
        return self.committed is not None and self.committed[0] == 0 and not self._begins_at_0

    def whole_records_came(self) -> None:
        """Records, or over the framed protocol whatever moves the position."""
        self._get_bytes = self._config.fetch_max_bytes
        self._idle_ms = self._empty_gets = 0
        self._moved = False

    def ask_for_more(self, came: int) -> bool:
        """Text protocol: not one whole record is among `came` bytes. Whether asking for more may help."""
        if came < self._get_bytes or self._get_bytes >= LARGEST_GET_BYTES:
            return False
        self._get_bytes = min(2 * self._get_bytes, LARGEST_GET_BYTES)
        return True

    def nothing_came(self) -> float:
        """Text protocol. Returns seconds to wait before asking again, which grow, as in 1.x."""
        self._empty_gets += 1
        if self._empty_gets == EMPTY_GETS and self.fetch_offset:
            self._ask = Ask.END
        return self._idle()

    def _idle(self) -> float:
        config = self._config
        self._idle_ms = min(self._idle_ms + config.text_idle_step_ms, config.text_idle_max_ms)
        return self._idle_ms / 1000

    def was_moved(self) -> float:
        """The answer only moves the position. Returns seconds to wait before asking there: records are there, but for a
        broker that moves it on and on."""
        again, self._moved = self._moved, True
        return self._idle() if again else 0.0

    def waited_in_vain(self, request: Request, now: float) -> float:
        """Framed protocol: nothing came, and the position stays. Returns seconds to wait before asking again: as over
        the text protocol if the broker, which was asked to wait, has not done so."""
        if now - request.asked_at < self._config.long_poll_ms / 1000 * WAITED_SHARE:
            return self._idle()
        self._idle_ms = 0
        return 0.0

    # --- taking -----------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Fetched and not handed out."""
        return sum(each.bytes_left for each in list(self._chunks))  # any thread: copied in one step

    @property
    def has_next(self) -> bool:
        """Whether something was fetched that may be handed out."""
        return bool(self._chunks) and self.announced and self.active and not self.revoking

    def next_chunk(self) -> Chunk | None:
        """The oldest fetched chunk, left in place until `used_up`; None if nothing may be handed out."""
        with self.lock:
            return self._chunks[0] if self.has_next else None

    def used_up(self, chunk: Chunk) -> None:
        """Nothing of the chunk is left."""
        with self.lock:
            self._wanting.append(self)
            if self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()

    def handing_out(self) -> None:
        """The polling thread is about to give the user something: what, if anything, is known once it has returned."""
        if self._began is None:
            self._began = (self.position, self.last_id)

    def handed_out(self, position: int, last_id: int | None = None) -> None:
        """Everything up to `position` is with the user, or filtered away; last_id: of the last message in front of it,
        None: as before. It counts as consumed with `acknowledge`."""
        if last_id is not None:
            self.last_id = last_id
            self._failed_checks = 0
        self.position = position
        self._handed = (position, self.last_id)

    def acknowledge(self) -> None:
        """What was handed out counts as consumed."""
        handed = self._handed
        if handed is not None:
            self.consumed = handed
        self._began = self._handed = None

    def take_back(self) -> None:
        """What was handed out did not reach the user: it comes again."""
        began = self._began
        if began is not None and self.active:
            self._restart(began[0], last_id=began[1], takes_back=True)
        else:
            self._began = self._handed = None

    def consumed_to(self, position: int, last_id: int, moves: int) -> None:
        """A handler is done with everything in front of `position`: it counts as consumed, unless the partition was
        lost or moved since there were `moves`."""
        with self.lock:
            if self.moves == moves and (self.position, self.last_id) != (position, last_id):
                self.position, self.last_id = position, last_id
                self.consumed = (position, last_id)
                self._failed_checks = 0

    def hold(self) -> bool:
        """A handler is about to work on it; False if it is not ours to work on any more."""
        with self.lock:
            self._held = self.active and not self.revoking
            return self._held

    def let_go(self) -> None:
        """The handler has returned."""
        self._held = False

    @property
    def is_out(self) -> bool:
        """Whether messages are with the user."""
        return self._held or self._handed is not None

    # --- damage -----------------------------------------------------------------------------------------------------

    def damaged_at(self, offset: int, moves: int | None = None, *, anew: bool = False) -> None:
        """What was fetched at `offset` fails its check: fetch it again, which may be enough, and have the broker check
        it, too. After some tries ask how far the damage goes; it comes as a chunk of its own. moves: as consumed_to.
        anew: this was known, and was waited for to be whole.
        """
        checks = 1 if anew else self._failed_checks + 1
        ask = Ask.PULL if checks <= DAMAGE_TRIES else Ask.DAMAGE
        if self._restart(offset, ask=ask, moves=moves, suspect=offset):
            self._failed_checks = checks
            self._unless = None

    def not_whole(self, request: Request, error: MetaqError) -> bool:
        """The broker does not give all of a record: is it damaged? If not, `error` is what is wrong. False if the
        partition was lost or moved meanwhile."""
        with self.lock:
            if current := self.awaits(request):
                self._generation += 1
                self.asking = False
                self._ahead = NOWHERE
                self._ask = Ask.DAMAGE
                self._unless = error
            return current

    def undamaged(self, request: Request) -> MetaqError | None:
        """The broker finds nothing damaged where a record was not whole. Returns what is wrong then, which is followed
        by another try; None: a record failed its check here, although it is good there."""
        with self.lock:
            if self._unless is not None and self.awaits(request):
                self._ask = Ask.PULL
            return self._unless

    def damage_found(self, request: Request, chunk: Chunk) -> bool:
        """What DAMAGE has asked for. False if the partition was lost or moved meanwhile."""
        found = self.arrived(request, chunk)
        with self.lock:
            if found and request.generation == self._generation:
                self._ask = Ask.PULL if chunk.end_offset > chunk.offset else Ask.NOTHING
        return found

    def report(self, offset: int) -> bool:
        """The user is told of damage at `offset`. False if this was done before."""
        former, self.reported = self.reported, offset
        return former != offset

    # --- commits ----------------------------------------------------------------------------------------------------

    def to_commit(self) -> Reached | None:
        """What is to be written; None if nothing has changed."""
        consumed = self.consumed
        return consumed if self.active and consumed != self.committed else None

    def committed_to(self, reached: Reached) -> None:
        """This was written."""
        self.committed = reached

    def may_record(self, request: Request) -> bool:
        """Whether the offset of RECORD may still be written: not once another member shall get the partition, whose
        own beginning it could replace."""
        return self.awaits(request) and not self.revoking

    def begin_recorded(self, request: Request) -> bool:
        """The offset of RECORD was written. False if the partition was lost or moved meanwhile, or shall be handed
        over: the user is not told of it."""
        with self.lock:
            self.committed = (request.offset, UNKNOWN_MESSAGE_ID)
            if not self.may_record(request):
                return False
            self.recorded = True
            self.asking = False
            self._ask = Ask.PULL
            return True

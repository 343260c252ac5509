"""How much each client address uses of a broker's limited resources: bytes of memory, connections and others.

The limits are `Quotas`, [limits] of server.ini. Each resource has one `Shares`, which knows how much of it each address
uses. An address that is alone may use everything but a reserve. While others use some, it may use its share, half by
default. So one host with all connections works, and a host that comes later finds room. Use that exists when the
broker starts has no address: it does not use up the reserve, so the total may exceed the limit.

Only lasting use is counted (a connection, a waiting request, an incomplete frame), never a message that is answered at
once. Reactor thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from metaq.protocol.errors import AccountSpent
from metaq.protocol.limits import MAX_FRAME_BYTES

from ..store.worker_turns import call_safely
from .heap import give_back
from .reactor import ReactorTime

__all__ = [
    "LOST_BYTES",
    "NOBODY",
    "REFUSED_ANSWER_BYTES",
    "SCARCE_ANSWER_BYTES",
    "SPACE_READ_BYTES",
    "Account",
    "Quotas",
    "Shares",
    "Unfinished",
    "Unsent",
    "account_address",
    "address_of",
    "numeric_address",
]

NOBODY = ""
"""The address of use that exists when a broker starts, or that belongs to no client."""

RESERVE_PART = 16
"""The reserve, which no address gets alone, is the limit divided by this."""

MAX_PREPARED_BYTES = 12 << 20
"""The maximum size of the list of prepared transactions: with MAX_ACTIVE_BYTES of others it fits into one frame. The
list is never cut, because a coordinator takes a missing transaction for ended."""

MAX_SEARCHES = 64
"""How many searches for messages, by id or key, may wait or run."""

MAX_ASKED_MOVES = 64
"""How many MOVE requests may look at moves in ZooKeeper at once, each in a thread of its own."""

MAX_LISTS = 64
"""How many lists of delayed or half messages may wait or be made."""

MAX_PAGES = 32
"""How many pages and metrics may be made or sent at once: each holds its unsent rest, and up to some megabytes."""

UNFINISHED_BYTES_PER_SECOND = 16 << 10
"""A request that arrives faster may take longer than `requestSeconds`; so may an answer that is taken faster."""

SCAN_SECONDS = 5
"""The time between two looks at unfinished requests."""

SCARCE_ANSWER_BYTES = 64 << 10
"""The most data of an answer while its address has no room for unsent answers; a single record may be larger."""

REFUSED_ANSWER_BYTES = 80 << 10
"""A larger answer is refused then: this has room for SCARCE_ANSWER_BYTES and the description of the data."""

WAITING_BYTES = 1 << 10
"""How much a waiting request counts in addition to its own size."""

SPACE_READ_BYTES = 1 << 20
"""The most that is read from a connection before it is counted: a socket holds up to eight times as much."""


LOST_BYTES = 32 << 20
"""After so many bytes of requests that were never completed, the heap gives free memory back: later requests may not
fit into the places of the lost ones."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """[limits]. The field `unfinished_bytes` is the key `unfinishedBytes`, and so on."""

    unfinished_bytes: int = 128 << 20
    """Bytes of requests that are incomplete, wait for their turn or are under way. Above it, connections that bring
    more are not read, except one of each address."""
    request_seconds: int = 30
    """How long a request may arrive more slowly than UNFINISHED_BYTES_PER_SECOND."""
    unsent_bytes: int = 64 << 20
    """Bytes of answers that clients do not take. Above it, answers have at most REFUSED_ANSWER_BYTES."""
    waiting_bytes: int = 64 << 20
    """Bytes of requests that wait for data: WAITING_BYTES each, and their own size."""
    transaction_bytes: int = 256 << 20
    """Bytes of messages in open transactions, in memory."""
    open_transactions: int = 100_000
    xa_idle_seconds: int = 600
    """An unprepared XA transaction without a timeout is rolled back after so long without a request; 0: never."""
    http_connections: int = 1024
    """Connections of the pages and the HTTP gateway; at most a quarter of all connections."""
    waiting_pages: int = 4
    """Operator's pages that wait for ZooKeeper, in a thread each."""
    shared_groups: int = 10_000
    """Shared groups, counted by partition."""
    shared_bytes: int = 512 << 20
    """Bytes of shared groups' state about messages. Above it, each group still leases and looks at a few."""
    made_topics: int = 10_000
    """Topics without a section that a client's message makes: by a pattern, or metaq's own."""
    half_messages: int = 1 << 18
    """Half messages that wait for their outcome: at most 1.5 KB each in memory, if each has its own group and
    producer."""
    address_share: int = 50
    """The percentage of each limit that one address may use while others use some."""


def account_address(host: str) -> str:
    """Return what counts as one address: for IPv6 the 64-bit network, because one host may choose any address in it."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    assert isinstance(address, IPv6Address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))


def numeric_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a socket gave, an IPv4 address also if it is mapped into IPv6. None if it is no address:
    the peer's origin is unknown."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def address_of(caller: object) -> str:
    """Return the address of a connection."""
    address: str = getattr(caller, "address", NOBODY)
    return address


class Shares:
    """The limit of one resource, and how much of it each address uses."""

    def __init__(self, what: str, key: str, limit: int, share: int, reserve: int = 0) -> None:
        """what: the name in refusals and metrics. key: of [limits]. share: percent. reserve: what an address that is
        alone does not get; 0: the limit divided by RESERVE_PART."""
        self.what = what
        self.key = key
        self.limit = limit
        self.used = 0
        self.refused = 0
        """The number of refusals since the start."""
        self._share = limit * share // 100
        self._alone = limit - (reserve or limit // RESERVE_PART)
        self._by_address: dict[str, int] = {}

    @property
    def largest(self) -> int:
        """The highest use of any address."""
        return max(self._by_address.values(), default=0)

    def has(self, address: str) -> bool:
        """Whether the address uses any."""
        return address in self._by_address

    def room(self, address: str) -> int:
        """Return how much more the address may use; 0 or less if it may use no more."""
        mine = self._by_address.get(address, 0)
        most = self._alone if mine == self.used else self._share
        nobodys_reserve = max(0, self._by_address.get(NOBODY, 0) - self._alone)
        return min(most - mine, self.limit - self.used + nobodys_reserve)

    def add(self, address: str, amount: int) -> None:
        """Change the address's use by `amount`, without a check of the limits."""
        self.used += amount
        left = self._by_address.get(address, 0) + amount
        if left:
            self._by_address[address] = left
        else:
            self._by_address.pop(address, None)

    def take(self, address: str, amount: int = 1) -> bool:
        """Add `amount` to the address's use, and return True; False, counted as a refusal, if that is too much."""
        if amount > self.room(address):
            self.refused += 1
            return False
        self.add(address, amount)
        return True

    def why_not(self, address: str, amount: int = 1) -> str | None:
        """Return why the address may not use `amount` more, and count that as a refusal; None if it may. The use
        stays."""
        if amount <= self.room(address):
            return None
        self.refused += 1
        return self.refusal(address)

    def check(self, address: str, amount: int = 1) -> None:
        """Add `amount` to the address's use. Raises AccountSpent if that is too much."""
        if (why := self.why_not(address, amount)) is not None:
            raise AccountSpent(why)
        self.add(address, amount)

    def refusal(self, address: str) -> str:
        """Return the text of a refusal."""
        mine = self._by_address.get(address, 0)
        key = f"{self.key}={self.limit} and " if self.key else ""
        return (
            f"too many {self.what}: this broker has {self.used} of at most {self.limit}, {mine} of them from "
            f"{address or 'itself'}; one address may have {self._share} beside others, {self._alone} alone (see "
            f"{key}addressShare in [limits] of server.ini)"
        )


class _Begun:
    """A connection's unfinished requests. age: how many looks found them too slow. seen: their bytes at the
    last look."""

    __slots__ = ("address", "age", "cut", "seen", "size")

    def __init__(self, address: str, cut: Callable[[str], bool]) -> None:
        self.address = address
        self.cut = cut
        self.size = self.seen = 0
        self.age = 0


class Unfinished:
    """The requests of all connections that are incomplete, wait for their turn or are under way.

    When they have too many bytes, connections with such a request are not read until there is room again. The oldest
    one of each address goes on, so that some requests always complete. Connections whose request does not complete in
    time are cut. Time counts in looks of this broker, and only while the connection is read: a broker that stood still
    cuts nobody.
    """

    def __init__(self, budget: Shares, seconds: int, reactor: ReactorTime) -> None:
        self._budget = budget
        self._seconds = seconds
        self._reactor = reactor
        self._begun: dict[str, dict[object, _Begun]] = {}  # by address, oldest first
        self._waiting: dict[object, tuple[str, Callable[[], None]]] = {}  # an ordered map
        self._waking = False
        self._lost_bytes = 0  # of ended connections, since memory was last given back
        self.cut = 0
        """Requests cut since the start because they did not arrive in time."""

    @property
    def waiting(self) -> int:
        """The number of connections that are not read."""
        return len(self._waiting)

    def has(self, who: object, address: str, size: int, fresh: bool, cut: Callable[[str], bool]) -> bool:
        """Note that `who` has unfinished requests of `size` bytes, 0 for none. Return whether it may be read further.

        fresh: whether a request was completed since the last call. cut(why): end the connection unless it is not read;
        returns whether it did.
        """
        mine = self._begun.get(address)
        if not size:
            self._waiting.pop(who, None)
            if mine is not None and (begun := mine.pop(who, None)) is not None:
                self._budget.add(address, -begun.size)
                if not mine:
                    del self._begun[address]
                if self._waiting:
                    self._wake_soon()
            return True
        if mine is None:
            mine = self._begun[address] = {}
        found = mine.get(who)
        if found is None:
            found = mine[who] = _Begun(address, cut)
        elif fresh:
            found.age = found.seen = 0
            mine[who] = mine.pop(who)  # now the youngest one
            if self._waiting:  # perhaps the new oldest one waits
                self._wake_soon()
        self._budget.add(address, size - found.size)
        found.size = size
        return self._may_go_on(who, address)

    def _may_go_on(self, who: object, address: str) -> bool:
        return self._budget.room(address) > 0 or self._is_oldest(who, address)

    def room(self, who: object, address: str) -> int:
        """Return how many bytes to read at once: as many as there is room for; without room a single one, then it
        waits."""
        if self._is_oldest(who, address):
            return SPACE_READ_BYTES
        return max(1, min(SPACE_READ_BYTES, self._budget.room(address)))

    def _is_oldest(self, who: object, address: str) -> bool:
        """Whether `who` is the oldest of its address."""
        return next(iter(self._begun.get(address, (who,)))) is who

    def wait(self, who: object, address: str, resume: Callable[[], None]) -> None:
        """Call `resume` once, when `who` may be read again; never within this call."""
        self._waiting[who] = address, resume
        self._budget.refused += 1

    def read_again(self, who: object, address: str) -> None:
        """Restart the time of a connection that was not read for a while."""
        begun = self._begun.get(address, {}).get(who)
        if begun is not None:
            begun.age = 0

    def drop(self, who: object, address: str) -> None:
        """Forget a connection that is gone."""
        self._waiting.pop(who, None)
        begun = self._begun.get(address, {}).get(who)
        if begun is not None:
            self._lost_bytes += begun.size
            self.has(who, address, 0, True, begun.cut)
            if self._lost_bytes >= LOST_BYTES:
                self._lost_bytes = 0
                self._reactor.callLater(0, give_back)

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self._reactor.callLater(0, self._wake)

    def _wake(self) -> None:
        self._waking = False
        expected = 0
        for who, (address, resume) in list(self._waiting.items()):
            if self._budget.room(address) <= expected and not self._is_oldest(who, address):
                continue
            expected += SPACE_READ_BYTES
            del self._waiting[who]
            call_safely(resume)

    def look(self) -> None:
        """Cut connections whose requests take too long. To be called every SCAN_SECONDS."""
        late = []
        for begun in self._all():
            begun.age += begun.size - begun.seen < SCAN_SECONDS * UNFINISHED_BYTES_PER_SECOND
            begun.seen = begun.size
            if begun.age * SCAN_SECONDS > self._seconds:
                late.append(begun)
        for begun in late:
            self.cut += begun.cut(
                f"for {self._seconds} s a request came at less than {UNFINISHED_BYTES_PER_SECOND} bytes a second, and "
                "was not complete (see requestSeconds in [limits] of server.ini)"
            )

    def _all(self) -> Iterator[_Begun]:
        for mine in self._begun.values():
            yield from (begun for who, begun in mine.items() if who not in self._waiting)


class Receiver(Protocol):
    """A connection to which answers are sent."""

    address: str

    @property
    def sent_bytes(self) -> int:
        """The bytes sent to the client while the transport was full, since the connection was made."""

    def abort(self, why: str) -> None: ...


class _Untaken:
    """A connection's unsent answers. age: how many looks found its client too slow. seen: `sent_bytes` at the last
    look."""

    __slots__ = ("age", "seen", "size")

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.age = self.size = 0


class Unsent:
    """The answers of all connections that wait in full transports.

    While an address has no room for more, its answers are small: larger ones are refused. Then the connections of all
    addresses whose clients take their answers too slowly are cut. Time counts in looks, as for Unfinished.
    """

    def __init__(self, budget: Shares, seconds: int) -> None:
        self._budget = budget
        self._seconds = seconds
        self._untaken: dict[Receiver, _Untaken] = {}
        self._short = False  # an address lacked room since the last look

    def data_bytes(self, address: str, limit: int) -> int:
        """Return how much data an answer may carry, at most `limit` bytes."""
        room = self._room(address) - (REFUSED_ANSWER_BYTES - SCARCE_ANSWER_BYTES)
        if room > SCARCE_ANSWER_BYTES:
            return min(limit, room)
        self._short = True
        return min(limit, SCARCE_ANSWER_BYTES)

    def why_not(self, address: str, size: int) -> str | None:
        """Return why the address gets no answer of this size now; None if it does."""
        if size <= REFUSED_ANSWER_BYTES or size <= self._room(address):
            return None
        self._short = True
        self._budget.refused += 1
        return self._budget.refusal(address)

    def _room(self, address: str) -> int:
        """Return the room for one answer. With any room, and no waiting answer of the address, every answer fits."""
        room = self._budget.room(address)
        return MAX_FRAME_BYTES if room > 0 and not self._budget.has(address) else room

    def hold(self, address: str, change: int) -> None:
        """Note that `change` more bytes wait for an HTTP connection, which has its own time limit."""
        self._budget.add(address, change)

    def add(self, who: Receiver, size: int) -> None:
        """Note that `size` more bytes were written to a full transport."""
        untaken = self._untaken.get(who)
        if untaken is None:
            untaken = self._untaken[who] = _Untaken(who.sent_bytes)
        untaken.size += size
        self._budget.add(who.address, size)

    def taken(self, who: Receiver) -> None:
        """Note that everything was sent, or that the connection is gone."""
        untaken = self._untaken.pop(who, None)
        if untaken is not None:
            self._budget.add(who.address, -untaken.size)

    def look(self) -> None:
        """Cut connections that take too little, if an address lacked room. To be called every SCAN_SECONDS."""
        late = []
        for who, untaken in self._untaken.items():
            sent = who.sent_bytes
            untaken.age = untaken.age + 1 if sent - untaken.seen < SCAN_SECONDS * UNFINISHED_BYTES_PER_SECOND else 0
            untaken.seen = sent
            if untaken.age * SCAN_SECONDS > self._seconds and self._short:
                late.append(who)
        self._short = False
        for who in late:
            who.abort(
                f"for {self._seconds} s it took less than {UNFINISHED_BYTES_PER_SECOND} bytes a second of its answers, "
                "and others wait for their room (see unsentBytes and requestSeconds in [limits] of server.ini)"
            )


class Account:
    """All budgets of a broker."""

    def __init__(self, limits: Quotas, reactor: ReactorTime) -> None:
        share = limits.address_share
        self._unfinished_bytes = Shares(
            "bytes of unfinished requests",
            "unfinishedBytes",
            limits.unfinished_bytes,
            share,
            limits.unfinished_bytes // 8,
        )
        self.unfinished = Unfinished(self._unfinished_bytes, limits.request_seconds, reactor)

        self._unsent_bytes = Shares(
            "bytes of unsent answers", "unsentBytes", limits.unsent_bytes, share, limits.unsent_bytes // 4
        )
        self.unsent = Unsent(self._unsent_bytes, limits.request_seconds)

        self.limits = limits
        self.connections = Shares("connections", "", 0, share)
        self.http = Shares("HTTP connections", "httpConnections", limits.http_connections, share)
        self.pages = Shares("pages that wait for ZooKeeper", "waitingPages", limits.waiting_pages, 100)
        self.shown_pages = Shares("pages that are being sent", "", MAX_PAGES, share)
        self.searches = Shares("searches for messages", "", MAX_SEARCHES, share)
        self.asked_moves = Shares("moves that are looked at", "", MAX_ASKED_MOVES, share)
        self.lists = Shares("lists of delayed or half messages", "", MAX_LISTS, share)
        self.shared_groups = Shares("shared groups", "sharedGroups", limits.shared_groups, share)
        self.shared_bytes = Shares("bytes of shared groups", "sharedBytes", limits.shared_bytes, share)
        self.made_topics = Shares("topics without a section", "madeTopics", limits.made_topics, share)
        self.half_messages = Shares("half messages", "halfMessages", limits.half_messages, share)
        self.asker = NOBODY
        """The address whose requests are served now or were served last."""
        self.transaction_bytes = Shares(
            "bytes in open transactions", "transactionBytes", limits.transaction_bytes, share
        )
        self.transactions = Shares("open transactions", "openTransactions", limits.open_transactions, share)
        self.prepared = Shares("bytes in the list of prepared transactions", "", MAX_PREPARED_BYTES, share)
        self.waiting = Shares("bytes of requests that wait", "waitingBytes", limits.waiting_bytes, share)

    def use_descriptors(self, connections: int, *, http: bool = False) -> None:
        """Set the maximum number of connections, before any is counted. http: whether the HTTP ports get some
        of them."""
        limits = self.limits
        if http:
            of_http = min(limits.http_connections, connections // 4)
            self.http = Shares("HTTP connections", "httpConnections", of_http, limits.address_share)
            connections -= of_http
        self.connections = Shares("connections", "", connections, limits.address_share)

    def budgets(self) -> Iterator[tuple[str, Shares]]:
        """Yield each budget with its name in the metrics."""
        yield "connections", self.connections
        yield "http_connections", self.http
        yield "waiting_pages", self.pages
        yield "pages", self.shown_pages
        yield "searches", self.searches
        yield "asked_moves", self.asked_moves
        yield "lists", self.lists
        yield "shared_groups", self.shared_groups
        yield "shared_bytes", self.shared_bytes
        yield "made_topics", self.made_topics
        yield "half_messages", self.half_messages
        yield "unfinished_bytes", self._unfinished_bytes
        yield "unsent_bytes", self._unsent_bytes
        yield "waiting_bytes", self.waiting
        yield "transaction_bytes", self.transaction_bytes
        yield "open_transactions", self.transactions
        yield "prepared_bytes", self.prepared

"""Count how much each client address uses of a broker's limited resources, such as memory and connections, and enforce
the limits.

The limits are in `Quotas`, which holds the section [limits] of server.ini. Each resource has one `Shares` object, which
knows how much of the resource each address uses. If only one address uses the resource, that address may use everything
except a reserve. While several addresses use the resource, each may use up to its share, which is half by default. So a
single host may open nearly all connections, and another host that connects later can still open connections. Use that
already exists when the broker starts belongs to no address. The use that existed at the start does not reduce the
reserve, so the total use may exceed the limit.

This module counts use that lasts, such as a connection, a waiting request or an incomplete frame. It never counts a
request that is answered at once. The code runs on the reactor thread.
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
"""The address that stands for use without a client, for example use that exists when a broker starts."""

RESERVE_PART = 16
"""By default, the reserve of a resource is the limit divided by RESERVE_PART. If only one address uses the resource,
this address does not get the reserve.
"""

MAX_PREPARED_BYTES = 12 << 20
"""The maximum size of the list of prepared transactions. The size is such that one frame can contain this list together
with MAX_ACTIVE_BYTES of other transactions. The list is never truncated, because a coordinator assumes that a missing
transaction has ended.
"""

MAX_SEARCHES = 64
"""How many searches for messages, by id or key, may wait or run."""

MAX_ASKED_MOVES = 64
"""How many MOVE requests may read moves from ZooKeeper at once. Each uses a thread of its own."""

MAX_LISTS = 64
"""How many requests for a list of delayed or half messages may wait or run."""

MAX_PAGES = 32
"""How many operator's pages and metrics pages may be created or sent at once. For each page, the part that is not sent
yet is kept in memory, up to some megabytes.
"""

UNFINISHED_BYTES_PER_SECOND = 16 << 10
"""A request that arrives faster than this rate may take longer than `requestSeconds`. The same is true for an answer
that the client receives faster than this rate.
"""

SCAN_SECONDS = 5
"""The time between two checks of unfinished requests."""

SCARCE_ANSWER_BYTES = 64 << 10
"""The maximum number of bytes of message data in one answer while the client's address has no room for unsent answers.
A single record may be larger.
"""

REFUSED_ANSWER_BYTES = 80 << 10
"""While an address has no room for unsent answers, an answer with more bytes than this is refused. An answer with
SCARCE_ANSWER_BYTES of data and a description of these data is not larger than this number, so it is not refused.
"""

WAITING_BYTES = 1 << 10
"""How many bytes are counted for a waiting request in addition to its own size."""

SPACE_READ_BYTES = 1 << 20
"""The maximum number of bytes that are read from a connection before they are counted. A socket's buffer holds up to
eight times as much.
"""


LOST_BYTES = 32 << 20
"""A number of bytes. When requests that were never completed have brought this many bytes in total, the heap gives free
memory back to the system. Otherwise the memory might stay unused, because later requests may not fit into the memory
blocks that the incomplete requests have left.
"""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The values of the section [limits] of server.ini. The field `unfinished_bytes` has the value of the key
    `unfinishedBytes`, and so on.
    """

    unfinished_bytes: int = 128 << 20
    """The maximum number of bytes of requests that are incomplete, wait for their turn or are being handled. Above this
    limit, the broker does not read from connections that bring more requests, except from one connection of each
    address.
    """
    request_seconds: int = 30
    """How many seconds a request may arrive more slowly than UNFINISHED_BYTES_PER_SECOND."""
    unsent_bytes: int = 64 << 20
    """The maximum number of bytes of answers that clients have not yet received. Above this limit, answers with more
    than REFUSED_ANSWER_BYTES bytes are refused.
    """
    waiting_bytes: int = 64 << 20
    """The maximum number of bytes of requests that wait for data. For each request, its own size and WAITING_BYTES are
    counted.
    """
    transaction_bytes: int = 256 << 20
    """The maximum number of bytes of messages in open transactions. The broker keeps the messages of open transactions
    in memory.
    """
    open_transactions: int = 100_000
    xa_idle_seconds: int = 600
    """An XA transaction that is not prepared and has no timeout is rolled back after so many seconds without a request;
    0 means never.
    """
    http_connections: int = 1024
    """The maximum number of connections to the operator's pages and the HTTP gateway. These connections may be at most
    a quarter of all connections.
    """
    waiting_pages: int = 4
    """The maximum number of operator's pages that wait for ZooKeeper. Each of them uses one thread."""
    shared_groups: int = 10_000
    """The maximum number of shared groups. A group counts once for each partition that it uses."""
    shared_bytes: int = 512 << 20
    """The maximum number of bytes of state that shared groups keep about messages. Above this limit, each group still
    leases and examines a few messages.
    """
    made_topics: int = 10_000
    """The maximum number of topics without a section in server.ini that clients' messages may create. A client's
    message can create a topic that matches a pattern, or one of metaq's own topics.
    """
    half_messages: int = 1 << 18
    """The maximum number of half messages that wait for their outcome. Each takes at most 1.5 KB of memory, even if
    each has its own group and producer.
    """
    address_share: int = 50
    """The percentage of each limit that one address may use while other addresses also use something of the same
    resource.
    """


def account_address(host: str) -> str:
    """Return the text under which this host's use is counted. For IPv6 this is the 64-bit network, because one host may
    choose any address in it.
    """
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
    """Return the IP address in `host`, as a socket reported it. An IPv4 address that is mapped into IPv6 is returned as
    IPv4. Return None if `host` is not an address; then the peer's origin is unknown.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def address_of(caller: object) -> str:
    """Return the client address to which the use of `caller`, such as a connection, is attributed; NOBODY if it has
    none.
    """
    address: str = getattr(caller, "address", NOBODY)
    return address


class Shares:
    """The limit of one resource, and how much of it each address uses."""

    def __init__(self, what: str, key: str, limit: int, share: int, reserve: int = 0) -> None:
        """what: the resource's name in refusals. key: the key in [limits]. share: the percentage of the limit that one
        address may use while other addresses also use the resource. reserve: the amount that stays free when only one
        address uses the resource; 0 means the limit divided by RESERVE_PART.
        """
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
        """The amount that the address with the highest use takes."""
        return max(self._by_address.values(), default=0)

    def has(self, address: str) -> bool:
        """Return whether the address uses the resource at all."""
        return address in self._by_address

    def room(self, address: str) -> int:
        """Return how much more the address may use; 0 or less if it may use no more."""
        mine = self._by_address.get(address, 0)
        most = self._alone if mine == self.used else self._share
        nobodys_reserve = max(0, self._by_address.get(NOBODY, 0) - self._alone)
        return min(most - mine, self.limit - self.used + nobodys_reserve)

    def add(self, address: str, amount: int) -> None:
        """Change the address's use by `amount` without checking the limits."""
        self.used += amount
        left = self._by_address.get(address, 0) + amount
        if left:
            self._by_address[address] = left
        else:
            self._by_address.pop(address, None)

    def take(self, address: str, amount: int = 1) -> bool:
        """Add `amount` to the address's use, and return True. If that is too much, count a refusal and return False."""
        if amount > self.room(address):
            self.refused += 1
            return False
        self.add(address, amount)
        return True

    def why_not(self, address: str, amount: int = 1) -> str | None:
        """Return why the address may not use `amount` more, and count a refusal. Return None if it may. The address's
        use is not changed.
        """
        if amount <= self.room(address):
            return None
        self.refused += 1
        return self.refusal(address)

    def check(self, address: str, amount: int = 1) -> None:
        """Add `amount` to the address's use. Raises AccountSpent, and counts a refusal, if that is too much."""
        if (why := self.why_not(address, amount)) is not None:
            raise AccountSpent(why)
        self.add(address, amount)

    def refusal(self, address: str) -> str:
        """Return the text that tells a client at this address that its request is refused because of this limit."""
        mine = self._by_address.get(address, 0)
        key = f"{self.key}={self.limit} and " if self.key else ""
        return (
            f"too many {self.what}: this broker has {self.used} of at most {self.limit}, {mine} of them from "
            f"{address or 'itself'}; one address may have {self._share} beside others, {self._alone} alone (see "
            f"{key}addressShare in [limits] of server.ini)"
        )


class _Begun:
    """The unfinished requests of one connection. age: how many checks have found that the requests arrive too slowly.
    seen: the number of their bytes at the last check.
    """

    __slots__ = ("address", "age", "cut", "seen", "size")

    def __init__(self, address: str, cut: Callable[[str], bool]) -> None:
        self.address = address
        self.cut = cut
        self.size = self.seen = 0
        self.age = 0


class Unfinished:
    """The requests of all connections that are incomplete, wait for their turn or are under way.

    When these requests have too many bytes, the broker stops reading from their connections until there is room again.
    The oldest such connection of each address is still read, so that some requests always complete. A connection is
    aborted if its request does not complete in time. Time is counted in this broker's checks (`look`), and only while
    the connection is read. So a broker that was suspended aborts no connection.
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
        """The number of requests since the start that were aborted because they did not arrive in time."""

    @property
    def waiting(self) -> int:
        """Number of connections that the broker does not read from, because there is no memory for their requests."""
        return len(self._waiting)

    def has(self, who: object, address: str, size: int, fresh: bool, cut: Callable[[str], bool]) -> bool:
        """Record that the unfinished requests of the connection `who` have `size` bytes in total; 0 means that there
        are none. Return whether the broker should continue to read from this connection.

        fresh: whether a request was completed since the last call. cut(why): ends the connection if the broker
        currently reads from it; `cut` returns whether it has ended the connection.
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
            mine[who] = mine.pop(who)  # now the youngest connection
            if self._waiting:  # perhaps the new oldest connection waits
                self._wake_soon()
        self._budget.add(address, size - found.size)
        found.size = size
        return self._may_go_on(who, address)

    def _may_go_on(self, who: object, address: str) -> bool:
        return self._budget.room(address) > 0 or self._is_oldest(who, address)

    def room(self, who: object, address: str) -> int:
        """Return how many bytes to read from the connection at once: as many as there is room for. If there is no room,
        return 1; after this byte the connection waits.
        """
        if self._is_oldest(who, address):
            return SPACE_READ_BYTES
        return max(1, min(SPACE_READ_BYTES, self._budget.room(address)))

    def _is_oldest(self, who: object, address: str) -> bool:
        """Whether no other connection of the address has had unfinished requests for a longer time than `who`."""
        return next(iter(self._begun.get(address, (who,)))) is who

    def wait(self, who: object, address: str, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the broker may read from `who` again. `resume` is never called before `wait` has
        returned.
        """
        self._waiting[who] = address, resume
        self._budget.refused += 1

    def read_again(self, who: object, address: str) -> None:
        """Restart the time limit of the connection `who`, because the broker has not read from it for a while."""
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
        """End connections whose requests take too long. To be called every SCAN_SECONDS."""
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
    """A connection that the broker sends answers on."""

    address: str

    @property
    def sent_bytes(self) -> int:
        """The number of bytes sent to the client while the transport was full, since the connection was made."""

    def abort(self, why: str) -> None: ...


class _Untaken:
    """The unsent answers of one connection. age: how many checks have found that the client receives them too slowly.
    seen: `sent_bytes` at the last check.
    """

    __slots__ = ("age", "seen", "size")

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.age = self.size = 0


class Unsent:
    """The unsent answers of all connections. Unsent answers wait in transports whose buffers are full.

    While an address has no room for more unsent answers, it gets only small answers, and larger ones are refused.
    During this time the broker also aborts each connection whose client receives its answers too slowly; this applies
    to clients of all addresses. Time is counted in checks (`look`), as in the class Unfinished.
    """

    def __init__(self, budget: Shares, seconds: int) -> None:
        self._budget = budget
        self._seconds = seconds
        self._untaken: dict[Receiver, _Untaken] = {}
        self._short = False  # whether an address lacked room since the last check

    def data_bytes(self, address: str, limit: int) -> int:
        """Return how many bytes of message data an answer may contain now, at most `limit`."""
        room = self._room(address) - (REFUSED_ANSWER_BYTES - SCARCE_ANSWER_BYTES)
        if room > SCARCE_ANSWER_BYTES:
            return min(limit, room)
        self._short = True
        return min(limit, SCARCE_ANSWER_BYTES)

    def why_not(self, address: str, size: int) -> str | None:
        """Return why the address may not get an answer of this size now; None if it may get it."""
        if size <= REFUSED_ANSWER_BYTES or size <= self._room(address):
            return None
        self._short = True
        self._budget.refused += 1
        return self._budget.refusal(address)

    def _room(self, address: str) -> int:
        """Return how many bytes one more answer for this address may have. If the address has any room and no unsent
        answers, there is no limit.
        """
        room = self._budget.room(address)
        return MAX_FRAME_BYTES if room > 0 and not self._budget.has(address) else room

    def hold(self, address: str, change: int) -> None:
        """Record that `change` more bytes of answers wait for an HTTP connection. HTTP connections have their own time
        limit, so `look` does not check them.
        """
        self._budget.add(address, change)

    def add(self, who: Receiver, size: int) -> None:
        """Record that `size` more bytes of answers were written to the transport of `who`. The transport's buffer is
        full, so these bytes wait.
        """
        untaken = self._untaken.get(who)
        if untaken is None:
            untaken = self._untaken[who] = _Untaken(who.sent_bytes)
        untaken.size += size
        self._budget.add(who.address, size)

    def taken(self, who: Receiver) -> None:
        """Record that all answers of this connection were sent, or that the connection is closed."""
        untaken = self._untaken.pop(who, None)
        if untaken is not None:
            self._budget.add(who.address, -untaken.size)

    def look(self) -> None:
        """Abort connections whose clients receive too slowly, if an address had no room for unsent answers. To be
        called every SCAN_SECONDS.
        """
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
    """All resource limits of a broker, and how much of them is used."""

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
        """The address of the client whose requests are served now or were served last."""
        self.transaction_bytes = Shares(
            "bytes in open transactions", "transactionBytes", limits.transaction_bytes, share
        )
        self.transactions = Shares("open transactions", "openTransactions", limits.open_transactions, share)
        self.prepared = Shares("bytes in the list of prepared transactions", "", MAX_PREPARED_BYTES, share)
        self.waiting = Shares("bytes of requests that wait", "waitingBytes", limits.waiting_bytes, share)

    def use_descriptors(self, connections: int, *, http: bool = False) -> None:
        """Set the maximum number of connections. Must be called before any connection is counted. http: whether to
        reserve some of the connections for the HTTP ports.
        """
        limits = self.limits
        if http:
            of_http = min(limits.http_connections, connections // 4)
            self.http = Shares("HTTP connections", "httpConnections", of_http, limits.address_share)
            connections -= of_http
        self.connections = Shares("connections", "", connections, limits.address_share)

    def budgets(self) -> Iterator[tuple[str, Shares]]:
        """Yield the Shares object of each limited resource, with the resource's name in the metrics."""
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

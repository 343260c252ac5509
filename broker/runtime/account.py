"""Count how much each client address uses of a broker's limited resources, such as memory and connections, and enforce
the limits.

The limits are in `Quotas`, which holds the section [limits] of server.ini. For each resource there is one `Shares`
object, which counts how much of the resource each address uses. While only one address uses the resource, this address
may use everything except a reserve. While several addresses use the resource, each of them may use up to its share,
which is half of the limit by default. So a single host may open nearly all connections, but a reserve is left for
another host that connects later. What is in use already when the broker starts (for example by stored half messages)
counts for no address. It does not reduce the reserve, so the total use can exceed the limit.

This module counts what takes resources for some time, such as a connection, a waiting request or an incomplete frame. A
request that is answered at once is not counted. The code runs on the reactor thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from metaq.protocol.access import NO_USER, Permissions
from metaq.protocol.errors import AccountSpent
from metaq.protocol.limits import MAX_FRAME_BYTES

from ..store.worker_turns import call_safely
from .heap import give_back
from .reactor import ReactorTime
from .user_quotas import UserQuotas
from .user_rates import UserRates

__all__ = [
    "LOCAL_HOST",
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
"""The address under which everything is counted that no client uses, for example what is in use already when a broker
starts.
"""

LOCAL_HOST = "unix"
"""The address of all clients that connect to a Unix socket of the broker. No client of a port has this address, because
those are numeric.
"""

RESERVE_PART = 16
"""The reserve of a resource is, by default, its limit divided by RESERVE_PART. An address that alone uses the resource
may use everything except the reserve.
"""

MAX_PREPARED_BYTES = 12 << 20
"""The maximum number of bytes of the list of prepared transactions; a prepare that would make the list longer is
refused. The broker must send the list whole, in one frame: if a transaction is not in the list, a transaction
coordinator assumes that it has ended. The same frame also has space for MAX_ACTIVE_BYTES about transactions that are
not prepared.
"""

MAX_SEARCHES = 64
"""The most searches for messages, by id or key, that wait or run at the same time."""

MAX_ASKED_MOVES = 64
"""The most MOVE requests that read moves from ZooKeeper at the same time. Each of them uses a thread of its own."""

MAX_LISTS = 64
"""The most requests for a list of delayed or half messages that wait or are being served at the same time."""

MAX_PAGES = 32
"""The most operators' pages and metrics pages that are being made or sent at the same time. The part of a page that was
made and is not sent yet is in memory and can have some megabytes.
"""

UNFINISHED_BYTES_PER_SECOND = 16 << 10
"""A rate in bytes per second. If a client sends a request or receives an answer more slowly than this, `requestSeconds`
limits the time for it. At a higher rate, the time is not limited.
"""

SCAN_SECONDS = 5
"""Seconds between two checks of unfinished requests and unsent answers."""

SCARCE_ANSWER_BYTES = 64 << 10
"""While an address has used up its share for unsent answers, an answer to its clients has at most this many bytes of
message data; only a single record may be larger.
"""

REFUSED_ANSWER_BYTES = 80 << 10
"""While an address has used up its share for unsent answers, an answer with more bytes than this is replaced by a
refusal. The number is large enough for an answer with SCARCE_ANSWER_BYTES of message data and the description of these
data.
"""

WAITING_BYTES = 1 << 10
"""How many bytes are counted for a waiting request in addition to its own size."""

SPACE_READ_BYTES = 1 << 20
"""The maximum number of bytes that are received from a connection before they are counted. (A socket's receive buffer
can contain up to eight times as many bytes.)
"""


LOST_BYTES = 32 << 20
"""Whenever the incomplete requests of lost connections have had this many bytes in total, free memory of the heap is
given back to the system. These requests leave gaps in the heap. If later requests do not fit into the gaps, this memory
would otherwise stay allocated without being used.
"""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The values of the section [limits] of server.ini. The field `unfinished_bytes` has the value of the key
    `unfinishedBytes`, and so on.
    """

    unfinished_bytes: int = 128 << 20
    """The maximum number of bytes of requests that are incomplete, wait for their turn or are being handled. While the
    limit is reached, the broker reads from only one connection of each address that has unfinished requests.
    """
    request_seconds: int = 30
    """If a request arrives more slowly than UNFINISHED_BYTES_PER_SECOND for this many seconds, its connection is
    closed.
    """
    unsent_bytes: int = 64 << 20
    """The maximum number of bytes of answers that clients have not yet received. While the limit is reached, answers
    with more than REFUSED_ANSWER_BYTES bytes are replaced by refusals.
    """
    waiting_bytes: int = 64 << 20
    """The maximum number of bytes of requests that wait for data, such as parked pulls. Each request counts with its
    own size plus WAITING_BYTES.
    """
    transaction_bytes: int = 256 << 20
    """The maximum number of bytes of messages in open transactions. The broker keeps the messages of open transactions
    in memory.
    """
    open_transactions: int = 100_000
    xa_idle_seconds: int = 600
    """If no request arrives for an XA transaction for this many seconds, and the transaction is not prepared and has no
    timeout, it is rolled back. 0 means that it is never rolled back for this reason.
    """
    http_connections: int = 1024
    """The maximum number of connections to the operator's pages and the HTTP gateway. The limit is never more than a
    quarter of the maximum number of all connections.
    """
    waiting_pages: int = 4
    """The maximum number of operators' pages that wait for ZooKeeper at the same time. Each of them uses a worker
    thread.
    """
    shared_groups: int = 10_000
    """The maximum number of shared groups. A group counts once for each partition that it uses."""
    shared_bytes: int = 512 << 20
    """The maximum number of bytes of memory that the broker uses for facts about single messages of shared groups, such
    as leases. While the limit is reached, each group can still lease and examine a few messages.
    """
    made_topics: int = 10_000
    """The maximum number of topics without a section in server.ini that clients' messages may create. A message creates
    such a topic if the topic's name matches a pattern, or if it is one of metaq's own topics.
    """
    half_messages: int = 1 << 18
    """The maximum number of half messages that wait for their outcome. Each takes at most 1.5 KB of memory, even if
    each has its own group and producer.
    """
    address_share: int = 50
    """The percentage of the limit of each resource that one address may use while other addresses also use this
    resource.
    """


def account_address(host: str) -> str:
    """Return the client address under which the account counts what this host uses. For IPv6 this is the 64-bit network
    of the host, because one host can choose any address in its network.
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
    IPv4. Return None if `host` is not an IP address.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def address_of(caller: object) -> str:
    """Return the client address under which the account counts what `caller`, for example a session, uses, or NOBODY if
    `caller` has no address.
    """
    address: str = getattr(caller, "address", NOBODY)
    return address


class Shares:
    """The limit of one resource, and for each address how much of this resource it uses."""

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
        """How often this limit has led to a refusal since the broker's start."""
        self._share = limit * share // 100
        self._alone = limit - (reserve or limit // RESERVE_PART)
        self._by_address: dict[str, int] = {}

    @property
    def largest(self) -> int:
        """The largest amount of the resource that a single address uses now."""
        return max(self._by_address.values(), default=0)

    def has(self, address: str) -> bool:
        """Return whether the address uses any of the resource."""
        return address in self._by_address

    def room(self, address: str) -> int:
        """Return how much more the address may use. The result is 0 or less if it may use no more."""
        mine = self._by_address.get(address, 0)
        most = self._alone if mine == self.used else self._share
        nobodys_reserve = max(0, self._by_address.get(NOBODY, 0) - self._alone)
        return min(most - mine, self.limit - self.used + nobodys_reserve)

    def add(self, address: str, amount: int) -> None:
        """Add `amount` to what the address uses, without checking the limits; a negative amount is subtracted."""
        self.used += amount
        left = self._by_address.get(address, 0) + amount
        if left:
            self._by_address[address] = left
        else:
            self._by_address.pop(address, None)

    def take(self, address: str, amount: int = 1) -> bool:
        """Add `amount` to what the address uses, and return True. But if this would exceed a limit, add nothing, count
        a refusal and return False.
        """
        if amount > self.room(address):
            self.refused += 1
            return False
        self.add(address, amount)
        return True

    def why_not(self, address: str, amount: int = 1) -> str | None:
        """If the address may not use `amount` more, count a refusal and return the reason; otherwise return None. This
        method itself adds nothing to what the address uses.
        """
        if amount <= self.room(address):
            return None
        self.refused += 1
        return self.refusal(address)

    def check(self, address: str, amount: int = 1) -> None:
        """Add `amount` to what the address uses. If this would exceed a limit, add nothing, count a refusal and raise
        AccountSpent.
        """
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
    """The unfinished requests of one connection. age: the number of checks that have found that the requests arrive too
    slowly. seen: how many bytes the requests had at the last check.
    """

    __slots__ = ("address", "age", "cut", "seen", "size")

    def __init__(self, address: str, cut: Callable[[str], bool]) -> None:
        self.address = address
        self.cut = cut
        self.size = self.seen = 0
        self.age = 0


class Unfinished:
    """Counts the bytes of the unfinished requests of all connections: those that are incomplete, wait for their turn or
    are being handled.

    When these requests have too many bytes, the broker stops reading from their connections until they have fewer
    bytes. For each address, it continues to read from the connection that has had unfinished requests longest, so that
    some requests always become complete. A connection is aborted if its request does not become complete in time. Its
    time is measured as a number of checks: a check (`look`) counts if the broker reads from the connection, but too few
    bytes have arrived since the check before. So a time in which the broker was suspended does not count, and leads to
    no abort.
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
        """The number of connections that were aborted since the broker's start because their requests did not arrive in
        time.
        """

    @property
    def waiting(self) -> int:
        """Number of connections that the broker does not read from, because there is no memory for their requests."""
        return len(self._waiting)

    def has(self, who: object, address: str, size: int, fresh: bool, cut: Callable[[str], bool]) -> bool:
        """Record that the unfinished requests of the connection `who` have `size` bytes in total; 0 means that there
        are none. Return whether the broker should continue to read from this connection.

        fresh: whether a request of this connection has become complete since the last call, so that the time limit
        begins again. cut(why): called if the time limit has passed; ends the connection if the broker is waiting for
        the client's data, and returns whether it has done so.
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
        """Return how many bytes may be received from the connection at once: as many as the limits allow. If the limits
        allow none, return 1: the caller receives this byte and then calls `has`, whose result False says that the
        connection has to wait.
        """
        if self._is_oldest(who, address):
            return SPACE_READ_BYTES
        return max(1, min(SPACE_READ_BYTES, self._budget.room(address)))

    def _is_oldest(self, who: object, address: str) -> bool:
        """Return whether `who` is the connection of this address that has had unfinished requests longest."""
        return next(iter(self._begun.get(address, (who,)))) is who

    def wait(self, who: object, address: str, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the broker may read from `who` again. `resume` is never called before `wait` has
        returned.
        """
        self._waiting[who] = address, resume
        self._budget.refused += 1

    def read_again(self, who: object, address: str) -> None:
        """Let the time limit of the connection `who` begin again, because the broker has not read from it for a while
        and now continues.
        """
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
        """Abort the connections whose requests have taken too long to arrive. To be called every SCAN_SECONDS."""
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
        """The number of bytes of answers that were sent to the client after a wait in the transport's buffer, since the
        connection was made.
        """

    def abort(self, why: str) -> None: ...


class _Untaken:
    """The unsent answers of one connection. age: how many checks in succession have found that the client receives them
    too slowly. seen: the value of `sent_bytes` at the last check.
    """

    __slots__ = ("age", "seen", "size")

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.age = self.size = 0


class Unsent:
    """Counts the bytes of the unsent answers of all connections: answers that wait in transports whose buffers are
    full.

    While an address has used up its share, its clients get only small answers, and refusals in place of larger ones.
    During this time the broker also aborts each connection, whatever its address, whose client receives its answers too
    slowly. How long a client has been too slow is counted in checks (`look`), as in the class Unfinished.
    """

    def __init__(self, budget: Shares, seconds: int) -> None:
        self._budget = budget
        self._seconds = seconds
        self._untaken: dict[Receiver, _Untaken] = {}
        self._short = False  # whether an address lacked room since the last check

    def data_bytes(self, address: str, limit: int) -> int:
        """Return how many bytes of message data an answer to a client at this address may contain now, at most
        `limit`.
        """
        room = self._room(address) - (REFUSED_ANSWER_BYTES - SCARCE_ANSWER_BYTES)
        if room > SCARCE_ANSWER_BYTES:
            return min(limit, room)
        self._short = True
        return min(limit, SCARCE_ANSWER_BYTES)

    def why_not(self, address: str, size: int) -> str | None:
        """Return why clients at this address cannot get an answer of this size now, or None if they can."""
        if size <= REFUSED_ANSWER_BYTES or size <= self._room(address):
            return None
        self._short = True
        self._budget.refused += 1
        return self._budget.refusal(address)

    def _room(self, address: str) -> int:
        """Return how many bytes one more answer for this address may have. While the address has no unsent answers and
        the limit still leaves it room, one answer may have any size.
        """
        room = self._budget.room(address)
        return MAX_FRAME_BYTES if room > 0 and not self._budget.has(address) else room

    def hold(self, address: str, change: int) -> None:
        """Record that `change` more bytes of answers (a negative number means fewer) wait to be sent on HTTP
        connections. `look` does not check these connections, because the HTTP ports themselves close connections that
        are too slow.
        """
        self._budget.add(address, change)

    def add(self, who: Receiver, size: int) -> None:
        """Record that `size` more bytes of answers were written to the transport of `who`. To be called while the
        transport's buffer is full, so that these bytes have to wait.
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
        """If an address has used up its share for unsent answers since the last check, abort the connections whose
        clients receive their answers too slowly. To be called every SCAN_SECONDS.
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
    """All limited resources of a broker: for each of them, the limit and how much each address uses."""

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
        """The client address of the request that is being served now or, if none is being served, of the last one that
        was served.
        """
        self.users = UserQuotas()
        """What each user has, and may have by his quotas."""
        self.rates = UserRates(reactor)
        """How much each user sends and reads in a second, and may by his quotas."""
        self.asker_user = NO_USER
        """The user who has sent this request."""
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

    def see(self, permissions: Permissions) -> None:
        """Apply the quotas of users in `permissions` from now on."""
        self.users.permissions = permissions
        self.rates.see(permissions)

    def budgets(self) -> Iterator[tuple[str, Shares]]:
        """Yield for each limited resource its name in the metrics and its Shares object."""
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

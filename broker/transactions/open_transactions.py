"""Keep the open transactions of one broker in memory, with their messages, limits, timeouts, and the connections that
may use them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from heapq import nlargest
from typing import TYPE_CHECKING

import simplejson
from isal.isal_zlib import crc32

from metaq.protocol.access import NO_USER, Principal, Quota
from metaq.protocol.errors import TransactionRefused, XaRefused
from metaq.protocol.record import ATTRIBUTE_FLAG, HEADER, HEADER_BYTES, Buffer, tag_hash_of_body
from metaq.protocol.transactions import XaCode, is_xa, qualifier_of

from ..configuration.transaction_settings import TransactionConfig
from ..runtime.account import NOBODY, Account, address_of
from ..runtime.pending_puts import PUT_OVERHEAD_BYTES
from ..runtime.reactor import ReactorTime, Timer
from ..runtime.user_quotas import user_of
from ..store.partition_log import PartitionLog
from .refusals import not_started, refusal, timed_out

if TYPE_CHECKING:
    from .writer import RedoFile

__all__ = ["Block", "OpenTransaction", "Registry", "TransactionState", "listed_bytes"]

_TIMED_OUT_REMEMBERED = 1_000
"""Maximum number of timed-out transactions that the broker remembers, so that it can tell clients of the timeout."""


_JOINED_BUFFERS = 1024
_JOINED_BYTES = 1 << 20
"""Each time a block has _JOINED_BUFFERS new buffers, they are joined into one buffer if they have at most this many
bytes in all. For more bytes, copying them costs more than it saves.
"""


_COMPARED = 1 << 12
"""The search for the open transactions with the most bytes compares this many transactions in one slice; a slice takes
some milliseconds.
"""

_ROW_BYTES = 256
"""Each row of the answer to PREPARED_TRANSACTIONS counts as this many bytes plus the bytes of its texts.
"""


def listed_bytes(key: str, topics: Iterable[str] = ()) -> int:
    """Return the maximum size, in bytes, of a transaction's row in the answer to PREPARED_TRANSACTIONS. Its row in the
    answer to RECOVER is smaller, because that row has only the key.
    """
    return _ROW_BYTES + sum(len(simplejson.dumps(text)) + 2 for text in (key, *topics))


class TransactionState(Enum):
    """The state of a transaction. FINISHED means that it is committed or rolled back, or will be at once."""

    ACTIVE = "active"
    PREPARED = "prepared"
    FINISHED = "finished"


class Block:
    """The messages of one transaction for one partition. All messages of a block are appended together, in their order
    in the block.

    Each message is encoded when the client sends it. If all were encoded at the commit, a hundred thousand messages
    would delay other commits for a long time.
    """

    __slots__ = ("_joined", "_tail_bytes", "checksum", "data", "ids", "log", "size", "sizes", "tags")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.data: list[Buffer] = []
        """Buffers with the encoded records. Joined in this order, they contain one record directly after the other."""
        self.ids = array("q")
        """The message id of each message. In the same order, `sizes` contains the number of bytes of each record, and
        `tags` the tag hash that is stored in each message's index unit.
        """
        self.sizes = array("q")
        self.tags = array("q")
        self.size = 0
        """Number of bytes that all records of the block take in the partition."""
        self.checksum = 0
        """CRC-32 of all bytes in `data`."""
        self._joined = 0  # number of buffers at the start of `data` that are not joined again
        self._tail_bytes = 0  # bytes of the other buffers

    def add(self, message_id: int, flag: int, checksum: int, body: Buffer) -> None:
        header = HEADER.pack(len(body), checksum, message_id, flag)
        size = HEADER_BYTES + len(body)
        self.checksum = crc32(body, crc32(header, self.checksum))
        self.data += (header, body) if body else (header,)
        self.ids.append(message_id)
        self.sizes.append(size)
        self.tags.append(tag_hash_of_body(body, flag) if flag & ATTRIBUTE_FLAG else 0)
        self.size += size
        self._tail_bytes += size
        if len(self.data) - self._joined >= _JOINED_BUFFERS:
            if self._tail_bytes <= _JOINED_BYTES:
                self.data[self._joined :] = [b"".join(self.data[self._joined :])]
            self._joined, self._tail_bytes = len(self.data), 0

    @property
    def store(self) -> str:
        """The name of the partition's store: `<topic>-<partition>`."""
        return f"{self.log.topic}-{self.log.partition}"


class OpenTransaction:
    """An open transaction. Used on the reactor thread. owner: the connection of a local transaction; None for an XA
    transaction. address: the network address of the client that began the transaction. The memory of the transaction is
    charged to this address.
    """

    __slots__ = (
        "address",
        "blocks",
        "content",
        "file",
        "has_timeout",
        "key",
        "listed",
        "messages",
        "owner",
        "prepared_at_ms",
        "principal",
        "size",
        "state",
        "timer",
        "used_at",
        "user",
    )

    def __init__(self, key: str, owner: object = None, address: str = NOBODY, user: str = NO_USER) -> None:
        self.key = key
        self.owner = owner
        self.address = address
        self.user = user
        self.principal: Principal | None = None
        """Who has begun the transaction. It is None if a replay of the log has found the transaction, because the log's
        records, which are those of 1.x, have no principal.
        """
        self.used_at = 0.0
        """Time of the transaction's last request, in seconds of the reactor's clock."""
        self.has_timeout = False
        """Whether `timer` runs for the timeout that the client requested; otherwise it runs for the limit on idle XA
        transactions.
        """
        self.state = TransactionState.ACTIVE
        self.blocks: dict[PartitionLog, Block] = {}
        self.file: RedoFile | None = None
        """The redo file for the transaction's records. It is None until the first message."""
        self.messages = 0
        self.content = 0
        """Checksum of the log records of the transaction's messages; see redo.add_content."""
        self.size = 0
        """Number of bytes that all messages of the transaction take in the partitions."""
        self.prepared_at_ms: int | None = None
        """Time of the preparation in Unix milliseconds. It is None until the preparation is on the disk."""
        self.timer: Timer | None = None
        self.listed = 0
        """Number of bytes charged to the client's account for the row of this transaction in the list of prepared
        transactions.
        """

    @property
    def is_xa(self) -> bool:
        return is_xa(self.key)

    @property
    def first_id(self) -> int:
        """The id of the transaction's first message. It is 0 if the transaction has no message. The value is correct
        only before `finish` is called.
        """
        return min((block.ids[0] for block in self.blocks.values()), default=0)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of memory that the transaction's messages take."""
        return self.size + PUT_OVERHEAD_BYTES * self.messages

    @property
    def topics(self) -> list[str]:
        return sorted({log.topic for log in self.blocks})

    def add(self, log: PartitionLog, message_id: int, flag: int, checksum: int, body: Buffer) -> None:
        block = self.blocks.get(log)
        if block is None:
            block = self.blocks[log] = Block(log)
        block.add(message_id, flag, checksum, body)
        self.messages += 1
        self.size += HEADER_BYTES + len(body)

    def finish(self) -> dict[PartitionLog, Block]:
        """End the transaction, so that it accepts no more messages. Return its messages by partition; the transaction
        keeps no reference to them.
        """
        self.state = TransactionState.FINISHED
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        blocks, self.blocks = self.blocks, {}
        return blocks


class Registry:
    """The open transactions by key. Used on the reactor thread only."""

    def __init__(
        self,
        config: TransactionConfig,
        reactor: ReactorTime,
        account: Account,
        on_expired: Callable[[OpenTransaction], None],
    ) -> None:
        """on_expired: called when a transaction's timeout passes, unless the transaction was removed or prepared
        before.
        """
        self._config = config
        self._reactor = reactor
        self._account = account
        self._on_expired = on_expired
        self._open: dict[str, OpenTransaction] = {}
        self._prepared: dict[str, OpenTransaction] = {}  # also those whose preparation is still being written
        self._of_connection: dict[object, dict[str, OpenTransaction]] = {}
        self._timeouts = 0
        self._timed_out: OrderedDict[str, int] = OrderedDict()
        """The timeout in seconds of each transaction that timed out recently, by key."""

    def __len__(self) -> int:
        return len(self._open)

    def get(self, key: str) -> OpenTransaction | None:
        """Return the open transaction with this key, whichever connection it belongs to. Return None if no open
        transaction has this key.
        """
        return self._open.get(key)

    @property
    def has_active(self) -> bool:
        """Whether an unprepared transaction is open."""
        return any(each.state is TransactionState.ACTIVE for each in self._open.values())

    def find(self, connection: object, key: str | None) -> OpenTransaction:
        """Return the open transaction with this key, if this connection may use it. Otherwise raise
        TransactionRefused.
        """
        if key is not None and is_xa(key):
            found = self._open.get(key)
        else:
            found = None if key is None else self._of_connection.get(connection, {}).get(key)
        if found is None:
            seconds = None if key is None else self._timed_out.get(key)
            raise not_started(key) if key is None or seconds is None else timed_out(key, seconds)
        return found

    def begin(self, connection: object, key: str, timeout_seconds: int) -> None:
        """Open a transaction with this key for the connection, unless it is open already. Raises TransactionRefused."""
        found = self._open.get(key)
        if found is not None:
            if found.owner not in (None, connection):
                raise TransactionRefused(f"Local transaction '{key}' has been started on another connection.")
            found.used_at = self._reactor.seconds()
            return
        self._timed_out.pop(key, None)
        address = address_of(connection)
        if (why := self._account.transactions.why_not(address)) is not None:
            raise refusal(key, why)
        user = user_of(connection)
        if (why := self._account.users.why_not(user, Quota.OPEN_TRANSACTIONS)) is not None:
            raise refusal(key, why)
        if timeout_seconds > 0 and self._timeouts >= self._config.max_timeouts:
            raise refusal(
                key, f"{self._timeouts} transactions with a timeout are open already: see maxTxTimeoutTimerCapacity"
            )
        transaction = OpenTransaction(key, None if is_xa(key) else connection, address, user)
        transaction.principal = getattr(connection, "principal", None)
        self.add(transaction)
        transaction.used_at = self._reactor.seconds()
        idle_seconds = self._account.limits.xa_idle_seconds
        if timeout_seconds > 0:
            seconds = min(timeout_seconds, self._config.max_timeout_seconds)
            self._timeouts += 1
            transaction.has_timeout = True
            transaction.timer = self._reactor.callLater(seconds, self._expired, transaction, seconds)
        elif transaction.is_xa and idle_seconds:
            transaction.timer = self._reactor.callLater(idle_seconds, self._look_whether_idle, transaction)

    def add(self, transaction: OpenTransaction) -> None:
        """Add a transaction that a replay of the log has found. The limits on the number and size of open transactions
        are not checked.
        """
        self._open[transaction.key] = transaction
        self._account.transactions.add(transaction.address, 1)
        self._account.users.add(transaction.user, Quota.OPEN_TRANSACTIONS)
        self._account.transaction_bytes.add(transaction.address, transaction.held_bytes)
        if transaction.state is TransactionState.PREPARED:
            self._list(transaction, listed_bytes(transaction.key, transaction.topics))
        if not transaction.is_xa:
            self._of_connection.setdefault(transaction.owner, {})[transaction.key] = transaction

    def make_room(self, transaction: OpenTransaction, size: int) -> None:
        """Charge `size` more bytes of memory for the messages of this transaction. Raises TransactionRefused if this
        exceeds the limit.
        """
        budget = self._account.transaction_bytes
        if not budget.take(transaction.address, size):
            raise TransactionRefused(f"{budget.refusal(transaction.address)}: commit sooner")
        transaction.used_at = self._reactor.seconds()

    def list_prepared(self, transaction: OpenTransaction) -> None:
        """Add the transaction to the list of prepared transactions, and charge the memory of its row to the account of
        the client's address. Raises XaRefused if the list is full.
        """
        size = listed_bytes(transaction.key, transaction.topics)
        if (why := self._account.prepared.why_not(transaction.address, size)) is not None:
            raise XaRefused(XaCode.XAER_RMERR, f"{why}: commit or roll back what is prepared first")
        self._list(transaction, size)

    def _list(self, transaction: OpenTransaction, size: int) -> None:
        transaction.listed = size
        self._account.prepared.add(transaction.address, size)
        self._prepared[transaction.key] = transaction

    def remove(self, transaction: OpenTransaction) -> None:
        """Remove the transaction from all tables of this registry. The object `transaction` keeps its messages. The
        call has no effect if the transaction was removed before.
        """
        if self._open.get(transaction.key) is not transaction:
            return
        del self._open[transaction.key]
        self.stop_timer(transaction)
        self._give_back(transaction)
        if not transaction.is_xa:
            mine = self._of_connection[transaction.owner]
            del mine[transaction.key]
            if not mine:
                del self._of_connection[transaction.owner]

    def _give_back(self, transaction: OpenTransaction) -> None:
        self._account.transactions.add(transaction.address, -1)
        self._account.users.add(transaction.user, Quota.OPEN_TRANSACTIONS, -1)
        self._account.transaction_bytes.add(transaction.address, -transaction.held_bytes)
        if self._prepared.pop(transaction.key, None) is not None:
            self._account.prepared.add(transaction.address, -transaction.listed)

    def of_connection(self, connection: object) -> list[OpenTransaction]:
        """Return the open local transactions that this connection has begun."""
        return list(self._of_connection.get(connection, {}).values())

    def prepared(self, qualifier: str | None = None) -> Iterable[OpenTransaction]:
        """Yield the transactions whose preparation is on the disk. qualifier: if it is given, yield only transactions
        with this qualifier. None means all transactions.
        """
        for key, transaction in self._prepared.items():
            if transaction.prepared_at_ms is not None and (qualifier is None or qualifier_of(key) == qualifier):
                yield transaction

    def active_in_slices(self, most: int) -> Generator[None, None, list[OpenTransaction]]:
        """Return those unprepared transactions whose messages take the most memory, at most `most` transactions. The
        method is a generator that yields every few milliseconds, so that other work can run.
        """
        found: list[OpenTransaction] = []
        left = list(self._open.values())
        for start in range(0, len(left), _COMPARED):
            found += (each for each in left[start : start + _COMPARED] if each.state is TransactionState.ACTIVE)
            found = nlargest(most, found, key=lambda each: each.held_bytes)
            yield
        return found

    def holding(self, log: PartitionLog) -> list[str]:
        """Return the keys of the transactions that have messages for a partition."""
        return [key for key, transaction in self._open.items() if log in transaction.blocks]

    def stop_timer(self, transaction: OpenTransaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()
            transaction.timer = None
            self._timeouts -= transaction.has_timeout

    def close(self) -> None:
        """Stop all timeouts, and subtract from the clients' accounts everything that was charged for open transactions.
        No method may be called after this.
        """
        for transaction in self._open.values():
            self.stop_timer(transaction)
            self._give_back(transaction)

    def _look_whether_idle(self, transaction: OpenTransaction) -> None:
        left = transaction.used_at + self._account.limits.xa_idle_seconds - self._reactor.seconds()
        if left > 0:
            transaction.timer = self._reactor.callLater(left, self._look_whether_idle, transaction)
        else:
            transaction.timer = None
            self._roll_back(transaction, self._account.limits.xa_idle_seconds)

    def _expired(self, transaction: OpenTransaction, seconds: int) -> None:
        transaction.timer = None
        self._timeouts -= 1
        self._roll_back(transaction, seconds)

    def _roll_back(self, transaction: OpenTransaction, seconds: int) -> None:
        self._timed_out[transaction.key] = seconds
        if len(self._timed_out) > _TIMED_OUT_REMEMBERED:
            self._timed_out.popitem(last=False)
        self._on_expired(transaction)

"""`transaction`, puts with a transaction key, and `sync`: what this version answers to what it does not have.

No transaction can be begun, so a put with a key is checked as 1.x checks it and then answered as for an unknown one.
"""

from __future__ import annotations

from metaq.protocol.errors import MetaqError
from metaq.protocol.statuses import Status
from metaq.protocol.text import Put, Sync, Transaction, TransactionType, encode_result

from ..broker import Broker
from ..partitions import ANY

__all__ = ["answer_sync", "answer_transaction", "answer_transactional_put"]

UNSUPPORTED = "Transactions are not supported by this version of metaq: send without one"
NO_SYNC_HANDLER = "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand"
"""1.x's own words: no request handler is registered for the class."""


class TransactionRefused(MetaqError):
    """A put inside a transaction that cannot be accepted."""


def answer_transaction(broker: Broker, transaction: Transaction) -> bytes | None:
    if transaction.type is TransactionType.END:
        return None  # never answered (wire.md §4)
    return encode_result(Status.UNAVAILABLE, UNSUPPORTED, transaction.opaque)


def answer_transactional_put(broker: Broker, put: Put) -> bytes:
    """Raises what is wrong with it, last of all that its transaction is unknown."""
    if put.partition == ANY:
        raise TransactionRefused(f"Invalid partition for transaction command:{put.partition}")
    broker.partitions.check(put.topic, put.partition)
    kind = "XA" if str(put.tx_key).startswith("XID:") else "Local"
    raise TransactionRefused(f"{kind} transaction '{put.tx_key}' has not been started.")


def answer_sync(broker: Broker, sync: Sync) -> bytes:
    """As a 1.x broker that is no synchronous slave."""
    return encode_result(Status.UNAVAILABLE, NO_SYNC_HANDLER, sync.opaque)

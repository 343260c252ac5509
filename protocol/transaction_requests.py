"""The framed protocol's requests about transactions: the verbs of 1.x (begin, prepare, commit, …), the question for the
outcome of a transaction, and an operator's decision on a transaction.

Each class describes the extFields of one kind of request or answer (docs/protocol.md). fields.py encodes and decodes
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .fields import ExtFields, Field, choice, flag, number
from .limits import INT32_MAX, INT64_MAX
from .transactions import NULL_KEY, TX_KEY, TransactionType, parse_key, parse_own_key

__all__ = [
    "COMPLETE_ACTIONS",
    "CompleteTransactionRequest",
    "PreparedTransactionsRequest",
    "TransactionOutcomeReply",
    "TransactionOutcomeRequest",
    "TransactionRequest",
]


def _or_null(key: str | None) -> str:
    return NULL_KEY if key is None else key


@dataclass(slots=True)
class TransactionRequest(ExtFields):
    """TRANSACTION: execute a verb of 1.x's command `transaction` (wire.md §3, docs/transactions.md).

    tx_key: the transaction's key; None for RECOVER. type: the name of a member of TransactionType. timeout_seconds: for
    BEGIN, the time limit of the transaction; 0 = no limit. qualifier: for RECOVER, list only transactions with this
    unique qualifier; "" = all transactions.
    """

    tx_key: Annotated[str | None, Field(TX_KEY, parse_key, _or_null, missing=None)]
    type: Annotated[str, choice("type", TransactionType.__members__)]
    session_id: Annotated[str, Field("sessionId")] = ""
    timeout_seconds: Annotated[int, number("timeoutSeconds", 0, INT32_MAX)] = 0
    qualifier: Annotated[str, Field("qualifier")] = ""


@dataclass(slots=True)
class TransactionOutcomeRequest(ExtFields):
    """TRANSACTION_OUTCOME: ask whether a local transaction is committed. If the transaction is open, the broker rolls
    it back.

    first_id: id of the transaction's first message.
    """

    tx_key: Annotated[str, Field(TX_KEY, parse_own_key)]
    first_id: Annotated[int, number("firstId", 0, INT64_MAX)]


@dataclass(slots=True)
class TransactionOutcomeReply(ExtFields):
    """Answer to TRANSACTION_OUTCOME. committed: whether the transaction is committed, so that its messages can be read.
    If the transaction is not committed, none of its messages will ever be readable.
    """

    committed: Annotated[bool, flag("committed")]


COMPLETE_ACTIONS = ("commit", "rollback", "complete", "forget")


@dataclass(slots=True)
class PreparedTransactionsRequest(ExtFields):
    """PREPARED_TRANSACTIONS: ask for a list of the prepared transactions. active: whether the list also contains open
    transactions that are not prepared. If there are too many of these for the list, it contains those with the most
    bytes.
    """

    active: Annotated[bool, flag("active", left_out=True)] = False


@dataclass(slots=True)
class CompleteTransactionRequest(ExtFields):
    """COMPLETE_TRANSACTION: carry out an operator's decision on a prepared XA transaction.

    action: commit, rollback, complete or forget. A transaction that is not prepared yet can only be rolled back.
    `complete` ends the transaction without a commit or a rollback, and `forget` drops the broker's record of an
    operator's decision.
    """

    tx_key: Annotated[str, Field(TX_KEY, parse_own_key)]
    action: Annotated[str, choice("action", COMPLETE_ACTIONS)]

"""The framed protocol's requests about transactions: 1.x's verbs, outcomes, and an operator's decisions.

Each class is one set of extFields (docs/protocol.md), written and read as fields.py says.
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
    """TRANSACTION: a verb of 1.x's command `transaction` (wire.md §3, docs/transactions.md).

    tx_key: None for RECOVER. type: a name of TransactionType. timeout_seconds: for BEGIN; 0 = no timeout. qualifier:
    for RECOVER; "" = all.
    """

    tx_key: Annotated[str | None, Field(TX_KEY, parse_key, _or_null, missing=None)]
    type: Annotated[str, choice("type", TransactionType.__members__)]
    session_id: Annotated[str, Field("sessionId")] = ""
    timeout_seconds: Annotated[int, number("timeoutSeconds", 0, INT32_MAX)] = 0
    qualifier: Annotated[str, Field("qualifier")] = ""


@dataclass(slots=True)
class TransactionOutcomeRequest(ExtFields):
    """TRANSACTION_OUTCOME: ask whether a local transaction is committed. If it is open, it is rolled back.

    first_id: id of its first message.
    """

    tx_key: Annotated[str, Field(TX_KEY, parse_own_key)]
    first_id: Annotated[int, number("firstId", 0, INT64_MAX)]


@dataclass(slots=True)
class TransactionOutcomeReply(ExtFields):
    """committed: whether the transaction's messages can be read; if not, none of them ever can."""

    committed: Annotated[bool, flag("committed")]


COMPLETE_ACTIONS = ("commit", "rollback", "complete", "forget")


@dataclass(slots=True)
class PreparedTransactionsRequest(ExtFields):
    """PREPARED_TRANSACTIONS. active: whether to list also open, unprepared transactions: those with the most bytes."""

    active: Annotated[bool, flag("active", left_out=True)] = False


@dataclass(slots=True)
class CompleteTransactionRequest(ExtFields):
    """COMPLETE_TRANSACTION: an operator's decision on a prepared XA transaction.

    action: commit, rollback (also of an open, unprepared transaction), complete (give it up without choosing one of
    these) or forget (drop the record of such a decision).
    """

    tx_key: Annotated[str, Field(TX_KEY, parse_own_key)]
    action: Annotated[str, choice("action", COMPLETE_ACTIONS)]

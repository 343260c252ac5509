"""Writes that can only happen on one ZooKeeper session.

kazoo queues a request made while it reconnects, and sends it on the session that it has after that. If the caller
checked the session id, the session could still expire and be replaced before the request is sent. So `serialize()`
checks it: kazoo's connection thread, the only thread that changes the session, calls it right before it writes the
bytes to the socket of that session. If the session has been replaced, `serialize()` returns a transaction that the
server must refuse.

A version check could not replace the session check: a re-created owner node starts at version 0 again.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.serialization import CheckVersion, Transaction

__all__ = ["FencedTransaction", "Refusal"]

_NO_VERSION = -(1 << 31)
"""No node has this version: ZooKeeper refuses an operation that requires it (-1 would mean "any version")."""


class Refusal(Enum):
    """Why a transaction was replaced by one that the server refuses."""

    SESSION = "its turn came on another session"
    DEADLINE = "its turn came too late"


class FencedTransaction:
    """Collects operations (create, set_data, delete and check of kazoo's TransactionRequest) for session `session_id`.

    deadline: a time.monotonic(). Nobody waits for the transaction after it, so the transaction is not sent after it.
    """

    def __init__(self, zk: KazooClient, session_id: int, deadline: float) -> None:
        self._zk = zk
        self._session_id = session_id
        self._deadline = deadline
        self.operations = TransactionRequest(zk)

    def send(self) -> Any:
        """Queue the transaction, and return kazoo's AsyncResult of the list of the operations' results.

        In the list, an exception stands for each failed operation; look at `refusal` before at the list. If the outcome
        is unknown, the AsyncResult raises kazoo's ConnectionLoss.
        """
        request = _Request(self.operations.operations)
        request.zk, request.session_id, request.deadline = self._zk, self._session_id, self._deadline
        result = self._zk.handler.async_result()
        self._zk._call(request, result)
        self._request = request
        return result

    @property
    def refusal(self) -> Refusal | None:
        """Why the transaction was sent as one that changes nothing; None if it was sent unchanged. Valid once the
        AsyncResult has fired."""
        return self._request.refusal


class _Request(Transaction):  # type: ignore[misc]
    """kazoo's Transaction, whose content is decided at the last moment: when kazoo serializes it."""

    zk: KazooClient
    session_id: int
    deadline: float
    refusal: Refusal | None = None

    def serialize(self) -> bytes:
        self.refusal = self._reason_to_refuse()
        sent = Transaction([CheckVersion(self.operations[0].path, _NO_VERSION)]) if self.refusal else self
        return bytes(Transaction.serialize(sent))

    def _reason_to_refuse(self) -> Refusal | None:
        identity = self.zk.client_id
        if identity is None or identity[0] != self.session_id:
            return Refusal.SESSION
        return Refusal.DEADLINE if time.monotonic() >= self.deadline else None

"""Writes that can only happen on one ZooKeeper session.

kazoo queues a request made while it reconnects and sends it on the session that it then has. Between a check of the
session id and the sending, the session may have expired and been replaced. So the check is made where nothing can come
between: `serialize()` runs on kazoo's connection thread, the only one that changes the session, right before the bytes
go to the socket of that session. A transaction whose session has gone is sent as one that the server must refuse.

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
    SESSION = "its turn came on another session"
    DEADLINE = "its turn came too late"


class FencedTransaction:
    """Collects operations (create, set_data, delete, check as in kazoo's TransactionRequest) for session `session_id`.

    deadline: in time.monotonic(). After it nobody waits for the transaction, so it is no longer sent.
    """

    def __init__(self, zk: KazooClient, session_id: int, deadline: float) -> None:
        self._zk = zk
        self._session_id = session_id
        self._deadline = deadline
        self.operations = TransactionRequest(zk)

    def send(self) -> Any:
        """Queue it; return kazoo's AsyncResult of the list of results, an exception in place of each failed operation.

        The result's exception is kazoo's ConnectionLoss when the outcome is unknown. If there is a list, check
        `refusal`.
        """
        request = _Request(self.operations.operations)
        request.zk, request.session_id, request.deadline = self._zk, self._session_id, self._deadline
        result = self._zk.handler.async_result()
        self._zk._call(request, result)
        self._request = request
        return result

    @property
    def refusal(self) -> Refusal | None:
        """Why it was sent as one that changes nothing; None if it was sent unchanged. Known when the result is."""
        return self._request.refusal


class _Request(Transaction):  # type: ignore[misc]
    """kazoo's Transaction, but with its content decided at the last moment."""

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

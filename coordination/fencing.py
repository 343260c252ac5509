"""Writes that can only happen on one ZooKeeper session.

kazoo queues a request that is made while it reconnects and sends it on whatever session it has then; between a check of
the session id and the sending, the session may have expired and been replaced. So the check is made where nothing can
come between: `serialize()` runs on kazoo's connection thread, the only one that changes the session, right before the
bytes go to the socket of that session. A transaction whose session has gone is sent as one that the server must refuse.

A version check would not do instead of the session: a re-created owner node starts at version 0 again.
"""

from __future__ import annotations

import time
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.serialization import CheckVersion, Transaction

__all__ = ["FencedTransaction"]

_NO_VERSION = -(1 << 31)
"""No node has it: ZooKeeper refuses an operation that requires it (-1 would mean "any version")."""


class FencedTransaction:
    """Collects operations (create, set_data, delete, check as kazoo's TransactionRequest) for session `session_id`.

    deadline: in time.monotonic(); nobody waits for it any more then, so it is not sent later either.
    """

    def __init__(self, zk: KazooClient, session_id: int, deadline: float) -> None:
        self._zk = zk
        self._session_id = session_id
        self._deadline = deadline
        self.operations = TransactionRequest(zk)

    def send(self) -> Any:
        """Queue it; return kazoo's AsyncResult of the list of results, an exception in place of each failed operation.

        The result's exception is kazoo's ConnectionLoss when the outcome is unknown. Ask `was_refused` with the list.
        """
        request = _Request(self.operations.operations)
        request.zk, request.session_id, request.deadline = self._zk, self._session_id, self._deadline
        result = self._zk.handler.async_result()
        self._zk._call(request, result)
        self._request = request
        return result

    @property
    def was_refused(self) -> bool:
        """Whether its turn came on another session; then the server has changed nothing. Known with the result."""
        return self._request.refused


class _Request(Transaction):  # type: ignore[misc]
    """kazoo's Transaction, which decides at the last moment what it says."""

    zk: KazooClient
    session_id: int
    deadline: float
    refused = False

    def serialize(self) -> bytes:
        identity = self.zk.client_id
        self.refused = identity is None or identity[0] != self.session_id or time.monotonic() >= self.deadline
        sent = Transaction([CheckVersion(self.operations[0].path, _NO_VERSION)]) if self.refused else self
        return bytes(Transaction.serialize(sent))

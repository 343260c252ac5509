"""Send writes that ZooKeeper executes only on one certain session.

If a request is made while kazoo reconnects, kazoo queues the request and sends it later, on the session that kazoo has
then. A check of the session id before the request is made would not be enough, because the session could expire and be
replaced after the check and before kazoo sends the request. So the request's `serialize()` checks the session id.
kazoo's connection thread calls `serialize()` right before it writes the bytes to the socket of the session, and no
other thread changes the session. If the session has been replaced, `serialize()` returns a transaction that the server
must refuse.

To check the znode's version instead of the session would not be safe: if an owner znode is deleted and another session
creates it, the new znode begins with version 0 as the old one did.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.serialization import CheckVersion, Transaction

__all__ = ["FencedTransaction", "Refusal"]

_NO_VERSION = -(1 << 31)
"""A version number that no znode has. ZooKeeper refuses an operation that requires this version. (-1 cannot be used,
because it would mean "any version".)
"""


class Refusal(Enum):
    """The reasons for which a transaction is replaced by a transaction that the server refuses."""

    SESSION = "its turn came on another session"
    DEADLINE = "its turn came too late"


class FencedTransaction:
    """Collects operations (create, set_data, delete and check of kazoo's TransactionRequest) for session `session_id`.

    deadline: a value of time.monotonic(). When the deadline has passed, nobody waits for the transaction any more, so
    it is not sent.
    """

    def __init__(self, zk: KazooClient, session_id: int, deadline: float) -> None:
        self._zk = zk
        self._session_id = session_id
        self._deadline = deadline
        self.operations = TransactionRequest(zk)

    def send(self) -> Any:
        """Queue the transaction, and return kazoo's AsyncResult. Its value is a list with one result for each
        operation; the result of a failed operation is an exception.

        Check `refusal` before you use the list. If it is unknown whether the transaction was executed, the AsyncResult
        raises kazoo's ConnectionLoss.
        """
        request = _Request(self.operations.operations)
        request.zk, request.session_id, request.deadline = self._zk, self._session_id, self._deadline
        result = self._zk.handler.async_result()
        self._zk._call(request, result)
        self._request = request
        return result

    @property
    def refusal(self) -> Refusal | None:
        """The reason why the transaction was replaced by a transaction that changes nothing, or None if it was sent
        unchanged. The value is valid when the AsyncResult of send() has its result.
        """
        return self._request.refusal


class _Request(Transaction):  # type: ignore[misc]
    """A kazoo Transaction whose content is decided only when kazoo serializes it, just before sending."""

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

"""Remember the outcomes of local transactions, for clients that got no answer to their commit. The code runs on the
reactor thread.

A commit is remembered by the transaction's key and the id of the transaction's first message. Only the newest commits
are remembered. Message ids increase with time. So if a client asks for a transaction that is not remembered, the id of
its first message is compared with the ids of the first messages of all forgotten commits. If it is higher than all of
them, the transaction was not committed, because its commit would still be remembered. If the id is not higher, the
outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, TransactionRefused

__all__ = ["MAX_REMEMBERED", "Outcomes", "check_first"]

MAX_REMEMBERED = 50_000
"""The maximum number of commits that are remembered. So many commits take some MB of memory. More need not be
remembered, because clients only ask about commits that they sent a few seconds ago.
"""


def check_first(key: str, first_id: int, asked_for: int) -> None:
    """Raise TransactionRefused unless the client has named the right id of the transaction's first message. first_id:
    the right id. asked_for: the id that the client has named.

    The check is needed because a client can guess another client's transaction key, and a question about the outcome
    rolls back an open transaction. The id of the first message is known only to the client that has sent this message.
    """
    if not first_id or asked_for != first_id:
        raise TransactionRefused(f"{key} does not begin with message {asked_for}")


class Outcomes:
    """The outcomes of the local transactions of one broker. When the transaction log is opened again, a new object
    replaces this one.
    """

    def __init__(self, known_from: int, commits: Mapping[str, int]) -> None:
        """known_from: a message id. Every committed transaction whose first message has this id or a higher id is in
        `commits`. commits: the commits in the log, in the order of the log, as a dict from transaction key to the id of
        the first message.
        """
        self._known_from = known_from
        self._commits: dict[str, int] = {}
        self._deciding: dict[tuple[str, int], list[Deferred[bool]]] = {}
        for key, first_id in commits.items():
            self._remember(key, first_id)

    def deciding(self, key: str, first_id: int) -> None:
        """Record that the commit of this transaction is being written."""
        self._deciding[key, first_id] = []

    def decided(self, key: str, first_id: int, error: MetaqError | None) -> None:
        """Record that the commit has ended. If `error` is None, the transaction is committed. If `error` is not None,
        the outcome is unknown or some messages of the transaction are missing; the clients that wait for the outcome
        get the error.
        """
        waiting = self._deciding.pop((key, first_id), [])
        if error is None:
            self._remember(key, first_id)
        for asked in waiting:
            if error is None:
                asked.callback(True)
            else:
                asked.errback(error)

    def ask(self, key: str, first_id: int) -> bool | Deferred[bool]:
        """Return whether a transaction that is not open any more was committed. If its commit is still being written,
        return a Deferred that fires with True when it is committed, or fails with the error that `decided` gets.

        Raises TransactionRefused if the outcome is no longer known, or if the last commit with this key has another
        first message than `first_id`.
        """
        if (waiting := self._deciding.get((key, first_id))) is not None:
            asked: Deferred[bool] = Deferred()
            waiting.append(asked)
            return asked
        if (committed := self._commits.get(key)) is not None:
            check_first(key, committed, first_id)
            return True
        if first_id < self._known_from:
            raise TransactionRefused(f"the outcome of {key} is not known any more")
        return False

    def _remember(self, key: str, first_id: int) -> None:
        self._commits.pop(key, None)
        self._commits[key] = first_id
        if len(self._commits) > MAX_REMEMBERED:
            forgotten = self._commits.pop(next(iter(self._commits)))
            self._known_from = max(self._known_from, forgotten + 1)

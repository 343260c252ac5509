"""Remember the outcomes of local transactions, for clients that got no answer to their commit. Reactor thread.

A commit is remembered by the transaction's key and the id of the transaction's first message. Message ids increase, and
the log holds the transactions in the order of their first messages. So a transaction that is not remembered was not
committed. The exception is a transaction whose first message is older than everything that is remembered: its outcome
is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, TransactionRefused

__all__ = ["MAX_REMEMBERED", "Outcomes", "check_first"]

MAX_REMEMBERED = 50_000
"""Maximum number of remembered commits; they take some MB. This is enough, because clients ask about commits that they
sent seconds ago.
"""


def check_first(key: str, first_id: int, asked_for: int) -> None:
    """Raise TransactionRefused unless the client knows the id of the transaction's first message.

    This check is needed because keys can be guessed, and asking for the outcome rolls back an open transaction. Only
    the sender of the first message knows its id.
    """
    if not first_id or asked_for != first_id:
        raise TransactionRefused(f"{key} does not begin with message {asked_for}")


class Outcomes:
    """The outcomes of the local transactions on one broker, from one opening of its log to the next."""

    def __init__(self, known_from: int, commits: Mapping[str, int]) -> None:
        """known_from: all commits of transactions whose first message has this id or a higher id are known. commits:
        the commits in the log, in the order of the log: key -> id of the first message.
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
        """Record that the commit has ended. Without `error`, the transaction is committed. With `error`, its outcome is
        unknown or some of its messages are missing; those who have asked get the error.
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
        """Return whether a transaction that is not open is committed. Return a Deferred if its commit is still being
        written.

        Raises TransactionRefused if the outcome is no longer known, or if the last commit of this key begins with
        another message. The Deferred fails with the error that `decided` gets.
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

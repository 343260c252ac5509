"""Remember the outcomes of local transactions, for clients that got no answer to their commit. This code runs on the
reactor thread.

A commit is remembered by the transaction's key and the id of the transaction's first message. Message ids increase, and
the transactions are in the log in the order of their first messages. So a transaction that is not remembered was not
committed. There is one exception: if the first message of a transaction is older than all remembered commits, its
outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, TransactionRefused

__all__ = ["MAX_REMEMBERED", "Outcomes", "check_first"]

MAX_REMEMBERED = 50_000
"""Maximum number of commits that are remembered; they take some MB. This is enough, because clients only ask about
commits that they sent a few seconds ago.
"""


def check_first(key: str, first_id: int, asked_for: int) -> None:
    """Raise TransactionRefused unless the client has named the right id of the transaction's first message. first_id:
    the right id. asked_for: the id that the client has named.

    This check is needed because keys can be guessed, and asking for the outcome rolls back an open transaction. Only
    the client that has sent the first message knows its id.
    """
    if not first_id or asked_for != first_id:
        raise TransactionRefused(f"{key} does not begin with message {asked_for}")


class Outcomes:
    """The outcomes of the local transactions of one broker. The object is used from one opening of the transaction log
    to the next.
    """

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
        unknown or some of its messages are missing; the clients that wait for the outcome get the error.
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
        """Return whether a transaction that is not open any more is committed. If its commit is still being written,
        return a Deferred that fires with the answer.

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

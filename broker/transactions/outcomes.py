"""The outcomes of local transactions, for clients whose commit was not answered. Reactor thread.

A commit is remembered by its key, and by the id of the transaction's first message. Ids rise, and the log holds the
transactions in the order of their first messages. So a transaction that is not remembered was not committed, unless its
first message is older than everything remembered: then its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, TransactionRefused

__all__ = ["MAX_REMEMBERED", "Outcomes", "check_first"]

MAX_REMEMBERED = 50_000
"""Remembered commits: some MB. Clients ask about commits that they sent seconds ago."""


def check_first(key: str, first_id: int, asked_for: int) -> None:
    """Raise TransactionRefused unless the client knows the id of the transaction's first message.

    Keys can be guessed, and the question ends an open transaction. Only the sender of the first message knows its id.
    """
    if not first_id or asked_for != first_id:
        raise TransactionRefused(f"{key} does not begin with message {asked_for}")


class Outcomes:
    """The outcomes on one broker, from one opening of its log to the next."""

    def __init__(self, known_from: int, commits: Mapping[str, int]) -> None:
        """known_from: all commits of transactions whose first message has this id or a higher one are known. commits:
        those in the log, in its order: key -> id of the first message."""
        self._known_from = known_from
        self._commits: dict[str, int] = {}
        self._deciding: dict[tuple[str, int], list[Deferred[bool]]] = {}
        for key, first_id in commits.items():
            self._remember(key, first_id)

    def deciding(self, key: str, first_id: int) -> None:
        """Record that its commit is being written."""
        self._deciding[key, first_id] = []

    def decided(self, key: str, first_id: int, error: MetaqError | None) -> None:
        """Record that it is committed. With `error`, tell it to those that have asked: the outcome is unknown, or a
        part is missing."""
        waiting = self._deciding.pop((key, first_id), [])
        if error is None:
            self._remember(key, first_id)
        for asked in waiting:
            if error is None:
                asked.callback(True)
            else:
                asked.errback(error)

    def ask(self, key: str, first_id: int) -> bool | Deferred[bool]:
        """Whether a transaction that is not open is committed.

        Raises TransactionRefused if this is no longer known, or the last commit of this key begins with another
        message. Fails later with the error that `decided` is given.
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

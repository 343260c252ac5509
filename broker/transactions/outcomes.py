"""What became of local transactions, for clients whose commit was not answered. Reactor thread.

A commit is remembered by its key, and by the id of the transaction's first message. Ids rise, and the log has the
transactions in the order of their first messages: so one whose first message is not older than all that is remembered
was not committed if its key is not among them. Of an older one nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, TransactionRefused

__all__ = ["MAX_REMEMBERED", "Outcomes", "check_first"]

MAX_REMEMBERED = 50_000
"""Commits that are remembered: some MB. What a client asks for was sent seconds ago."""


def check_first(key: str, first_id: int, asked_for: int) -> None:
    """Raises TransactionRefused unless the transaction is meant: keys can be guessed, and whoever asks ends what is
    open. The id of its first message is known to the one that sent it."""
    if not first_id or asked_for != first_id:
        raise TransactionRefused(f"{key} does not begin with message {asked_for}")


class Outcomes:
    """Of one broker, from one opening of its log to the next."""

    def __init__(self, known_from: int, commits: Mapping[str, int]) -> None:
        """known_from: all commits are known of transactions whose first message has this id or a higher one. commits:
        those that the log has, in its order: key -> id of the first message."""
        self._known_from = known_from
        self._commits: dict[str, int] = {}
        self._deciding: dict[tuple[str, int], list[Deferred[bool]]] = {}
        for key, first_id in commits.items():
            self._remember(key, first_id)

    def deciding(self, key: str, first_id: int) -> None:
        """Its commit is being written."""
        self._deciding[key, first_id] = []

    def decided(self, key: str, first_id: int, error: MetaqError | None) -> None:
        """It is committed; or nobody knows, or not all of it is there: `error` says so to those that have asked."""
        waiting = self._deciding.pop((key, first_id), [])
        if error is None:
            self._remember(key, first_id)
        for asked in waiting:
            if error is None:
                asked.callback(True)
            else:
                asked.errback(error)

    def ask(self, key: str, first_id: int) -> bool | Deferred[bool]:
        """Whether a transaction is committed that is not open. Raises TransactionRefused if that is not known any more,
        or the last one committed of this key begins with another message; fails later with what `decided` is told."""
        if (waiting := self._deciding.get((key, first_id))) is not None:
            asked: Deferred[bool] = Deferred()
            waiting.append(asked)
            return asked
        if (committed := self._commits.get(key)) is not None:
            check_first(key, committed, first_id)
            return True
        if first_id < self._known_from:
            raise TransactionRefused(f"what became of {key} is not known any more")
        return False

    def _remember(self, key: str, first_id: int) -> None:
        self._commits.pop(key, None)
        self._commits[key] = first_id
        if len(self._commits) > MAX_REMEMBERED:
            forgotten = self._commits.pop(next(iter(self._commits)))
            self._known_from = max(self._known_from, forgotten + 1)

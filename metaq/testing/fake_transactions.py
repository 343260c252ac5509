"""Keep the open transactions of a FakeBroker, and execute clients' requests about them. A client gets the same
guarantees as from a real broker, but the FakeBroker writes no transaction log and ends no transaction by a time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from metaq.protocol.errors import TransactionRefused, XaRefused
from metaq.protocol.transactions import TransactionType, XaCode, XaVote, is_xa, qualifier_of

__all__ = ["FakeTransactions"]


@dataclass(slots=True)
class _Open:
    """A transaction that is neither committed nor rolled back. home: the connection that began the transaction; only
    this connection may use a local transaction, but any connection may use an XA transaction.
    """

    home: Hashable
    actions: list[Callable[[], object]] = field(default_factory=list)
    prepared: bool = False
    ended: bool = False


class FakeTransactions:
    """The open transactions, by key. Prepared transactions are kept until they are committed or rolled back."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def keys(self) -> list[str]:
        """The keys of transactions that are neither committed nor rolled back."""
        return list(self._open)

    @property
    def prepared(self) -> list[str]:
        return [key for key, each in self._open.items() if each.prepared]

    def put(self, key: str, home: Hashable, action: Callable[[], object]) -> None:
        """Add `action` to the transaction `key`. The commit of this transaction calls `action`. Raises
        TransactionRefused if there is no such transaction or it is already prepared.
        """
        found = self._find(key, home)
        if found.prepared:
            raise XaRefused(XaCode.XAER_PROTO, "Cannot put now.")
        found.actions.append(action)

    def drop_local(self, home: Hashable) -> None:
        """Roll back the local transactions of a connection that has ended."""
        self._open = {key: each for key, each in self._open.items() if is_xa(key) or each.home is not home}

    def forget(self, key: str) -> None:
        """Drop an open transaction without a commit, as a real broker does when the transaction times out."""
        del self._open[key]

    def verb(self, kind: TransactionType, key: str | None, home: Hashable, qualifier: str) -> str:
        """Execute a request about a transaction, such as begin or commit, and return the text of the broker's answer.
        Raises TransactionRefused if there is no such transaction, or if its state does not allow the request.
        """
        if kind is TransactionType.RECOVER:
            return "\r\n".join(each for each in self.prepared if not qualifier or qualifier_of(each) == qualifier)
        if key is None:
            raise TransactionRefused(f"{kind.value} needs a transaction")
        if kind is TransactionType.BEGIN:
            self._open.setdefault(key, _Open(home))
            return ""
        if kind is TransactionType.FORGET:
            return ""
        found = self._find(key, home)
        if kind is TransactionType.PREPARE:
            return str(int(self._prepare(key, found)))
        if kind is TransactionType.END:
            found.ended = True
            return ""
        if kind is TransactionType.COMMIT_TWO_PHASE and is_xa(key) and not found.prepared:
            raise XaRefused(XaCode.XAER_PROTO, "Cannot do 2 phase commit if the transaction has not been prepared.")
        del self._open[key]
        if kind is not TransactionType.ROLLBACK:
            for action in found.actions:
                action()
        return ""

    def _prepare(self, key: str, found: _Open) -> XaVote:
        if not is_xa(key):
            raise XaRefused(XaCode.XAER_RMERR, "Prepare not implemented on Local Transactions.")
        if found.prepared:
            raise XaRefused(XaCode.XAER_PROTO, "Cannot call prepare now.")
        if not found.actions:
            del self._open[key]
            return XaVote.READ_ONLY
        found.prepared = True
        return XaVote.OK

    def _find(self, key: str, home: Hashable) -> _Open:
        found = self._open.get(key)
        if found is not None and (is_xa(key) or found.home is home):
            return found
        if is_xa(key):
            raise XaRefused(XaCode.XAER_NOTA, f"XA transaction '{key}' has not been started.")
        raise TransactionRefused(f"Local transaction '{key}' has not been started.")

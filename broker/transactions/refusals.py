"""Create the errors that the broker sends when it refuses a request about a transaction. Errors for XA transactions
have an XA error code. If metaq 1.x refuses the same request with a certain text, the error has the same text.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError, TransactionRefused, XaRefused
from metaq.protocol.transactions import NULL_KEY, XaCode, is_xa

from .checkpoints import Heuristic

__all__ = [
    "AFTER_RESTART",
    "bare",
    "decided",
    "ignore_refusal",
    "incomplete",
    "log_failed",
    "not_started",
    "refusal",
    "timed_out",
]

AFTER_RESTART = "the missing messages are appended when the broker is restarted, or by the next leader of its set"

_DECISIONS = {
    "commit": (XaCode.XA_HEURCOM, "committed"),
    "rollback": (XaCode.XA_HEURRB, "rolled back"),
    "complete": (XaCode.XA_HEURHAZ, "completed"),
}


def refusal(key: str, reason: str, code: XaCode = XaCode.XAER_RMERR) -> TransactionRefused:
    """Return the error that refuses a request. The error has an XA code if `key` names an XA transaction, and none if
    it names a local transaction.
    """
    return XaRefused(code, reason) if is_xa(key) else TransactionRefused(reason)


def not_started(key: str | None) -> TransactionRefused:
    """Return 1.x's answer to every request for a transaction that is not open."""
    kind = "XA" if key is not None and is_xa(key) else "Local"
    return refusal(key or NULL_KEY, f"{kind} transaction '{key or NULL_KEY}' has not been started.", XaCode.XAER_NOTA)


def timed_out(key: str, seconds: int) -> TransactionRefused:
    """Return the error for a transaction that has timed out. The error's text names the timeout. For an XA transaction,
    the error has the same XA code as for a transaction that was never started, as in 1.x.
    """
    kind = "XA" if is_xa(key) else "Local"
    reason = f"{kind} transaction '{key}' has timed out after {seconds} s, and is rolled back."
    return refusal(key, reason, XaCode.XAER_NOTA)


def decided(key: str, decision: Heuristic) -> XaRefused:
    """Return the error for a coordinator's request if an operator has already decided the transaction."""
    code, word = _DECISIONS[decision]
    return XaRefused(code, f"XA transaction '{key}' has been heuristically {word}.")


def incomplete(key: str, failure: MetaqError) -> XaRefused:
    """Return the error for the commit request of a transaction that is committed, but whose messages a partition could
    not store because of `failure`.

    For an XA transaction the error has the code XAER_RMFAIL, because the coordinator asks again after the broker's
    restart. For a local transaction nobody can ask again, so the error has the code XA_HEURCOM, which tells the client
    that the transaction is committed.
    """
    code = XaCode.XAER_RMFAIL if is_xa(key) else XaCode.XA_HEURCOM
    return XaRefused(code, f"'{key}' is committed, but {failure}; {AFTER_RESTART}")


def log_failed(key: str, failure: str) -> TransactionRefused:
    """Return the error for a transaction log that accepts no writes; `failure` says why."""
    return refusal(key, failure, XaCode.XAER_RMFAIL)


def bare(error: XaRefused) -> TransactionRefused:
    """Return the error that refuses a put for the reason of this XA error. The text of an XaRefused begins with an XA
    code, which only the coordinator of XA transactions understands. So the text of the returned error has only the
    reason, without the code.
    """
    refused = TransactionRefused(error.reason)
    refused.xa_code = error.xa_code
    return refused


def ignore_refusal(deferred: Deferred[None] | None) -> None:
    """Ignore the error of a Deferred when no request waits for its result. The log has already reported the error, and
    the next replay of the log will do the work that has failed.
    """
    if deferred is not None:
        deferred.addErrback(_trap)


def _trap(failure: Failure) -> None:
    failure.trap(TransactionRefused)  # type: ignore[no-untyped-call]

"""Define the keys of transactions and the verbs (begin, prepare, commit, …), which are the same in the text protocol
and in the framed protocol (wire.md §3).
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum

from .errors import RemoteProtocolError
from .limits import INT32_MAX, INT32_MIN, MAX_TX_KEY_CHARACTERS

__all__ = [
    "NULL_KEY",
    "TX_KEY",
    "TransactionType",
    "XaCode",
    "XaVote",
    "is_xa",
    "parse_key",
    "parse_own_key",
    "qualifier_of",
]

NULL_KEY = "null"
"""The text in place of a transaction key in a RECOVER command, which lists transactions and so names none."""

TX_KEY = "txKey"
"""Name of the extField with a transaction's key. The message of a send with this field belongs to the transaction with
this key.
"""

_LOCAL, _XA = "TX", "XID"

# a key becomes a token of the log's stored puts, which are UTF-8
_FORBIDDEN = re.compile("[\x00\t\n\r \ud800-\udfff]")


class TransactionType(Enum):
    """The verbs of the command `transaction`."""

    BEGIN = "BEGIN"
    PREPARE = "PREPARE"
    COMMIT_ONE_PHASE = "COMMIT_ONE_PHASE"
    COMMIT_TWO_PHASE = "COMMIT_TWO_PHASE"
    ROLLBACK = "ROLLBACK"
    RECOVER = "RECOVER"
    FORGET = "FORGET"
    END = "END"


class XaVote(IntEnum):
    """The values by which a broker answers a PREPARE, as X/Open XA defines them (ax_reg and xa_prepare)."""

    OK = 0
    """The transaction is prepared: the coordinator has to commit it or roll it back."""
    READ_ONLY = 3
    """No message was sent in the transaction, so there is nothing to commit, and the broker has already forgotten the
    transaction.
    """


class XaCode(IntEnum):
    """The reason why an XA verb failed. The numbers are defined by X/Open XA. JTA's XAException and 1.x use the same
    numbers.
    """

    XA_RBROLLBACK = 100
    XA_RBOTHER = 104
    XA_RBTIMEOUT = 106
    XA_HEURMIX = 5
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XAER_ASYNC = -2
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8
    XAER_OUTSIDE = -9


def parse_key(key: str) -> str | None:
    """Check the transaction key in a command. Return the key, or None for the text `null`. There are two forms of keys,
    as in 1.x:

    `TX:<session>:<int32>` or `XID:<format int32>:<gtrid hex>:<bqual hex>:<qualifier>`, hexadecimal digits in lower
    case. Raises RemoteProtocolError for all other texts.
    """
    if key == NULL_KEY:
        return None
    if len(key) > MAX_TX_KEY_CHARACTERS or _FORBIDDEN.search(key):
        raise RemoteProtocolError(f"bad transaction key {key[:80]!r}: too long, or with a blank or line end")
    fields = key.split(":")
    try:
        if fields[0] == _LOCAL and len(fields) == 3:
            return f"{_LOCAL}:{fields[1]}:{_int32(fields[2])}"
        if fields[0] == _XA and len(fields) == 5:
            return f"{_XA}:{_int32(fields[1])}:{_hex(fields[2])}:{_hex(fields[3])}:{fields[4]}"
    except ValueError as error:
        raise RemoteProtocolError(f"bad transaction key {key[:80]!r}: {error}") from error
    raise RemoteProtocolError(f"bad transaction key {key[:80]!r}")


def parse_own_key(text: str) -> str:
    """Check the transaction key in a request that names one transaction, and return it. Unlike `parse_key`, the
    function does not turn `null` into None, but returns it unchanged; no transaction has this key, so the request then
    fails.
    """
    return parse_key(text) or NULL_KEY


def is_xa(key: str) -> bool:
    """Whether a parsed key is the key of an XA transaction. Any connection may use an XA transaction."""
    return key.startswith(_XA)


def qualifier_of(key: str) -> str:
    """Return the unique qualifier at the end of a parsed XA key."""
    return key.rpartition(":")[2]


def _int32(text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 32 or not INT32_MIN <= int(text) <= INT32_MAX:
        raise ValueError(f"{text[:40]!r} is no int32")
    return int(text)


def _hex(text: str) -> str:
    if text and not text.isalnum():  # fromhex would skip white space
        raise ValueError(f"{text[:40]!r} is not hexadecimal")
    return bytes.fromhex(text).hex()

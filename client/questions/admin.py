"""Send operators' requests to brokers (docs/protocol.md): reload the configuration, close and open partitions, decide
transactions, look at replication.

All functions block, and raise the errors that asking.py describes. All functions also raise RequestRefused if the
broker does not accept the request. A Java broker accepts none of these requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import simplejson

from metaq.protocol.errors import MetaqError, RemoteProtocolError, RequestRefused, TopicNotAccepted
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.refusals import is_success, transaction_refusal
from metaq.protocol.remoting import ClosePartitionsRequest, HandOverRequest, MoveRequest, OpenPartitionsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import CompleteTransactionRequest, PreparedTransactionsRequest

from .asking import Asked, as_frame, need_frames

__all__ = [
    "HAND_OVER_SECONDS",
    "close_partitions",
    "complete_transaction",
    "hand_over",
    "look_at_move",
    "open_partitions",
    "prepared_transactions",
    "reload_config",
    "replication_status",
    "restart_replication",
    "set_status",
]

HAND_OVER_SECONDS = 18.0
"""Number of seconds to wait for the answer to a request to hand over the leadership. The leader itself gives up the
attempt earlier, so an answer comes within this time.
"""


def reload_config(connection: Asked, timeout: float | None = None) -> dict[str, Any]:
    """Make the broker read its server.ini again, and return the changes that the broker reports."""
    report: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.RELOAD_CONFIG, {}, timeout))
    return report


def close_partitions(connection: Asked, topic: str, start: int, end: int, timeout: float | None = None) -> list[int]:
    """Make a broker refuse puts to and gets from the partitions with the numbers `start` to `end`, both included.
    Return the numbers of all partitions of `topic` that are closed after this call, including those that were closed
    before.

    Raises TopicNotAccepted, and RequestRefused with TOPIC_NOT_EXIST for partitions that the topic does not have.
    """
    request = ClosePartitionsRequest(topic, start, end)
    return _partitions(_ask(connection, RequestCode.CLOSE_PARTITIONS, request.to_ext(), timeout, topic), "closed")


def open_partitions(connection: Asked, topic: str, timeout: float | None = None) -> list[int]:
    """Make a broker accept puts and gets again for all partitions of `topic`. Return the numbers of the partitions that
    were closed before this call. Raises TopicNotAccepted.
    """
    request = OpenPartitionsRequest(topic)
    return _partitions(_ask(connection, RequestCode.OPEN_PARTITIONS, request.to_ext(), timeout, topic), "opened")


def prepared_transactions(
    connection: Asked, timeout: float | None = None, *, active: bool = False
) -> list[dict[str, Any]]:
    """Return the XA transactions that are prepared and wait for their coordinator's decision, the oldest first. active:
    if true, the result also contains open transactions that are not prepared. If very many transactions are not
    prepared, the result contains only the largest of them, by number of bytes. Older brokers omit the unprepared
    transactions.
    """
    ext = PreparedTransactionsRequest(active).to_ext()
    found: list[dict[str, Any]] = _asked_for(list, _ask(connection, RequestCode.PREPARED_TRANSACTIONS, ext, timeout))
    return found


def complete_transaction(connection: Asked, tx_key: str, action: str, timeout: float | None = None) -> None:
    """Decide a prepared XA transaction in place of its coordinator. action: one of COMPLETE_ACTIONS.

    Raises TransactionRefused if the broker does not know the transaction, or if the transaction is not prepared.
    """
    _ask(connection, RequestCode.COMPLETE_TRANSACTION, CompleteTransactionRequest(tx_key, action).to_ext(), timeout)


def replication_status(connection: Asked, timeout: float | None = None) -> dict[str, Any]:
    """Return the broker's role in replication and its state, as docs/replication.md describes."""
    status: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.REPLICATION_STATUS, {}, timeout))
    return status


def restart_replication(connection: Asked, timeout: float | None = None) -> dict[str, Any]:
    """Make the broker close and reopen its connection for replication, and check all its replicated data once more.
    Return the broker's replication status, as `replication_status` does.

    Raises RequestRefused if the broker takes no part in replication.
    """
    status: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.RESTART_REPLICATION, {}, timeout))
    return status


def set_status(connection: Asked, timeout: float | None = None) -> dict[str, Any]:
    """Return the role of a node in a broker set; a leader also reports what it knows about the other nodes
    (docs/replication.md). Brokers accept this request from any address.

    Raises RequestRefused if the broker is no node of a set.
    """
    status: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.SET_STATUS, {}, timeout))
    return status


def hand_over(connection: Asked, node: str = "", timeout: float = HAND_OVER_SECONDS) -> dict[str, Any]:
    """Make the leader of a broker set hand over the leadership to `node`, or to any in-sync node if `node` is "".
    Return a dict with the name of the new leader (`leader`) and the duration of the hand-over in seconds (`seconds`).

    Raises RequestRefused, with the reason, if the leadership was not handed over.
    """
    request = HandOverRequest(node)
    done: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.HAND_OVER, request.to_ext(), timeout))
    return done


def look_at_move(
    connection: Asked, topic: str, broker: int, partition: int, timeout: float | None = None
) -> dict[str, Any]:
    """Make the connected broker look at the state of a move of partitions at once and go on with it. Return the move's
    progress.
    topic, broker, partition: the first partition that leaves the source broker; it identifies the move.

    Brokers accept this request from any address. Raises RequestRefused if there is no such move, or the broker cannot
    check the move now.
    """
    request = MoveRequest(topic, broker, partition)
    status: dict[str, Any] = _asked_for(dict, _ask(connection, RequestCode.MOVE, request.to_ext(), timeout))
    return status


def _ask(
    connection: Asked, code: RequestCode, ext: Mapping[str, str | int], timeout: float | None = None, topic: str = ""
) -> Any:
    """Send one request, and return the JSON value in the body of the answer, or None if the body is empty."""
    remedy = "use the tools of metaq 1.x with its JMX port"
    need_frames(connection, "takes this by JMX only", remedy)
    reply = as_frame(connection.call(lambda opaque: (encode_frame(code, opaque, ext),), timeout), connection)
    if not is_success(reply):
        raise _refusal(connection, reply, topic)
    try:
        return simplejson.loads(bytes(reply.body).decode("utf-8")) if reply.body else None
    except ValueError as error:
        raise RemoteProtocolError(f"{connection.endpoint} answered with something other than JSON: {error}") from error


def _refusal(connection: Asked, frame: Frame, topic: str) -> MetaqError:
    endpoint, code = connection.endpoint, frame.code
    if code == ResponseCode.NO_PERMISSION:
        return RequestRefused(
            code,
            f"{endpoint} takes requests of operators from its own machine only: run the command there with "
            f"--server 127.0.0.1:{endpoint.port}, or start the broker with --admin-from any",
        )
    if code == ResponseCode.TRANSACTION_REFUSED:
        return transaction_refusal(frame.remark)
    if code == ResponseCode.TOPIC_NOT_EXIST and topic and not frame.remark.startswith("wrong partition"):
        return TopicNotAccepted(topic)
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return RequestRefused(code, f"{endpoint} does not know this request: it is an older broker, update it")
    return RequestRefused(code, f"{endpoint}: {frame.remark or f'response code {code}'}")


def _asked_for(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise RemoteProtocolError(f"a broker answered {str(value)[:80]!r} instead of a {kind.__name__}")
    return value


def _partitions(value: Any, name: str) -> list[int]:
    return [int(each) for each in _asked_for(list, _asked_for(dict, value).get(name))]

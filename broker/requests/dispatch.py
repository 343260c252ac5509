"""From a request to its answer; with answers.py the only place where errors become statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import (
    MessageTooLarge,
    MetaqError,
    PartitionClosed,
    TransactionRefused,
)
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.put_run import PutRun
from metaq.protocol.sends import TX_KEY, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import (
    NO_OPAQUE,
    Get,
    IgnoredAnswer,
    OffsetQuery,
    Put,
    Stats,
    Sync,
    TextCommand,
    TooLargePut,
    Transaction,
    Version,
    encode_result,
)

from ..broker import Broker
from .admin import (
    ADMIN_CODES,
    admits,
    answer_close_partitions,
    answer_open_partitions,
    answer_reload_config,
)
from .answers import Answer, Bytes, Work, answer_frame, response_code
from .get import answer_get
from .lookup import (
    answer_counts,
    answer_heartbeat,
    answer_max_offset,
    answer_min_offset,
    answer_search_by_count,
    answer_search_by_time,
)
from .offset import answer_offset
from .pull import Loading, Pull, Step
from .put import PutGroup, PutOrSend, Send
from .put_run import answer_put_run
from .replication import answer_replication_status, answer_restart_replication
from .search import answer_query_message, answer_view_message
from .send_batch import answer_send_batch
from .send_many import answer_send_many
from .stats import answer_stats, answer_stats_frame
from .sync import answer_sync
from .transaction import (
    answer_complete_transaction,
    answer_prepared_transactions,
    answer_send_batch_in_transaction,
    answer_send_in_transaction,
    answer_transaction,
    answer_transaction_frame,
    answer_transactional_put,
)
from .version import answer_version

__all__ = ["Dispatcher"]

_log = logging.getLogger(__name__)

_TEXT: Mapping[type, Callable[[Broker, Any], Answer]] = {
    Stats: answer_stats,
    Sync: answer_sync,
    Version: answer_version,
    IgnoredAnswer: lambda broker, command: None,
}

_TEXT_OF_A_CONNECTION: Mapping[type, Callable[[Broker, Any, object], Answer]] = {
    Get: answer_get,
    OffsetQuery: answer_offset,
    Put: answer_transactional_put,  # those without a transaction go to a PutGroup
    Transaction: answer_transaction,
}

_TRANSACTIONAL_FRAMES: Mapping[int, Callable[..., Answer]] = {
    RequestCode.SEND: answer_send_in_transaction,
    RequestCode.SEND_BATCH: answer_send_batch_in_transaction,
    RequestCode.TRANSACTION: answer_transaction_frame,
}

_LONG_FRAMES: Mapping[int, Callable[[Broker, Frame], Work]] = {
    RequestCode.SEND_BATCH: answer_send_batch,
    RequestCode.SEND_MANY: answer_send_many,
}

_FRAMES: Mapping[int, Callable[[Broker, Frame], Answer]] = {
    RequestCode.MIN_OFFSET: answer_min_offset,
    RequestCode.MAX_OFFSET: answer_max_offset,
    RequestCode.SEARCH_OFFSET_BY_TIME: answer_search_by_time,
    RequestCode.SEARCH_OFFSET_BY_COUNT: answer_search_by_count,
    RequestCode.MESSAGE_COUNTS: answer_counts,
    RequestCode.QUERY_MESSAGE: answer_query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: answer_view_message,
    RequestCode.HEARTBEAT: answer_heartbeat,
    RequestCode.STATS: answer_stats_frame,
    RequestCode.RELOAD_CONFIG: answer_reload_config,
    RequestCode.CLOSE_PARTITIONS: answer_close_partitions,
    RequestCode.OPEN_PARTITIONS: answer_open_partitions,
    RequestCode.PREPARED_TRANSACTIONS: answer_prepared_transactions,
    RequestCode.COMPLETE_TRANSACTION: answer_complete_transaction,
    RequestCode.REPLICATION_STATUS: answer_replication_status,
    RequestCode.RESTART_REPLICATION: answer_restart_replication,
}

_ADMIN_ONLY = "admin requests are taken from the broker's own machine only, unless it runs with --admin-from any"


class Dispatcher:
    """Answers requests of any connection. Never raises: what goes wrong becomes an answer. Reactor thread."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def put_group(self) -> PutGroup:
        """A new group for the puts of one read."""
        return PutGroup(self.broker, self._refuse_put)

    def put_run(self, run: PutRun) -> Answer:
        """The answers to many puts of one read."""
        return answer_put_run(self.broker, run, self._refuse_put)

    def send(self, frame: Frame) -> Send | bytes:
        """The put that a SEND frame asks for, or the answer if it is malformed."""
        try:
            request = SendRequest.from_ext(frame.ext)
            if len(frame.body) > MAX_BODY_BYTES:
                raise MessageTooLarge(len(frame.body), MAX_BODY_BYTES)
        except MetaqError as error:
            return b"" if frame.is_one_way else self._frame_error(frame.opaque, error)
        return Send(*request[:4], frame.opaque, frame.body, frame.is_one_way)

    def text(self, command: TextCommand, connection: object = None) -> Answer:
        """The answer to a text command other than a put without transaction and `quit`.

        connection: what stands for the connection it came on; local transactions belong to it, and what its client was
        answered before may count. None: a client of a single request.
        """
        if isinstance(command, TooLargePut):
            self.broker.metrics.put(command.topic, 1, 0)
            return self._refuse_put(command, command.partition, MessageTooLarge(command.body_bytes, MAX_BODY_BYTES))
        if isinstance(command, Put) and not self.broker.has_transactions:
            group = self.put_group()  # 1.x stores it at once, ignoring the key
            group.add(command._replace(tx_key=None))
            return group.commit()
        try:
            handle = _TEXT.get(type(command))
            if handle is not None:
                answer = handle(self.broker, command)
            else:
                answer = _TEXT_OF_A_CONNECTION[type(command)](self.broker, command, connection)
        except Exception as error:
            return self._text_error(command, error)
        if isinstance(answer, Deferred):
            return answer.addErrback(self._text_failed, command)
        return answer

    def work(self, frame: Frame) -> Work | None:
        """What a frame asks for that may take long, to be worked off in slices; None: give it to `frame`."""
        handle = None if TX_KEY in frame.ext else _LONG_FRAMES.get(frame.code)
        return None if handle is None else self._work(handle(self.broker, frame), frame.opaque)

    def _work(self, work: Work, opaque: int) -> Work:
        try:
            answer = yield from work
        except Exception as error:
            return self._frame_error(opaque, error)
        if isinstance(answer, Deferred):
            return answer.addErrback(self._frame_failed, opaque)
        return answer

    def frame(self, frame: Frame, peer: str, connection: object) -> Answer:
        """The answer to any frame but PULL, a plain SEND and those of `work`; the caller drops that of a one-way frame.

        peer: numeric address of the connection's other end. connection: as for `text`.
        """
        if frame.code in ADMIN_CODES and not admits(self.broker.admin_from, peer, self.broker.config.listen):
            return answer_frame(frame.opaque, {}, ResponseCode.NO_PERMISSION, _ADMIN_ONLY)
        handle = _FRAMES.get(frame.code)
        if frame.code == RequestCode.TRANSACTION or (TX_KEY in frame.ext and frame.code in _TRANSACTIONAL_FRAMES):
            handle = partial(_TRANSACTIONAL_FRAMES[frame.code], connection=connection)
        if handle is None:
            return answer_frame(
                frame.opaque, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"no request has the code {frame.code}"
            )
        try:
            answer = handle(self.broker, frame)
        except Exception as error:
            return self._frame_error(frame.opaque, error)
        if isinstance(answer, Deferred):
            return answer.addErrback(self._frame_failed, frame.opaque)
        return answer

    def pull(self, frame: Frame) -> Pull | bytes:
        """A PULL to be stepped, or the answer if it is malformed."""
        try:
            return Pull(self.broker, frame)
        except MetaqError as error:
            return self._frame_error(frame.opaque, error)

    def step(self, pull: Pull) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance a pull; whether it may wait is the caller's to decide."""
        try:
            answer = pull.step()
        except Exception as error:
            return self._frame_error(pull.opaque, error)
        if isinstance(answer, Deferred):
            return answer.addErrback(self._frame_failed, pull.opaque)
        return answer

    def give_up(self, pull: Pull) -> Bytes:
        """The answer to a pull whose wait has ended."""
        try:
            return pull.nothing()
        except MetaqError as error:
            return self._frame_error(pull.opaque, error)

    def too_many_pulls(self, pull: Pull, where: str) -> bytes:
        """The answer to a pull that would have to wait where too many do already."""
        return answer_frame(pull.opaque, {}, ResponseCode.SYSTEM_BUSY, f"too many pulls wait {where}")

    # --- errors -------------------------------------------------------------------------------------------------------

    def _refuse_put(self, put: PutOrSend | TooLargePut, partition: int, error: MetaqError) -> bytes:
        """`partition` is the chosen one if the client left the choice to the broker."""
        if not isinstance(error, PartitionClosed):
            self.broker.metrics.put_refused(put.topic)
        if isinstance(put, Send):
            return b"" if put.one_way else self._frame_error(put.opaque, error)
        if self.broker.sync_slave is not None:  # 1.x's synchronous master says it without a prefix
            return encode_result(error.status, _capital(error), put.opaque)
        prefix = f"Put message to [broker '{self.broker.url}'] [partition '{put.topic}-{partition}'] failed."
        return encode_result(error.status, f"{prefix}Detail:{error}", put.opaque)

    def _text_failed(self, failure: Failure, command: TextCommand) -> bytes:
        return self._text_error(command, cast(BaseException, failure.value))

    def _frame_failed(self, failure: Failure, opaque: int) -> bytes:
        return self._frame_error(opaque, cast(BaseException, failure.value))

    def _text_error(self, command: TextCommand, error: BaseException) -> bytes:
        opaque: int = getattr(command, "opaque", NO_OPAQUE)
        if not isinstance(error, MetaqError):
            return encode_result(Status.ERROR, _internal(command, error), opaque)
        return encode_result(error.status, _capital(error), opaque)

    def _frame_error(self, opaque: int, error: BaseException) -> bytes:
        if not isinstance(error, MetaqError):
            return answer_frame(opaque, {}, ResponseCode.SYSTEM_ERROR, _internal(opaque, error))
        if isinstance(error, TransactionRefused):
            ext = {} if error.xa_code is None else {"xaCode": error.xa_code}
            return answer_frame(opaque, ext, ResponseCode.TRANSACTION_REFUSED, str(error))
        return answer_frame(opaque, {}, response_code(error), str(error))


def _capital(error: MetaqError) -> str:
    """The text; 1.x writes the one of a closed partition with a capital where no prefix stands before it."""
    text = str(error)
    return text[:1].upper() + text[1:] if isinstance(error, PartitionClosed) else text


def _internal(request: object, error: BaseException) -> str:
    """A bug: everything to the log, its name to the client."""
    _log.error("request %.200r failed", request, exc_info=error)
    return f"internal error: {type(error).__name__}"

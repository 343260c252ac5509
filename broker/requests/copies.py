"""`sync`: a synchronous master's message, stored with its id; any other broker has no handler for it (wire.md §4)."""

from __future__ import annotations

from collections.abc import Callable

from metaq.protocol.errors import ChecksumMismatch, MetaqError
from metaq.protocol.record import checksum
from metaq.protocol.statuses import Status
from metaq.protocol.text import NO_CHECKSUM, Sync, encode_put_result, encode_result

from ..store.batch import encode_puts
from ..writing import Write, Writing
from .answers import Answer, Bytes, put_failure

__all__ = ["Copies"]

NO_SYNC_HANDLER = "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand"
"""1.x's own words: no request handler is registered for the class."""


class Copies:
    """What a synchronous slave stores."""

    def __init__(self, writing: Writing, url: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._writing = writing
        self._url = url
        self._now_ms = now_ms

    def store(self, sync: Sync, caller: object) -> Answer:
        """The answer, now or when the message is safe."""
        if not self._writing.takes_copies:
            return encode_result(Status.UNAVAILABLE, NO_SYNC_HANDLER, sync.opaque)
        self._writing.metrics.put(sync.topic, 1, len(sync.body))
        try:
            found = checksum(sync.body)
            if found != sync.checksum != NO_CHECKSUM:
                raise ChecksumMismatch
            log = self._writing.partitions.for_put(sync.topic, sync.partition)
        except MetaqError as error:
            return self._refused(sync, error)
        puts = [(sync.flag, found, sync.body)]
        write = Write(log, *encode_puts(puts, log.end_offset, (sync.message_id,), self._now_ms()))

        def encode() -> Bytes:
            if write.error is not None:
                return self._refused(sync, write.error)
            return encode_put_result(sync.opaque, sync.message_id, sync.partition, write.base)

        return self._writing.answer(self._writing.append((write,)), encode)

    def _refused(self, sync: Sync, error: MetaqError) -> bytes:
        self._writing.refused(sync.topic, error)
        text = put_failure(self._url(), sync.topic, sync.partition, error, capital=True)
        return encode_result(error.status, text, sync.opaque)

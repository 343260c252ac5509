"""Waiting until appended records may be acknowledged: visible here and, with a synchronous slave, stored there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..answers import Bytes
from ..broker import Broker
from ..store.partition_log import PartitionLog

__all__ = ["Written", "when_safe"]


class Written(Protocol):
    """Records appended to a log up to byte offset `end`; what a slave gets of them, of no matter without one."""

    @property
    def log(self) -> PartitionLog: ...
    @property
    def end(self) -> int: ...
    @property
    def puts(self) -> Sequence[tuple[int, int, Buffer]]: ...
    @property
    def ids(self) -> Sequence[int]: ...


W = TypeVar("W", bound=Written)


def when_safe(
    broker: Broker,
    written: Sequence[W],
    visible: Callable[[Sequence[MetaqError | None]], None],
    replicated: Callable[[W, Sequence[MetaqError | None]], None],
    answer: Callable[[], Bytes],
) -> Deferred[Bytes]:
    """What `answer` gives once all is settled. visible(why each of `written` did not become visible) is called before,
    and with a synchronous slave replicated(one of them, why each of its puts is not there), for each.
    """
    deferred: Deferred[Bytes] = Deferred()
    slave = broker.sync_slave
    missing = 1 if slave is None else 1 + len(written)

    def arrived() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            deferred.callback(answer())

    def settled(errors: Sequence[MetaqError | None]) -> None:
        visible(errors)
        arrived()

    def copied(each: W, errors: Sequence[MetaqError | None]) -> None:
        replicated(each, errors)
        arrived()

    if slave is not None:
        for each in written:
            slave.replicate(each.log, each.puts, each.ids, partial(copied, each))
    broker.store.when_all_visible([(each.log, each.end) for each in written], settled)
    return deferred

"""Waiting until appended records may be acknowledged: visible here and, with a synchronous slave, stored there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..broker import Broker
from ..store.partition_log import PartitionLog
from .answers import Bytes

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
    and with a synchronous slave replicated(one of them, why each of its puts is not there), for each. The Deferred
    fails with what one of the three raises.
    """
    settled: Deferred[None] = Deferred()
    bugs: list[Exception] = []
    slave = broker.sync_slave
    missing = 1 if slave is None else 1 + len(written)

    def arrived(take: Callable[[Sequence[MetaqError | None]], None], errors: Sequence[MetaqError | None]) -> None:
        nonlocal missing
        try:
            take(errors)
        except Exception as error:  # else nobody would ever be answered
            bugs.append(error)
        missing -= 1
        if missing:
            return
        if bugs:
            settled.errback(bugs[0])
        else:
            settled.callback(None)

    if slave is not None:
        for each in written:
            slave.replicate(each.log, each.puts, each.ids, partial(arrived, partial(replicated, each)))
    broker.store.when_all_visible([(each.log, each.end) for each in written], partial(arrived, visible))
    return settled.addCallback(lambda _: answer())

"""What a node of a broker set asks of the broker that it runs in."""

from __future__ import annotations

from typing import Protocol

from ..configuration.settings import BrokerConfig
from ..delays.delays import Delays
from ..halves.halves import Halves
from ..partitions.message_ids import MessageIds
from ..partitions.metrics import Metrics
from ..partitions.partitions import Partitions
from ..reading.long_poll import ParkedPulls
from ..runtime.host import Host
from ..shared.groups import SharedGroups
from ..store.store import Store
from ..store.threads import RunInThread
from ..transactions.transactions import Transactions
from ..writing.sequences import Sequences
from ..writing.writing import Write, Writing

__all__ = ["SetHost", "StoreHost", "TransactionHost"]


class StoreHost(Host, Protocol):
    """A broker whose partitions are copied."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> Store: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def metrics(self) -> Metrics: ...


class TransactionHost(Host, Protocol):
    """A broker whose transactions are copied, too. run_in_thread: as `in_thread`, with a callback."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> Store: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def run_in_thread(self) -> RunInThread: ...


class SetHost(StoreHost, TransactionHost, Protocol):
    """A broker that is a node of a set."""

    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...
    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def writing(self) -> Writing: ...
    @property
    def sequences(self) -> Sequences[Write]: ...
    @property
    def delays(self) -> Delays: ...
    @property
    def halves(self) -> Halves: ...
    @property
    def shared(self) -> SharedGroups: ...
    @property
    def parked(self) -> ParkedPulls: ...

"""Interfaces of the broker object: the attributes and methods that the code of broker sets uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..configuration.settings import BrokerConfig
from ..memory.memory import Memory
from ..partitions.counters import Metrics
from ..partitions.message_ids import MessageIds
from ..reading.long_poll import ParkedPulls
from ..replication.host import CopyHost
from ..runtime.host import Host
from ..store.store import Store
from ..store.worker_turns import RunInThread
from ..transactions.transactions import Transactions
from ..writing.writing import Writing

__all__ = ["SetHost", "StoreHost", "TransactionHost"]


class StoreHost(CopyHost, Protocol):
    """The interface of a broker whose partitions are copied to other nodes."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metrics(self) -> Metrics: ...


class TransactionHost(Host, Protocol):
    """The interface of a broker whose transactions are also copied. run_in_thread: runs a function in a worker thread
    and passes the result to a callback.
    """

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> Store: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def run_in_thread(self) -> RunInThread: ...


class SetHost(StoreHost, TransactionHost, Protocol):
    """The interface of a broker that is a node of a set."""

    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...
    @property
    def message_ids(self) -> MessageIds: ...
    @property
    def writing(self) -> Writing: ...
    @property
    def memories(self) -> Sequence[Memory[Any]]: ...
    @property
    def parked(self) -> ParkedPulls: ...

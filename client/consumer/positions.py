"""Where the partitions of a consumer stand, and questions about any partition beside its buffers."""

from __future__ import annotations

from collections.abc import Callable

from metaq.coordination.brokers import ClusterView
from metaq.protocol.errors import BrokerUnavailable, ConfigError

from ..connection import Connection, Endpoint
from ..message import Message
from ..questions.brokers import source_of
from ..questions.finding import MessageFinder
from ..questions.partitions import lag_behind, max_offset, min_offset
from ..questions.places import Place, locate
from ..questions.records import read_messages
from ..values import Lag, TopicPartition
from .core import ConsumerCore
from .fetcher import Fetcher
from .tuning import LOOKUP_SECONDS

__all__ = ["Positions"]


class Positions:
    """On the thread that uses the consumer."""

    def __init__(
        self,
        core: ConsumerCore,
        fetcher: Fetcher,
        endpoint_of: Callable[[TopicPartition], Endpoint | None],
        view: ClusterView,
        connect: Callable[[Endpoint], Connection],
    ) -> None:
        self._core = core
        self._fetcher = fetcher
        self._endpoint_of = endpoint_of
        self._view = view
        self._connect = connect
        self.finder = MessageFinder(view, connect)

    def seek(self, partition: TopicPartition, to: int | str | Place) -> None:
        """See Consumer.seek."""
        cursor = self._core.cursor(partition)
        cursor.moved_to(self._resolve(partition, to))
        self._fetcher.serve_soon()

    def _resolve(self, partition: TopicPartition, to: int | str | Place) -> int:
        if isinstance(to, int):
            if to < 0:
                raise ConfigError("offset", to, "choose 0 or more bytes")
            return to
        if not isinstance(to, str):
            return locate(to, [partition.topic], self.finder)(self._connection(partition), partition)
        if to == "earliest":
            return min_offset(self._connection(partition), partition, LOOKUP_SECONDS)
        if to == "latest":
            return max_offset(self._connection(partition), partition, LOOKUP_SECONDS)
        raise ConfigError("seek", to, "choose an offset, 'earliest', 'latest' or a place")

    def lag(self) -> dict[TopicPartition, Lag]:
        """See Consumer.lag."""
        lags: dict[TopicPartition, Lag] = {}
        for partition, cursor in sorted(self._core.owned.items()):
            if cursor.opened:
                lags[partition] = lag_behind(self._connection(partition), partition, cursor.position, LOOKUP_SECONDS)
            else:
                lags[partition] = Lag(None, None)
        return lags

    def fetch(self, partition: TopicPartition, offset: int, max_bytes: int, timeout: float) -> list[Message]:
        """See Consumer.fetch."""
        endpoint = self._endpoint_of(partition)
        if endpoint is None:  # not before the group is joined
            endpoint = source_of(self._view.brokers(), partition)
        return read_messages(self._connection_to(endpoint, partition), partition, offset, max_bytes, timeout)

    def _connection(self, partition: TopicPartition) -> Connection:
        return self._connection_to(self._endpoint_of(partition), partition)

    def _connection_to(self, endpoint: Endpoint | None, partition: TopicPartition) -> Connection:
        if endpoint is None:
            raise BrokerUnavailable(f"broker {partition.broker} is not registered")
        return self._connect(endpoint)

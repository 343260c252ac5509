"""`/metrics`: the broker's figures in Prometheus's format, gathered when they are asked for."""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..broker import Broker

__all__ = ["CONTENT_TYPE_LATEST", "exposition"]

_COMMANDS = ("cmd_put", "cmd_get", "cmd_offset", "get_miss", "put_failed")


def exposition(broker: Broker) -> bytes:
    """All metrics. Reactor thread; O(partitions)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BrokerCollector(broker))
    return generate_latest(registry)


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        broker, metrics = self._broker, self._broker.metrics
        info = GaugeMetricFamily("metaq_broker_info", "1 for a running broker", labels=["broker_id", "version"])
        info.add_metric([str(broker.config.broker_id), broker.version], 1)
        yield info
        yield GaugeMetricFamily("metaq_uptime_seconds", "Time since the start", metrics.uptime_seconds)
        yield GaugeMetricFamily("metaq_connections", "Connections of clients", broker.connections)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield GaugeMetricFamily("metaq_peak_memory_bytes", "Largest resident memory so far", peak_bytes)
        for name in _COMMANDS:
            yield CounterMetricFamily(f"metaq_{name}", f"`{name}` of the stats command", getattr(metrics, name))
        yield self._filter_failures()
        yield from self._topics()

    def _filter_failures(self) -> Metric:
        failures = CounterMetricFamily("metaq_filter_failures", "Messages whose filter raised", labels=["filter"])
        for each in self._broker.filters.filters():
            failures.add_metric([each.name], each.failures)
        return failures

    def _topics(self) -> Iterator[Metric]:
        messages: defaultdict[str, int] = defaultdict(int)
        size: defaultdict[str, int] = defaultdict(int)
        partitions: defaultdict[str, int] = defaultdict(int)
        read_only: defaultdict[str, int] = defaultdict(int)
        for log in self._broker.store.logs():
            messages[log.topic] += log.message_count
            size[log.topic] += log.size_bytes
            partitions[log.topic] += 1
            read_only[log.topic] += log.read_only is not None
        families = (
            ("metaq_topic_messages", "Messages kept", messages),
            ("metaq_topic_bytes", "Bytes kept", size),
            ("metaq_topic_partitions", "Partitions with a log", partitions),
            ("metaq_topic_read_only_partitions", "Partitions closed by a failed write or sync", read_only),
        )
        for name, text, values in families:
            family = GaugeMetricFamily(name, text, labels=["topic"])
            for topic, value in sorted(values.items()):
                family.add_metric([topic], value)
            yield family

"""`/metrics`: the broker's figures in Prometheus's format, gathered when they are asked for."""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from metaq.protocol.limits import is_utf8

from ..broker import Broker
from ..replication.status import CopyState, ReplicationStatus
from ..sets.member_state import ROLES
from ..shared.status import messages_left
from .pages import shown

if TYPE_CHECKING:
    from ..moving.moves import MoveFigures

__all__ = ["CONTENT_TYPE_LATEST", "exposition"]

_COMMANDS = ("cmd_put", "cmd_get", "cmd_offset", "get_miss", "put_failed")


def exposition(broker: Broker) -> bytes:
    """All metrics. Reactor thread; O(partitions)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(_BrokerCollector(broker)))
    return generate_latest(registry)


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """One value for each value of the label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for labelled, value in values:
        family.add_metric([labelled], value)
    return family


class _Shown(Collector):
    """Another's metrics; values of labels that are not valid UTF-8 are escaped."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        for metric in self._collector.collect():
            for place, sample in enumerate(metric.samples):
                if not all(map(is_utf8, sample.labels.values())):
                    labels = {name: shown(value) for name, value in sample.labels.items()}
                    metric.samples[place] = sample._replace(labels=labels)
            yield metric


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
        if broker.registered is not None:
            yield GaugeMetricFamily("metaq_registered", "1 while registered in ZooKeeper", broker.registered())
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield GaugeMetricFamily("metaq_peak_memory_bytes", "Largest resident memory so far", peak_bytes)
        for name in _COMMANDS:
            yield CounterMetricFamily(f"metaq_{name}", f"`{name}` of the stats command", getattr(metrics, name))
        pending = broker.pending_puts
        yield GaugeMetricFamily("metaq_pending_put_bytes", "Bytes of puts that wait to be safe", pending.bytes)
        yield GaugeMetricFamily("metaq_pending_put_bytes_limit", "Limit of the bytes that wait", pending.limit)
        held_back = "Connections that are not read because too many puts wait"
        yield GaugeMetricFamily("metaq_put_connections_held_back", held_back, pending.waiting)
        yield from self._account()
        found = "found in segments since the start: bytes that hold no good record"
        yield CounterMetricFamily("metaq_damaged_ranges", f"Damaged ranges {found}", metrics.damaged_ranges)
        yield CounterMetricFamily("metaq_damaged_bytes", f"Damaged bytes {found}", metrics.damaged_bytes)
        yield from self._disks()
        yield from self._journal()
        yield from self._delays()
        yield from self._halves()
        yield self._filter_failures()
        yield from self._topics()
        yield from self._shared()
        if broker.moves is not None:
            yield from _moves(broker.moves.figures())
        if broker.replication is not None:
            status = broker.replication.status()
            if broker.set_report is not None:
                yield from _broker_set(status)
            else:
                yield from _replication(status)

    def _account(self) -> Iterator[Metric]:
        budgets = list(self._broker.account.budgets())
        for name, text, figure in (
            ("metaq_account_used", "What clients have of the broker's memory and places", "used"),
            ("metaq_account_limit", "What they may have, docs/broker.md", "limit"),
            ("metaq_account_largest_address", "What the address has that has most", "largest"),
        ):
            yield _gauge(name, text, "what", ((what, getattr(budget, figure)) for what, budget in budgets))
        refused = CounterMetricFamily("metaq_account_refused", "Refused, or made to wait", labels=["what"])
        for what, budget in budgets:
            refused.add_metric([what], budget.refused)
        yield refused
        unfinished = self._broker.account.unfinished
        yield CounterMetricFamily("metaq_unfinished_cut", "Requests that did not come whole in time", unfinished.cut)

    def _disks(self) -> Iterator[Metric]:
        rooms = self._broker.store.space.rooms()
        families = (
            ("metaq_disk_free_bytes", "Room on a data directory's disk", [room.free for room in rooms]),
            ("metaq_disk_reserve_bytes", "Room below which puts are refused", [room.reserve for room in rooms]),
            ("metaq_disk_takes_puts", "0 while puts are refused for want of room", [room.takes_puts for room in rooms]),
        )
        for name, text, values in families:
            yield _gauge(name, text, "path", zip((room.path for room in rooms), values, strict=True))

    def _journal(self) -> Iterator[Metric]:
        status = self._broker.store.journal_status()
        failed = "1 after a failed write or sync: synchronous puts are refused until a restart"
        yield GaugeMetricFamily("metaq_journal_failed", failed, bool(status.cause))
        yield GaugeMetricFamily("metaq_journal_files", "Files of the journal", status.files)
        yield GaugeMetricFamily("metaq_journal_bytes", "Bytes in the journal's files", status.size_bytes)
        waiting = "Bytes that wait for the next sync"
        yield GaugeMetricFamily("metaq_journal_waiting_bytes", waiting, status.waiting_bytes)

    def _delays(self) -> Iterator[Metric]:
        delays = self._broker.delays
        topics: defaultdict[str, int] = defaultdict(int)
        for (topic, _), count in delays.counts().items():
            topics[topic] += count
        late: defaultdict[str, int] = defaultdict(int)
        for (topic, _), (count, _) in delays.late().items():
            late[topic] += count
        yield _gauge("metaq_delayed_pending", "Messages that wait for their time", "topic", sorted(topics.items()))
        refused = "Messages that are due, and that their partition does not take"
        yield _gauge("metaq_delayed_late", refused, "topic", sorted(late.items()))
        yield GaugeMetricFamily("metaq_delayed_bytes", "Bytes of what waits", delays.live_bytes)
        yield CounterMetricFamily("metaq_delayed_delivered", "Delayed messages delivered", delays.delivered)
        damaged = "Delayed messages that could not be read when they were due"
        yield CounterMetricFamily("metaq_delayed_damaged", damaged, delays.damaged)
        text = "Time from when a message was due to its delivery, of the last deliveries"
        parts = (("50", 0.5), ("99", 0.99), ("100", 1.0))
        lateness = ((name, delays.lateness_ms(part) / 1000) for name, part in parts)
        yield _gauge("metaq_delayed_lateness_seconds", text, "percentile", lateness)

    def _halves(self) -> Iterator[Metric]:
        halves = self._broker.halves
        text = "Half messages: waiting for their producer, asked for, or parked until an operator decides"
        states = sorted((state.value, count) for state, count in halves.states().items())
        yield _gauge("metaq_halves", text, "state", states)
        figures = halves.figures().items()
        for state in ("asked", "parked"):
            counts = ((name, getattr(each, state)) for name, each in figures)
            yield _gauge(f"metaq_halves_{state}", f"Half messages that are {state}", "group", counts)
        askers = ((name, each.askers) for name, each in figures)
        yield _gauge("metaq_halves_askers", "Producers that wait for questions", "group", askers)
        yield CounterMetricFamily("metaq_halves_committed", "Half messages committed", halves.committed)
        yield CounterMetricFamily("metaq_halves_rolled_back", "Half messages rolled back", halves.rolled_back)
        yield CounterMetricFamily("metaq_halves_questions", "Questions for a half message", halves.questions)

    def _filter_failures(self) -> Metric:
        failures = CounterMetricFamily("metaq_filter_failures", "Messages whose filter raised", labels=["filter"])
        for each in self._broker.reading.filters.filters():
            failures.add_metric([each.name], each.failures)
        return failures

    def _topics(self) -> Iterator[Metric]:
        messages: defaultdict[str, int] = defaultdict(int)
        size: defaultdict[str, int] = defaultdict(int)
        partitions: defaultdict[str, int] = defaultdict(int)
        read_only: defaultdict[str, int] = defaultdict(int)
        for log in self._broker.store.logs():
            messages[log.topic] += log.segments.message_count
            size[log.topic] += log.segments.size_bytes
            partitions[log.topic] += 1
            read_only[log.topic] += log.read_only is not None
        families = (
            ("metaq_topic_messages", "Messages kept", messages),
            ("metaq_topic_bytes", "Bytes kept", size),
            ("metaq_topic_partitions", "Partitions with a log", partitions),
            ("metaq_topic_read_only_partitions", "Partitions closed by a failed write or sync", read_only),
        )
        for name, text, values in families:
            yield _gauge(name, text, "topic", sorted(values.items()))

    def _shared(self) -> Iterator[Metric]:
        """Of shared groups."""
        shared = self._broker.shared
        for name, text, value in (
            ("metaq_shared_leased", "Messages leased to shared consumers", shared.leased),
            ("metaq_shared_redelivered", "Messages leased that had been leased before", shared.redelivered),
            ("metaq_shared_acknowledged", "Messages acknowledged by shared consumers", shared.acknowledged),
            ("metaq_shared_late", "Settlements of messages that came too late", shared.refused),
        ):
            yield CounterMetricFamily(name, text, value)
        labels = ["group", "topic"]
        left = GaugeMetricFamily("metaq_shared_left_messages", "Messages that are not acknowledged", labels=labels)
        held = GaugeMetricFamily("metaq_shared_leased_messages", "Messages that members have now", labels=labels)
        figures: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for queue in shared.queues():
            figure = figures[queue.key.group, queue.key.topic]
            figure[0] += messages_left(queue)
            figure[1] += queue.state.leased
        for names, (messages, leased) in figures.items():
            left.add_metric(names, messages)
            held.add_metric(names, leased)
        yield from (left, held)


def _replication(status: ReplicationStatus) -> Iterator[Metric]:
    """Of a broker that takes part in replication; only an asynchronous slave knows partitions."""
    if status.role != "sync-slave":  # it does not follow its master's connection
        text = "1 while connected to the other broker"
        yield _gauge("metaq_replication_connected", text, "role", [(status.role, status.connected)])
    if not status.partitions:
        return
    states = ((state.value, sum(each.state is state for each in status.partitions)) for state in CopyState)
    yield _gauge("metaq_replication_partitions", "Partitions of a slave by state", "state", states)
    lags: defaultdict[str, list[int]] = defaultdict(list)
    for each in status.partitions:
        if each.lag_bytes is not None:  # as every lag is before the master's first answer
            lags[each.topic].append(each.lag_bytes)
    for name, text, figure in (
        ("metaq_replication_lag_bytes", "Bytes not copied yet", sum),
        ("metaq_replication_lag_bytes_max", "Largest of a partition", max),
    ):
        yield _gauge(name, text, "topic", ((topic, figure(values)) for topic, values in sorted(lags.items())))


def _moves(moves: Sequence[MoveFigures]) -> Iterator[Metric]:
    """Of moves of partitions that this broker drives or closes its partitions for."""
    labels = ["topic", "from", "to"]
    state = GaugeMetricFamily("metaq_move_state_seconds", "How long a move is in its state", labels=[*labels, "state"])
    idle = GaugeMetricFamily("metaq_move_idle_seconds", "How long a move has made no progress", labels=labels)
    left = GaugeMetricFamily("metaq_move_left_bytes", "Bytes that a move has to copy still", labels=labels)
    copied = CounterMetricFamily("metaq_move_copied_bytes", "Bytes that a move has copied", labels=labels)
    for each in moves:
        move = each.move
        names = [move.topic, move.name, str(move.target)]
        state.add_metric([*names, move.state.value], each.state_seconds)
        for family, value in ((idle, each.idle_seconds), (left, each.left), (copied, each.copied)):
            if value is not None:
                family.add_metric(names, value)
    yield from (state, idle, left, copied)


def _broker_set(status: ReplicationStatus) -> Iterator[Metric]:
    """Of a node of a broker set; only its leader knows of the others."""
    figures = {name: value for name, value in status.figures.items() if isinstance(value, int)}
    topics = {name: len(value) for name, value in status.figures.items() if isinstance(value, list)}
    yield GaugeMetricFamily("metaq_set_epoch", "Highest epoch that the node has seen", figures["epoch"])
    yield _gauge(
        "metaq_set_role", "1 for what the node is now", "role", ((role, role == status.role) for role in ROLES)
    )
    yield CounterMetricFamily("metaq_set_elections", "Elections that the node has won", figures["elections"])
    yield CounterMetricFamily("metaq_set_hand_overs", "Hand-overs that the node has made", figures["handOvers"])
    if status.nodes is None:
        return
    in_sync = 1 + sum(node.in_sync for node in status.nodes)
    yield GaugeMetricFamily(
        "metaq_set_in_sync_nodes", "Nodes that have all that is acknowledged, the leader too", in_sync
    )
    live = sum(node.live for node in status.nodes)
    yield GaugeMetricFamily("metaq_set_live_followers", "Followers that get each block as it is made", live)
    under = "Topics that fewer nodes have in sync than replicas= says, or than the set has"
    yield GaugeMetricFamily("metaq_set_under_replicated_topics", under, topics["underReplicated"])
    refusing = "Topics that take no messages, because fewer nodes are in sync than minInSync= says"
    yield GaugeMetricFamily("metaq_set_refusing_topics", refusing, topics["refusing"])
    lags = [(node.name, node.lag_bytes, node.lag_seconds) for node in status.nodes]
    for name, text, values in (
        ("metaq_set_lag_bytes", "Bytes that a live follower has not acknowledged", [(n, b) for n, b, _ in lags]),
        ("metaq_set_lag_seconds", "How long ago those were sent", [(n, s) for n, _, s in lags]),
    ):
        yield _gauge(name, text, "node", [(node, value) for node, value in values if value is not None])

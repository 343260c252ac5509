"""The page `/metrics`: the broker's counters and gauges in Prometheus's text format. Each value is read at the moment
when its part of the page is written.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from metaq.protocol.access import Quota
from metaq.protocol.limits import is_utf8

from .. import tuning
from ..assembly.broker import Broker
from ..memory.figures import Metric, Metrics, counter, gauge, gauges
from ..replication.status import CopyState, ReplicationStatus
from ..sets.member_state import ROLES
from .pages import Pieces

if TYPE_CHECKING:
    from ..moving.moves import MoveFigures
    from ..network.tls import Certificates

__all__ = ["CONTENT_TYPE", "TopicTotals", "exposition", "topic_totals"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COMMANDS = ("cmd_put", "cmd_get", "cmd_offset", "get_miss", "put_failed")


@dataclass(slots=True)
class TopicTotals:
    """Four totals of one topic: the number of stored messages, the number of stored bytes, the number of partitions
    with a log, and the number of partitions that are read-only after a failed write or sync.
    """

    messages: int = 0
    size: int = 0
    partitions: int = 0
    read_only: int = 0


def topic_totals(broker: Broker) -> Generator[None, None, Mapping[str, TopicTotals]]:
    """Return the TopicTotals of each topic, by topic. The broker can serve other requests at each `yield`."""
    totals: defaultdict[str, TopicTotals] = defaultdict(TopicTotals)
    for number, log in enumerate(list(broker.store.logs()), 1):
        total = totals[log.topic]
        total.messages += log.segments.message_count
        total.size += log.segments.size_bytes
        total.partitions += 1
        total.read_only += log.read_only is not None
        if not number % tuning.PAGE_LOGS:
            yield
    return totals


def exposition(broker: Broker) -> Pieces:
    """Yield the text of all metrics. Each metric has the values of the moment when it is yielded. Used only on the
    reactor thread. The run time is proportional to the number of partitions and groups.
    """
    for metric in _metrics(broker):
        if metric is None:
            yield None
            continue
        yield f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind}\n"
        for values, number in metric.samples:
            labels = ",".join(sorted(map(_labelled, metric.labels, values)))
            yield f"{metric.name}{f'{{{labels}}}' if labels else ''} {float(number)!r}\n"


def _labelled(label: str, value: str) -> str:
    """Return a label with its value. Invalid UTF-8 is escaped, because it would make the whole page invalid. Two kinds
    of values can have invalid UTF-8: a path in another encoding, and a name that an earlier version of the broker has
    accepted in a message.
    """
    text = value if is_utf8(value) else str(value.encode("utf-8", "backslashreplace"), "utf-8")
    escaped = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{label}="{escaped}"'


def _metrics(broker: Broker) -> Metrics:
    metrics = broker.metrics
    labels = (str(broker.config.broker_id), broker.version)
    yield Metric("metaq_broker_info", "gauge", "1 for a running broker", ("broker_id", "version"), [(labels, 1)])
    yield gauge("metaq_uptime_seconds", "Time since the start", metrics.uptime_seconds)
    yield gauge("metaq_connections", "Connections of clients", broker.connections)
    if broker.listeners:
        opened = [((name,), each.connections) for name, each in broker.listeners.items()]
        yield Metric("metaq_listener_connections", "gauge", "Connections of a listener", ("listener",), opened)
    if broker.registered is not None:
        yield gauge("metaq_registered", "1 while registered in ZooKeeper", broker.registered())
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield gauge("metaq_peak_memory_bytes", "Largest resident memory so far", peak_bytes)
    for name in _COMMANDS:
        yield counter(f"metaq_{name}", f"`{name}` of the stats command", getattr(metrics, name))
    pending = broker.pending_puts
    yield gauge("metaq_pending_put_bytes", "Bytes of puts that wait to be safe", pending.bytes)
    yield gauge("metaq_pending_put_bytes_limit", "Limit of the bytes that wait", pending.limit)
    held_back = "Connections that are not read because too many puts wait"
    yield gauge("metaq_put_connections_held_back", held_back, pending.waiting)
    yield from _account(broker)
    found = "found in segments since the start: bytes that hold no good record"
    yield counter("metaq_damaged_ranges", f"Damaged ranges {found}", metrics.damaged_ranges)
    yield counter("metaq_damaged_bytes", f"Damaged bytes {found}", metrics.damaged_bytes)
    yield from _disks(broker)
    if broker.certificates is not None:
        yield from _certificate(broker.certificates)
    yield from _journal(broker)
    yield _filter_failures(broker)
    yield from _topics(broker)
    for memory in broker.memories:
        yield from memory.metrics()
    if broker.moves is not None:
        yield from _moves(broker.moves.figures())
    if broker.replication is not None:
        status = broker.replication.status()
        if broker.set_report is not None:
            yield from _broker_set(status)
        else:
            yield from _replication(status)


def _account(broker: Broker) -> Metrics:
    budgets = list(broker.account.budgets())
    for name, text, figure in (
        ("metaq_account_used", "The broker's memory and places that clients use", "used"),
        ("metaq_account_limit", "How much they may use, docs/broker.md", "limit"),
        ("metaq_account_largest_address", "How much the address with the highest use has", "largest"),
    ):
        yield gauges(name, text, "what", ((what, getattr(budget, figure)) for what, budget in budgets))
    refused = [((what,), budget.refused) for what, budget in budgets]
    yield Metric("metaq_account_refused_total", "counter", "Refused, or made to wait", ("what",), refused)
    of_quotas = [((str(quota),), broker.account.users.refused[quota]) for quota in Quota if not quota.is_rate]
    yield Metric("metaq_quota_refused_total", "counter", "Refused because of a user's quota", ("quota",), of_quotas)
    rates = broker.account.rates
    of_rates = [((str(quota),), seconds) for quota, seconds in rates.delayed_seconds.items()]
    text = "Seconds for which users were delayed because of a quota; a second counts once for each user"
    yield Metric("metaq_quota_delayed_seconds_total", "counter", text, ("quota",), of_rates)
    yield gauge("metaq_quota_delayed_connections", "Connections that wait because of a quota", rates.waiting)
    unfinished = broker.account.unfinished
    yield counter("metaq_unfinished_cut", "Requests that were not complete in time", unfinished.cut)


def _disks(broker: Broker) -> Metrics:
    rooms = broker.store.space.rooms()
    families = (
        ("metaq_disk_free_bytes", "Room on a data directory's disk", [room.free for room in rooms]),
        ("metaq_disk_reserve_bytes", "Room below which puts are refused", [room.reserve for room in rooms]),
        ("metaq_disk_takes_puts", "0 while puts are refused for want of room", [room.takes_puts for room in rooms]),
    )
    for name, text, values in families:
        yield gauges(name, text, "path", zip((room.path for room in rooms), values, strict=True))


def _certificate(certificates: Certificates) -> Metrics:
    state = certificates.state
    expires = [((state.serial,), state.expires)]
    text = "When the certificate of the port expires, Unix seconds; 0 if it has expired"
    yield Metric("metaq_certificate_expires_seconds", "gauge", text, ("serial",), expires)
    failed = "1 if the certificate's files have changed and cannot be used"
    yield gauge("metaq_certificate_failed", failed, certificates.failure is not None)


def _journal(broker: Broker) -> Metrics:
    status = broker.store.journal_status()
    failed = "1 after a failed write or sync: synchronous puts are refused until a restart"
    yield gauge("metaq_journal_failed", failed, bool(status.cause))
    yield gauge("metaq_journal_files", "Files of the journal", status.files)
    yield gauge("metaq_journal_bytes", "Bytes in the journal's files", status.size_bytes)
    waiting = "Bytes that wait for the next sync"
    yield gauge("metaq_journal_waiting_bytes", waiting, status.waiting_bytes)


def _filter_failures(broker: Broker) -> Metric:
    failures = [((each.name,), each.failures) for each in broker.reading.filters.filters()]
    return Metric("metaq_filter_failures_total", "counter", "Messages whose filter raised", ("filter",), failures)


def _topics(broker: Broker) -> Metrics:
    totals = yield from topic_totals(broker)
    families = (
        ("metaq_topic_messages", "Messages kept", "messages"),
        ("metaq_topic_bytes", "Bytes kept", "size"),
        ("metaq_topic_partitions", "Partitions with a log", "partitions"),
        ("metaq_topic_read_only_partitions", "Partitions closed by a failed write or sync", "read_only"),
    )
    topics = sorted(totals.items(), key=itemgetter(0))
    for name, text, figure in families:
        yield None
        yield gauges(name, text, "topic", ((topic, getattr(each, figure)) for topic, each in topics))


def _replication(status: ReplicationStatus) -> Metrics:
    """Yield the metrics of a broker that takes part in 1.x's replication. Only an asynchronous slave has the metrics
    about the copies of its partitions.
    """
    if status.role != "sync-slave":  # it does not know whether its master is connected
        text = "1 while connected to the other broker"
        yield gauges("metaq_replication_connected", text, "role", [(status.role, status.connected)])
    if not status.partitions:
        return
    states = ((state.value, sum(each.state is state for each in status.partitions)) for state in CopyState)
    yield gauges("metaq_replication_partitions", "Partitions of a slave by state", "state", states)
    lags: defaultdict[str, list[int]] = defaultdict(list)
    for each in status.partitions:
        if each.lag_bytes is not None:  # None before the master's first answer
            lags[each.topic].append(each.lag_bytes)
    for name, text, figure in (
        ("metaq_replication_lag_bytes", "Bytes not copied yet", sum),
        ("metaq_replication_lag_bytes_max", "Largest of a partition", max),
    ):
        yield gauges(name, text, "topic", ((topic, figure(values)) for topic, values in sorted(lags.items())))


def _moves(moves: Sequence[MoveFigures]) -> Metrics:
    """Yield the metrics about moves of partitions. These are the moves to this broker, which it drives, and those moves
    from this broker whose partitions it has already closed.
    """
    named = [((each.move.topic, each.move.name, str(each.move.target)), each) for each in moves]
    labels = ("topic", "from", "to")
    states = [((*names, each.move.state.value), each.state_seconds) for names, each in named]
    yield Metric("metaq_move_state_seconds", "gauge", "How long a move is in its state", (*labels, "state"), states)
    for name, kind, text, values in (
        ("metaq_move_idle_seconds", "gauge", "How long a move has made no progress", [m.idle_seconds for m in moves]),
        ("metaq_move_left_bytes", "gauge", "Bytes that a move still has to copy", [m.left for m in moves]),
        ("metaq_move_copied_bytes_total", "counter", "Bytes that a move has copied", [m.copied for m in moves]),
    ):
        samples = [(names, value) for (names, _), value in zip(named, values, strict=True) if value is not None]
        yield Metric(name, kind, text, labels, samples)


def _broker_set(status: ReplicationStatus) -> Metrics:
    """Yield the metrics of a broker set's node. There are metrics about the other nodes only if this node leads."""
    figures = {name: value for name, value in status.figures.items() if isinstance(value, int)}
    topics = {name: len(value) for name, value in status.figures.items() if isinstance(value, list)}
    yield gauge("metaq_set_epoch", "Highest epoch that the node has seen", figures["epoch"])
    yield gauges(
        "metaq_set_role", "1 for what the node is now", "role", ((role, role == status.role) for role in ROLES)
    )
    yield counter("metaq_set_elections", "Elections that the node has won", figures["elections"])
    yield counter("metaq_set_hand_overs", "Hand-overs that the node has made", figures["handOvers"])
    if status.nodes is None:
        return
    in_sync = 1 + sum(node.in_sync for node in status.nodes)
    yield gauge("metaq_set_in_sync_nodes", "Nodes that have all that is acknowledged, the leader too", in_sync)
    live = sum(node.live for node in status.nodes)
    yield gauge("metaq_set_live_followers", "Followers that get each block as it is made", live)
    under = "Topics that fewer nodes have in sync than replicas= says, or than the set has"
    yield gauge("metaq_set_under_replicated_topics", under, topics["underReplicated"])
    refusing = "Topics that take no messages, because fewer nodes are in sync than minInSync= says"
    yield gauge("metaq_set_refusing_topics", refusing, topics["refusing"])
    lags = [(node.name, node.lag_bytes, node.lag_seconds) for node in status.nodes]
    for name, text, values in (
        ("metaq_set_lag_bytes", "Bytes that a live follower has not acknowledged", [(n, b) for n, b, _ in lags]),
        ("metaq_set_lag_seconds", "How long ago those were sent", [(n, s) for n, _, s in lags]),
    ):
        yield gauges(name, text, "node", [(node, value) for node, value in values if value is not None])

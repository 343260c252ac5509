"""Make the answers to the requests `stats` (text protocol) and STATS (framed protocol): lines with the broker's
counters and states, in the format of metaq 1.x (wire.md §4).
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Generator, Sequence
from operator import attrgetter

from metaq.protocol.remoting import HIDDEN_TOPICS

from .. import tuning
from ..memory.figures import Lines
from ..partitions.counters import KINDS
from ..requests.gate import Sees
from ..store.partition_log import PartitionLog
from .broker import Broker

__all__ = ["ITEMS", "all_lines", "seen", "stats_lines", "stats_text"]

_HELP = (
    "*EMPTY* Returns broker info.",
    "help Returns help menu.",
    "topics Returns topics statistics detail info.",
    "offsets Returns partitions detail info.",
    "realtime Returns realtime statistics detail info.",
    "config Returns broker's config file content.",
)
_HAS_DATA, _UNKNOWN, _EMPTY = 0, 1, 2
_partition = attrgetter("partition")


def stats_text(broker: Broker, item: str, sees: Sees = None) -> Generator[None, None, bytes]:
    """Return the body of the answer to a `stats` request for `item`. `item` is one of the words of `stats`, such as
    `config` or `replication`. If it is none of these words, it is taken as the name of a topic. The body for `access`
    is a JSON object. sees: as for stats_lines. The broker can serve other requests at each `yield`, so each line has
    the values of the moment when it is made. Raises NotLeader if this node stops leading while it makes lines that only
    a leader has.
    """
    if item == "config":
        return broker.config.source
    if item == "access":
        networks = {} if broker.certificates is None else broker.certificates.users_by_address
        account = broker.account
        quotas = {**account.users.report(), "rates": account.rates.report()}
        return json.dumps({**broker.access.report(networks), "quotas": quotas}).encode()
    lines = yield from all_lines(stats_lines(broker, item, sees))
    return "\r\n".join([*lines, ""]).encode("utf-8", "backslashreplace")


def stats_lines(broker: Broker, item: str, sees: Sees = None) -> Lines:
    """Yield the lines about an item, which is any word of `stats` except `config`, or the name of a topic. sees: says
    which topics the items `topics` and `offsets` list; their last line has the number of the others, if there are any.
    Raises NotLeader if this node stops leading while it makes lines that only a leader has.
    """
    yield "STATS"
    if item in _LISTS:
        yield from _LISTS[item](broker, sees)
    elif item in _ITEMS:
        yield from _ITEMS[item](broker)
    elif (memory := next((each for each in broker.memories if each.item == item), None)) is not None:
        yield from memory.lines()
    else:
        yield from _topic_lines(broker, item)
    yield "END"


def all_lines(lines: Lines) -> Generator[None, None, list[str]]:
    """Return all lines as a list. The broker can serve other requests at each `yield`. A line can contain a name that a
    client has chosen, for example the name of a consumer group. Such a name must not be able to add lines to the
    answer; so line ends, and all other characters that cannot be printed, are escaped.
    """
    found = []
    for line in lines:
        if line is not None:
            found.append(line if line.isprintable() else _printable(line))
        if line is None or not len(found) % tuning.STATS_LINES:
            yield
    return found


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _system_lines(broker: Broker) -> Lines:
    metrics = broker.metrics
    yield f"pid {os.getpid()}"
    yield f"broker_id {broker.config.broker_id}"
    yield f"port {broker.port}"
    yield f"uptime {metrics.uptime_seconds}"
    yield f"version {broker.version}"
    yield f"slave {_java(not broker.partitions.takes_puts)}"
    yield f"curr_connections {broker.connections}"
    yield f"threads {threading.active_count()}"
    yield f"cmd_put {metrics.cmd_put}"
    yield f"cmd_get {metrics.cmd_get}"
    yield f"cmd_offset {metrics.cmd_offset}"
    yield f"tx_begin {metrics.tx_begin}"
    yield f"tx_xa_begin {metrics.tx_xa_begin}"
    yield f"tx_commit {metrics.tx_commit}"
    yield f"tx_rollback {metrics.tx_rollback}"
    yield f"get_miss {metrics.get_miss}"
    yield f"put_failed {metrics.put_failed}"
    messages, _ = yield from _sums(list(broker.store.logs()))
    yield f"total_messages {messages}"
    yield f"topics {len(broker.config.topics.keys() | set(broker.partitions.stored_topics()))}"
    yield f"config_checksum {broker.config.checksum}"


def _help_lines(broker: Broker) -> Lines:
    yield from _HELP


def _topics_lines(broker: Broker, sees: Sees) -> Lines:
    every = broker.partitions.stored_topics()
    yield None
    logs = _logs_by_topic(broker)
    yield None
    stored = yield from seen(every, sees)
    for name in stored:
        config = broker.partitions.settings(name)
        messages, size = yield from _sums(logs[name])
        yield (
            f"{name} partitions {len(logs[name])} message_count {messages} message_bytes {size} "
            f"accept_publish {_java(config.accept_publish)} accept_subscribe {_java(config.accept_subscribe)}"
        )
    without_data = sorted(set(broker.config.topics).difference(every))
    empty = yield from seen(without_data, sees)
    yield from (f"{name} *Empty*" for name in empty)
    yield from _hidden(len(every) + len(without_data) - len(stored) - len(empty))


def _offsets_lines(broker: Broker, sees: Sees) -> Lines:
    logs = _logs_by_topic(broker)
    topics = yield from seen(sorted(logs), sees)
    for topic in topics:
        yield None
        for log in sorted(logs[topic], key=_partition):
            yield f"{topic} part {log.partition} min_offset {log.first_offset} max_offset {log.visible_end}"
    yield from _hidden(len(logs) - len(topics))


def seen(topics: Sequence[str], sees: Sees) -> Generator[None, None, Sequence[str]]:
    """Return those of these topics that the asker may see. The broker can serve other requests at each `yield`."""
    if sees is None:
        return topics
    found = []
    for number, topic in enumerate(topics, 1):
        if sees(topic):
            found.append(topic)
        if not number % tuning.STATS_LINES:
            yield
    return found


def _hidden(count: int) -> Lines:
    if count:
        yield f"{HIDDEN_TOPICS} topics {count}"


def _realtime_lines(broker: Broker) -> Lines:
    for kind in KINDS:
        yield f"realtime_{kind} {broker.metrics.realtime(kind)}"


def _reset_lines(broker: Broker) -> Lines:
    broker.metrics.reset()
    yield "reset ok"


def _replication_lines(broker: Broker) -> Lines:
    """Yield the lines of the item `replication`. metaq 1.x does not have this item. The answer to `stats help` is the
    text of 1.x, so it does not mention this item.
    """
    yield from broker.replication_status().lines()


def _disk_lines(broker: Broker) -> Lines:
    """Yield a line about each data directory. metaq 1.x does not have this item."""
    for room in broker.store.space.rooms():
        yield f"{room.path} free_bytes {room.free} reserve_bytes {room.reserve} takes_puts {_java(room.takes_puts)}"


def _certificate_lines(broker: Broker) -> Lines:
    """Yield lines about the certificate of the broker's port. metaq 1.x does not have this item."""
    certificates = broker.certificates
    yield f"tls {_java(certificates is not None)}"
    if certificates is not None:
        state = certificates.state
        yield f"certificate {state.path}"
        yield f"name {state.name}"
        yield f"serial {state.serial}"
        yield f"expires {int(state.expires)}"
        if certificates.failure is not None:
            yield f"failure {certificates.failure}"


def _journal_lines(broker: Broker) -> Lines:
    """Yield lines that say which partitions are read-only, and whether the journal works. While the journal does not
    work, puts to partitions with group commit cannot become safe. metaq 1.x does not have this item.
    """
    status = broker.store.journal_status()
    yield f"state {'failed' if status.cause else 'ok'}"
    if status.cause:
        yield f"cause {status.cause}"
    with_group_commit, closed = 0, []
    for number, log in enumerate(list(broker.store.logs()), 1):
        with_group_commit += log.has_group_commit
        if log.read_only:
            closed.append((log.topic, log.partition, log.read_only))
        if not number % tuning.STATS_LINES:
            yield None
    yield f"partitions {with_group_commit}"
    yield f"files {status.files}"
    yield f"bytes {status.size_bytes}"
    yield f"waiting_appends {status.waiting}"
    yield f"waiting_bytes {status.waiting_bytes}"
    yield f"read_only_partitions {len(closed)}"
    for topic, partition, cause in sorted(closed)[: tuning.STATS_NAMED]:
        yield f"read_only:{topic}-{partition} {cause}"


def _topic_lines(broker: Broker, topic: str) -> Lines:
    logs = [log for log in broker.store.logs() if log.topic == topic]
    yield None
    messages, size = yield from _sums(logs)
    yield topic
    yield f"resultCode {_HAS_DATA if logs else _EMPTY if topic in broker.config.topics else _UNKNOWN}"
    yield f"partitions {len(logs)}"
    yield f"message_count {messages}"
    yield f"bytes {size}"
    for kind in KINDS:
        yield f"topic_realtime_{kind} {broker.metrics.realtime(kind, topic)}"


def _logs_by_topic(broker: Broker) -> defaultdict[str, list[PartitionLog]]:
    logs: defaultdict[str, list[PartitionLog]] = defaultdict(list)
    for log in broker.store.logs():
        logs[log.topic].append(log)
    return logs


def _sums(logs: Sequence[PartitionLog]) -> Generator[None, None, tuple[int, int]]:
    """Return the total number of messages and the total number of bytes in these logs. The broker can serve other
    requests at each `yield`.
    """
    messages = size = 0
    for number, log in enumerate(logs, 1):
        messages += log.segments.message_count
        size += log.segments.size_bytes
        if not number % tuning.STATS_LINES:
            yield
    return messages, size


def _java(value: bool) -> str:
    return "true" if value else "false"


def _listener_lines(broker: Broker) -> Lines:
    for name, listener in broker.listeners.items():
        yield f"{name}_port {listener.port}"
        yield f"{name}_connections {listener.connections}"
        yield f"{name}_refused {listener.refused}"


_ITEMS = {
    "": _system_lines,
    "help": _help_lines,
    "realtime": _realtime_lines,
    "reset": _reset_lines,
    "replication": _replication_lines,
    "certificate": _certificate_lines,
    "listeners": _listener_lines,
    "disk": _disk_lines,
    "journal": _journal_lines,
}
_LISTS = {"topics": _topics_lines, "offsets": _offsets_lines}
ITEMS = frozenset((*_ITEMS, *_LISTS))
"""The items of `stats` about the whole broker, without those of the kinds of messages."""

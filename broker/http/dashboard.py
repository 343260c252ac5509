"""The operator's pages on dashboardHttpPort (semantics.md §7), each as HTML and, if asked for, as JSON."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import quote

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from metaq.coordination.brokers import ClusterView
from metaq.coordination.offset_store import ZooKeeperOffsetStore
from metaq.coordination.records import Offset
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import AccountSpent, CoordinationError, InvalidName, MetaqError
from metaq.protocol.limits import check_group

from ..account import NOBODY
from ..broker import Broker
from ..requests.gate import Gate, HttpPeer, PageRequest
from ..requests.stats import stats_text
from ..runtime.turns import in_turns
from ..store.partition_log import PartitionLog
from .metrics import CONTENT_TYPE_LATEST, exposition
from .pages import Button, Page, Table, Text, to_html, to_json

__all__ = ["Dashboard", "RecentLog"]

_log = logging.getLogger(__name__)

_KEPT_LINES = 500

_UNKNOWN_ID = 0
"""What 1.x's dashboard writes as the id of the last message when it skips."""

T = TypeVar("T")

View: TypeAlias = "Page | bytes | Deferred[Page]"
"""bytes: as they are, with their type set already."""


class RecentLog(logging.Handler):
    """The last lines of the process's log. Any thread."""

    def __init__(self, lines: int = _KEPT_LINES) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=lines)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Makes the content of the pages. Reactor thread.

    session: the broker's ZooKeeper session, or None without ZooKeeper. log: the handler that keeps the last lines.
    """

    broker: Broker
    gate: Gate
    session: Callable[[], ZkSession | None]
    log: RecentLog

    def resource(self) -> Resource:
        """The root of the site."""
        return _Root(self)

    # --- pages --------------------------------------------------------------------------------------------------------

    def index(self) -> Deferred[Page]:
        return ensureDeferred(self._index())

    async def _index(self) -> Page:
        broker = self.broker
        lines = (await self._stats("")).decode("utf-8", "replace").split("\r\n")[1:-2]
        rows = [tuple(line.split(" ", 1)) for line in lines]
        rows += [("url", broker.url), ("data", ", ".join(broker.store.data_paths)), ("working_directory", os.getcwd())]
        return Page(f"Broker {broker.config.broker_id}", [Table(("figure", "value"), rows), *self._broker_set()])

    def topics(self) -> Page:
        config = self.broker.partitions
        rows = [
            (
                topic,
                len(logs),
                sum(log.segments.message_count for log in logs),
                sum(log.segments.size_bytes for log in logs),
                settings.accept_publish,
                settings.accept_subscribe,
            )
            for topic, settings in config.stored_topics().items()
            for logs in [self._logs(topic)]
        ]
        stored = {row[0] for row in rows}
        empty = sorted(set(self.broker.config.topics) - stored)
        columns = ("topic", "partitions", "messages", "bytes", "accept_publish", "accept_subscribe")
        table = Table(columns, rows, links={"topic": "/topics/"})
        return Page("Topics", [table, Text("\n".join(empty) or "none", "Configured, without data")])

    def topic(self, topic: str, group: str) -> View:
        logs = self._logs(topic)
        if not logs:
            return Page("Topic", [Text(f"{topic}: there is no such topic, or it has no data yet")], status=404)
        rows = [
            (log.partition, log.first_offset, log.visible_end, log.segments.message_count, log.segments.size_bytes)
            for log in logs
        ]
        table = Table(("partition", "min_offset", "max_offset", "messages", "bytes"), rows, "Partitions")
        note = "Add ?group=NAME to the address to see how far a consumer group is."
        if not group:
            return Page(f"Topic {topic}", [table], note)
        return ensureDeferred(self._progress(topic, group, logs, table))

    async def _progress(self, topic: str, group: str, logs: list[PartitionLog], table: Table) -> Page:
        check_group(group)
        session = self._require_session()
        broker_id = self.broker.config.broker_id
        partitions = [log.partition for log in logs]
        progress = await self._in_thread(lambda: _group_progress(session, group, topic, broker_id, partitions))
        rows, actions = [], []
        for log, (partition, committed, owner) in zip(logs, progress, strict=True):
            offset = log.first_offset if committed is None else committed
            behind = log.lookup.messages_behind(offset)
            rows.append((partition, committed, max(0, log.visible_end - offset), max(0, behind), owner))
            path = f"/topics/{quote(topic, '')}/groups/{quote(group, '')}/partitions/{partition}/skip"
            actions.append(None if owner else Button("skip pending", path))
        columns = ("partition", "committed", "bytes behind", "messages behind", "owner")
        return Page(f"Topic {topic}", [table, Table(columns, rows, f"Group {group}", actions=actions)])

    def cluster(self) -> Deferred[Page]:
        return ensureDeferred(self._cluster())

    async def _cluster(self) -> Page:
        session = self._require_session()
        rows = await self._in_thread(lambda: _live_brokers(session))
        return Page("Cluster", [Table(("broker", "role", "address"), rows)], f"This broker: {self.broker.url}")

    def _broker_set(self) -> list[Table]:
        """What this node of a broker set says of itself, and of the others if it leads."""
        report = self.broker.set_report
        if report is None:
            return []
        status = report.status()
        figures = [("role", status.role), *status.figures.items(), ("error", status.error)]
        rows = [(name, ", ".join(value) if isinstance(value, list) else str(value)) for name, value in figures]
        tables = [Table(("figure", "value"), rows, "This node of the broker set")]
        if status.nodes is not None:
            columns = ("name", "inSync", "live", "lagBytes", "lagSeconds", "error")
            told = [each.to_json() for each in status.nodes]
            cells = [["unknown" if each[name] is None else str(each[name]) for name in columns] for each in told]
            tables.append(Table(columns, cells, "Followers"))
        return tables

    def stats(self, item: str) -> Deferred[Page]:
        return self._stats(item).addCallback(
            lambda body: Page("Stats", [Text(body.decode("utf-8", "replace").replace("\r\n", "\n"), item or "broker")])
        )

    def _stats(self, item: str) -> Deferred[bytes]:
        return in_turns(self.broker.reactor, stats_text(self.broker, item))

    def config(self) -> Page:
        source = self.broker.config.source.decode("utf-8", "replace")
        return Page("Config", [Text(source)], actions=[Button("reload server.ini", "/reload-config")])

    def logging(self) -> Page:
        return Page("Log", [Text(self.log.text)])

    def thread_dump(self) -> Page:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = [
            Text("".join(traceback.format_stack(frame)), f"{names.get(ident, '?')} ({ident})")
            for ident, frame in sys._current_frames().items()
        ]
        return Page("Threads", stacks)

    def properties(self) -> Page:
        """1.x's /java-properties: the run time, without the environment, which may hold secrets."""
        rows = [
            ("python", sys.version.split()[0]),
            ("implementation", platform.python_implementation()),
            ("platform", "-".join(os.uname()[::2])),  # platform.platform() would start a process
            ("processors", os.cpu_count()),
            ("pid", os.getpid()),
            ("arguments", " ".join(sys.argv)),
            ("time zone", time.tzname[0]),
        ]
        return Page("Properties", [Table(("property", "value"), rows)])

    # --- what changes something ---------------------------------------------------------------------------------------

    async def reload_config(self) -> Page:
        return Page("Reload", [Text(str(await self.broker.reload_config()))])

    async def skip(self, topic: str, group: str, partition: str) -> Page:
        session = self._require_session()
        check_group(group)
        log = next((each for each in self._logs(topic) if str(each.partition) == partition), None)
        if log is None:
            return Page("Skip", [Text(f"{topic}-{partition}: there is no such partition here")], status=404)
        broker_id, end = self.broker.config.broker_id, log.visible_end
        await self._in_thread(lambda: _skip_pending(session, group, topic, broker_id, log.partition, end))
        return Page("Skip", [Text(f"group {group} continues at {end} in partition {broker_id}-{partition} of {topic}")])

    # --- parts --------------------------------------------------------------------------------------------------------

    def _logs(self, topic: str) -> list[PartitionLog]:
        logs = (log for log in self.broker.store.logs() if log.topic == topic)
        return sorted(logs, key=lambda log: log.partition)

    async def _in_thread(self, asks: Callable[[], T]) -> T:
        """The result of a function that asks ZooKeeper. Raises AccountSpent while too many pages wait for theirs: they
        would keep the threads from syncing messages while ZooKeeper is silent."""
        pages = self.broker.account.pages
        pages.check(NOBODY)
        try:
            return await self.broker.in_thread(asks)
        finally:
            pages.add(NOBODY, -1)

    def _require_session(self) -> ZkSession:
        session = self.session()
        if session is None:
            raise MetaqError("this broker runs without ZooKeeper (zk.zkEnable=false)")
        return session


class _Root(Resource):
    """From an address to its page."""

    isLeaf = True  # noqa: N815

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self._dashboard = dashboard
        self._pages: Mapping[str, Callable[[], View]] = {
            "": dashboard.index,
            "dashboard": dashboard.index,
            "topics": dashboard.topics,
            "cluster": dashboard.cluster,
            "config": dashboard.config,
            "logging": dashboard.logging,
            "thread-dump": dashboard.thread_dump,
            "properties": dashboard.properties,
            "java-properties": dashboard.properties,
        }

    def render_GET(self, request: Request) -> bytes | int:  # noqa: N802
        words = _words(request)
        return self._show(request, words, lambda: self._view(words, request), changes=False)

    render_HEAD = render_GET  # noqa: N815

    def render_POST(self, request: Request) -> bytes | int:  # noqa: N802
        words = _words(request)
        return self._show(request, words, lambda: self._change(words, request), changes=True)

    def _show(self, request: Request, words: list[str], show: Callable[[], View], *, changes: bool) -> bytes | int:
        """Through the gate."""
        peer = HttpPeer(cast(Any, request.getClientAddress()).host)
        asked = PageRequest(words, changes, words[1] if words[:1] == ["topics"] and len(words) > 1 else None, show)
        try:
            shown = cast(View, self._dashboard.gate.admit(asked, peer).serve(asked, peer))
        except MetaqError:
            shown = _failed(Failure())
        if isinstance(shown, Deferred):
            return _show_later(request, shown)
        return shown if isinstance(shown, bytes) else _write(request, shown)

    def _view(self, words: list[str], request: Request) -> View:
        if words == ["metrics"]:
            request.setHeader("content-type", CONTENT_TYPE_LATEST)
            return exposition(self._dashboard.broker)
        if words[:1] == ["stats"] and len(words) <= 2:
            return self._dashboard.stats(words[1] if len(words) == 2 else "")
        if words[:1] == ["topics"] and len(words) == 2:
            group = cast(dict[bytes, list[bytes]], request.args).get(b"group", [b""])[0]
            return self._dashboard.topic(words[1], group.decode("utf-8", "replace"))
        page = self._pages.get("/".join(words))
        return page() if page else _not_found()

    def _change(self, words: list[str], request: Request) -> View:
        if words == ["reload-config"]:
            return ensureDeferred(self._dashboard.reload_config())
        match words:
            case ["topics", topic, "groups", group, "partitions", partition, "skip"]:
                return ensureDeferred(self._dashboard.skip(topic, group, partition))
        return _not_found()


def _words(request: Request) -> list[str]:
    return [word.decode("utf-8", "replace") for word in cast(list[bytes], request.postpath) if word]


def _not_found() -> Page:
    return Page("Not found", [Text("there is no such page")], status=404)


def _show_later(request: Request, shown: Deferred[Page]) -> int:
    gone = request.notifyFinish()
    gone.addErrback(lambda _: None)  # the browser left; its page is dropped

    def finish(page: Page) -> None:
        if not gone.called:
            body = _write(request, page)
            request.setHeader("content-length", str(len(body)))
            request.write(body)
            request.finish()

    shown.addErrback(_failed).addCallback(finish)
    return NOT_DONE_YET


def _failed(failure: Failure) -> Page:
    error = failure.value
    if isinstance(error, InvalidName):
        return Page("Wrong name", [Text(str(error))], status=400)
    if isinstance(error, AccountSpent):
        return Page("Busy", [Text(str(error))], status=503)
    if isinstance(error, MetaqError):
        return Page("Refused", [Text(str(error))], status=409)
    _log.error("a page of the dashboard failed", exc_info=cast(Any, error))
    return Page("Failed", [Text(f"internal error: {type(error).__name__}")], status=500)


def _write(request: Request, page: Page) -> bytes:
    request.setResponseCode(page.status)
    request.setHeader("x-frame-options", "DENY")
    request.setHeader("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
    wanted = (request.getHeader("accept") or "") + (request.getHeader("content-type") or "")
    if "application/json" in wanted:
        request.setHeader("content-type", "application/json; charset=utf-8")
        return to_json(page)
    request.setHeader("content-type", "text/html; charset=utf-8")
    return to_html(page)


# --- what waits for ZooKeeper: worker threads only --------------------------------------------------------------------


class _PartitionProgress(NamedTuple):
    """committed: a byte offset, None if the group never committed one. owner: a consumer id, "" for none."""

    partition: int
    committed: int | None
    owner: str


class _PartitionOwned(CoordinationError):
    """The group reads the partition at the moment."""


def _live_brokers(session: ZkSession) -> list[tuple[int, str, str]]:
    """(broker id, master or slave<n>, host:port) of every live process."""
    found = []
    for broker_id, nodes in ClusterView(session).brokers().items():
        for address in ([nodes.master] if nodes.master else []) + list(nodes.slaves):
            role = "master" if address.slave_id is None else f"slave{address.slave_id}"
            found.append((broker_id, role, f"{address.host}:{address.port}"))
    return found


def _group_progress(
    session: ZkSession, group: str, topic: str, broker_id: int, partitions: Sequence[int]
) -> list[_PartitionProgress]:
    """One entry per partition of this broker. Raises CoordinationError."""
    names = [f"{broker_id}-{partition}" for partition in partitions]
    offsets = ZooKeeperOffsetStore(session).load_many(group, [(topic, name) for name in names])
    owners = ClusterView(session).owners(group, topic)
    return [
        _PartitionProgress(partition, offset.offset if offset else None, owners.get(name, ""))
        for partition, name, offset in zip(partitions, names, offsets, strict=True)
    ]


def _skip_pending(session: ZkSession, group: str, topic: str, broker_id: int, partition: int, end: int) -> None:
    """Set the group's offset to `end`. Raises _PartitionOwned while a consumer has the partition, CoordinationError."""
    name = f"{broker_id}-{partition}"
    if owner := ClusterView(session).owners(group, topic).get(name):
        raise _PartitionOwned(f"partition {name} of {topic} is owned by {owner}: stop the consumers of {group} first")
    ZooKeeperOffsetStore(session).commit(group, {(topic, name): Offset(_UNKNOWN_ID, end)}, None)

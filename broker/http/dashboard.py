"""The operators' pages on dashboardHttpPort (semantics.md §7). Each page is sent as HTML or, on request, as JSON."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import quote

from twisted.internet.defer import Deferred, ensureDeferred, fail, maybeDeferred
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.offsets.offset_store import ZooKeeperOffsetStore
from metaq.coordination.records.payloads import Offset
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import AccessRefused, AccountSpent, CoordinationError, InvalidName, MetaqError
from metaq.protocol.limits import check_group

from ..assembly.broker import Broker
from ..assembly.stats import all_lines, seen, stats_lines
from ..requests.gate import Gate, HttpPeer, PageRequest, Sees
from ..runtime.account import NOBODY, account_address
from ..store.partition_log import PartitionLog
from .browsers import header_of
from .metrics import CONTENT_TYPE, TopicTotals, exposition, topic_totals
from .pages import Button, Cell, Page, Table, Text, to_html, to_json
from .peers import host_of, peer_of, refusal_status
from .sheets import Sheet, write_sheet

__all__ = ["Dashboard", "RecentLog"]

_log = logging.getLogger(__name__)

_KEPT_LINES = 500

_UNKNOWN_ID = 0
"""When an operator makes a consumer group skip messages, the group's new offset is written to ZooKeeper. An offset in
ZooKeeper has a message id, too; as in 1.x's dashboard, this number is written as the id, because the id of the next
message is not known.
"""

T = TypeVar("T")

View: TypeAlias = "Page | Sheet | Deferred[Page]"


class RecentLog(logging.Handler):
    """A logging handler that keeps the last lines of the process's log in memory, for the page that shows them. Any
    thread may use the handler.
    """

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
    """Creates the content of the operators' pages. Used only on the reactor thread.

    session: returns the broker's ZooKeeper session, or None without ZooKeeper. log: the handler with the log's last
    lines.
    """

    broker: Broker
    gate: Gate
    session: Callable[[], ZkSession | None]
    log: RecentLog

    def resource(self) -> Resource:
        """Return the root resource of the site."""
        return _Root(self)

    # --- pages --------------------------------------------------------------------------------------------------------

    def index(self) -> Deferred[Page]:
        return ensureDeferred(self._index())

    async def _index(self) -> Page:
        broker = self.broker
        lines = await self._in_turns(all_lines(stats_lines(broker, "")))
        rows = [tuple(line.split(" ", 1)) for line in lines[1:-1]]
        rows += [("url", broker.url), ("data", ", ".join(broker.store.data_paths)), ("working_directory", os.getcwd())]
        return Page(f"Broker {broker.config.broker_id}", [Table(("figure", "value"), rows), *self._broker_set()])

    def topics(self, sees: Sees = None) -> Deferred[Page]:
        return ensureDeferred(self._topics(sees))

    async def _topics(self, sees: Sees) -> Page:
        totals = await self._in_turns(topic_totals(self.broker))
        partitions = self.broker.partitions
        every = partitions.stored_topics()
        without_data = sorted(set(self.broker.config.topics).difference(every))
        stored = await self._in_turns(seen(every, sees))
        configured = await self._in_turns(seen(without_data, sees))
        hidden = len(every) + len(without_data) - len(stored) - len(configured)

        def cells(topic: str) -> Sequence[Cell]:
            total, settings = totals.get(topic, TopicTotals()), partitions.settings(topic)
            accepts = settings.accept_publish, settings.accept_subscribe
            return topic, total.partitions, total.messages, total.size, *accepts

        columns = ("topic", "partitions", "messages", "bytes", "accept_publish", "accept_subscribe")
        table = Table(columns, stored, cells=cells, links={"topic": "/topics/"})
        empty = [f"{topic}\n" for topic in configured]
        note = f"{hidden} topics are not shown, because you lack the grant to see them." if hidden else ""
        return Page("Topics", [table, Text(empty or ["none"], "Configured, without data")], note)

    def topic(self, topic: str, group: str) -> Page | Deferred[Page]:
        logs = self._logs(topic)
        if not logs:
            return Page("Topic", [Text([f"{topic}: there is no such topic, or it has no data yet"])], status=404)
        columns = ("partition", "min_offset", "max_offset", "messages", "bytes")
        table = Table(columns, logs, "Partitions", cells=_partition_cells)
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

        def cells(row: tuple[PartitionLog, _PartitionProgress]) -> Sequence[Cell]:
            log, (partition, committed, owner) = row
            offset = log.first_offset if committed is None else committed
            behind = log.lookup.messages_behind(offset)
            return partition, committed, max(0, log.visible_end - offset), max(0, behind), owner

        def action(row: tuple[PartitionLog, _PartitionProgress]) -> Button | None:
            log, (_, _, owner) = row
            path = f"/topics/{quote(topic, '')}/groups/{quote(group, '')}/partitions/{log.partition}/skip"
            return None if owner else Button("skip pending", path)

        columns = ("partition", "committed", "bytes behind", "messages behind", "owner")
        rows = list(zip(logs, progress, strict=True))
        groups = Table(columns, rows, f"Group {group}", cells=cells, action=action)
        return Page(f"Topic {topic}", [table, groups], query={"group": group})

    def cluster(self) -> Deferred[Page]:
        return ensureDeferred(self._cluster())

    async def _cluster(self) -> Page:
        session = self._require_session()
        rows = await self._in_thread(lambda: _live_brokers(session))
        return Page("Cluster", [Table(("broker", "role", "address"), rows)], f"This broker: {self.broker.url}")

    def _broker_set(self) -> list[Table]:
        """Return tables about this node of a broker set. If this node leads, the tables are also about the other nodes
        of the set.
        """
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

    def stats(self, item: str, sees: Sees = None) -> Page:
        if item == "config":
            return Page("Stats", [Text([self._source()], item)])
        lines = (None if line is None else f"{line}\n" for line in stats_lines(self.broker, item, sees))
        return Page("Stats", [Text(lines, item or "broker")])

    def config(self) -> Page:
        return Page("Config", [Text([self._source()])], actions=[Button("reload server.ini", "/reload-config")])

    def _source(self) -> str:
        return self.broker.config.source.decode("utf-8", "replace")

    def logging(self) -> Page:
        return Page("Log", [Text([self.log.text])])

    def thread_dump(self) -> Page:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = [
            Text(traceback.format_stack(frame), f"{names.get(ident, '?')} ({ident})")
            for ident, frame in sys._current_frames().items()
        ]
        return Page("Threads", stacks)

    def properties(self) -> Page:
        """Return the page for 1.x's /java-properties. The page shows facts about Python and the machine. It does not
        show the environment variables, because they can contain secrets.
        """
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
        return Page("Reload", [Text([str(await self.broker.reload_config())])])

    async def skip(self, topic: str, group: str, partition: str) -> Page:
        session = self._require_session()
        check_group(group)
        log = next((each for each in self._logs(topic) if str(each.partition) == partition), None)
        if log is None:
            return Page("Skip", [Text([f"{topic}-{partition}: there is no such partition here"])], status=404)
        broker_id, end = self.broker.config.broker_id, log.visible_end
        await self._in_thread(lambda: _skip_pending(session, group, topic, broker_id, log.partition, end))
        done = f"group {group} continues at {end} in partition {broker_id}-{partition} of {topic}"
        return Page("Skip", [Text([done])])

    # --- parts --------------------------------------------------------------------------------------------------------

    def _logs(self, topic: str) -> list[PartitionLog]:
        logs = (log for log in self.broker.store.logs() if log.topic == topic)
        return sorted(logs, key=lambda log: log.partition)

    async def _in_turns(self, work: Generator[None, None, T]) -> T:
        """Run a generator and return its result. At each `yield` of the generator the reactor can serve other requests
        before the generator continues.
        """
        while True:
            try:
                next(work)
            except StopIteration as end:
                return cast(T, end.value)
            await self.broker.turns.turn(NOBODY)

    async def _in_thread(self, asks: Callable[[], T]) -> T:
        """Run a function in a worker thread and return its result; the function sends requests to ZooKeeper. Raises
        AccountSpent if too many pages wait for ZooKeeper. The worker threads must also sync messages. Without this
        limit, waiting pages could occupy all of them while ZooKeeper does not answer.
        """
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
    """The root resource of the dashboard; it finds the page for a URL."""

    isLeaf = True  # noqa: N815

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self._dashboard = dashboard
        self._pages: Mapping[str, Callable[[], View]] = {
            "": dashboard.index,
            "dashboard": dashboard.index,
            "cluster": dashboard.cluster,
            "config": dashboard.config,
            "logging": dashboard.logging,
            "thread-dump": dashboard.thread_dump,
            "properties": dashboard.properties,
            "java-properties": dashboard.properties,
        }

    def render_GET(self, request: Request) -> int:  # noqa: N802
        words = _words(request)
        return self._show(request, words, lambda peer: self._view(words, request, peer), changes=False)

    render_HEAD = render_GET  # noqa: N815

    def render_POST(self, request: Request) -> int:  # noqa: N802
        words = _words(request)
        return self._show(request, words, lambda peer: self._change(words, request), changes=True)

    def _show(self, request: Request, words: list[str], show: Callable[[HttpPeer], View], *, changes: bool) -> int:
        """Make a page and send it, if the gate admits the request. If too many other pages are being made or sent at
        this moment, refuse the request. show(peer): makes the page for this sender.
        """
        host = host_of(request)
        address = account_address(host)
        shown_pages = self._dashboard.broker.account.shown_pages
        gone = cast("Deferred[object]", request.notifyFinish())
        admit = self._dashboard.gate.admit

        def write(view: Deferred[Page | Sheet]) -> None:
            view.addErrback(_failed).addCallback(self._write, request, address, gone)

        def make() -> None:
            if not gone.called:
                write(maybeDeferred(serve))

        def serve() -> Any:
            peer = None
            try:
                peer = peer_of(request, self._dashboard.broker.logins)
                asked = PageRequest(words, changes, partial(show, peer))
                return admit(asked, peer).serve(asked, peer)
            except AccessRefused as error:
                return Page("Refused", [Text([str(error)])], status=refusal_status(request, peer))

        if shown_pages.take(address):
            gone.addBoth(lambda _: shown_pages.add(address, -1))
            self._dashboard.broker.turns.do(make, address)
        else:
            gone.addErrback(lambda _: None)
            write(fail(AccountSpent(shown_pages.refusal(address))))
        return NOT_DONE_YET

    def _write(self, view: Page | Sheet, request: Request, address: str, gone: Deferred[object]) -> None:
        if not gone.called:  # otherwise the browser has left, and its page is dropped
            sheet = view if isinstance(view, Sheet) else _sheet(view, request)
            turns = self._dashboard.broker.turns
            write_sheet(turns, address, request, sheet, lambda failure: _sheet(_failed(failure), request))

    def _view(self, words: list[str], request: Request, peer: HttpPeer) -> View:
        sees = self._dashboard.gate.sees(peer)
        if words == ["metrics"]:
            return Sheet(CONTENT_TYPE, exposition(self._dashboard.broker))
        if words[:1] == ["stats"] and len(words) <= 2:
            return self._dashboard.stats(words[1] if len(words) == 2 else "", sees)
        if words == ["topics"]:
            return self._dashboard.topics(sees)
        if words[:1] == ["topics"] and len(words) == 2:
            return self._dashboard.topic(words[1], _argument(request, b"group"))
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
    return Page("Not found", [Text(["there is no such page"])], status=404)


def _argument(request: Request, name: bytes) -> str:
    """Return an argument in the URL's query, or "" if it is missing."""
    return cast(dict[bytes, list[bytes]], request.args).get(name, [b""])[0].decode("utf-8", "replace")


def _partition_cells(log: PartitionLog) -> Sequence[Cell]:
    segments = log.segments
    return log.partition, log.first_offset, log.visible_end, segments.message_count, segments.size_bytes


def _failed(failure: Failure) -> Page:
    error = failure.value
    if isinstance(error, InvalidName):
        return Page("Wrong name", [Text([str(error)])], status=400)
    if isinstance(error, AccountSpent):
        return Page("Busy", [Text([str(error)])], status=503)
    if isinstance(error, MetaqError):
        return Page("Refused", [Text([str(error)])], status=409)
    _log.error("a page of the dashboard failed", exc_info=cast(Any, error))
    return Page("Failed", [Text([f"internal error: {type(error).__name__}"])], status=500)


def _sheet(page: Page, request: Request) -> Sheet:
    """Return the page as HTML, or as JSON if the request asks for it."""
    wanted = (header_of(request, "accept") or "") + (header_of(request, "content-type") or "")
    if "application/json" in wanted:
        return Sheet("application/json; charset=utf-8", to_json(page), page.status)
    first = _argument(request, b"from")
    number = int(first) if first.isascii() and first.isdigit() and len(first) < 10 else 0
    return Sheet("text/html; charset=utf-8", to_html(page, number), page.status)


# --- what waits for ZooKeeper: worker threads only --------------------------------------------------------------------


class _PartitionProgress(NamedTuple):
    """A consumer group's progress in one partition. committed: the committed byte offset, or None if the group has
    never committed an offset. owner: the id of the consumer that owns the partition, or "" if no consumer owns it.
    """

    partition: int
    committed: int | None
    owner: str


class _PartitionOwned(CoordinationError):
    """Raised if an operator wants to change the offset of a consumer group in a partition, and a consumer of this group
    owns the partition now.
    """


def _live_brokers(session: ZkSession) -> list[tuple[int, str, str]]:
    """Return (broker id, "master" or "slave<n>", host:port) for every live broker process."""
    found = []
    for broker_id, nodes in ClusterView(session).brokers().items():
        for address in ([nodes.master] if nodes.master else []) + list(nodes.slaves):
            role = "master" if address.slave_id is None else f"slave{address.slave_id}"
            found.append((broker_id, role, f"{address.host}:{address.port}"))
    return found


def _group_progress(
    session: ZkSession, group: str, topic: str, broker_id: int, partitions: Sequence[int]
) -> list[_PartitionProgress]:
    """Read from ZooKeeper the consumer group's progress in each of these partitions of a broker. Raises
    CoordinationError.
    """
    names = [f"{broker_id}-{partition}" for partition in partitions]
    offsets = ZooKeeperOffsetStore(session).load_many(group, [(topic, name) for name in names])
    owners = ClusterView(session).owners(group, topic)
    return [
        _PartitionProgress(partition, offset.offset if offset else None, owners.get(name, ""))
        for partition, name, offset in zip(partitions, names, offsets, strict=True)
    ]


def _skip_pending(session: ZkSession, group: str, topic: str, broker_id: int, partition: int, end: int) -> None:
    """Set the consumer group's offset in a partition to `end`, so that the group skips all pending messages. Raises
    _PartitionOwned while a consumer owns the partition. Raises CoordinationError.
    """
    name = f"{broker_id}-{partition}"
    if owner := ClusterView(session).owners(group, topic).get(name):
        raise _PartitionOwned(f"partition {name} of {topic} is owned by {owner}: stop the consumers of {group} first")
    ZooKeeperOffsetStore(session).commit(group, {(topic, name): Offset(_UNKNOWN_ID, end)}, None)

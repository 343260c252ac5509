"""The gateway and the dashboard, through twisted.web's own parser: bytes of a request in, bytes of the answer out."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import simplejson
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from metaq.broker.assembly.verbs import make_gate
from metaq.broker.configuration.reload_plan import ReloadReport
from metaq.broker.http.browsers import OwnNames
from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.http.gateway import Gateway
from metaq.broker.http.pages import Page, Table, to_html
from metaq.broker.http.ports import GuardedSite
from metaq.broker.http.sheets import encoded
from metaq.broker.replication.status import CopyState, NodeStatus, PartitionStatus, ReplicationStatus, SyncSlave
from metaq.broker.requests.put import PutGroup
from metaq.broker.runtime.account import Account, Quotas
from metaq.protocol.errors import MetaqError
from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.record import checksum, encode_record
from metaq.protocol.text import Get, OffsetQuery, Put
from tests.raising import raising
from tests.unit.broker.http.promlint import complaints

CHUNKED = {"transfer_encoding": "chunked"}


class Browser:
    """reactor: turns of it are taken until an answer is whole. shared: a broker's, to look at."""

    def __init__(self, root: Any, reactor: Clock | None = None, shared: Any = None, host: str = "10.0.0.1") -> None:
        self.reactor = reactor or Clock()
        self.shared = shared or SimpleNamespace(account=Account(Quotas(), self.reactor), closed_lines=None)
        self._address: Any = IPv4Address("TCP", host, 1)
        names = OwnNames(["Broker.Example", "alias.example"])
        self._site = GuardedSite(root, names, self.shared, self.reactor)

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        transport = self.send(method, target, body, **headers)
        for _ in range(100_000):
            if transport.disconnecting or not self.reactor.getDelayedCalls():
                break
            self.reactor.advance(0)
        return parsed(transport.value())

    def send(self, method: str, target: str, body: bytes = b"", **headers: str) -> Any:
        transport: Any = StringTransport()
        channel = transport.protocol = self._site.buildProtocol(self._address)
        channel.makeConnection(transport)
        fields = {"host": "127.0.0.1:8120", "connection": "close", "content_length": str(len(body))} | headers
        fields = {name: value for name, value in fields.items() if value}
        if "transfer_encoding" in fields:
            del fields["content_length"]
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        channel.dataReceived(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape") + body)
        return transport


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content."""
    head, _, content = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    if "transfer-encoding" in fields:
        chunks, rest = [], content
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            chunks.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        assert chunks.pop() == b""  # it is whole
        content = b"".join(chunks)
    return int(status.split()[1]), fields, content


@pytest.fixture
def gateway(harness):
    return Browser(Gateway(harness.gate, harness.broker, harness.broker.logins))


@pytest.fixture
def pages(harness):
    return dashboard(harness)


def dashboard(harness):
    return Browser(
        Dashboard(harness.broker, harness.gate, lambda: None, RecentLog()).resource(), reactor=harness.broker.reactor
    )


@pytest.fixture
def refusing(harness):
    """A gate that refuses everything, and what it was asked: (what, topic, address)."""
    asked: list[tuple[object, ...]] = []

    class Guard:
        by_grants = False

        def check(self, need, peer, request):
            asked[-1] += (need.topic, peer.host)
            raise MetaqError("nothing is permitted here")

        def permits(self, need, peer):
            return False

    gate = make_gate(harness.broker, lambda verb, request: asked.append((request,)))
    gate.guard = Guard()
    return gate, asked


def put(gateway, body=b"hello", **changed):
    fields = {"topic": "t", "partition": 1, "flag": 0, "length": len(body)} | changed
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    return gateway.ask("POST", f"/put/0?{query}", body)


SAFE = "/put/0?topic=safe&partition=1&flag=0&length=5"


def test_a_put_whose_answer_cannot_be_made_is_answered_500_and_counts_no_longer(gateway, harness, monkeypatch, caplog):
    monkeypatch.setattr(PutGroup, "_encoded", raising(RuntimeError("a bug")))
    transport = gateway.send("POST", SAFE, b"hello")
    assert harness.broker.pending_puts.bytes > 0
    harness.threads.run()
    assert transport.value().startswith(b"HTTP/1.1 500 ")
    assert b"internal error: RuntimeError" in transport.value()
    assert "RuntimeError: a bug" in caplog.text
    assert harness.broker.pending_puts.bytes == 0


def test_a_message_put_by_http_is_read_by_http(gateway, harness):
    status, _, text = put(gateway, checksum=checksum(b"hello"))
    assert status == 200
    message_id, partition, offset = map(int, text.split())
    assert (partition, offset) == (1, 0)
    status, _, data = gateway.ask("GET", "/get/0?topic=t&partition=1&offset=0&group=g&maxsize=1000")
    assert (status, data) == (200, encode_record(b"hello", message_id, 0))
    assert gateway.ask("GET", "/offset/0?topic=t&partition=1&group=g&offset=9999")[::2] == (200, b"25")


def test_a_put_that_waits_for_the_disk_is_answered_when_it_is_there(gateway, harness):
    transport = gateway.send("POST", SAFE, b"hello")
    assert transport.value() == b""
    harness.threads.run()
    assert transport.value().startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/", 400, b"Invalid request"),
        ("GET", "/x", 400, b"Invalid request"),
        ("GET", "/get/0?topic=t&partition=1&offset=0&maxsize=10", 404, b"The topic `t` in partition `1` is not exists"),
        ("GET", "/get/0?topic=t&partition=1&offset=0", 400, b"parameter maxsize is missing"),
        ("GET", "/get/0?topic=t&partition=one&offset=0&maxsize=1", 400, b"parameter partition='one' is not an integer"),
        ("POST", "/put/0?topic=t&partition=1&flag=0&length=3", 400, b"length=3, but the body has 0 bytes"),
        ("POST", "/put/0?topic=none&partition=1&flag=0&length=0", 500, b"The server do not accept topic none"),
        ("POST", "/put/0?topic=t&partition=1&flag=0&length=0&checksum=1", 500, b"Checksum failure"),
    ],
)
def test_what_is_wrong_is_said_with_metaqs_status(gateway, method, target, status, text):
    found, _, body = gateway.ask(method, target)
    assert (found, text in body) == (status, True)


def test_the_gateway_answers_what_the_gate_refuses_with_the_refusal_once(harness, refusing):
    gate, asked = refusing
    gateway = Browser(Gateway(gate, harness.broker, harness.broker.logins))
    harness.broker.pending_puts.full = True
    asks = [
        gateway.ask("GET", f"/{verb}/0?topic=t&partition=1&offset=0&group=g&maxsize=9") for verb in ("get", "offset")
    ]
    assert [answer[::2] for answer in (put(gateway), *asks)] == [(500, b"nothing is permitted here")] * 3
    # the address is StringTransport's
    expected = [(kind, "t", "192.168.1.1") for kind in (Get, OffsetQuery, Put)]
    assert [(type(request), topic, host) for request, topic, host in asked] == expected
    assert list(harness.store.logs()) == []


@pytest.mark.parametrize(
    ("method", "path", "topic"),
    [
        ("GET", "/", None),
        ("GET", "/metrics", None),
        ("HEAD", "/stats", None),
        ("GET", "/topics/t?group=g", "t"),
        ("GET", "/no/such/page", None),
        ("POST", "/reload-config", None),
        ("POST", "/topics/t/groups/g/partitions/0/skip", None),
    ],
)
def test_a_page_that_the_gate_refuses_is_neither_made_nor_done(harness, refusing, method, path, topic):
    gate, asked = refusing
    harness.ini = harness.ini.replace("numPartitions=3", "numPartitions=4")
    browser = Browser(Dashboard(harness.broker, gate, lambda: None, RecentLog()).resource())
    status, _, text = browser.ask(method, path)
    assert status == 409
    assert b"nothing is permitted here" in text or method == "HEAD"
    ((request, found, host),) = asked
    assert (request.changes, found, host) == (method == "POST", topic, "192.168.1.1")
    assert harness.registered == []


def test_a_body_above_the_limit_closes_the_connection_before_it_is_kept(gateway):
    target = "/put/0?topic=t&partition=0&flag=0&length=1"
    announced = gateway.send("POST", target, b"x", content_length=str(MAX_BODY_BYTES + 1))
    in_chunks = gateway.send("POST", target, b"%x\r\n" % (MAX_BODY_BYTES + 1) + bytes(MAX_BODY_BYTES + 1), **CHUNKED)
    for refused in (announced, in_chunks):
        assert (refused.disconnected, refused.value()) == (True, b"")
    fitting = gateway.send("POST", target, b"%x\r\n" % MAX_BODY_BYTES + bytes(MAX_BODY_BYTES), **CHUNKED)
    assert not fitting.disconnected


# --- bodies in the account --------------------------------------------------------------------------------------------

BODY = 1 << 20


@pytest.fixture
def small(harness):
    """A gateway whose broker takes four bodies of unfinished requests."""
    harness.broker.account = Account(Quotas(unfinished_bytes=4 * BODY - 1000), harness.reactor)
    return Browser(Gateway(harness.gate, harness.broker, harness.broker.logins), harness.reactor, harness.broker)


def used(browser):
    return dict(browser.shared.account.budgets())["unfinished_bytes"].used


def bringing(browser, body_bytes=BODY - 10, topic="t", connection="keep-alive"):
    """A put of BODY bytes; body_bytes of them have come."""
    target = f"/put/0?topic={topic}&partition=1&flag=0&length={BODY}"
    return browser.send("POST", target, bytes(body_bytes), content_length=str(BODY), connection=connection)


def leave(browser, *transports):
    for each in transports:
        each.protocol.connectionLost(Failure(ConnectionDone()))
    browser.reactor.advance(0)


def go_on(*transports):
    return [each.producerState == "producing" for each in transports]


def test_a_body_counts_until_its_request_is_answered_or_its_client_leaves(small, harness):
    transport, left = bringing(small, topic="safe"), bringing(small)
    assert used(small) == 2 * (BODY - 10)
    leave(small, left)
    transport.protocol.dataReceived(bytes(10))
    assert (used(small), transport.value()) == (BODY, b"")
    harness.threads.run()
    assert (parsed(transport.value())[0], used(small)) == (200, 0)


def test_a_body_makes_no_file_however_large_it_is(gateway, monkeypatch):
    """Twisted's takes a descriptor, and room of a file system that nobody counts."""
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    assert put(gateway, bytes(BODY))[0] == 200
    one = "/put/0?topic=t&partition=1&flag=0&length=1"
    assert gateway.ask("POST", one, b"1\r\nx\r\n0\r\n\r\n", **CHUNKED)[0] == 200


def test_bodies_beyond_the_bound_are_not_read_but_for_the_oldest(small):
    brought = [bringing(small, connection="close") for _ in range(5)]
    assert go_on(*brought) == [True, True, True, False, False]
    for each in brought[:2]:
        each.protocol.dataReceived(bytes(10))
        small.reactor.advance(0)
        assert parsed(each.value())[0] == 200
    assert go_on(*brought[2:]) == [True, True, False]
    brought[2].protocol.dataReceived(bytes(10))
    small.reactor.advance(0)
    assert go_on(brought[4]) == [True]


def test_a_body_that_may_not_come_waits_for_longer_than_a_client_may_be_silent(small):
    oldest, *others = [bringing(small) for _ in range(5)]
    small.reactor.pump([1] * 50)
    oldest.protocol.dataReceived(bytes(1))
    small.reactor.pump([1] * 50)
    assert [each.disconnecting for each in others] == [True, True, False, False]
    leave(small, *others[:2])
    small.reactor.pump([1] * 59)
    assert (go_on(*others[2:]), [each.disconnecting for each in others[2:]]) == ([True, False], [False, False])
    small.reactor.pump([1] * 2)
    assert [each.disconnecting for each in others[2:]] == [True, False]


def test_a_reader_that_takes_its_answer_brings_no_body_that_has_to_wait(small):
    first, *_, late = [bringing(small) for _ in range(6)]
    late.protocol.pauseProducing()
    late.protocol.resumeProducing()
    assert go_on(late) == [False]
    late.protocol.pauseProducing()
    leave(small, first)
    assert go_on(late) == [False]


def test_a_body_that_comes_too_slowly_ends_its_connection(small, caplog):
    caplog.set_level("INFO")
    slow, answered = bringing(small, 100), bringing(small, topic="safe")
    answered.protocol.dataReceived(bytes(10))  # its message waits for the disk
    unfinished = small.shared.account.unfinished
    for _ in range(6):
        unfinished.look()
        slow.protocol.dataReceived(bytes(100))
    assert not slow.disconnected
    unfinished.look()
    assert (slow.disconnected, answered.disconnected) == (True, False)
    assert "HTTP connection from 192.168.1.1:54321 closed: for 30 s a request came at less than 16384" in caplog.text


# --- pages ------------------------------------------------------------------------------------------------------------


ADDRESSES = ["/", "/dashboard", "/topics", "/topics/t", "/stats", "/stats/offsets", "/config", "/logging"]


def as_json(pages, address):
    status, fields, text = pages.ask("GET", address, accept="application/json")
    assert (status, fields["content-type"]) == (200, "application/json; charset=utf-8")
    return simplejson.loads(text)


@pytest.mark.parametrize("address", [*ADDRESSES, "/thread-dump", "/properties", "/java-properties"])
def test_every_page_comes_as_html_and_as_json(pages, gateway, address):
    put(gateway)
    status, fields, html = pages.ask("GET", address)
    assert (status, fields["content-type"]) == (200, "text/html; charset=utf-8")
    assert html.startswith(b"<!DOCTYPE html>\n<html")
    assert as_json(pages, address)


def test_the_topics_page_counts_what_is_kept(pages, gateway):
    put(gateway)
    put(gateway)
    (row,) = [each for each in as_json(pages, "/topics")["Topics"] if each["topic"] == "t"]
    assert (row["partitions"], row["messages"], row["bytes"]) == (1, 2, 50)


def test_what_a_client_names_is_shown_as_text_and_never_as_html(pages):
    evil = "<script>alert(1)</script>"
    for address in (f"/topics/{quote(evil, '')}", f"/stats/{quote(evil, '')}"):
        html = pages.ask("GET", address)[2]
        assert b"<script" not in html
        assert b"&lt;script&gt;" in html
    assert b"&lt;script&gt;" in encoded(to_html(Page("T", [Table(("a",), [(evil,)], links={"a": "/"})])))


@pytest.mark.parametrize("address", ["/nothing", "/topics/none", "/stats/a/b"])
def test_a_page_that_is_not_there_is_404(pages, address):
    assert pages.ask("GET", address)[0] == 404


def test_the_configuration_is_reloaded_by_a_post_of_our_own_page_only(harness):
    asked: list[str] = []

    def reload() -> Deferred[ReloadReport]:
        asked.append("reload")
        return succeed(ReloadReport(changed=True, added_topics=("<new>",)))

    harness.broker.reloader = SimpleNamespace(reload=reload)
    pages = dashboard(harness)
    assert pages.ask("POST", "/reload-config", origin="http://127.0.0.1:8120")[0] == 200
    assert b"added: &lt;new&gt;" in pages.ask("POST", "/reload-config")[2]  # curl sends no origin
    for evil in ({}, {"host": "evil.example"}):
        assert pages.ask("POST", "/reload-config", origin="http://evil.example", **evil)[0] == 403
    assert pages.ask("GET", "/reload-config")[0] == 404
    assert asked == ["reload", "reload"]


@pytest.mark.parametrize(
    ("method", "address"),
    [("GET", "/cluster"), ("GET", "/topics/t?group=g"), ("POST", "/topics/t/groups/g/partitions/1/skip")],
)
def test_what_needs_zookeeper_says_that_there_is_none(pages, gateway, method, address):
    put(gateway)
    status, _, html = pages.ask(method, address)
    assert (status, b"without ZooKeeper" in html) == (409, True)


# --- metrics ----------------------------------------------------------------------------------------------------------


def shown(pages, prefix=""):
    """The lines whose names begin so, of text that Prometheus's linter has nothing against."""
    status, fields, text = pages.ask("GET", "/metrics")
    assert (status, fields["content-type"].split(";")[0]) == (200, "text/plain")
    assert list(complaints(text.decode())) == []
    return [line for line in text.decode().splitlines() if line.startswith(prefix)]


def test_the_metrics_are_prometheus_text(pages, gateway):
    put(gateway)
    lines = {
        'metaq_topic_messages{topic="t"} 1.0',
        "metaq_cmd_put_total 1.0",
        'metaq_topic_read_only_partitions{topic="t"} 0.0',
    }
    assert lines <= set(shown(pages))
    names = {line.split(" ")[2] for line in shown(pages, "# TYPE")}
    assert {"metaq_cmd_put_total", "metaq_delayed_lateness_seconds"} < names
    bad = '# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n# TYPE b counter\nb{quantile="1"} 2\n'
    assert len(list(complaints(bad))) == 4


def report(harness, *args, **more):
    """Let the broker's part in replication, and its set, say this."""
    status = ReplicationStatus(*args, **more)
    harness.broker.replication = harness.broker.set_report = SimpleNamespace(status=lambda: status)


def test_the_metrics_tell_how_far_a_slave_is(pages, harness):
    assert shown(pages, "metaq_replication") == []  # a plain master
    partitions = [
        PartitionStatus("t", 0, CopyState.COPYING, 10, 25),
        PartitionStatus("t", 1, CopyState.CURRENT, 40, 40),
        PartitionStatus("t", 2, CopyState.STOPPED, 0, 7),
        PartitionStatus("u", 0, CopyState.CONNECTING),  # its lag is not known yet, and not shown as 0
    ]
    status = ReplicationStatus("slave", "meta://m:1", True, partitions=partitions)
    harness.broker.replication = SimpleNamespace(status=lambda: status)
    counts = {"connecting": 1, "empty": 0, "copying": 1, "current": 1, "troubled": 0, "stopped": 1}
    assert set(shown(pages, "metaq_replication")) == {
        'metaq_replication_connected{role="slave"} 1.0',
        *(f'metaq_replication_partitions{{state="{state}"}} {count}.0' for state, count in counts.items()),
        'metaq_replication_lag_bytes{topic="t"} 22.0',
        'metaq_replication_lag_bytes_max{topic="t"} 15.0',
    }


def test_a_synchronous_master_shows_whether_its_slave_is_there(pages, harness):
    status = ReplicationStatus("sync-master", "meta://s:1", False, "refused")
    harness.broker.replication = SimpleNamespace(status=lambda: status)
    assert shown(pages, "metaq_replication") == ['metaq_replication_connected{role="sync-master"} 0.0']
    harness.broker.replication = SyncSlave()  # it does not know, so it does not say 0
    assert shown(pages, "metaq_replication") == []


COUNTS = {"epoch": 7, "elections": 2, "handOvers": 1}
SET_FIGURES: dict[str, Any] = {"set": 0, "node": "a", "inSync": ["a", "b"], **COUNTS}
LEADER_FIGURES = SET_FIGURES | {"underReplicated": ["t", "u"], "refusing": ["t"]}
NODES = [NodeStatus("b", True, True, True, 1234, 0.5), NodeStatus("c", False, False, False, None, None, "gone")]


def test_the_metrics_and_the_first_page_of_a_leader_tell_what_its_set_is_like(pages, harness):
    assert shown(pages, "metaq_set") == []
    assert b"broker set" not in pages.ask("GET", "/")[2]
    report(harness, "leader", "", True, figures=LEADER_FIGURES, nodes=NODES)
    roles = shown(pages, "metaq_set_role")
    lines = {line for line in shown(pages, "metaq_set") if "created" not in line}
    assert lines - set(roles) == {
        "metaq_set_epoch 7.0",
        "metaq_set_elections_total 2.0",
        "metaq_set_hand_overs_total 1.0",
        "metaq_set_in_sync_nodes 2.0",
        "metaq_set_live_followers 1.0",
        "metaq_set_under_replicated_topics 2.0",
        "metaq_set_refusing_topics 1.0",
        'metaq_set_lag_bytes{node="b"} 1234.0',
        'metaq_set_lag_seconds{node="b"} 0.5',
    }
    assert [line for line in roles if line.endswith(" 1.0")] == ['metaq_set_role{role="leader"} 1.0']
    text = pages.ask("GET", "/")[2].decode()
    assert all(word in text for word in ("This node of the broker set", "a, b", ">b<", "1234", "unknown", "gone"))


def test_the_metrics_of_a_follower_tell_its_role_and_nothing_of_others(pages, harness):
    report(harness, "joining", figures=SET_FIGURES)
    lines = shown(pages)
    assert 'metaq_set_role{role="joining"} 1.0' in lines
    assert not any(line.startswith(("metaq_set_in_sync", "metaq_set_lag", "metaq_replication")) for line in lines)


def test_the_alarms_of_the_documentation_ask_for_figures_that_there_are(pages, harness):
    page = (Path(__file__).resolve().parents[4] / "docs" / "replication.md").read_text()
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", page, re.DOTALL)
    report(harness, "leader", figures=LEADER_FIGURES, nodes=NODES[:1])
    asked = set(re.findall(r"metaq_set_\w+", rules))
    assert len(asked) >= 5
    assert asked <= {re.split(r"[{ ]", line)[0] for line in shown(pages, "metaq_set")}
    alarms = re.findall(r"alert: (\w+)", rules)
    assert len(alarms) == len(set(alarms)) == rules.count("expr:") == rules.count("summary:")
    assert all(f"| `{alarm}` |" in page for alarm in alarms)


@pytest.mark.parametrize("registered", [True, False])
def test_the_metrics_tell_whether_the_broker_is_registered(pages, harness, registered):
    assert shown(pages, "metaq_registered") == []  # without ZooKeeper
    harness.broker.registered = lambda: registered
    assert shown(pages, "metaq_registered") == [f"metaq_registered {float(registered)}"]


# --- pages of other sites ---------------------------------------------------------------------------------------------


EVIL, OURS = "http://evil.example", "http://127.0.0.1:8120"
FOREIGN = [
    *({"host": "evil.example:8120"}, {"host": "127.0.0.1.evil.example"}, {"host": "["}, {"host": ":8120"}),
    *({"host": "[::1].evil.example"}, {"host": "evil.example\r\nhost: 127.0.0.1:8120"}),
    {"host": "127.0.0.1:8120\r\nhost: 127.0.0.1:8120"},
    *({"origin": EVIL}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}, {"host": "", "origin": EVIL}),
    *({"host": "evil\udc8d.example"}, {"origin": f"{OURS}\udc8d"}),  # a byte that is not UTF-8
    *({"origin": "http://["}, {"origin": f"{EVIL}\r\norigin: {OURS}"}, {"origin": f"{OURS}\r\norigin: {OURS}"}),
]
OWN = [
    *({}, {"host": ""}, {"host": "[::1]:8120"}, {"host": "localhost"}),  # HTTP/1.0 has no host
    *({"host": "broker-1:8120"}, {"host": "BROKER.example:8120"}, {"host": "alias.example"}, {"origin": OURS}),
    {"host": "alias.example:80", "origin": "http://alias.example:80"},
    {"accept": "text/html\udc8d", "content_type": "\udcff"},
]


@pytest.mark.parametrize(
    ("address", "own"), [("/config", 200), ("/thread-dump", 200), ("/metrics", 200), ("/topics/t", 404), ("/no", 404)]
)
def test_no_page_is_shown_to_a_page_of_another_site(pages, address, own):
    for headers in FOREIGN:
        status, fields, content = pages.ask("GET", address, **headers)
        assert (status, fields["x-content-type-options"], b"brokerId" in content) == (403, "nosniff", False)
    for headers in OWN:
        status, fields, _ = pages.ask("GET", address, **headers)
        assert (status, fields["x-content-type-options"]) == (own, "nosniff")


def test_no_page_of_another_site_sends_or_reads_messages(gateway, harness):
    address = "/put/0?topic=t&partition=0&flag=0&length=1"
    for headers in FOREIGN:
        assert gateway.ask("POST", address, b"x", **headers)[0] == 403
        assert gateway.ask("GET", "/get?topic=t&partition=0&group=g&offset=0&maxsize=1000", **headers)[0] == 403
    image = gateway.ask("GET", "/put/0?topic=t&partition=0&flag=0&length=0")
    assert (image[0], image[1]["allow"]) == (405, "post, put")
    assert gateway.ask("HEAD", "/put/0?topic=t&partition=0&flag=0&length=0")[0] == 405
    assert not list(harness.store.logs())
    for headers in OWN:
        assert gateway.ask("POST", address, b"x", **headers)[0] == 200

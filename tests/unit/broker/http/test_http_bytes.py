"""Whatever bytes a peer sends to an HTTP port: an answer or an end, and no error that Twisted logs with a traceback."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from metaq.broker.http.browsers import OwnNames
from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.http.gateway import Gateway
from metaq.broker.http.ports import GuardedSite
from metaq.broker.runtime.account import Account, Quotas
from tests.raising import raising
from tests.unit.broker.http.test_http_pages import Browser

METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"\xff", b""]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9999", b""]
MANY_DIGITS = b"9" * 5000
TARGETS = [
    *(
        b"/",
        b"*",
        b"//",
        b"?",
        b"",
        b"/%",
        b"/%zz",
        b"/%ff%00",
        b"http://x:99999999/",
        b"http://[",
        b"/" + b"a/" * 3000,
    ),
    *(b"/get", b"/get;x", b"/get?topic=t&partition=0&group=g&offset=" + MANY_DIGITS + b"&maxsize=1"),
    *(b"/put/?topic=t&partition=0&flag=0&length=5", b"/put/?topic=%ff&partition=0&flag=0&length=5"),
    b"/offset?topic=t&partition=%d9%a1&group=g&offset=0",
    *(b"/topics/%ff", b"/topics?x=%", b"/topics/t?group=%ff%00", b"/stats/%ff", b"/stats/..%2f", b"/config?json=%ff"),
    b"/topics/t/groups/g/partitions/" + MANY_DIGITS + b"/skip",
    *(b"/topics/t/groups/g/partitions/%b2/skip", b"/topics/t/groups/%ff/x", b"/reload-config", b"/favicon.ico"),
]
HEADERS = [
    *(b"Content-Length: " + MANY_DIGITS, b"Content-Length: 99999999999999999999", b"Content-Length: \xb2"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length:"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip"),
    *(b"Host: x", b"Host:", b"Host: [::1", b"Host: x:" + MANY_DIGITS, b"Host: \xff", b"Host: [v1.x]:1"),
    *(b"Origin: http://[::1", b"Origin: null", b"Origin: \xff", b"Origin: http://x:99999999"),
    *(b"Cookie: a=b; c; =; \xff", b"Cookie: ===;;", b"Expect: 100-continue", b"Expect: \xff", b"Upgrade: websocket"),
    *(b"Connection: \xff", b"Connection: close", b"Connection: upgrade", b"Range: bytes=-1-" + MANY_DIGITS),
    *(b"If-Modified-Since: x", b"If-Modified-Since: Sun, 99 Foo 99999 99:99:99 GMT", b"If-None-Match: \xff"),
    *(b"Content-Type: multipart/form-data", b"Content-Type: multipart/form-data; boundary=\xff"),
    *(b"Content-Type: application/x-www-form-urlencoded", b"Authorization: Basic \xff", b"Authorization: Basic ===="),
    *(b"Accept: \xff", b"Accept: application/json", b"Accept-Encoding: \xff", b"Referer: \xff", b"a:\0", b"a b: c"),
    *(b"\xff: x", b": x", b" x", b"x", b"x" * 20_000),
]
BODIES = [
    *(b"", b"hello", b"\r\n", b"--x\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloXX", b"5;\xff\r\n", b"-5\r\n"),
    *(b"+5\r\n", b"0x5\r\n", b"f" * 900 + b"\r\nx", b"f" * 2000, b"0\r\na:b\r\n\r\n", b"0\r\nX" + b"y" * 70_000),
    b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
]

requests = st.builds(
    lambda method, target, version, headers, body: (
        b" ".join((method, target, version)) + b"\r\n" + b"".join(each + b"\r\n" for each in headers) + b"\r\n" + body
    ),
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS) | st.binary(max_size=20),
    st.sampled_from(VERSIONS[:1]) | st.sampled_from(VERSIONS),
    st.lists(st.sampled_from(HEADERS) | st.binary(max_size=30), max_size=4),
    st.sampled_from(BODIES),
)


class Lines:
    """Of a broker's log, about connections."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def ports(harness):
    """The gateway and the pages, with the lines about their connections."""
    gateway = Gateway(harness.gate, harness.broker, harness.broker.logins)
    pages = Dashboard(harness.broker, harness.gate, lambda: None, RecentLog()).resource()
    return [browser(each, harness.broker.reactor) for each in (gateway, pages)]


def browser(root: Any, reactor: Any) -> Browser:
    return Browser(root, reactor, SimpleNamespace(account=Account(Quotas(), reactor), closed_lines=Lines()))


def connect(port: Browser) -> tuple[Any, Any]:
    transport: Any = StringTransport(peerAddress=port._address)
    transport.abortConnection = transport.loseConnection
    site = GuardedSite(port._site.resource, OwnNames([]), port.shared, port.reactor)
    channel = transport.protocol = site.buildProtocol(port._address)
    channel.makeConnection(transport)
    return transport, channel


def ended(port: Browser, request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[bytes, list[str]]:
    """What the request is answered, whose connection is ended then, and what the log says of it."""
    transport, channel = connect(port)
    channel.dataReceived(request)
    assert transport.disconnecting
    return transport.value(), port.shared.closed_lines.lines


BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n\r\n"


def test_a_length_of_thousands_of_digits_is_400_and_leaves_no_line(ports, caplog):
    request = b"POST /put HTTP/1.1\r\nHost: x\r\nContent-Length: " + MANY_DIGITS + b"\r\n\r\n"
    assert [ended(port, request) for port in ports] == [(BAD_REQUEST, [])] * 2
    assert caplog.records == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(requests, min_size=1, max_size=2), st.lists(st.integers(0, 200), max_size=3), st.booleans())
def test_no_bytes_of_a_peer_end_in_an_error(ports, sent, cuts, is_gateway):
    port = ports[is_gateway]
    transport, channel = connect(port)
    data = b"".join(sent)
    places = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(places):
        if not transport.disconnecting and data[begin:end]:
            channel.dataReceived(data[begin:end])
    for _ in range(10):
        port.reactor.advance(0)
    channel.connectionLost(Failure(ConnectionDone()))
    assert port.shared.closed_lines.lines == []


def test_an_unexpected_error_is_400_an_end_and_one_line(ports, caplog, monkeypatch):
    def broken(*_):
        raise ValueError("x" * 5000)

    monkeypatch.setattr("twisted.web.http.HTTPChannel.headerReceived", broken)
    answer, (line,) = ended(ports[0])
    assert answer == BAD_REQUEST
    assert line.startswith("HTTP connection from 10.0.0.1:1 failed: ValueError: 'xxx")
    assert "test_http_bytes.py:" in line
    assert len(line) < 500
    assert caplog.records == []


def test_an_error_behind_a_whole_request_ends_its_connection_at_once(ports, monkeypatch):
    monkeypatch.setattr(OwnNames, "refusal", raising(ValueError("a bug")))
    answer, lines = ended(ports[0])
    assert (answer, len(lines)) == (b"", 1)


def test_a_page_that_raises_is_500_and_one_line(ports, caplog, monkeypatch):
    monkeypatch.setattr(Gateway, "render", raising(ValueError("a bug")))
    status, _, text = ports[0].ask("GET", "/get")
    assert (status, text) == (500, b"internal error: ValueError\n")
    assert len(ports[0].shared.closed_lines.lines) == 1
    assert caplog.records == []

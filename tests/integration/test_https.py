"""The pages, /metrics and the HTTP gateway over TLS: real brokers, certificates of `metaq security`."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaq.protocol.record import checksum, encode_record
from tests.broker_process import RunningBroker, server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.integration.test_broker_http import http_port
from tests.integration.test_tls import changed_ini, pki, tls
from tests.waiting import DEADLINE, eventually

__all__ = ["pki"]

_LOCAL = r"https://127\.0\.0\.1"


@contextmanager
def started(tmp_path: Path, pki: Path, **settings: str) -> Iterator[RunningBroker]:
    """A broker without ZooKeeper that has both HTTP ports, with these settings of [tls]."""
    ini = server_ini(tmp_path / "data", {"t": "numPartitions=1"}, system="dashboardHttpPort=0")
    properties = tmp_path / "jetty.properties"
    properties.write_text("serverPort=0\n")
    words = ("-m", "metaq", "broker", f"-FjettyBroker={properties}", "--security", changed_ini(pki, **settings), "-f")
    with ForkedBroker(tmp_path, ini, module=words) as running:
        yield running


def asked(
    port: int, context: ssl.SSLContext | None, path: str, body: bytes | None = None, login: str = ""
) -> tuple[int, bytes]:
    """The status and content of an answer. context: None: by HTTP without TLS. login: NAME:PASSWORD, or ""."""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=context)
    try:
        headers = {"Accept": "application/json"}
        if login:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages_metrics_and_gateway_are_served_over_tls(tmp_path, pki):
    payload = os.urandom(700_000)
    with started(tmp_path, pki, plain="nowhere", clientCertificates="required") as broker:
        pages, gateway = http_port(broker, "dashboard at " + _LOCAL), http_port(broker, r"gateway at https://\*")
        context = tls(pki).context()
        code, text = asked(pages, context, "/topics")
        assert code == 200
        assert json.loads(text)
        code, text = asked(pages, context, "/metrics")
        assert code == 200
        assert b"metaq_certificate_expires_seconds" in text
        put = f"/put/0?topic=t&partition=0&checksum={checksum(payload)}&flag=0&length={len(payload)}"
        assert asked(gateway, context, put, payload)[0] == 200
        code, stored = asked(gateway, context, "/get/0?topic=t&partition=0&offset=0&maxsize=900000&group=g")
        assert (code, stored) == (200, encode_record(payload, int.from_bytes(stored[8:16], "big"), 0))


def test_who_shows_no_certificate_or_does_not_use_tls_is_refused_with_the_reason(tmp_path, pki):
    with started(tmp_path, pki, plain="nowhere", clientCertificates="required") as broker:
        for name in ("dashboard at " + _LOCAL, r"gateway at https://\*"):
            port = http_port(broker, name)
            code, text = asked(port, None, "/metrics")
            assert code == 403
            assert b"no connection without TLS" in text
            with pytest.raises(ssl.SSLError, match="certificate required"):
                asked(port, tls(pki, certificate="", key="").context(), "/metrics")
        assert broker.errors.read_text().count("the TLS connection of 127.0.0.1 is refused") == 2


def test_a_port_that_allows_it_also_serves_http_without_tls(tmp_path, pki):
    with started(tmp_path, pki, plain="loopback") as broker:
        port = http_port(broker, "dashboard at " + _LOCAL)
        assert asked(port, None, "/topics") == asked(port, tls(pki).context(), "/topics")


def test_many_requests_on_a_connection_and_bytes_that_are_no_records_are_told_apart(tmp_path, pki):
    with started(tmp_path, pki, plain="nowhere") as broker:
        port = http_port(broker, "dashboard at " + _LOCAL)
        context = tls(pki).context()
        with (
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
        ):
            request = b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n"
            secure.sendall(request * 50)
            secure.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            received = b"".join(iter(lambda: secure.recv(1 << 16), b""))
            assert received.count(b"HTTP/1.1 200 OK") == 51
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock:
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as secure:
                secure.sendall(b"GET /topics HTTP/1.1\r\n")
                plain = secure.detach()
            with socket.socket(fileno=plain) as stolen:
                stolen.settimeout(DEADLINE)
                stolen.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
                while stolen.recv(1 << 16):
                    pass
        eventually(lambda: "bad record mac" in broker.errors.read_text(), what="the reason")
        assert "Traceback" not in broker.errors.read_text()
        assert asked(port, context, "/topics")[0] == 200

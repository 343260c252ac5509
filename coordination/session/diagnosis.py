"""Find out why a ZooKeeper session cannot be opened: send `srvr`, ZooKeeper's request for statistics, to each server of
a connect string, and examine the answers.

Every ZooKeeper server answers `srvr`, even while it does not serve clients. If the server's configuration forbids the
request, the server answers that the request is not allowed.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from kazoo.hosts import collect_hosts

from ..records.payloads import host_and_port
from .zk_tls import ZkTls

__all__ = ["ServerFinding", "examine", "sentence"]

_REQUEST = b"srvr\r\n"
"""ZooKeeper's request for statistics. A ZooKeeper server reads only the four letters and ignores the line end. The line
end is necessary to recognize another kind of server whose port was given by mistake: most other servers, including
metaq's brokers, answer only complete lines.
"""
_BROKER_REQUEST = b"version 1\r\n"
"""A request that every metaq broker answers. If a broker gets an unknown request, it only closes the connection."""
_LONGEST_ANSWER = 4096

_ZXID = re.compile(rb"^Zxid: 0x([0-9a-f]{1,16})\s*$", re.MULTILINE)
_VERSION = re.compile(rb"Zookeeper version: ([0-9A-Za-z.+-]+)")
_DECIDES = re.compile(rb"^Mode: (?:leader|standalone)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerFinding:
    """The state of one server. certain: true if it is certainly useless to wait for the server, because somebody must
    first start it or correct its name or port.

    waits: true if the server is a ZooKeeper server that serves nobody until a majority of its ensemble is running.
    zxid: zxid of the server's last transaction, None if the server does not report it. decides: true if the server is
    the leader or has no ensemble. serves: true if the server reports that it serves sessions, or answers that its
    configuration forbids the report. version: the version that the server reports; "" if it does not report it.
    """

    text: str
    certain: bool
    waits: bool = False
    zxid: int | None = None
    decides: bool = False
    serves: bool = False
    version: str = ""


def examine(hosts: str, seconds: float, tls: ZkTls | None = None) -> list[ServerFinding]:
    """Return the state of each server in `host:port,host:port…`. The function asks all servers at the same time, so it
    takes about `seconds` at most. tls: encrypts the connections; None means connections without TLS.
    """
    servers, _ = collect_hosts(hosts)
    found: dict[int, ServerFinding] = {}
    deadline = time.monotonic() + seconds

    def ask(index: int, host: str, port: int) -> None:
        found[index] = _examine_server(host, port, seconds, tls)

    askers = [
        threading.Thread(target=ask, args=(index, host.strip(), port), name="metaq zookeeper check", daemon=True)
        for index, (host, port) in enumerate(servers)
    ]
    for each in askers:
        each.start()
    for each in askers:  # a name look-up has no time limit, so it may be abandoned
        each.join(max(0.0, deadline - time.monotonic()))
    return [found.get(index) or _silent(host_and_port(*server)) for index, server in enumerate(servers)]


def _examine_server(host: str, port: int, seconds: float, tls: ZkTls | None) -> ServerFinding:
    where = host_and_port(host, port)
    try:
        socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ServerFinding(f"the host name {host!r} is unknown: correct it", certain=True)
    try:
        answer = _ask(host, port, _REQUEST, seconds, tls)
        if not answer and _ask(host, port, _BROKER_REQUEST, seconds, tls).startswith(b"result "):
            return ServerFinding(
                f"what listens at {where} is a metaq broker, not a ZooKeeper: correct the port", certain=True
            )
        if not answer and tls is None and _speaks_tls(host, port, seconds):
            remedy = "add a section [zookeeper] with its CA to your profile or security.ini"
            return ServerFinding(f"the port of {where} speaks TLS: {remedy}", certain=True)
        return _judged(where, answer)
    except ConnectionRefusedError:
        return ServerFinding(f"nothing listens at {where}: start ZooKeeper there, or correct the port", certain=True)
    except TimeoutError:
        return _silent(where)
    except OSError as error:
        if tls is not None and (reason := tls.refusal(error)):
            return ServerFinding(f"no TLS with the ZooKeeper at {where}: {reason}", certain=True)
        return ServerFinding(f"{where} cannot be reached: {error.strerror or error}", certain=False)


def _ask(host: str, port: int, request: bytes, seconds: float, tls: ZkTls | None) -> bytes:
    """Send a request. Return the first bytes of the answer, or b"" if the server closes the connection. Raises
    TimeoutError if no answer comes within `seconds`, and OSError if the connection fails.
    """
    connected = socket.create_connection((host, port), timeout=seconds)
    with closing(connected if tls is None else tls.wrap(connected, host)) as connection:
        connection.sendall(request)
        answer = b""
        while len(answer) < _LONGEST_ANSWER and (more := connection.recv(_LONGEST_ANSWER)):
            answer += more
            if not answer.startswith(b"Zookeeper version"):
                break  # a server without statistics may not close the connection
        return answer


def _speaks_tls(host: str, port: int, seconds: float) -> bool:
    """Return whether a server answers the first message of a TLS handshake as a TLS server does."""
    import ssl  # most programs need it only here

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only a question: nothing is sent on this connection
    try:
        with (
            socket.create_connection((host, port), timeout=seconds) as connected,
            context.wrap_socket(connected, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _judged(where: str, answer: bytes) -> ServerFinding:
    if not answer:
        return ServerFinding(f"{where} closes each connection: ask its log why", certain=False)
    if b"not currently serving" in answer:
        return ServerFinding(
            f"the ZooKeeper at {where} does not serve now: its ensemble elects a leader, or has no majority",
            certain=False,
            waits=True,
        )
    if b"Mode:" in answer or b"whitelist" in answer or b"Zookeeper version" in answer:
        zxid, version = _ZXID.search(answer), _VERSION.match(answer)
        return ServerFinding(
            f"the ZooKeeper at {where} opens no session: ask its log why",
            certain=False,
            zxid=int(zxid[1], 16) if zxid else None,
            decides=_DECIDES.search(answer) is not None,
            serves=True,
            version=version[1].decode() if version else "",
        )
    return ServerFinding(f"what listens at {where} is not a ZooKeeper: correct the port", certain=True)


def _silent(where: str) -> ServerFinding:
    return ServerFinding(f"{where} does not answer: check that it can be reached", certain=False)


def sentence(findings: Sequence[ServerFinding]) -> str:
    """Return the texts of all findings as one line; equal texts appear once."""
    return "; ".join(dict.fromkeys(each.text for each in findings))

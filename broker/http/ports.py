"""The HTTP ports of one broker: one for the dashboard and one for the gateway. Each port is opened only if it is
configured. The size of requests and the number of requests at the same time are limited.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import FORBIDDEN, INTERNAL_SERVER_ERROR, HTTPChannel
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import MAX_BODY_BYTES

from .. import tuning
from ..assembly.broker import Broker
from ..requests.gate import Gate
from ..runtime.account import Account, account_address
from ..runtime.few_lines import FewLines
from ..runtime.log_format import LogFormat
from .browsers import OwnNames
from .dashboard import Dashboard, RecentLog
from .gateway import Gateway

if TYPE_CHECKING:
    from ..network.tls import Certificates  # imports ssl: only if configured

__all__ = ["GuardedSite", "HttpPorts"]

_log = logging.getLogger(__name__)

IDLE_SECONDS = 60
"""A connection is closed if its client sends nothing, or receives nothing of an answer, for this many seconds."""

_LENGTH_DIGITS = 19
"""The most digits of a Content-Length. A request with more digits is refused. A limit is needed because Python raises
an error when it parses a number with thousands of digits, and Twisted does not handle this error.
"""

_TOLD_FRAMES = 4
_TOLD_CHARACTERS = 200


class _Services(Protocol):
    """The attributes of the broker that the connections of the dashboard's port and of the gateway's port use."""

    account: Account
    closed_lines: FewLines


class _Channel(HTTPChannel):
    """An HTTP connection. The broker's account counts the connection, and the bytes of the request body that it has
    received. The broker closes the connection if the client does not receive its answers for IDLE_SECONDS.
    """

    address: str
    shared: _Services
    transport: Any
    _cut: Any = None
    _unsent = _last_size = 0
    _crowded = False  # its address, or all addresses together, have too many bytes of unfinished requests
    _whole = False  # the request is complete and is being answered
    refusal: str | None = None
    """The reason why each request of this connection is refused, or None if requests are answered."""

    def makeConnection(self, transport: Any) -> None:  # noqa: N802
        transport.bufferSize = tuning.HTTP_READ_BYTES
        super().makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        """Handle received data. If the handling raises an exception, log one line and close the connection. Twisted
        itself would log a traceback for each such exception, and a client could fill the log by causing many.
        """
        try:
            super().dataReceived(data)
        except Exception as error:
            self.failed(error)
            if self._whole:
                self.transport.abortConnection()  # a part of an answer may have been sent
            else:
                self._respondToBadRequestAndDisconnect()

    def failed(self, error: BaseException) -> None:
        """Log an exception, which is a bug, in one line. No traceback is logged, because a client could fill the log by
        repeating the request that causes the exception.
        """
        frames = reversed(traceback.extract_tb(error.__traceback__)[-_TOLD_FRAMES:])
        places = ", ".join(f"{os.path.basename(each.filename)}:{each.lineno} {each.name}" for each in frames)
        self._tell(f"failed: {type(error).__name__}: {str(error)[:_TOLD_CHARACTERS]!r} in {places}")

    def _tell(self, what: str) -> None:
        peer = self.transport.getPeer()
        self.shared.closed_lines.info(f"HTTP connection from {peer.host}:{peer.port} {what}")

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and len(value.strip(b" \t")) > _LENGTH_DIGITS:
            self._respondToBadRequestAndDisconnect()
            return False
        return cast(bool, super().headerReceived(line))

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        self.shared.account.http.add(self.address, -1)
        self.shared.account.unfinished.drop(self, self.address)
        self._taken()
        super().connectionLost(reason)

    def holds(self, body_bytes: int) -> None:
        """Tell the account, which limits the bytes of unfinished requests, how many bytes of this connection's request
        were received. body_bytes: the number of received bytes, or 0 when the request is done.
        """
        unfinished = self.shared.account.unfinished
        if unfinished.has(self, self.address, body_bytes, False, self._cut_slow):
            self._crowded = self._crowded and body_bytes > 0
        elif not self._crowded:
            self._crowded = True
            self.transport.pauseProducing()
            unfinished.wait(self, self.address, self._let_in)

    def _let_in(self) -> None:
        self._crowded = False
        self.shared.account.unfinished.read_again(self, self.address)
        self.resetTimeout()
        if self._cut is None:
            self.transport.resumeProducing()

    def timeoutConnection(self) -> None:  # noqa: N802
        """Twisted calls this when the connection was idle for IDLE_SECONDS. Close the connection, unless it is idle
        only because the broker has stopped reading from it.
        """
        if self._crowded:
            self.setTimeout(IDLE_SECONDS)
        else:
            super().timeoutConnection()

    def _cut_slow(self, why: str) -> bool:
        if self._whole or self._cut is not None:  # the connection is not being read
            return False
        self._tell(f"closed: {why}")
        self.transport.abortConnection()
        return True

    def allContentReceived(self) -> None:  # noqa: N802
        self._whole = True
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:  # noqa: N802
        self._whole = False
        self.holds(0)
        super().requestDone(request)

    def write(self, data: bytes) -> None:
        self._last_size = len(data)
        super().write(data)

    def writeSequence(self, iovec: Iterable[bytes]) -> None:  # noqa: N802
        data = list(iovec)
        self._last_size = sum(map(len, data))
        super().writeSequence(data)

    def pauseProducing(self) -> None:  # noqa: N802
        """Twisted calls this when the transport's buffer is full, because the client does not receive its answer fast
        enough. Stop writing for now.
        """
        self._wait()
        super().pauseProducing()

    def resumeProducing(self) -> None:  # noqa: N802
        self._taken()
        super().resumeProducing()
        if self._crowded:
            self.transport.pauseProducing()

    def loseConnection(self) -> None:  # noqa: N802
        """Close the connection when the client has received all its answers. Close it after IDLE_SECONDS in any case:
        the broker cannot find out whether the client is still receiving the answers.
        """
        self._wait()
        super().loseConnection()

    def _wait(self) -> None:
        if self._cut is None:
            self._unsent = self._last_size
            self.shared.account.unsent.hold(self.address, self._unsent)
            self._cut = self.callLater(IDLE_SECONDS, self.forceAbortClient)

    def _taken(self) -> None:
        if self._cut is not None:
            self.shared.account.unsent.hold(self.address, -self._unsent)
            if self._cut.active():
                self._cut.cancel()
            self._cut = None


class GuardedSite(Site):
    """Serves requests of limited size. Refuses requests that a page of another web site has made a browser send."""

    noisy = False
    protocol = cast(Any, _Channel)

    def __init__(self, root: IResource, own_names: OwnNames, shared: _Services, reactor: Any) -> None:
        super().__init__(cast(Any, root), requestFactory=_GuardedRequest, timeout=IDLE_SECONDS, reactor=reactor)
        self.own_names = own_names
        self._shared = shared

    def buildProtocol(self, addr: IAddress | None) -> Any:  # noqa: N802
        """Return the protocol object for a new connection; return None if there are too many HTTP connections, so that
        Twisted closes the new connection at once.
        """
        address = account_address(getattr(addr, "host", "?"))
        connections = self._shared.account.http
        if not connections.take(address):
            if connections.refused.bit_count() == 1:  # logs the 1st, 2nd, 4th, 8th …
                _log.warning("an HTTP connection is refused: %s", connections.refusal(address))
            return None
        channel = cast(_Channel, super().buildProtocol(cast(Any, addr)))
        channel.address, channel.shared = address, self._shared
        return channel


class _GuardedRequest(Request):
    """A request whose body has at most MAX_BODY_BYTES. If a client announces a larger body, the broker closes the
    connection before it receives the body.
    """

    _refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """Prepare to keep the request's body in memory, where the account limits the size of the body. (Twisted would
        store a large body in a file, which the broker's limit of open files does not take into account.)
        """
        self.content = BytesIO()
        self._check(length or 0)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        body_bytes = cast(BytesIO, self.content).tell() + len(data)
        self._check(body_bytes)
        if not self._refused:
            super().handleContentChunk(data)
            cast(_Channel, self.channel).holds(body_bytes)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802
        """Handle a received request, and take its parameters only from the URL. Twisted would also parse a body with
        the content type of a form, which many programs send by default. Parsing 8 MiB would take seconds, and
        parameters in the body, which is the content of a message, could override the message's destination in the URL.
        Twisted parses the body only if the body's file object is positioned at its end; so this method sets the
        position to 0 to prevent the parsing.
        """
        cast(Any, self.content).seek(0)
        super().requestReceived(command, path, version)

    def process(self) -> None:
        if self._refused:
            return
        self.setHeader("x-content-type-options", "nosniff")
        channel = cast(Any, self.channel)
        refusal = channel.refusal or cast(GuardedSite, channel.site).own_names.refusal(self)
        if refusal is None:
            super().process()
            return
        self.setResponseCode(FORBIDDEN)
        self.setHeader("content-type", "text/plain; charset=utf-8")
        self.write(refusal.encode("utf-8", "replace"))
        self.finish()

    def processingFailed(self, reason: Failure) -> Failure:  # noqa: N802
        """Answer a request whose page has raised an exception, which is a bug."""
        error = cast(BaseException, reason.value)
        cast(_Channel, self.channel).failed(error)
        self.setResponseCode(INTERNAL_SERVER_ERROR)
        self.setHeader("content-type", "text/plain; charset=utf-8")
        self.write(f"internal error: {type(error).__name__}\n".encode())
        self.finish()
        return reason

    def _check(self, body_bytes: int) -> None:
        if body_bytes > MAX_BODY_BYTES and not self._refused:
            self._refused = True
            cast(Any, self.channel).forceAbortClient()


def _listen_http(site: Site, option: str, port: int, reactor: Any, interface: str) -> Any:
    """Listen on an HTTP port, and return the port object. If that fails, raise a ConfigError that names `option`."""
    try:
        return reactor.listenTCP(port, site, interface=interface)
    except CannotListenError as error:
        reason = error.socketError.strerror if isinstance(error.socketError, OSError) else error.socketError
        remedy = f"cannot listen there ({reason}): stop the other program or set another {option}"
        raise ConfigError(option, port, remedy) from error


class HttpPorts:
    """The open HTTP ports of a broker. Used only on the reactor thread.

    If another program uses the dashboard's port, the broker only logs a line and starts without the dashboard, because
    the dashboard is not needed to serve messages. If another program uses the gateway's port, a ConfigError is raised,
    because the gateway serves messages. The dashboard listens on the interface from which admin requests may come,
    because operators can change the broker by the dashboard. The gateway serves clients as the broker's own port does,
    so it listens on the same interface as that port.
    """

    def __init__(
        self,
        broker: Broker,
        gate: Gate,
        reactor: Any,
        *,
        dashboard_port: int | None = None,
        dashboard_interface: str = "127.0.0.1",
        gateway_port: int | None = None,
        interface: str = "",
        names: Iterable[str] = (),
        certificates: Certificates | None = None,
        session: Callable[[], ZkSession | None],
    ) -> None:
        """dashboard_port, gateway_port: the numbers of the ports; None means that the broker does not listen, and 0
        that it chooses a free port. dashboard_interface, interface: numeric addresses; "" means all IPv4 addresses.
        names: additional host names, besides the broker's hostName, that browsers may use (OwnNames). certificates: the
        certificates for HTTPS. If it is None, all connections use HTTP without TLS. session: returns the broker's
        ZooKeeper session, or None without ZooKeeper.
        """
        self._broker = broker
        self._own_names = OwnNames((broker.config.host, *names))
        self._certificates = certificates
        self._ports: list[Any] = []
        self._recent = RecentLog()
        self._recent.setFormatter(LogFormat())
        try:
            if dashboard_port is not None:
                logging.getLogger().addHandler(self._recent)
                pages = Dashboard(broker, gate, session, self._recent).resource()
                try:
                    self._listen("dashboard", pages, "dashboardHttpPort", dashboard_port, reactor, dashboard_interface)
                except ConfigError as error:
                    _log.error("the broker serves without its pages: %s", error)
            if gateway_port is not None:
                gateway = Gateway(gate, broker, broker.logins)
                self._listen("gateway", gateway, "jettyBroker serverPort", gateway_port, reactor, interface)
        except BaseException:
            self.close()
            raise

    def _listen(self, name: str, root: Any, option: str, port: int, reactor: Any, interface: str) -> None:
        site = GuardedSite(root, self._own_names, self._broker, reactor)
        listening = _listen_http(site, option, port, reactor, interface)
        self._ports.append(listening)
        scheme = "http"
        if self._certificates is not None:  # the reactor has accepted no connection yet
            listening.transport = self._certificates.http_connection_class(reactor)
            scheme = "https"
        _log.info("%s at %s://%s:%d/", name, scheme, interface or "*", listening.getHost().port)

    def close(self) -> Deferred[Any]:
        """Stop listening on the HTTP ports. Answers that are being sent now on open connections are sent completely."""
        logging.getLogger().removeHandler(self._recent)
        ports, self._ports = self._ports, []
        return gatherResults([port.stopListening() for port in ports])

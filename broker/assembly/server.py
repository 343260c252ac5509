"""Listen on the broker's port and on its listeners: accept connections, create a session for each connection, limit
their number, and close idle connections.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from twisted.internet import tcp, unix
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall

from metaq.protocol.errors import ConfigError

from ..configuration.listeners_ini import MAIN, MAIN_RULES, ListenerRules
from ..network.open_listener import OpenListener
from ..network.session import Session
from ..network.transport import connection_class
from ..requests.gate import Gate
from ..runtime.account import LOCAL_HOST, SCAN_SECONDS, account_address, numeric_address
from ..runtime.few_lines import FewLines
from .broker import Broker

if TYPE_CHECKING:
    from ..network.tls import Certificates  # imports ssl: only if configured

__all__ = ["IDLE_SECONDS", "SessionFactory", "listen", "listen_further", "warn_if_open"]

_log = logging.getLogger(__name__)

IDLE_SECONDS = 300
"""If the broker receives no data on a connection for this many seconds, it closes the connection, as in 1.x."""

_IDLE_SCAN_SECONDS = 30
_BACKLOG = 1000


class SessionFactory(Factory):
    """Creates a session for each connection, limits the number of connections and closes idle ones."""

    noisy = False

    def __init__(
        self, broker: Broker, gate: Gate, max_connections: int, *, http: bool = False, main: ListenerRules | None = None
    ) -> None:
        """max_connections: the most connections of the whole broker. http: whether some of these connections are
        reserved for the HTTP ports. main: the rules of the main port; None if only [tls] counts.
        """
        self._broker = broker
        self._gate = gate
        broker.account.use_descriptors(max_connections, http=http)
        self._main = main
        self._sessions: dict[Session, str] = {}  # value: the address for whose limits the connection counts
        self._outsiders = FewLines(_log, "connections from other networks closed", broker.reactor)
        self._refused = 0
        self._refusal = ""
        self._idle_scan = LoopingCall(self._cut_idle)
        self._slow_scan = LoopingCall(self._cut_slow)
        for scan in (self._idle_scan, self._slow_scan):
            scan.clock = cast(Any, broker.reactor)

    def startFactory(self) -> None:  # noqa: N802
        self._idle_scan.start(_IDLE_SCAN_SECONDS, now=False)
        self._slow_scan.start(SCAN_SECONDS, now=False)

    def stopFactory(self) -> None:  # noqa: N802
        for scan in (self._idle_scan, self._slow_scan):
            if scan.running:
                scan.stop()

    def buildProtocol(self, addr: IAddress | None) -> Session | None:  # noqa: N802
        """Return a session for a new connection of the main port, as session_for does."""
        return self.session_for(self._main, getattr(addr, "host", "?"))

    def session_for(self, rules: ListenerRules | None, host: str) -> Session | None:
        """Return a session for a new connection. Return None if there are too many connections, or if the listener does
        not serve clients at `host`, so that Twisted closes the new connection at once. rules: the rules of the
        listener; None for the main port of a broker without listeners.
        """
        if rules is None:
            session = Session(self._gate, self._broker, self._lost)
        else:
            if not rules.is_proxy(numeric_address(host)) and self._outside(rules, host):
                return None
            session = Session(
                self._gate, self._broker, partial(self._lost_of, rules), rules, partial(self._comes_from, rules)
            )
        address = account_address(host)
        if not self._takes(address):
            return None
        self._sessions[session] = address
        self._broker.connections = len(self._sessions)
        if rules is not None:
            self._broker.listeners[rules.name].connections += 1
        return session

    def _takes(self, address: str) -> bool:
        connections = self._broker.account.connections
        if connections.take(address):
            return True
        self._refused += 1
        self._refusal = connections.refusal(address)
        return False

    def _outside(self, rules: ListenerRules, host: str) -> bool:
        """Return whether the listener does not serve this client, and count the client in this case."""
        if rules.path or rules.serves(numeric_address(host)):
            return False
        self._broker.listeners[rules.name].refused += 1
        self._outsiders.info(f"the connection of {host} to the listener {rules.name} is closed: not in its networks")
        return True

    def _comes_from(self, rules: ListenerRules, session: Session, host: str) -> str | None:
        """Count the connection of a proxy for the client whose address the proxy has told. Return why this client may
        not connect, or None.
        """
        if self._outside(rules, host):
            return f"its proxy has connected it to the listener {rules.name}, which does not serve its network"
        address = account_address(host)
        former = self._sessions[session]
        self._broker.account.connections.add(former, -1)
        if not self._takes(address):
            self._broker.account.connections.add(former, 1)
            return self._refusal
        self._sessions[session] = address
        return None

    def close_all(self) -> None:
        """Close every connection as soon as its pending answers are sent."""
        for session in list(self._sessions):
            session.close()

    def abort_all(self, why: str) -> None:
        """Close every connection at once; answers that are not sent yet are lost. why: the reason, for the log."""
        for session in list(self._sessions):
            session.abort(why)

    def forgive(self, seconds: float) -> None:
        """Let every connection count as active `seconds` later than it was, because the clock is about to jump by as
        much. Otherwise the jump would make all connections idle.
        """
        for session in self._sessions:
            session.last_active += seconds

    def _lost_of(self, rules: ListenerRules, session: Session) -> None:
        if session in self._sessions:
            self._broker.listeners[rules.name].connections -= 1
        self._lost(session)

    def _lost(self, session: Session) -> None:
        address = self._sessions.pop(session, None)
        if address is not None:
            self._broker.account.connections.add(address, -1)
        self._broker.connections = len(self._sessions)

    def _cut_slow(self) -> None:
        self._broker.account.unfinished.look()
        self._broker.account.unsent.look()

    def _cut_idle(self) -> None:
        if self._refused:
            _log.warning("%d connections refused: %s", self._refused, self._refusal)
            self._refused = 0
        oldest = self._broker.reactor.seconds() - IDLE_SECONDS
        for session in [session for session in self._sessions if session.last_active < oldest]:
            session.abort(f"idle for {IDLE_SECONDS} seconds")


class ListenerFactory(Factory):
    """Gives the connections of one listener to the broker's SessionFactory."""

    noisy = False

    def __init__(self, sessions: SessionFactory, rules: ListenerRules) -> None:
        self._sessions = sessions
        self._rules = rules

    def buildProtocol(self, addr: IAddress | None) -> Session | None:  # noqa: N802
        """Return a session for a new connection, or None, as SessionFactory.session_for does."""
        host = LOCAL_HOST if self._rules.path else str(getattr(addr, "host", "?"))
        return self._sessions.session_for(self._rules, host)


def listen(broker: Broker, factory: SessionFactory, reactor: Any, certificates: Certificates | None = None) -> tcp.Port:
    """Listen on the configured address and port. If the configured port is 0, the operating system chooses a free port,
    and this function stores its number in broker.port. Raises ConfigError if the broker cannot listen there.

    reactor: IReactorTime and IReactorFDSet. certificates: the certificates for connections with TLS. If it is None, all
    connections are without TLS.
    """
    address = broker.config.listen
    port = tcp.Port(broker.config.port, cast(Any, factory), _BACKLOG, address, reactor)
    port.transport = connection_class()
    main = MAIN_RULES
    if certificates is not None:
        main = certificates.main_rules or main
        port.transport = certificates.connection_class(port.transport, reactor, main)
    try:
        port.startListening()
    except CannotListenError as error:
        reason, error_number = _why(error)
        if address and error_number not in (errno.EADDRINUSE, errno.EACCES):
            remedy = f"cannot listen there ({reason}): name an address of this machine"
            raise ConfigError("--listen", address, remedy) from error
        remedy = f"cannot listen there ({reason}): stop the other program or set another serverPort"
        raise ConfigError("serverPort", broker.config.port, remedy) from error
    broker.port = port.getHost().port  # type: ignore[no-untyped-call]
    if certificates is not None and certificates.listeners:
        broker.listeners[MAIN] = OpenListener(main, broker.port)
    return port


def listen_further(
    broker: Broker, sessions: SessionFactory, reactor: Any, certificates: Certificates
) -> list[tcp.Port]:
    """Listen on the listeners in security.ini, and record them in broker.listeners. Called after `listen`. Raises
    ConfigError if the broker cannot listen on one of them; none of them is open then.
    """
    from ..network.local_connection import local_connection_class  # only if configured

    ports: list[tcp.Port] = []
    try:
        for rules in certificates.listeners:
            if rules.name == MAIN:
                continue
            factory = cast(Any, ListenerFactory(sessions, rules))
            place: str | int = rules.path or rules.port
            key = f"security.ini: [listener {rules.name}] {'path' if rules.path else 'port'}"
            if rules.path:
                _remove_stale_socket(rules.path, key)
                _warn_if_others_change(os.path.dirname(os.path.abspath(rules.path)), rules.name)
                port: tcp.Port = unix.Port(os.fsencode(rules.path), factory, _BACKLOG, rules.mode, reactor)
                port.transport = local_connection_class(rules)
            else:
                if rules.port and rules.port == broker.port:
                    raise ConfigError(key, place, "is the serverPort of server.ini: choose another port")
                address = rules.address or broker.config.listen
                port = tcp.Port(rules.port, factory, _BACKLOG, address, reactor)
                port.transport = certificates.connection_class(connection_class(), reactor, rules)
            try:
                port.startListening()
            except CannotListenError as error:
                reason, error_number = _why(error)
                do = "make its directory" if error_number == errno.ENOENT else "stop the other program"
                remedy = f"cannot listen there ({reason}): {do} or choose another place"
                raise ConfigError(key, place, remedy) from error
            ports.append(port)
            number = 0 if rules.path else port.getHost().port  # type: ignore[no-untyped-call]
            broker.listeners[rules.name] = OpenListener(rules, number)
            _log.info("the listener %s serves %s", rules.name, rules.path or f"port {number}")
    except BaseException:
        for port in ports:
            port.stopListening()  # type: ignore[no-untyped-call]
        raise
    return ports


def _why(error: CannotListenError) -> tuple[str, int | None]:
    """Return why the broker cannot listen: a text, and the number of the operating system's error, if it is one."""
    cause = error.socketError
    return (str(cause.strerror), cause.errno) if isinstance(cause, OSError) else (str(cause), None)


def _remove_stale_socket(path: str, key: str) -> None:
    """Remove the file of a Unix socket that a broker has left when it was killed. Raises ConfigError if a program
    listens there, or if the file is no socket.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(key, path, "is a file that is no socket: remove it, or choose another path")
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(key, path, f"cannot be used: {error.strerror}") from error
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # its backlog is full, so a program listens
            pass
        except OSError as error:
            raise ConfigError(key, path, f"cannot be used: {error.strerror}") from error
    raise ConfigError(key, path, "another program listens there: stop it, or choose another path")


def _warn_if_others_change(directory: str, listener: str) -> None:
    """Log a warning if users other than its owner may change the directory of a Unix socket: they could put a socket of
    their own into its place, and operators would connect to that.
    """
    try:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
    except OSError:  # the listener cannot be opened there, and the error of this attempt says why
        return
    if mode & 0o022:
        _log.warning(
            "security.ini: [listener %s] path: users other than the owner may change the directory %s (mode %03o), and "
            "put another socket there: chmod go-w %s, or choose another directory",
            *(listener, directory, mode, directory),
        )


def warn_if_open(broker: Broker, certificates: Certificates | None) -> None:
    """Log a warning if everybody who can reach the broker's port from another machine can use the broker."""
    address = broker.config.listen
    if certificates is not None or (address and ip_address(address).is_loopback):
        return
    _log.warning(
        "anybody who reaches the port %d (%s) can read, send and delete messages without a password, and everything is "
        "sent without encryption: see docs/security.md",
        *(broker.port, address or "all addresses of this machine"),
    )

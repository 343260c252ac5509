"""The HTTP ports of one broker: the dashboard's and the gateway's, each only if it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from metaq.coordination.session import ZkSession
from metaq.protocol.errors import ConfigError

from ..broker import Broker
from ..requests.verbs import make_gate
from .dashboard import Dashboard, RecentLog
from .gateway import Gateway
from .site import listen_http

__all__ = ["HttpPorts"]

_log = logging.getLogger(__name__)


class HttpPorts:
    """Reactor thread.

    A dashboard's port that is taken is one line in the log: pages must not keep messages from being served. The
    gateway serves messages itself, so it raises ConfigError then. The dashboard can change things, so it listens where
    admin requests may come from. The gateway sends and reads messages like the broker's own port, so it listens where
    that does.
    """

    def __init__(
        self,
        broker: Broker,
        reactor: Any,
        *,
        dashboard_port: int | None = None,
        dashboard_interface: str = "127.0.0.1",
        gateway_port: int | None = None,
        interface: str = "",
        session: Callable[[], ZkSession | None],
    ) -> None:
        """Ports: None = not at all, 0 = a free one. Interfaces: numeric, "" = all IPv4 ones. session: as in
        Dashboard.
        """
        self._ports: list[Any] = []
        self._recent = RecentLog()
        self._recent.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        try:
            if dashboard_port is not None:
                logging.getLogger().addHandler(self._recent)
                pages = Dashboard(broker, session, self._recent).resource()
                try:
                    self._listen("dashboard", pages, "dashboardHttpPort", dashboard_port, reactor, dashboard_interface)
                except ConfigError as error:
                    _log.error("the broker serves without its pages: %s", error)
            if gateway_port is not None:
                gateway = Gateway(make_gate(broker), broker.pending_puts)
                self._listen("gateway", gateway, "jettyBroker serverPort", gateway_port, reactor, interface)
        except BaseException:
            self.close()
            raise

    def _listen(self, name: str, root: Any, option: str, port: int, reactor: Any, interface: str) -> None:
        listening = listen_http(root, option, port, reactor, interface)
        self._ports.append(listening)
        _log.info("%s at http://%s:%d/", name, interface or "*", listening.getHost().port)

    def close(self) -> Deferred[Any]:
        """Listen no more; what is being answered is finished by its connections."""
        logging.getLogger().removeHandler(self._recent)
        ports, self._ports = self._ports, []
        return gatherResults([port.stopListening() for port in ports])

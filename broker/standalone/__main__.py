"""`python -m metaq.broker.standalone DIRECTORY HOST PORT TICK_MS MAX_SESSION_MS [SECURE_PORT CLIENT_CERTIFICATES
CERTIFICATE KEY CA]`: run a ZooKeeper server for development. PORT: 0 means that there is no port without TLS. CA: the
empty string if CLIENT_CERTIFICATES is `none`.

`metaq.coordination.standalone_process` starts this program. The program ends when it receives SIGTERM. If the program
cannot continue, it ends with status 1, and its last log line says why.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, cast

from twisted.internet.epollreactor import EPollReactor

from metaq.coordination.runtime.certificates import CertificateFiles, ClientCertificates
from metaq.coordination.servers.local_zookeeper import STANDALONE_DIRECTORY
from metaq.coordination.servers.server_tls import ServerTls
from metaq.protocol.errors import MetaqError

from .opening import SecurePlace, ServerPlace, begin, open_server


def main(arguments: list[str]) -> int:
    os.umask(0o077)  # as a broker does: its files are for their owner alone from the first moment
    directory, host, port, tick_time_ms, max_session_timeout_ms, *secure = arguments
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]
    # the server makes so little cyclic garbage that a search through all of its nodes, which is longer than a turn, is
    # not worth it
    gc.disable()
    place = ServerPlace(
        *(Path(directory) / STANDALONE_DIRECTORY, host, int(port) or None),
        *(int(tick_time_ms), int(max_session_timeout_ms)),
        _secure_place(*secure) if secure else None,
    )
    try:
        driver = open_server(place, reactor)
        driver.stopped = reactor.stop
        begin(driver, place, reactor)
    except (MetaqError, OSError) as error:
        logging.error("%s", error)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(driver.close))
    reactor.run(installSignalHandlers=False)
    return 1 if driver.failure is not None else 0


def _secure_place(port: str, client_certificates: str, certificate: str, key: str, ca: str) -> SecurePlace:
    files = CertificateFiles(ca, certificate, key, "zookeeper")
    return SecurePlace(int(port), ServerTls(files, cast(ClientCertificates, client_certificates)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

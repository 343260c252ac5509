"""`python -m metaq.broker.standalone DIRECTORY HOST PORT TICK_MS MAX_SESSION_MS`: run a ZooKeeper server for
development.

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
from typing import Any

from twisted.internet.epollreactor import EPollReactor

from metaq.coordination.servers.local_zookeeper import STANDALONE_DIRECTORY
from metaq.protocol.errors import MetaqError

from .opening import ServerPlace, open_server


def main(arguments: list[str]) -> int:
    os.umask(0o077)  # as a broker does: its files are for their owner alone from the first moment
    directory, host, port, tick_time_ms, max_session_timeout_ms = arguments
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]
    # the server makes so little cyclic garbage that a search through all of its nodes, which is longer than a turn, is
    # not worth it
    gc.disable()
    place = ServerPlace(
        Path(directory) / STANDALONE_DIRECTORY, host, int(port), int(tick_time_ms), int(max_session_timeout_ms)
    )
    try:
        driver = open_server(place, reactor)
        driver.stopped = reactor.stop
        driver.listen(place.host, place.port)
    except (MetaqError, OSError) as error:
        logging.error("%s", error)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(driver.close))
    reactor.run(installSignalHandlers=False)
    return 1 if driver.failure is not None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""kazoo's own tests on one server: `python -m tests.kazoo_suite standalone`, or `apache`. Two minutes.

What is behind that goes to pytest: names of modules (`kazoo.tests.test_client`) instead of all of them, options.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SERVERS = ("standalone", "apache")

MODULES = (
    "test_barrier",
    "test_cache",
    "test_client",
    "test_connection",
    "test_counter",
    "test_election",
    "test_interrupt",
    "test_lease",
    "test_lock",
    "test_partitioner",
    "test_party",
    "test_queue",
    "test_watchers",
)
"""Those that need a server."""

LEFT_OUT = {
    "test_update_host_list": "needs an ensemble of three servers",
    "TestReadOnlyMode": "needs an ensemble of three servers, two of which are stopped",
    "TestReconfig": "needs an ensemble, with reconfiguration switched on: Apache's default is off, and so are we",
    "TestSSLClient": "needs TLS, which neither server has here",
    "(KazooTreeCacheTests and (test_close or test_delete_operation))": "count objects of kazoo's, also those that the"
    " tests before have left: they pass or fail by the order, on either server",
}
"""Tests that pass on neither server, by pytest's expressions. All others pass on both: there is none that passes on
Apache's alone."""


def run(server: str, modules: Sequence[str] = (), options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the modules, all by default, to their end."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.kazoo_suite.plugin", "-p", "no:cacheprovider"),
        *("--override-ini=pythonpath=", "--timeout", "120", "-k", f"not ({' or '.join(LEFT_OUT)})", *options),
        *("--pyargs", *(modules or [f"kazoo.tests.{module}" for module in MODULES])),
    ]
    path = os.environ.get("PYTHONPATH") or str(Path(__file__).parents[2])  # that of the tests, with metaq installed
    environment = os.environ | {"METAQ_KAZOO_SERVER": server, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)


if __name__ == "__main__":
    if sys.argv[1:2] not in ([server] for server in SERVERS):
        sys.exit(f"usage: python -m tests.kazoo_suite {'|'.join(SERVERS)} [module or option of pytest] …")
    rest = sys.argv[2:]
    ended = run(
        sys.argv[1],
        [each for each in rest if not each.startswith("-")],
        [each for each in rest if each.startswith("-")],
    )
    print(ended.stdout)
    sys.exit(ended.returncode)

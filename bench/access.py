"""What grants cost the broker: the time that its gate takes for a request, with and without users and grants.

    python -m bench.access

The figures are microseconds of one call of `Gate.admit`, the least of several rounds. A request is one that the same
connection has sent before, because that is the ordinary case; the broker remembers what a connection was permitted.
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from metaq.protocol.access import Access, AccessGrant, AccessMode, Permissions, Principal, User
from metaq.protocol.put_run import LEAST_PUTS
from metaq.protocol.requests import RequestReader
from tests.unit.broker.harness import Harness, pull, put, send

_CALLS = 20_000
_ROUNDS = 9
_GRANTS = ("send:t", "consume:t@g", "send:shop-*", "see:*", "deny send:secret-*")
_REQUESTS: Mapping[str, Callable[[], bytes]] = {
    "put (text)": partial(put, "t", 0, b"x" * 100),
    "run of puts (text)": lambda: b"".join(put("t", 0, b"x" * 100, number) for number in range(LEAST_PUTS)),
    "SEND": partial(send, "t", 0, b"x" * 100),
    "PULL": partial(pull, "t", 0, 0, group="g"),
}


def main() -> None:
    """Measure, and print a table."""
    user = User("app", Access(map(AccessGrant.parse, _GRANTS)))
    with tempfile.TemporaryDirectory() as directory:
        harness = Harness(Path(directory))
        access = harness.broker.access
        access.see(Permissions(AccessMode.ENFORCE, {user.name: user}))
        session = harness.connect().session
        session.logged_in(Principal("user", user.name))
        print("| request | without, us | with grants, us |\n|---|---|---|")
        for name, data in _REQUESTS.items():
            (request,) = RequestReader().receive(data())
            took = []
            for guard in (None, access):
                harness.gate.guard = guard
                rounds = timeit.repeat(partial(harness.gate.admit, request, session), number=_CALLS, repeat=_ROUNDS)
                took.append(min(rounds) / _CALLS * 1e6)
            print(f"| {name} | {took[0]:.2f} | {took[1]:.2f} |")
        harness.threads.run()
        harness.close()


if __name__ == "__main__":
    main()

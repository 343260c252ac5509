"""What grants and rates of users cost the broker.

    python -m bench.access

The first table is about grants: microseconds of one call of `Gate.admit`, the least of several rounds. A request is one
that the same connection has sent before, because that is the ordinary case; the broker remembers what a connection was
permitted.

The second table is about rates: microseconds of processor time for a request, from the bytes that a session receives to
the bytes of its answer, in a broker where nobody has a rate, and in the same broker where the user has all rates. The
two alternate in short rounds, so that they see the same state of the machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

from metaq.protocol.access import Access, AccessGrant, AccessMode, Permissions, Principal, Quota, User
from metaq.protocol.put_run import LEAST_PUTS
from metaq.protocol.requests import RequestReader
from tests.unit.broker.harness import Harness, pull, put, send

_CALLS = 20_000
_ROUNDS = 9
_RATE_CALLS = 50
_RATE_ROUNDS = 100
_RATES = {quota: 1_000_000_000_000 for quota in Quota if quota.is_rate}
_GRANTS = ("send:t", "consume:t@g", "send:shop-*", "see:*", "deny send:secret-*")
_REQUESTS: dict[str, Callable[[], bytes]] = {
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
        measure_rates(Path(directory) / "rates")


def measure_rates(directory: Path) -> None:
    """Measure what rates cost, and print a table."""
    harness = Harness(directory)
    plain = Permissions(AccessMode.OPEN, {"app": User("app", Access(()))})
    limited = Permissions(AccessMode.OPEN, {"app": User("app", Access(()), quotas=_RATES)})
    print("\n| request | no rates, us | rates, us | ratio |\n|---|---|---|---|")
    for name, make in (_REQUESTS | {"PULL": partial(pull, "t", 2, 0, group="g")}).items():  # a pull of nothing
        data = make()
        peer = harness.connect()
        peer.session.logged_in(Principal("user", "app"))
        took: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * _RATE_ROUNDS):
            with_rates = bool(number % 2) ^ bool(number // 2 % 2)  # each is as often first of two
            harness.broker.account.see(limited if with_rates else plain)
            since = time.process_time()
            for _ in range(_RATE_CALLS):
                peer.send(data)
                harness.threads.run()
            took[with_rates].append(time.process_time() - since)
            peer.received()
        without, with_ = (statistics.median(took[kind]) / _RATE_CALLS * 1e6 for kind in (False, True))
        ratios = [after / before for before, after in zip(took[False], took[True], strict=True)]
        print(f"| {name} | {without:.2f} | {with_:.2f} | {statistics.median(ratios):.4f} |")
    harness.threads.run()
    harness.close()


if __name__ == "__main__":
    main()

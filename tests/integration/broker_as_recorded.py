"""A broker process that chooses the partition which the recorded broker chose for the one put that left it open."""

import random
import sys

from twisted.internet import reactor

from metaq.broker.configuration.server_ini import read_config
from metaq.broker.main import BrokerProcess, OneBroker


class AsRecorded(random.Random):
    """1, or what comes nearest."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return min(1, start - 1)


if __name__ == "__main__":
    sys.exit(BrokerProcess(OneBroker(read_config(sys.argv[1]), reactor, rng=AsRecorded()), reactor).run())

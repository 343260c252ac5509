"""A broker process that also takes 1.x's admin operations, one a line, on stdin: `closePartitions t3 0 0`.

They have no command in this version; the operations themselves are Partitions.close and Partitions.open.
"""

import random
import sys
import threading

from twisted.internet import reactor

from metaq.broker.config import read_config
from metaq.broker.main import BrokerProcess


class AsRecorded(random.Random):
    """Chooses the partition that the recorded broker chose for the one put that left it open."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return min(1, start - 1)


def run(ini_path: str) -> int:
    process = BrokerProcess(read_config(ini_path), reactor, rng=AsRecorded())

    def operate(line: str) -> None:
        name, topic, *numbers = line.split()
        if name == "closePartitions":
            process.broker.partitions.close(topic, *map(int, numbers))
        else:
            process.broker.partitions.open(topic)
        print("done", flush=True)

    def listen() -> None:
        for line in sys.stdin:
            reactor.callFromThread(operate, line)

    threading.Thread(target=listen, daemon=True).start()
    return process.run()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))

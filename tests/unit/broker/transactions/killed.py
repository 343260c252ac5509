"""A broker that was killed after a commit, before it settled anything: what the next start is tested on."""

from itertools import pairwise

from metaq.broker.store.files import REAL_FILES
from metaq.protocol.record import HEADER_BYTES
from tests.doubles.redo import read_redo
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

MESSAGES = [b"one", b"", b"three" * 9, b"four", b"five!"]
BLOCK = sum(HEADER_BYTES + len(body) for body in MESSAGES)
BEFORE = b"before"
PLACE = HEADER_BYTES + len(BEFORE)
"""Where the commit's record names its block."""


def committed(ask, key, topic, messages):
    ask.ok(tx(key, "BEGIN"), *(tx_put(key, topic, 0, body) for body in messages), tx(key, "COMMIT_ONE_PHASE"))


class Killed:
    """block: the bytes of what was committed, behind BEFORE; parts: those of each message.

    earlier: what another transaction has committed in front of it, which began later.
    """

    def __init__(self, directory, topic="t", earlier=()):
        self.data, self._directory, self._topic = directory / "data", directory, topic
        self.path = self.data / f"{topic}-0" / f"{0:020d}.meta"
        self.redo = self.data / "transactions" / "redo.1"
        files = FaultyFiles()
        ask = Asker(Harness(directory, files=files))
        ask.ok(put(topic, 0, BEFORE), tx(XID, "BEGIN"))
        if earlier:
            committed(ask, "XID:100:0a0b:0d:host", topic, earlier)
        ask.ok(*(tx_put(XID, topic, 0, body) for body in MESSAGES), tx(XID, "COMMIT_ONE_PHASE"))
        self.block = self.path.read_bytes()[-BLOCK:]
        ends = [sum(HEADER_BYTES + len(body) for body in MESSAGES[:count]) for count in range(len(MESSAGES) + 1)]
        self.parts = [self.block[start:end] for start, end in pairwise(ends)]
        files.kill()
        self.forget()
        for path in (self.data / "metaqjournal").glob("*"):
            path.unlink()

    def forget(self):
        """What the broker knows of its log: the next start reads it from the beginning."""
        (self.data / "transactions" / "metaq.json").unlink(missing_ok=True)

    def leave(self, data):
        """The partition has this behind its first message, and no index."""
        self.path.write_bytes(self.path.read_bytes()[:PLACE] + data)
        self.path.with_suffix(".index").unlink(missing_ok=True)

    def read(self, harness):
        """What consumers see first, before any worker thread has run."""
        return bodies(harness, self._topic, 0)

    def seen(self, starts=1):
        """What consumers get at each of so many starts, which is to be the same; the broker is killed between them."""
        seen = []
        for number in range(starts):
            self.forget()
            harness = Harness(self._directory)
            seen.append(self.read(harness))
            if number == starts - 1:
                harness.threads.run()
                harness.close()
            else:
                harness.store.close()
        assert seen == seen[:1] * starts
        return seen[0]

    def location(self):
        """Where the record of the last commit names its block."""
        (found,) = read_redo(REAL_FILES, str(self.redo)).entries[-1].locations
        return found

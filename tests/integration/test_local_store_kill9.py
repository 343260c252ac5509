"""A local store belongs to one process; what it took before that was killed is there afterwards, in order."""

import subprocess
import sys

import pytest

from metaq.client.records.local_store import LocalMessageStore
from metaq.protocol.errors import LocalStoreInUse

WRITER = """
import sys
from metaq.client.records.local_store import LocalMessageStore, StoredMessage
store = LocalMessageStore(sys.argv[1])
n = 0
while True:
    store.append("q", [StoredMessage("t", b"%d" % n), StoredMessage("t", b"%d" % (n + 1))])
    n += 2
    print(n, flush=True)
"""
ROUNDS = 3
APPENDS = 20


def test_nothing_that_was_appended_is_lost_when_the_process_is_killed(tmp_path):
    path = tmp_path / "messages.db"
    for _ in range(ROUNDS):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(APPENDS):
                writer.stdout.readline()
            with pytest.raises(LocalStoreInUse):
                LocalMessageStore(path)
            writer.kill()
            acknowledged = max(map(int, writer.stdout.read().split()), default=2 * APPENDS)
        with LocalMessageStore(path) as store:
            found = store.peek("q", 1_000_000)
            assert [int(message.body) for _, message in found] == list(range(len(found)))
            assert len(found) >= max(acknowledged, 2 * APPENDS)
            assert len(found) % 2 == 0, "half of an append"
            store.remove("q", [number for number, _ in found])

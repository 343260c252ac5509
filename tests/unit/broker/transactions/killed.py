"""A broker that was killed after a commit, before it settled anything: what the next start is tested on."""

from metaq.broker.store.files import REAL_FILES
from metaq.protocol.record import HEADER_BYTES
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

MESSAGES = [b"one", b"", b"three" * 9, b"four", b"five!"]
BLOCK = sum(HEADER_BYTES + len(body) for body in MESSAGES)
BEFORE = b"before"


def data_file(tmp_path, topic):
    return tmp_path / "data" / f"{topic}-0" / f"{0:020d}.meta"


def killed_after_a_commit(tmp_path, topic):
    """The bytes of the block; the broker is gone without having settled anything."""
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(put(topic, 0, BEFORE), tx(XID, "BEGIN"))
    ask.ok(*(tx_put(XID, topic, 0, body) for body in MESSAGES), tx(XID, "COMMIT_ONE_PHASE"))
    block = data_file(tmp_path, topic).read_bytes()[HEADER_BYTES + len(BEFORE) :]
    assert len(block) == BLOCK
    kill(tmp_path, files)
    return block


def kill(tmp_path, files):
    """Nothing is known but the partitions and the log."""
    files.kill()
    (tmp_path / "data" / "transactions" / "metaq.json").unlink(missing_ok=True)
    for path in (tmp_path / "data" / "metaqjournal").glob("*"):
        path.unlink()


def started(tmp_path, topic, files=REAL_FILES):
    """What consumers see first, before any worker thread has run, and the harness."""
    harness = Harness(tmp_path, files=files)
    return bodies(harness, topic, 0), harness


def stop(harness):
    harness.threads.run()
    harness.close()


def records(block):
    found, position = [], 0
    for body in MESSAGES:
        end = position + HEADER_BYTES + len(body)
        found.append(block[position:end])
        position = end
    return found

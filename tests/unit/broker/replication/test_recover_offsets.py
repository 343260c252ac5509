"""recoverOffset: where a group goes on in a log with the former master's ids and offsets of its own."""

import os
from pathlib import Path

import pytest

from metaq.broker.replication.recover_offsets import position_behind
from metaq.protocol.record import encode_record
from tests.unit.broker.harness import NOW, Harness

SIZE = 50
DAMAGED = 3


@pytest.mark.parametrize("damage", [(40, b"x"), (3, b"\x02"), (0, b"\x7f"), (0, b"\xff")])
@pytest.mark.parametrize("rebuilt", [False, True], ids=["no index", "index made over the damage"])
def test_a_message_behind_damage_is_found(tmp_path: Path, damage: tuple[int, bytes], rebuilt: bool):
    """Else the group would get again what follows the damage."""
    records = b"".join(encode_record(b"%02d" % number * 15, number, 0) for number in range(1, 11))
    at = DAMAGED * SIZE + damage[0]
    first = tmp_path / "data" / "t-0" / f"{0:020d}.meta"
    first.parent.mkdir(parents=True)
    first.write_bytes(records[:at] + damage[1] + records[at + 1 :])
    os.utime(first, (NOW, NOW))
    first.with_name(f"{len(records):020d}.meta").write_bytes(encode_record(b"later", 20, 0))
    harness = Harness(tmp_path)
    log = harness.store.get("t", 0)
    if rebuilt:
        harness.threads.run()
    assert log.lookup.is_indexed(0) is rebuilt
    found = [position_behind(log, message_id) for message_id in range(11)]
    assert found == [None, SIZE, 2 * SIZE, 3 * SIZE, 3 * SIZE, *(SIZE * number for number in range(5, 11))]
    assert position_behind(log, 20) == log.end_offset
    harness.threads.run()
    harness.store.close()

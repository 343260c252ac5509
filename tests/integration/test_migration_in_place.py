"""docs/migrating.md, in place and back again: another broker on the same file, directory and ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.java_peers import require_java
from tests.soak.members import Group, JavaConsumer, JavaProducer
from tests.soak.places import Kind, Place
from tests.soak.run import Run

SENDS = 300
SETTINGS = {"maxSegmentSize": 8192}


@pytest.mark.parametrize(
    ("before", "after", "crash"),
    [
        pytest.param("java", "ours", False, id="there"),
        pytest.param("java", "ours", True, id="there-after-a-kill"),
        pytest.param("ours", "java", False, id="back"),
    ],
)
def test_the_other_broker_takes_over_below_running_java_clients(
    before: Kind, after: Kind, crash: bool, chroot: str, tmp_path: Path
) -> None:
    require_java()
    group = Group(chroot, "readers", "t", tmp_path / "group")
    place = Place(tmp_path / "broker", chroot, {"t": 3}, system=SETTINGS)
    ini = place.ini.read_bytes()
    try:
        place.start(before)
        with Run(group, [JavaConsumer(group, "consumer")]) as run:
            run.produce(JavaProducer(group, 0.002))
            run.wait_for(SENDS)
            found: dict[str, bytes] = {}
            run.disturb(
                place.kill if crash else place.stop, lambda: found.update(place.log_bytes()), lambda: place.start(after)
            )
            run.wait_for(SENDS)
            judged = run.finish()
        assert not judged.problems, judged.explanation
        assert set(found) == {"t-0", "t-1", "t-2"}
        grown = place.log_bytes()
        assert all(data and len(data) < len(grown[partition]) for partition, data in found.items())
        assert all(grown[partition].startswith(data) for partition, data in found.items())
        assert place.ini.read_bytes() == ini
    finally:
        place.kill()

"""docs/migrating.md, rolling through a slave: ours copies a Java master, then becomes the master on its copy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from metaq.client.questions.cluster import Cluster
from tests.integration.java_peers import require_java
from tests.soak.members import Group, JavaConsumer, JavaProducer
from tests.soak.places import Kind, Place
from tests.soak.run import Run
from tests.waiting import eventually

SENDS = 300
SETTINGS = {"maxSegmentSize": 8192}


@pytest.mark.parametrize("master_kind", ["java", "ours"])
def test_a_slave_of_ours_takes_the_masters_place_below_running_java_clients(
    master_kind: Kind, chroot: str, tmp_path: Path
) -> None:
    require_java()
    group = Group(chroot, "readers", "t", tmp_path / "group")
    master, slave = (Place(tmp_path / name, chroot, {"t": 3}, system=SETTINGS) for name in ("master", "slave"))
    properties = tmp_path / "metaslave.properties"
    properties.write_text("slaveId=1\n")
    try:
        master.start(master_kind)
        with Run(group, [JavaConsumer(group, "consumer")]) as run:
            run.produce(JavaProducer(group, 0.002))
            run.wait_for(SENDS)
            run.disturb(lambda: slave.start("ours", f"-Fmetaslave={properties}"))
            run.wait_for(SENDS)
            eventually(lambda: copied(master, slave) > 0.9, 60, "catching up")
            run.disturb(lambda: stop_publishing(master))
            eventually(lambda: not producers_see(chroot), 20, "the master offers nothing to producers")
            eventually(lambda: is_quiet(run), 30, "no send under way")
            eventually(lambda: master.log_bytes() == slave.log_bytes(), 30, "the slave has everything")
            run.disturb(master.stop, slave.stop, lambda: slave.start("ours"))
            run.wait_for(SENDS)
            judged = run.finish()
        assert not judged.problems, judged.explanation
        grown = slave.log_bytes()
        assert all(grown[partition].startswith(data) for partition, data in master.log_bytes().items())
    finally:
        master.kill()
        slave.kill()


def stop_publishing(place: Place) -> None:
    place.ini.write_text(place.ini.read_text() + "acceptPublish=false\n")  # the file ends with the topic's section
    place.reload()


def producers_see(chroot: str) -> bool:
    with Cluster(chroot) as cluster:
        return bool(cluster.view.topic_partitions("t"))


def is_quiet(run: Run, seconds: float = 3.0) -> bool:
    """Whether nothing is acknowledged any more: sends under way when the master withdrew have been answered."""
    before = run.acknowledged()
    time.sleep(seconds)
    return run.acknowledged() == before


def copied(master: Place, slave: Place) -> float:
    """The share of the master's bytes that the slave has."""
    there, here = (sum(map(len, place.log_bytes().values())) for place in (master, slave))
    return here / there

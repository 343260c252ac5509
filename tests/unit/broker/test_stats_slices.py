"""An answer to `stats` is made in slices, however many partitions there are."""

import pytest

from metaq.broker import tuning
from metaq.broker.assembly.stats import stats_text
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.segments import Segments
from tests.unit.broker.harness import Harness

COUNT = 100


@pytest.mark.parametrize(
    ("item", "looked", "name"),
    [
        *((item, Segments, "message_count") for item in ("", "topics", "many")),
        ("journal", PartitionLog, "has_group_commit"),
    ],
)
def test_no_slice_looks_at_many_partitions(tmp_path, monkeypatch, item, looked, name):
    monkeypatch.setattr(tuning, "STATS_LINES", 10)
    harness = Harness(tmp_path, topics=f"[topic=many]\nnumPartitions={COUNT}\n")
    for number in range(COUNT):
        harness.broker.writing.log("many", number, number)
    looks = [0]
    value = looked.__dict__[name]

    def counted(of):
        looks[-1] += 1
        return value.fget(of)

    monkeypatch.setattr(looked, name, property(counted))
    for _ in stats_text(harness.broker, item):
        looks.append(0)
    assert sum(looks) == COUNT
    assert max(looks) <= 10

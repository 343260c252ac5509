"""An answer to `stats` is made in slices, however many partitions there are."""

import pytest

from metaq.broker import tuning
from metaq.broker.requests.stats import stats_text
from metaq.broker.store.segments import Segments
from tests.unit.broker.harness import Harness

COUNT = 100


@pytest.mark.parametrize("item", ["", "topics", "many"])
def test_no_slice_looks_at_many_partitions(tmp_path, monkeypatch, item):
    monkeypatch.setattr(tuning, "STATS_LINES", 10)
    harness = Harness(tmp_path, topics=f"[topic=many]\nnumPartitions={COUNT}\n")
    for number in range(COUNT):
        harness.broker.writing.log("many", number, number)
    looks = [0]
    count = Segments.__dict__["message_count"]

    def counted(segments):
        looks[-1] += 1
        return count.fget(segments)

    monkeypatch.setattr(Segments, "message_count", property(counted))
    for _ in stats_text(harness.broker, item):
        looks.append(0)
    assert sum(looks) == COUNT
    assert max(looks) <= 10

"""What `metaq check` says of the records of each kind."""

import pytest

from metaq.broker.assembly.kinds import KINDS
from metaq.broker.memory.records import internal_record, read_bodies
from metaq.protocol.errors import StoreError
from tests.unit.broker.test_cut_internal_logs import REQUESTS, written


@pytest.mark.parametrize("topic", REQUESTS)
def test_each_kind_knows_its_records_and_no_part_of_one(harness, topic):
    log, _ = written(harness, topic)
    check, snapshot = KINDS[topic].memory.check_record, log.segments.snapshot()
    start = log.first_offset
    for end, body in read_bodies(snapshot, start):
        check(snapshot.read(start, end - start))
        part, _ = internal_record(body[:6], 1, 0)
        with pytest.raises(StoreError, match="cannot be read"):
            check(part)
        start = end
    assert start == log.end_offset

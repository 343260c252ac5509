"""Files with impossible names or numbers beside good ones: the broker starts, and says what it passes over."""

import pytest

from metaq.broker.store.segment import MAX_OFFSET
from metaq.protocol.errors import StoreError
from metaq.protocol.record import encode_record
from tests.unit.broker.harness import Harness, put

RECORD = encode_record(b"hello", 5, 0)
FIRST = f"{0:020d}"


@pytest.fixture
def start(tmp_path):
    started: list[Harness] = []

    def stop():
        while started:
            harness = started.pop()
            harness.threads.run()
            harness.close()

    def start():
        stop()
        started.append(Harness(tmp_path))
        return started[0]

    yield start
    stop()


def place(tmp_path, name, data=RECORD):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("data", [b"", RECORD])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    "stem",
    [
        *("9" * 20, "9" * 200, "abc", "-5", "٣"),
        *(f"{offset:020d}" for offset in ((1 << 63) - 1, (1 << 63) - 60, MAX_OFFSET + 1)),
    ],
)
def test_a_name_that_is_no_offset_is_passed_over_and_kept(tmp_path, start, caplog, stem, beside, data):
    strange = place(tmp_path, f"t-0/{stem}.meta", data)
    if beside:
        place(tmp_path, f"t-0/{FIRST}.meta")
    for opaque in range(2):
        peer = start().connect()
        assert peer.ask(put("t", 0, opaque=opaque)).code == 200
        assert peer.ask(put("t", 1, opaque=opaque)).code == 200
    assert start().store.get("t", 0).segments.message_count == beside + 2
    assert str(strange) in caplog.text
    assert strange.read_bytes() == data


@pytest.mark.parametrize("stem", [FIRST, f"{30:020d}", "9" * 20, f"{(1 << 63) - 1:020d}", "abc"])
@pytest.mark.parametrize("suffix", ["index", "keys"])
def test_a_derived_file_without_its_segment_harms_nothing(tmp_path, start, stem, suffix):
    place(tmp_path, f"t-0/{stem}.{suffix}", b"x" * 200)
    peer = start().connect()
    for opaque in range(3):
        assert peer.ask(put("t", 0, b"x" * 10, opaque=opaque)).code == 200
    assert start().store.get("t", 0).segments.message_count == 3


@pytest.mark.parametrize("number", ["2147483647", "2147483648", "9" * 20, "9" * 200, "-1", "007"])
def test_a_partition_with_a_huge_number_harms_nothing(tmp_path, start, number):
    place(tmp_path, f"t-{number}/{FIRST}.meta")
    peer = start().connect()
    assert peer.ask(put("t", 0)).code == 200
    assert peer.ask(b"stats topics 1\r\n").code == 200
    assert peer.ask(b"stats offsets 1\r\n").code == 200
    start()


def test_a_slave_begins_no_partition_beyond_all_offsets(tmp_path, start):
    partitions = start().broker.partitions
    with pytest.raises(StoreError, match="beyond"):
        partitions.for_replica("t", 0, MAX_OFFSET + 1)
    assert partitions.for_replica("t", 0, MAX_OFFSET).first_offset == MAX_OFFSET

"""An error of the disk while a start reads or syncs: the start stops, and says which file it was."""

import shutil
from pathlib import Path

import pytest

from metaq.broker.store.journal_format import JOURNAL_DIRECTORY
from metaq.broker.store.store import Append
from metaq.protocol.errors import StoreError
from tests.doubles.store import BadSector
from tests.doubles.store_harness import StoreHarness

SEGMENT = "t-1/00000000000000000000.meta"
JOURNAL = f"{JOURNAL_DIRECTORY}/00000000000000000000.journal"


def put_to_three_partitions(harness: StoreHarness, *, checkpoint: bool) -> None:
    """And die: the journal has all of it."""
    harness.group_commit = True
    logs = [harness.store.get_or_create("t", number) for number in range(3)]
    harness.store.append_many([Append(log, *harness.encoded(0, b"body")) for log in logs])
    harness.threads.run_all()
    for log in logs if checkpoint else ():
        log.checkpoint()
    harness.threads.run_all()
    harness.files.kill()


@pytest.mark.parametrize(
    ("call", "path", "checkpoint", "journal"),
    [
        ("pread", SEGMENT, True, True),
        ("pread", SEGMENT, True, False),
        ("pread", SEGMENT, False, True),
        ("pread", SEGMENT, False, False),
        ("pread", JOURNAL, False, True),
        ("fdatasync", SEGMENT, False, True),
        ("fsync_directory", "t-1", False, True),
    ],
)
def test_a_start_that_the_disk_fails_names_the_file(harness, call, path, checkpoint, journal):
    put_to_three_partitions(harness, checkpoint=checkpoint)
    if not journal:
        shutil.rmtree(Path(harness.path, JOURNAL_DIRECTORY))
    bad = str(Path(harness.path, path))
    harness.files = BadSector(call, bad)
    with pytest.raises(StoreError) as caught:
        harness.open()
    assert f"'{bad}'" in str(caught.value)
    assert harness.files.open_descriptors <= 6, "no more than files that are kept open between uses"
    harness.kill()
    assert [log.segments.message_count for log in harness.store.logs()] == [1, 1, 1], (
        "nothing is lost once the disk is well"
    )


def test_an_index_that_cannot_be_read_stops_no_start(harness):
    put_to_three_partitions(harness, checkpoint=True)
    harness.files = BadSector("pread", str(Path(harness.path, SEGMENT).with_suffix(".index")))
    harness.open()
    assert [log.segments.message_count for log in harness.store.logs()] == [1, 1, 1]

"""The bound on open descriptors."""

import os

import pytest

from metaq.broker.store.files import OpenFiles, default_open_limit
from tests.doubles.store import FaultyFiles


@pytest.fixture
def table():
    return OpenFiles(FaultyFiles(), 2)


@pytest.fixture
def abcd(table, tmp_path):
    """Four files, not open; each has its name in it."""
    for name in "abcd":
        (tmp_path / name).write_text(name)
    return [table.file(str(tmp_path / name)) for name in "abcd"]


def test_at_most_the_limit_is_open_and_every_file_still_works(table, abcd):
    for _ in range(3):
        assert [file.read(1, 0) for file in abcd] == [b"a", b"b", b"c", b"d"]
        assert len(table) == 2


def test_a_file_in_use_stays_open_before_one_that_is_not(abcd):
    a, b, c, _ = abcd
    a.use()
    b.use()
    c.use()  # the first sweep takes a and clears b
    c.recent = True
    a.use()
    assert (b.fd, c.fd is None, a.fd is None) == (None, False, False)


def test_pinned_files_stay_open_beyond_the_limit(table, abcd):
    *pinned, d = abcd
    kept = [file.pin() for file in pinned]
    d.use()
    assert [file.fd for file in pinned] == kept
    for file in pinned:
        file.unpin()
    table.file(d.path).use()
    assert sum(file.fd is not None for file in abcd) < 4


def test_closing_twice_is_harmless_and_use_opens_again(table, abcd):
    a = abcd[0]
    a.use()
    a.close()
    a.close()
    assert len(table) == 0
    assert a.read(1, 0) == b"a"


def test_the_default_limit_leaves_descriptors_for_connections():
    assert 16 <= default_open_limit() <= 2048


def test_writing_in_turn_to_more_files_than_may_be_open_keeps_those_that_are(tmp_path):
    faults = FaultyFiles()
    table = OpenFiles(faults, 4)
    opened = [table.file(str(tmp_path / str(number)), os.O_RDWR | os.O_CREAT) for number in range(20)]
    for file in opened[:4]:
        file.use()
    kept = [file.fd for file in opened[:4]]
    for turn in range(10):
        for file in opened:
            file.write((b"%d" % turn,), turn)
    assert [file.fd for file in opened] == [*kept, *[None] * 16]
    assert {(tmp_path / str(number)).read_bytes() for number in range(20)} == {b"0123456789"}
    assert faults.open_descriptors == 4


def test_files_that_are_no_longer_written_make_room_for_others(table, tmp_path):
    old, new = [[table.file(str(tmp_path / f"{kind}{n}"), os.O_RDWR | os.O_CREAT) for n in range(2)] for kind in "ab"]
    for file in old:
        file.write((b"x",), 0)
    for _ in range(100):
        for file in new:
            file.write((b"x",), 0)
    assert [file.fd is None for file in (*old, *new)] == [True, True, False, False]


def test_a_failed_write_to_a_file_that_is_not_open_leaves_no_descriptor(tmp_path):
    faults = FaultyFiles()
    table = OpenFiles(faults, 1)
    table.file(str(tmp_path / "kept"), os.O_RDWR | os.O_CREAT).use()
    other = table.file(str(tmp_path / "other"), os.O_RDWR | os.O_CREAT)
    faults.fail("pwritev")
    with pytest.raises(OSError, match="Input/output error"):
        other.write((b"x",), 0)
    assert (other.fd, faults.open_descriptors) == (None, 1)

"""The bound on open descriptors."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.broker.store.files import OpenFile, OpenFiles, default_open_limit
from metaq.broker.store.testing import FaultyFiles


@pytest.fixture
def table(tmp_path: Path) -> OpenFiles:
    for name in "abcd":
        (tmp_path / name).write_text(name)
    return OpenFiles(FaultyFiles(), 2)


def files(table: OpenFiles, tmp_path: Path) -> list[OpenFile]:
    return [table.file(str(tmp_path / name)) for name in "abcd"]


def test_at_most_the_limit_is_open_and_every_file_still_works(table: OpenFiles, tmp_path: Path) -> None:
    opened = files(table, tmp_path)
    for _ in range(3):
        assert [file.read(1, 0) for file in opened] == [b"a", b"b", b"c", b"d"]
        assert len(table) == 2


def test_a_file_in_use_stays_open_before_one_that_is_not(table: OpenFiles, tmp_path: Path) -> None:
    a, b, c, _ = files(table, tmp_path)
    a.use()
    b.use()
    c.use()  # the first sweep takes a and clears b
    c.recent = True
    a.use()
    assert (b.fd, c.fd is None, a.fd is None) == (None, False, False)


def test_pinned_files_stay_open_beyond_the_limit(table: OpenFiles, tmp_path: Path) -> None:
    a, b, c, d = files(table, tmp_path)
    kept = [file.pin() for file in (a, b, c)]
    d.use()
    assert [file.fd for file in (a, b, c)] == kept
    for file in (a, b, c):
        file.unpin()
    table.file(d.path).use()
    assert sum(file.fd is not None for file in (a, b, c, d)) < 4


def test_closing_twice_is_harmless_and_use_opens_again(table: OpenFiles, tmp_path: Path) -> None:
    a = files(table, tmp_path)[0]
    a.use()
    a.close()
    a.close()
    assert len(table) == 0
    assert a.read(1, 0) == b"a"


def test_the_default_limit_leaves_descriptors_for_connections() -> None:
    assert 16 <= default_open_limit() <= 2048

"""tests/guards: the table of guards, how rows are drawn, and how a module comes to be loaded without a guard."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import metaq.protocol
from metaq.protocol import properties
from metaq.protocol.errors import LocalProtocolError
from tests.guards.__main__ import NOBODY, TABLE, Row, drawn, read_table, write_table
from tests.guards.plugin import Changed
from tests.guards.sites import ROOT, Site, product_sites, without


def test_the_table_is_read_as_written(tmp_path: Path):
    rows = [Row("b:f:check:0", "tests/unit/test_b.py::test_b[a b]", "3"), Row("a:f:sync:0", NOBODY, "1", "done twice")]
    write_table(rows, tmp_path / "table")
    assert read_table(tmp_path / "table") == {row.guard: row for row in rows}
    assert list(read_table(tmp_path / "table")) == ["a:f:sync:0", "b:f:check:0"]


def test_no_row_of_the_table_is_of_a_guard_or_a_file_that_is_gone():
    rows = read_table().values()
    known = {site.name for site in product_sites()}
    assert [row.guard for row in rows if row.guard not in known] == []
    assert [row for row in rows if row.test != NOBODY and not (ROOT / row.test.partition("::")[0]).exists()] == []


def test_nobody_has_a_reason():
    assert [row for row in read_table().values() if row.test == NOBODY and len(row.reason.split()) < 3] == []
    assert TABLE.read_text("utf-8").count("\t?") == 0


def test_rows_are_drawn_by_a_seed_from_every_part_of_the_product():
    sites = product_sites()
    some = drawn(sites, 60, seed=3)
    assert some == drawn(sites, 60, seed=3) != drawn(sites, 60, seed=4)
    assert len(set(some)) == 60
    assert {"broker", "client", "coordination"} <= {site.name.partition("/")[0] for site in some}
    assert len({site.kind for site in some}) == 4


def test_no_more_rows_are_drawn_than_there_are():
    sites = [Site(f"broker/a.py:f:check:{number}", "check", 1, "") for number in range(3)]
    assert sorted(drawn(sites, 60, seed=3)) == sites


def test_a_module_is_loaded_without_its_guard():
    guard = "protocol/properties.py:encode_value:check:0"
    finder = Changed(lambda path, source: without(path, source, guard), "metaq.protocol.properties")
    assert finder.find_spec("metaq.protocol.limits", metaq.protocol.__path__) is None
    spec = finder.find_spec("metaq.protocol.properties", metaq.protocol.__path__)
    assert spec is not None
    assert spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    assert changed.encode_value(1 << 70)
    with pytest.raises(LocalProtocolError, match=r"64 bits"):
        properties.encode_value(1 << 70)

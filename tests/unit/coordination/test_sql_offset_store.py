"""Offsets in 1.x's table, over SQLite and over drivers of every paramstyle."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from metaq.coordination.offsets.offset_store import OwnerCheckedStore
from metaq.coordination.offsets.sql_offset_store import SqlOffsetStore
from metaq.coordination.records.payloads import Offset
from metaq.protocol.errors import ConfigError, CoordinationUnavailable, SessionLost
from tests.raising import raising

STYLES = ("qmark", "format", "numeric", "named", "pyformat")


class _Cursor:
    """sqlite3 behind another paramstyle: checks the marks against the values, then translates."""

    def __init__(self, cursor, style):
        self._cursor, self._style = cursor, style

    def execute(self, sql, values=()):
        mark = {"qmark": r"\?", "format": "%s", "numeric": r":\d", "named": r":p\d", "pyformat": r"%\(p\d\)s"}[
            self._style
        ]
        assert len(re.findall(mark, sql)) == len(values), sql
        if isinstance(values, dict):
            values = tuple(values[re.sub(r"\W|s$", "", found)] for found in re.findall(mark, sql))
        self._cursor.execute(re.sub(mark, "?", sql), values)

    def fetchall(self):
        return self._cursor.fetchall()

    def close(self):
        self._cursor.close()


class _Connection:
    def __init__(self, path, style):
        self._connection, self._style = sqlite3.connect(path), style

    def cursor(self):
        return _Cursor(self._connection.cursor(), self._style)

    def commit(self):
        self._connection.commit()

    def close(self):
        self._connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets.db"


@pytest.fixture(params=STYLES)
def store(path, request):
    store = SqlOffsetStore(lambda: _Connection(path, request.param), paramstyle=request.param)
    store.create_table()
    return store


def rows(path):
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT topic, partition, group_id, offset, msg_id FROM meta_topic_partition_group_offset ORDER BY 1, 2, 3"
        ).fetchall()


def test_the_first_commit_inserts_a_row_and_later_ones_update_it(store, path):
    assert store.load("g", "t", "0-0") is None
    store.commit("g", {("t", "0-0"): Offset(-5, 44), ("t", "0-10"): Offset(7, 0)}, 1)
    store.commit("g", {("t", "0-0"): Offset(8, 90)}, 1)
    store.commit("g", {("t", "0-0"): Offset(8, 90)}, 1)  # unchanged: no second row
    assert rows(path) == [("t", "0-0", "g", 90, 8), ("t", "0-10", "g", 0, 7)]
    assert store.load_many("g", [("t", "0-10"), ("t", "0-0"), ("t", "0-1")]) == [Offset(7, 0), Offset(8, 90), None]


def test_groups_and_topics_are_kept_apart(store):
    store.commit("a", {("t", "0-0"): Offset(1, 10)}, None)
    store.commit("b", {("t", "0-0"): Offset(2, 20), ("T", "0-0"): Offset(3, 30)}, None)
    assert [store.load("a", "t", "0-0"), store.load("b", "t", "0-0"), store.load("b", "T", "0-0")] == [
        Offset(1, 10),
        Offset(2, 20),
        Offset(3, 30),
    ]
    assert store.load("a", "T", "0-0") is None


def test_a_row_that_java_wrote_is_taken_up(store, path):
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO meta_topic_partition_group_offset VALUES ('t', '0-3', 'g', 123, -1)")
    assert store.load("g", "t", "0-3") == Offset(-1, 123)


def test_a_commit_that_fails_half_way_changes_nothing(path):
    class Breaking(_Cursor):
        def execute(self, sql, values=()):
            super().execute(sql, values)
            if sql.startswith("UPDATE"):
                raise sqlite3.OperationalError("connection lost")

    class BreakingConnection(_Connection):
        def cursor(self):
            return Breaking(self._connection.cursor(), "qmark")

    good = SqlOffsetStore(lambda: sqlite3.connect(path), paramstyle="qmark")
    good.create_table()
    good.commit("g", {("t", "0-0"): Offset(1, 10)}, None)
    broken = SqlOffsetStore(lambda: BreakingConnection(path, "qmark"), paramstyle="qmark")
    with pytest.raises(CoordinationUnavailable, match=r"meta_topic_partition_group_offset.*connection lost"):
        broken.commit("g", {("t", "0-1"): Offset(1, 5), ("t", "0-0"): Offset(2, 20)}, None)
    assert good.load_many("g", [("t", "0-0"), ("t", "0-1")]) == [Offset(1, 10), None]


def test_a_database_that_does_not_answer_is_said_with_its_reason():
    store = SqlOffsetStore(raising(ConnectionRefusedError("no server at db:3306")), paramstyle="qmark")
    with pytest.raises(CoordinationUnavailable, match="ConnectionRefusedError: no server at db:3306"):
        store.load("g", "t", "0-0")


@pytest.mark.parametrize(
    ("options", "named"),
    [({"paramstyle": "dollar"}, "paramstyle"), ({"quote": "["}, "quote"), ({"table": "t; DROP TABLE x"}, "table")],
)
def test_settings_that_cannot_be_are_refused_by_name(options, named):
    with pytest.raises(ConfigError, match=named):
        SqlOffsetStore(lambda: None, **{"paramstyle": "qmark", **options})


class _Membership:
    def __init__(self, owner):
        self.owner = owner

    def require_owned(self, partitions, session_id):
        assert list(partitions) == [("t", "0-0")]
        if session_id != self.owner:
            raise SessionLost("not yours")


def test_only_the_owner_writes_past_the_check(store):
    membership: Any = _Membership(owner=7)
    checked = OwnerCheckedStore(store, membership)
    checked.commit("g", {("t", "0-0"): Offset(1, 10)}, 7)
    with pytest.raises(SessionLost):
        checked.commit("g", {("t", "0-0"): Offset(2, 99)}, 6)
    assert checked.load("g", "t", "0-0") == Offset(1, 10)
    checked.commit("g", {("t", "0-0"): Offset(3, 30)}, None)  # a tool's, for a group without members
    assert checked.load_many("g", [("t", "0-0")]) == [Offset(3, 30)]

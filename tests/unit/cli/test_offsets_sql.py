"""`metaq offsets show --sql`: 1.x's table, through any DB-API driver."""

import json
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from metaq.cli.app import run
from metaq.cli.offsets import sql_store
from metaq.coordination.offsets.offset_store import Offset
from metaq.coordination.offsets.sql_offset_store import SqlOffsetStore
from metaq.protocol.errors import CoordinationUnavailable

SHOW = ("offsets", "show", "-t", "trades", "-g", "audit", "-p", "0-3", "--json")


def test_an_offset_of_the_table_is_shown(tmp_path, capsys):
    path = tmp_path / "with space.db"
    store = SqlOffsetStore(lambda: sqlite3.connect(path), paramstyle=sqlite3.paramstyle)
    store.create_table()
    store.commit("audit", {("trades", "0-3"): Offset(-7, 42)}, None)
    assert run([*SHOW, "--sql", f"sqlite3://{path}"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["partition"], row["offset"], row["message_id"]) == ("0-3", 42, -7)
    assert run(["offsets", "show", "--sql", f"sqlite3://{path}"]) == 1
    assert "add --topic, --group and --partition" in capsys.readouterr().err


def test_a_missing_database_is_not_made(tmp_path, capsys):
    assert run([*SHOW, "--sql", f"sqlite3://{tmp_path}/nothing.db"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_driver_gets_what_the_url_says_and_the_password_of_the_file(monkeypatch, tmp_path, capsys):
    seen = {}

    def connect(**named):
        seen.update(named)
        raise RuntimeError("seen")

    monkeypatch.setitem(sys.modules, "driver", SimpleNamespace(paramstyle="format", connect=connect))
    with pytest.raises(CoordinationUnavailable, match="seen"):
        sql_store("--sql", "driver://me@db:3306/metaq").load("g", "t", "0-0")
    assert seen == {"host": "db", "port": 3306, "user": "me", "database": "metaq"}
    secret = tmp_path / "secret"
    secret.write_text("s@fe\n")
    secret.chmod(0o644)
    asked = [*SHOW, "--sql", "driver://me@db:3306/metaq", "--sql-password-file", str(secret)]
    assert run(asked) == 1
    assert "--sql-password-file" in capsys.readouterr().err, "others may read it"
    secret.chmod(0o600)
    assert run(asked) == 1
    assert seen["password"] == "s@fe"
    said = capsys.readouterr().err
    assert ("seen" in said, "s@fe" in said) == (True, False)
    assert run([*SHOW[:2], "--sql-password-file", str(secret)]) == 1
    assert "add --sql" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "driver://me:geheim@db/x",
        "driver://me:@db/x",
        "driver://me:gehe/im@db/x",
        "me:geheim@db/x",
        "driver://[geheim/x",
        "me:geheim@db://x",
    ],
)
def test_a_url_with_a_password_is_refused_and_never_shown(url, capsys):
    assert run([*SHOW, "--sql", url]) == 1
    said = capsys.readouterr().err
    assert "gehe" not in said
    assert "--sql" in said
    if url.endswith("@db/x") and url.startswith("driver://me:") and "/im" not in url:
        assert "--sql-password-file FILE" in said


@pytest.mark.parametrize("url", ["nodriver://me@db/x", "json://me@db/x", "secret"])
def test_what_is_no_driver_is_refused(url, capsys):
    assert run([*SHOW, "--sql", url]) == 1
    said = capsys.readouterr().err
    assert "DB-API driver" in said
    assert "secret" not in said

"""The central handler: every user error is one line on stderr and a non-zero exit code."""

import errno
import logging

import click
import pytest

from metaq.cli import app
from metaq.protocol.errors import ConfigError, CoordinationUnavailable


@pytest.fixture
def failing(monkeypatch):
    """A command `produce` that raises what the test says."""

    def install(error):
        @click.command()
        def produce():
            raise error

        monkeypatch.setattr(app.CommandTable, "get_command", lambda self, ctx, name: produce)

    return install


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    assert app.run([name, "--help"]) == 0
    assert "Example" in capsys.readouterr().out


def test_help_lists_every_command_without_loading_it(capsys):
    assert app.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in app.COMMANDS)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("--port", 8123, "in use: choose another"), "metaq: --port=8123: in use: choose another\n"),
        (CoordinationUnavailable("no ZooKeeper at\n127.0.0.1:1"), "metaq: no ZooKeeper at 127.0.0.1:1\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "metaq: /x: Permission denied\n"),
        (
            ModuleNotFoundError("No module named 'pandas'", name="pandas.io"),
            "metaq: pandas is not installed: pip install 'metaq[spark]'\n",
        ),
    ],
)
def test_error_of_the_user_or_the_cluster_is_one_line_and_exit_code_1(failing, capsys, error, expected):
    failing(error)
    assert app.run(["produce"]) == 1
    assert capsys.readouterr().err == expected


def test_warnings_of_the_client_are_shown_and_not_obeyed(failing, capsys):
    failing(ConfigError("--port", 1, "wrong"))
    app.run(["produce"])  # which sets it up
    record = logging.LogRecord("metaq", logging.WARNING, "", 0, "topic %s", ("\x1b[2Jt",), None)
    assert logging.lastResort is not None
    logging.lastResort.handle(record)
    assert capsys.readouterr().err.endswith("topic \\x1b[2Jt\n")


def test_interrupt_ends_with_130(failing):
    failing(KeyboardInterrupt())
    assert app.run(["produce"]) == 130


@pytest.mark.parametrize("bug", [ZeroDivisionError(), ModuleNotFoundError(name="metaq.no_such_module")])
def test_a_bug_is_not_hidden(failing, bug):
    failing(bug)
    with pytest.raises(type(bug)):
        app.run(["produce"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["prduce"], "No such command 'prduce'. Did you mean 'produce'"),
        (["topics", "lsit"], "Did you mean 'list'?"),
        (["--zk", "x:1", "check", "."], "--zk is not for `metaq check`"),
        (["up", "--topic", "a/b"], "--topic"),
        (["up", "--topic", "a", "--topic", "a:2"], "--topic"),
        (["up", "--port", "70000"], "--port"),
        (["broker", "-f", "/does/not/exist.ini"], "/does/not/exist.ini"),
        (["broker"], "--file"),
        (["find", "--topic", "t", "--id", "abc"], "'abc' is not a whole number"),
        (["monitor", "--max-lag", "x"], "'x' is not a whole number"),
    ],
)
def test_wrong_command_line_is_one_line_that_names_it_and_exit_code_2(capsys, arguments, named):
    assert app.run(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


def test_a_broker_gets_its_plugins_in_both_spellings(tmp_path, monkeypatch):
    started = []

    def run(ini, **options):
        started.append(options["plugins"])
        return 0

    monkeypatch.setattr("metaq.broker.main.run", run)
    ini = tmp_path / "server.ini"
    ini.touch()
    assert app.run(["broker", "-f", str(ini), "-Fmetaslave=a/b", "-F", "samsa=c=d"]) == 0
    assert started == [{"metaslave": "a/b", "samsa": "c=d"}]
    for wrong in ("-Fmetaslave", "-Fmetaslave="):
        assert app.run(["broker", "-f", str(ini), wrong]) != 0
    assert app.run(["broker", "-f", str(ini), "-Fa=b", "-Fa=c"]) != 0
    assert len(started) == 1


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--zk", "front:1", "topics", "list"], "front:1"),
        (["topics", "list", "--zk", "behind:1"], "behind:1"),
        (["--zk", "front:1", "topics", "list", "--zk", "behind:1"], "behind:1"),
        (["--zk", "front:1", "stats"], "front:1"),
        (["topics", "list"], "environment:1"),
    ],
)
def test_the_zookeeper_is_named_in_front_of_the_command_or_behind_it(monkeypatch, capsys, arguments, asked):
    class Nowhere:
        def __init__(self, zk):
            raise CoordinationUnavailable(zk)

    monkeypatch.setenv("METAQ_ZK", "environment:1")
    monkeypatch.setattr("metaq.cli.topics.open_cluster", Nowhere)
    monkeypatch.setattr("metaq.cli.cluster_access.open_cluster", Nowhere)
    assert app.run(arguments) == 1
    assert capsys.readouterr().err == f"metaq: {asked}\n"


@pytest.mark.parametrize("zk", ["", "127.0.0.1:port", "/meta", "host:99999"])
@pytest.mark.parametrize("in_front", [True, False])
def test_what_is_no_connect_string_is_a_wrong_command_line(capsys, zk, in_front):
    command = ["topics", "list"]
    assert app.run(["--zk", zk, *command] if in_front else [*command, "--zk", zk]) == 2
    said = capsys.readouterr().err
    assert "'--zk'" in said
    assert f"{zk!r} is not a connect string: use host:port" in said

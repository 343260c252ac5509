"""Tables: as wide as the terminal, whole elsewhere."""

import ast
import contextlib
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaq.cli
from metaq.cli import tables
from metaq.cli.output import UNKNOWN, echo, print_json, say
from metaq.cli.stats import _shown
from metaq.cli.tables import print_table
from metaq.cli.terminal import console
from metaq.protocol.printable import has_control, printable

COLUMNS = ("TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG BYTES", "MESSAGES", "SECONDS")
OWNER = "audit_127.0.0.1-4242-0f9a3c7e-5b1d-4f0e-9b8f-1c2d3e4f5a6b"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(monkeypatch, stream, columns, rows):
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # no bold letters
    print_table(columns, rows)
    return stream.getvalue().splitlines()


def test_a_table_fits_the_terminal_and_folds_text_before_numbers(monkeypatch):
    row = ("trades", "0-3", OWNER, 1_234_567, 2_345_678, 1_111_111, 12_345, UNKNOWN)
    lines = printed(monkeypatch, Terminal(), COLUMNS, [row])
    assert max(map(len, lines)) <= 80
    assert all(any(number in line for line in lines) for number in ("1,234,567", "2,345,678", "1,111,111", UNKNOWN))
    assert "trades" in lines[3]


@pytest.mark.parametrize("digits", [9, 14])
def test_where_the_numbers_do_not_fit_each_row_becomes_lines_of_name_and_value(monkeypatch, digits):
    number = int("9" * digits)
    lines = printed(monkeypatch, Terminal(), COLUMNS, [("trades", "0-3", OWNER, *[number] * 5)])
    lines = [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    values = dict(line.split(maxsplit=1) for line in lines if len(line.split()) == 2)
    assert (values["TOPIC"], values["OWNER"], values["END"]) == ("trades", OWNER, f"{number:,}")


def test_elsewhere_a_row_is_one_line_with_everything_in_it(monkeypatch):
    long = "x" * 5000
    lines = printed(monkeypatch, io.StringIO(), ("NAME", "VALUE"), [("a", long), ("b", 12_345)])
    assert sum(long in line for line in lines) == 1
    assert any(line.split() == ["b", "12,345"] for line in lines)


CELLS = st.none() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.just(UNKNOWN) | st.text(max_size=20)
TABLES = st.integers(1, 5).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=6))


@given(TABLES)
def test_a_table_in_a_pipe_is_what_rich_would_print_there(rows):
    columns = COLUMNS[: len(rows[0]) if rows else 3]
    written = []
    for plain in (True, False):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as stream:
            patch.setattr(tables, "_is_plain", lambda _, plain=plain: plain)
            print_table(columns, rows)
        written.append(stream.getvalue())
    assert written[0] == written[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_where_its_line_cannot_be_encoded_a_table_has_one_that_can(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr("sys.stdout", stream)
    print_table(("NAME", "VALUE"), [("a", 1)])
    stream.flush()
    assert b"a" in stream.buffer.getvalue()


def test_a_table_in_a_pipe_has_bold_letters_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    print_table(("NAME", "VALUE"), [("a", 1)])
    assert "\x1b[1m" in stream.getvalue()


EVIL = "\x1b[2J\x1b[31mOWNED\x07\u202e\x9b31m\x7f\r\u2028\u2066\udcff"
SHOWN = r"\x1b[2J\x1b[31mOWNED\x07\u202e\x9b31m\x7f\x0d\u2028\u2066\udcff"


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_clients_have_chosen_is_shown_and_not_obeyed(monkeypatch, stream):
    out = "\n".join(printed(monkeypatch, stream(), ("NAME", "VALUE"), [("a", EVIL)]))
    assert SHOWN in out
    assert not has_control(out)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_clients_have_chosen_does_not_leave_its_cell(monkeypatch, stream):
    lines = printed(monkeypatch, stream(), ("NAME", "VALUE"), [("a", "k\nother 1,000\t7"), ("b", "v")])
    assert [line.split()[0] for line in lines if line.strip()][-2:] == ["a", "b"]
    assert "k\\nother 1,000\\t7" in "".join(lines)


def test_sentences_and_json_have_no_control_characters(capsys):
    say(False, None, f"group {EVIL}\n\tis gone")
    echo(EVIL, err=True)
    shown = capsys.readouterr()
    assert shown.out == f"group {SHOWN}\n\tis gone\n"
    assert shown.err == f"{SHOWN}\n"
    print_json({"key": EVIL})
    assert not has_control(capsys.readouterr().out)


def test_texts_without_control_characters_are_shown_as_they_are():
    text = "Zürich\t– 東京\n\U0001f600 \\x1b"
    assert printable(text) == text


def called(source: str) -> set[str]:
    """The functions that a module calls; a call in a text that it prints does not count."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}


def test_no_command_prints_past_the_output_layer():
    sources = {path.name: path.read_text("utf-8") for path in Path(metaq.cli.__path__[0]).glob("*.py")}
    assert len(sources) > 30
    prints = re.compile(r"(.*\W)?(click\.echo|click\.secho|print)", re.DOTALL)
    past = [name for name, source in sources.items() if any(map(prints.fullmatch, called(source)))]
    assert sorted(past) == ["output.py", "tables.py", "terminal.py"]


def test_numbers_that_are_names_keep_their_digits_together():
    assert [_shown(name, 7748) for name in ("pid", "port", "broker_id", "part", "cmd_put")] == [*["7748"] * 4, 7748]


def test_a_reader_that_has_left_is_told_as_such_not_as_a_failure():
    """rich would end the process with 1; app.py makes 141 of it, as of every command."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        console(stream).print("a table")
    with contextlib.suppress(BrokenPipeError):
        stream.close()

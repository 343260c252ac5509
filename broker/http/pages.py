"""The pages of the dashboard as data, and functions that write such pages in pieces: as HTML, with all texts escaped,
or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeAlias, cast
from urllib.parse import quote, urlencode

import simplejson

from .. import tuning

__all__ = ["Button", "Cell", "Page", "Pieces", "Table", "Text", "to_html", "to_json"]

Cell: TypeAlias = str | int | float | bool | None

Pieces: TypeAlias = Iterator[str | None]
"""Yields the pieces of a text; each piece is made only when the piece before it was written. The iterator also yields
None at points where the broker can serve other requests.
"""

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; color: #1c2733; background: #f6f7f9; }
header { background: #17324d; padding: 10px 24px; }
header b { color: #fff; margin-right: 24px; } header a { color: #b9d4ee; margin-right: 16px; text-decoration: none; }
header a:hover { color: #fff; } main { padding: 8px 24px 48px; }
h1 { font-size: 22px; } h2 { font-size: 16px; margin: 24px 0 8px; }
table { border-collapse: collapse; background: #fff; box-shadow: 0 1px 2px #0002; }
th, td { padding: 5px 14px; text-align: left; border-bottom: 1px solid #e4e8ec; }
th { background: #eef2f6; font-weight: 600; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #fff; padding: 12px; overflow-x: auto; box-shadow: 0 1px 2px #0002; }
button { font: inherit; padding: 2px 10px; } .note { color: #5b6875; }
"""

_MENU = (
    ("/dashboard", "Broker"),
    ("/topics", "Topics"),
    ("/cluster", "Cluster"),
    ("/stats", "Stats"),
    ("/config", "Config"),
    ("/logging", "Log"),
    ("/thread-dump", "Threads"),
    ("/properties", "Properties"),
    ("/metrics", "Metrics"),
)


@dataclass(frozen=True, slots=True)
class Button:
    """A button that sends a POST request to `path`."""

    label: str
    path: str


def _as_it_is(row: Any) -> Sequence[Cell]:
    return cast(Sequence[Cell], row)


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The cells of a row are made only when the row is written. cells: returns the cells of a row. links: maps
    the name of a column to the prefix of its links, if the column's cells are links. action: returns the button of a
    row, or None if the row has no button. An HTML page shows PAGE_ROWS of the rows at a time; JSON has all rows.
    """

    columns: Sequence[str]
    rows: Sequence[Any]
    title: str = ""
    cells: Callable[[Any], Sequence[Cell]] = _as_it_is
    links: Mapping[str, str] = field(default_factory=dict)
    action: Callable[[Any], Button | None] | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A plain text on a page. lines: yields the lines including their line ends; each line is made only when it is
    written. Like Pieces, also yields None at points where the broker can serve other requests.
    """

    lines: Iterable[str | None]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The page for one URL. status: the HTTP status. query: the parameters of the URL's query; the links to the
    previous and next rows of a table have the same parameters.
    """

    title: str
    parts: Sequence[Table | Text]
    note: str = ""
    actions: Sequence[Button] = ()
    status: int = 200
    query: Mapping[str, str] = field(default_factory=dict)


def to_json(page: Page) -> Pieces:
    """Yield the page as one JSON object. The page's tables and texts are the values of the object. The key of each
    value is the title of this table or text; if it has no title, the key is the title of the page. A table becomes a
    list of objects, and a text becomes a string.
    """
    yield "{"
    between = ""
    for part in page.parts:
        yield f"{between}{_json(part.title or page.title)}: "
        yield from _json_rows(part) if isinstance(part, Table) else _json_text(part)
        between = ", "
    if page.note:
        yield f'{between}"note": {_json(page.note)}'
    yield "}"


def _json_rows(table: Table) -> Pieces:
    between = "["
    for row in table.rows:
        yield between + _json(dict(zip(table.columns, table.cells(row), strict=True)))
        between = ", "
    yield "]" if table.rows else "[]"


def _json_text(text: Text) -> Pieces:
    yield '"'
    for line in text.lines:
        yield None if line is None else _json(line)[1:-1]
    yield '"'


def _json(value: object) -> str:
    return simplejson.dumps(value, ensure_ascii=False)


def to_html(page: Page, first: int = 0) -> Pieces:
    """Yield the page as an HTML document. first: the index of the first row that the page's tables show."""
    menu = "".join(f'<a href="{path}">{name}</a>' for path, name in _MENU)
    yield (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>metaq: {escape(page.title)}</title>'
        f"<style>{_STYLE}</style></head><body><header><b>metaq</b>{menu}</header><main><h1>{escape(page.title)}</h1>"
    )
    if page.note:
        yield f'<p class="note">{escape(page.note)}</p>'
    yield from map(_button, page.actions)
    for part in page.parts:
        yield f"<section>{f'<h2>{escape(part.title)}</h2>' if part.title else ''}"
        yield from _table(page, part, first) if isinstance(part, Table) else _text(part)
        yield "</section>"
    yield "</main></body></html>"


def _text(text: Text) -> Pieces:
    yield "<pre>"
    for line in text.lines:
        yield None if line is None else escape(line)
    yield "</pre>"


def _table(page: Page, table: Table, first: int) -> Pieces:
    shown = table.rows[first : first + tuning.PAGE_ROWS]
    others = _other_rows(page, len(table.rows), first, len(shown)) if len(shown) < len(table.rows) else ""
    yield others
    if not shown:
        yield '<p class="note">none</p>'
    else:
        heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
        yield f"<table><tr>{heads}{'<th></th>' if table.action else ''}</tr>"
        for row in shown:
            cells = zip(table.columns, table.cells(row), strict=True)
            action = table.action(row) if table.action else None
            button = f"<td>{_button(action)}</td>" if action else ""
            yield f"<tr>{''.join(_cell(table, column, cell) for column, cell in cells)}{button}</tr>"
        yield "</table>" + others


def _other_rows(page: Page, count: int, first: int, shown: int) -> str:
    """Return a note about which rows of a table the page shows. The note has links to the previous and the next
    rows.
    """
    links = "".join(
        f' <a href="?{escape(urlencode({**page.query, "from": start}))}">{name}</a>'
        for name, start, there in (
            ("previous", max(0, first - tuning.PAGE_ROWS), first > 0),
            ("next", first + shown, shown > 0 and first + shown < count),
        )
        if there
    )
    which = f"rows {first + 1:,} to {first + shown:,} of {count:,}" if shown else f"{count:,} rows"
    return f'<p class="note">{which}{links}</p>'


def _cell(table: Table, column: str, cell: Cell) -> str:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f'<td class="number">{cell:,}</td>'
    text = "" if cell is None else str(cell)
    if column in table.links and text:
        target = escape(table.links[column] + quote(text, "", errors="surrogatepass"))
        return f'<td><a href="{target}">{escape(text)}</a></td>'
    return f"<td>{escape(text)}</td>"


def _button(action: Button) -> str:
    return f'<form method="post" action="{escape(action.path)}"><button>{escape(action.label)}</button></form>'

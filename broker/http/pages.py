"""Pages as values, and their two forms: HTML that escapes everything, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import simplejson
from twisted.web.template import Tag, flattenString, tags

from metaq.protocol.limits import is_utf8

__all__ = ["Button", "Page", "Table", "Text", "to_html", "to_json"]

Cell = str | int | float | bool | None

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
    """A button that posts to `path`."""

    label: str
    path: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. links: column name -> prefix of the link its cells are. actions: per row, or none."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    links: dict[str, str] = field(default_factory=dict)
    actions: Sequence[Button | None] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it is, in lines."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What one address shows. status: HTTP's."""

    title: str
    parts: Sequence[Table | Text]
    note: str = ""
    actions: Sequence[Button] = ()
    status: int = 200


def to_json(page: Page) -> bytes:
    """Tables become lists of objects, texts strings, by the title of the part or of the page."""
    parts: dict[str, object] = {}
    for part in page.parts:
        if isinstance(part, Table):
            parts[part.title or page.title] = [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        else:
            parts[part.title or page.title] = part.text
    if page.note:
        parts["note"] = page.note
    return simplejson.dumps(parts, ensure_ascii=False).encode("utf-8", "backslashreplace")


def to_html(page: Page) -> bytes:
    """The whole document."""
    document = tags.html(
        tags.head(tags.meta(charset="utf-8"), tags.title(f"metaq: {page.title}"), tags.style(_STYLE)),
        tags.body(
            tags.header(tags.b("metaq"), *(tags.a(name, href=path) for path, name in _MENU)),
            Tag("main")(
                tags.h1(page.title),
                tags.p(page.note, class_="note") if page.note else "",
                *map(_button, page.actions),
                *map(_part, page.parts),
            ),
        ),
        lang="en",
    )
    _escape(document)
    found: list[bytes] = []
    flattenString(None, document).addCallback(found.append)  # nothing in it is deferred, so it is there at once
    return b"<!DOCTYPE html>\n" + found[0]


def shown(text: str) -> str:
    """`text`, with what is not valid UTF-8 escaped: a path of a system with another encoding, or of a message that an
    earlier version took, must not cost the whole page."""
    return text if is_utf8(text) else str(text.encode("utf-8", "backslashreplace"), "utf-8")


def _escape(tag: Tag) -> None:
    """All texts in it, as `shown`."""
    for name, value in tag.attributes.items():
        if isinstance(value, str):
            tag.attributes[name] = shown(value)
    for place, child in enumerate(tag.children):
        if isinstance(child, Tag):
            _escape(child)
        elif isinstance(child, str):
            tag.children[place] = shown(child)


def _part(part: Table | Text) -> Tag:
    heading = tags.h2(part.title) if part.title else ""
    return tags.section(heading, _table(part) if isinstance(part, Table) else tags.pre(part.text))


def _table(table: Table) -> Tag:
    if not table.rows:
        return tags.p("none", class_="note")
    actions = table.actions or [None] * len(table.rows)
    return tags.table(
        tags.tr(*(tags.th(column) for column in table.columns), tags.th() if table.actions else ""),
        *(
            tags.tr(
                *(_cell(table, column, cell) for column, cell in zip(table.columns, row, strict=True)),
                tags.td(_button(action)) if action else "",
            )
            for row, action in zip(table.rows, actions, strict=True)
        ),
    )


def _cell(table: Table, column: str, cell: Cell) -> Tag:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return tags.td(f"{cell:,}", class_="number")
    text = "" if cell is None else str(cell)
    if column in table.links and text:
        return tags.td(tags.a(text, href=table.links[column] + text))
    return tags.td(text)


def _button(action: Button) -> Tag:
    return tags.form(tags.button(action.label), method="post", action=action.path)

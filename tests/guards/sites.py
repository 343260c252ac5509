"""Find the guards of the product, and make modules without one of them.

    check   an `if` that only raises, or a statement that calls a function named check…, verify…, require… or refuse…
    fence   an `if` that only returns or continues, and tests an epoch, a session, whether something is closed …
    sync    a statement that calls fsync, fdatasync, sync, flush or checkpoint, or fsync_directory …
    order   two calls in successive statements, both of which write, send, publish or delete

A guard is named `path:Class.function:kind:number`, with its number among the guards of the same kind in that function.
So edits elsewhere do not rename it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PRODUCT", "ROOT", "Site", "module_of", "product_sites", "sites", "with_marks", "without"]

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("protocol", "coordination", "broker", "client", "spark_connector", "metaq")
LEFT_OUT = "metaq/testing"

_CHECKS = re.compile(r"_*(check|verify|require|refuse)(_\w+|d)?")
_SYNCS = re.compile(r"_*(fsync|fdatasync|sync|flush|checkpoint)(_\w+)?")
_FENCES = re.compile(
    r"epoch|version|generation|renewal|(?<!is)instance|session|clos(e|ed|ing)\b|ended|stopp|stale|lost|leader|owner|member|fence"
    r"|deposed|granted|expired|current|running|halted|failed|forked"
)
_STEPS = re.compile(
    r"_*(append|write|send|publish|set|put|create|delete|unlink|rename|replace|truncate|cut|roll|save|store|update|commit"
    r"|claim|register|release|ack|answer|reply|fsync|fdatasync|sync|flush|checkpoint)(_\w+)?"
)


class Site(NamedTuple):
    """A guard. line: the line of its first statement, from 1 on; text: its first words, as Python writes them."""

    name: str
    kind: str
    line: int
    text: str


class _Found(NamedTuple):
    site: Site
    block: list[ast.stmt]
    place: int


def sites(path: str, source: str) -> list[Site]:
    """Return the guards of one module, in the order of their lines; an outer block comes before inner ones. path:
    relative to the root."""
    return [found.site for found in _find(path, ast.parse(source))]


@cache
def product_sites() -> list[Site]:
    """Return the guards of the whole product."""
    files = sorted(file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py"))
    paths = [str(file.relative_to(ROOT)) for file in files]
    return [
        site
        for path, file in zip(paths, files, strict=True)
        if not path.startswith(LEFT_OUT)
        for site in sites(path, file.read_text("utf-8"))
    ]


def without(path: str, source: str, name: str) -> ast.Module:
    """Return the module without this guard. Raises LookupError if it has no such guard."""
    tree = ast.parse(source)
    found = next((found for found in _find(path, tree) if found.site.name == name), None)
    if found is None:
        raise LookupError(f"no guard {name}")
    site, block, place = found
    old = block[place]
    if site.kind == "order":
        block[place : place + 2] = block[place + 1], old
    elif isinstance(old, ast.If):
        block[place : place + 1] = old.orelse or [ast.copy_location(ast.Pass(), old)]
    else:
        block[place] = ast.copy_location(ast.Pass(), old)
    return tree


def with_marks(path: str, source: str, mark: Callable[[Site], str]) -> ast.Module:
    """Return the module with the statement `mark(site)` where a guard does its work: inside a condition that holds, or
    before a call. A test that never executes the mark behaves the same with and without the guard."""
    tree = ast.parse(source)
    # the last ones first, so that the positions of the others stay valid
    for site, block, place in reversed(list(_find(path, tree))):
        old = block[place]
        (note,) = ast.parse(mark(site)).body
        for node in ast.walk(note):
            ast.copy_location(node, old)
        if isinstance(old, ast.If):
            old.body.insert(0, note)
        else:
            block.insert(place, note)
    return tree


def module_of(path: str) -> str:
    """Return the name under which a file is imported: broker/sets/node.py -> metaq.broker.sets.node."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "metaq" else ["metaq", *parts])


def _find(path: str, tree: ast.Module) -> Iterator[_Found]:
    numbers: Counter[str] = Counter()

    def visit(node: ast.AST, owner: tuple[str, ...]) -> Iterator[_Found]:
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            block = getattr(node, name, ())
            if not isinstance(block, list):
                continue
            for index, each in enumerate(block):
                for kind in _kinds(block, index):
                    prefix = f"{path}:{'.'.join(owner)}:{kind}"
                    text = ast.unparse(each.test if isinstance(each, ast.If) else each)
                    line = text.partition("\n")[0]
                    yield _Found(Site(f"{prefix}:{numbers[prefix]}", kind, each.lineno, line), block, index)
                    numbers[prefix] += 1
                is_named = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                yield from visit(each, (*owner, each.name) if is_named else owner)

    return visit(tree, ())


def _kinds(block: Sequence[ast.AST], index: int) -> Iterator[str]:
    """Yield the kinds of the guards that begin at this statement."""
    statement = block[index]
    if isinstance(statement, ast.If):
        ends = statement.body[-1]
        if len(statement.body) > 1 or _is_static(statement.test):
            return
        if isinstance(ends, ast.Raise):
            yield "check"
        elif isinstance(ends, ast.Return | ast.Continue) and _FENCES.search(_words(statement.test)):
            yield "fence"
        return
    called = _called(statement)
    if _CHECKS.fullmatch(called):
        yield "check"
    if _SYNCS.fullmatch(called):
        yield "sync"
    following = _called(block[index + 1]) if index + 1 < len(block) else ""
    if _STEPS.fullmatch(called) and _STEPS.fullmatch(following) and called != following:
        yield "order"


def _called(statement: ast.AST) -> str:
    """Return the last name of the function that a statement only calls, else ""."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Await):
        value = value.value
    function = value.func if isinstance(value, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _words(test: ast.expr) -> str:
    return " ".join(
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(test)
        if isinstance(node, ast.Attribute | ast.Name)
    )


def _is_static(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test) or "sys.platform" in ast.unparse(test)

"""tests/guards/sites.py: what is a guard, its name, and the module without it."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.guards.sites import module_of, product_sites, sites, with_marks, without

PATH = "broker/node.py"


def written(source: str) -> str:
    return dedent(source).strip()


def names(source: str) -> list[str]:
    return [site.name.removeprefix(f"{PATH}:") for site in sites(PATH, dedent(source))]


@pytest.mark.parametrize(
    ("source", "name", "left"),
    [
        ("def f(x):\n    if x < 0:\n        raise ValueError\n    go()", "f:check:0", "def f(x):\n    pass\n    go()"),
        ("def f(x):\n    check_room(x)\n    go()", "f:check:0", "def f(x):\n    pass\n    go()"),
        ("def f(x):\n    self._require_open()", "f:check:0", "def f(x):\n    pass"),
        ("def f(x):\n    if x.epoch < 3:\n        return\n    go()", "f:fence:0", "def f(x):\n    pass\n    go()"),
        ("for x in y:\n    if x.closed:\n        continue\n    go()", ":fence:0", "for x in y:\n    pass\n    go()"),
        ("def f(fd):\n    os.fsync(fd)\n    go()", "f:sync:0", "def f(fd):\n    pass\n    go()"),
        ("def f(fd):\n    files.fsync_directory(fd)", "f:sync:0", "def f(fd):\n    pass"),
        (
            "def f():\n    log.write(1)\n    index.publish(1)",
            "f:order:0",
            "def f():\n    index.publish(1)\n    log.write(1)",
        ),
        (
            "async def f():\n    await send(1)\n    publish(1)",
            "f:order:0",
            "async def f():\n    publish(1)\n    await send(1)",
        ),
    ],
)
def test_a_guard_has_a_name_and_a_module_without_it(source: str, name: str, left: str):
    (found,) = names(source)
    assert found == name
    assert ast.unparse(without(PATH, source, f"{PATH}:{name}")) == left


@pytest.mark.parametrize(
    "source",
    [
        *("if x < 0:\n    x = 0", "if x < 0:\n    return_early(x)", "if not TYPE_CHECKING:\n    raise ValueError"),
        "def f():\n    if x < 0:\n        return",  # it asks for nothing that a fence asks for
        *("def f():\n    if isinstance(x, bytes):\n        return", "if closed:\n    log(x)\n    go()"),
        *("done = os.fsync(fd)", "lines.append(1)\nlines.append(2)", "log.write(1)\ncompute(2)"),
    ],
)
def test_other_statements_are_none(source: str):
    assert names(source) == []


def test_numbers_count_within_a_function_and_a_kind():
    source = """
    class Log:
        def append(self, x):
            if x is None:
                raise TypeError
            if self._closed:
                return
            if x < 0:
                raise ValueError
            self._sync()

        def close(self):
            if self._closed:
                raise ValueError
            def later():
                self._flush()
    """
    assert names(source) == [
        *(f"Log.append:{each}" for each in ("check:0", "fence:0", "check:1", "sync:0")),
        *("Log.close:check:0", "Log.close.later:sync:0"),
    ]


def test_a_guard_is_found_in_each_kind_of_block():
    source = """
    def f(x):
        try:
            sync_one()
        except OSError:
            sync_two()
        finally:
            sync_three()
        match x:
            case 1:
                sync_four()
        while x:
            sync_five()
        else:
            sync_six()
        with x:
            sync_seven()
    """
    assert names(source) == [f"f:sync:{number}" for number in range(7)]


def test_what_stood_behind_else_stays_without_the_guard():
    source = written("""
    def f(x):
        if x < 0:
            raise ValueError
        elif x == 0:
            go(0)
        else:
            go(x)
    """)
    left = written("""
    def f(x):
        if x == 0:
            go(0)
        else:
            go(x)
    """)
    assert ast.unparse(without(PATH, source, f"{PATH}:f:check:0")) == left


def test_only_the_named_guard_goes():
    source = "def f(x):\n    check_a(x)\n    check_b(x)\n    check_c(x)"
    assert (
        ast.unparse(without(PATH, source, f"{PATH}:f:check:1")) == "def f(x):\n    check_a(x)\n    pass\n    check_c(x)"
    )


def test_a_guard_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match=r"f:check:1"):
        without(PATH, "def f(x):\n    check_a(x)", f"{PATH}:f:check:1")


def test_a_mark_stands_where_the_guard_does_its_work():
    source = written("""
    def f(x):
        if x.closed:
            return
        self._write(x)
        self._sync(x)
    """)
    marked = written("""
    def f(x):
        if x.closed:
            mark('fence:0')
            return
        mark('order:0')
        self._write(x)
        mark('sync:0')
        self._sync(x)
    """)
    assert ast.unparse(with_marks(PATH, source, lambda site: f"mark({site.name.partition(':f:')[2]!r})")) == marked


def test_a_path_is_imported_by_the_name_of_its_module():
    assert module_of("broker/sets/node.py") == "metaq.broker.sets.node"
    assert module_of("metaq/cli/app.py") == "metaq.cli.app"
    assert module_of("client/shared/__init__.py") == "metaq.client.shared"


def test_the_product_has_many_guards_of_each_kind_and_no_name_twice():
    found = product_sites()
    assert len({site.name for site in found}) == len(found)
    for kind in ("check", "fence", "sync", "order"):
        assert sum(site.kind == kind for site in found) > 20

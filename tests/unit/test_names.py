"""One name stands for one type: no two modules of the product define a public class or alias of the same name."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "coordination", "broker", "client", "spark_connector", "metaq")


def types_of(source: str) -> Iterator[str]:
    """The public classes and aliases of a module; constants and TypeVars are none."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not is_type_var(value):
                pass
            case _:
                continue
        if name[0].isupper() and not name.isupper():
            yield name


def is_type_var(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("TypeVar", "NewType")


def ambiguous(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Modules by each name that several define."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, source in sources:
        for name in set(types_of(source)):
            found[name].append(module)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def test_no_type_has_the_name_of_another():
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    assert ambiguous((str(file.relative_to(ROOT)), file.read_text("utf-8")) for file in files) == {}


def test_a_name_that_two_modules_define_is_seen():
    first = "class State: ...\nLIMIT = 1\nT = TypeVar('T')\nclass _Own: ..."
    second = "State = int | str\nLIMIT = 2\nT = TypeVar('T')\nclass _Own: ..."
    assert ambiguous([("a", first), ("b", second)]) == {"State": ["a", "b"]}

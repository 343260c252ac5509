"""Paths, and zk_paths.md as their documentation: the two must say the same."""

import inspect
import re
from pathlib import Path

import pytest

from metaq.coordination.records.paths import (
    Paths,
    ancestors,
    partition_name,
    replica_name,
    split_connect_string,
)
from metaq.protocol.errors import InvalidName

DOCUMENT = Path(__file__).resolve().parents[3] / "zk_paths.md"
ROW = re.compile(r"\| `(R/[^`]+)` \| `([a-z_]+)` \| (persistent|ephemeral) \|")
PLACEHOLDERS = {
    "broker_id": "<b>",
    "slave_id": "<s>",
    "node": "<N>",
    "topic": "<T>",
    "replica": "<replica>",
    "group": "<G>",
    "consumer_id": "<C>",
    "partition": "<b>-<p>",
    "query_id": "<Q>",
    "user": "<U>",
}


def methods() -> dict[str, list[str]]:
    """Names of the parameters by the name of each public method."""
    return {
        name: list(inspect.signature(method).parameters)[1:]
        for name, method in inspect.getmembers(Paths, inspect.isfunction)
        if not name.startswith("_")
    }


def documented() -> dict[str, str]:
    return {method: path for path, method, _ in ROW.findall(DOCUMENT.read_text("utf-8"))}


def test_zk_paths_md_documents_each_method_once_and_no_other():
    rows = [method for _, method, _ in ROW.findall(DOCUMENT.read_text("utf-8"))]
    assert len(rows) > 20
    assert sorted(rows) == sorted(methods())


@pytest.mark.parametrize("method", sorted(methods()))
def test_zk_paths_md_gives_the_path_that_the_method_builds(method: str):
    arguments = [PLACEHOLDERS[name] for name in methods()[method]]
    built = getattr(Paths("R"), method)(*arguments)
    assert built.removeprefix("/") == documented()[method]


def test_only_paths_py_glues_paths_together():
    """A "/" in a string literal of another module would be a path built by hand."""
    folder = DOCUMENT.parent / "coordination"
    files = (file for file in folder.rglob("*.py") if file.parent.name != "standalone")
    sources = [file for file in files if file.name not in ("paths.py", "payloads.py")]
    assert len(sources) > 8
    guilty = re.compile(r"""f?["'](/[\w{]|[^"' ]*\{[^}"']*\}/)""")
    assert not [(file.name, line) for file in sources for line in file.read_text().splitlines() if guilty.search(line)]


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("/meta", "/meta/brokers/ids"),
        ("meta", "/meta/brokers/ids"),
        ("/meta/", "/meta/brokers/ids"),
        ("/a/b", "/a/b/brokers/ids"),
        ("/", "/brokers/ids"),
        ("", "/brokers/ids"),
    ],
)
def test_the_root_is_taken_as_zk_root_of_1x(root: str, expected: str):
    assert Paths(root).broker_ids() == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b"])
def test_a_name_that_would_leave_its_place_in_the_tree_is_refused(name: str):
    paths = Paths()
    for build in (paths.topic, paths.group_ids, lambda each: paths.offset("g", "t", each)):
        with pytest.raises(InvalidName):
            build(name)


def test_ancestors_come_topmost_first_without_the_root():
    assert ancestors("/meta/brokers/ids/0") == ["/meta", "/meta/brokers", "/meta/brokers/ids"]
    assert ancestors("/meta") == []


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("h:1", ("h:1", "")),
        ("h:1/", ("h:1", "")),
        ("h:1,i:2/a/b", ("h:1,i:2", "/a/b")),
        ("h:1/a/", ("h:1", "/a")),
        ("[::1]:2181/a", ("[::1]:2181", "/a")),
    ],
)
def test_a_connect_string_is_cut_before_its_chroot(connect: str, expected: tuple[str, str]):
    assert split_connect_string(connect) == expected


def test_node_names_are_those_of_1x():
    assert replica_name(3) == "3-m"
    assert replica_name(3, 0) == "3-s0"
    assert partition_name(10, 2) == "10-2"

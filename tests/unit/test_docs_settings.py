"""docs/settings.md and docs/server.ini say what the code says; run as a program, this writes the former."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq import ConnectionConfig, ConsumerConfig, ProducerConfig, SharedConfig
from metaq.broker.configuration.server_ini import (
    LIMITS_KEYS,
    REPLICATION_KEYS,
    SYSTEM_KEYS,
    ZOOKEEPER_KEYS,
    parse_config,
)
from metaq.broker.configuration.settings import BrokerConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLASSES: tuple[Any, ...] = (ProducerConfig, ConsumerConfig, SharedConfig, ConnectionConfig)
HEAD = """# Settings of producers and consumers

Each setting is a keyword argument of the class whose name is the heading above its table. The class `ConnectionConfig`
has the settings of connections; pass an object of this class to the other classes as the argument `connection`. If a
setting is a time or a size, its name ends with the unit, for example `_seconds`; for a time you may pass a `timedelta`
instead of a number. A value out of its range raises `ConfigError`, which names the setting and what to do.
[client.md](client.md) describes how producers and consumers use the settings. The broker's settings are in
[broker.md](broker.md#serverini), with a [sample server.ini](server.ini).

The command `python -m tests.unit.test_docs_settings` makes this page from `client/settings/config.py` and
`client/settings/consumer_config.py`, which also have the defaults.
"""


def settings(cls: Any) -> Iterator[tuple[list[str], str]]:
    """Names and their text. A name without a text of its own shares that of the next one."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif names and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield names, re.sub(r"\s+", " ", str(node.value.value))
            names = []
    assert names in ([], ["connection"]), f"{cls.__name__}: {names} without a word"


def shown(name: str, value: Any) -> str:
    """A default as a reader knows it."""
    if "bytes" in name and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return f"`{value!r}`" if not isinstance(value, int | float) or isinstance(value, bool) else f"{value:,}"


def page() -> str:
    parts = [HEAD]
    for cls in CLASSES:
        defaults = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(cls)
        }
        parts.append(f"\n## {cls.__name__}\n\n{cls.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n")
        for names, text in settings(cls):
            values = ", ".join(shown(name, defaults[name]) for name in names)
            parts.append(f"| {', '.join(f'`{name}`' for name in names)} | {values} | {text.replace('|', '&#124;')} |\n")
    return "".join(parts)


def test_the_page_of_settings_is_that_of_the_code() -> None:
    assert (DOCS / "settings.md").read_text() == page()


def test_the_client_reads_every_setting() -> None:
    settings_of_their_own = DOCS.parent / "client" / "settings"
    files = [path for folder in ("client", "spark_connector", "metaq") for path in (DOCS.parent / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files if settings_of_their_own not in path.parents)
    read = set(re.findall(r"\.(\w+)", code))
    assert [field.name for cls in CLASSES for field in dataclasses.fields(cls) if field.name not in read] == []


def sample() -> str:
    return (DOCS / "server.ini").read_text()


def without_source(config: BrokerConfig) -> BrokerConfig:
    return dataclasses.replace(config, source=b"", topics={})


def test_the_sample_server_ini_is_read_and_its_comments_are_the_defaults() -> None:
    as_it_is = parse_config(sample().encode())
    with_all_set = parse_config(re.sub(r"(?m)^;(?=[\w.]+=)", "", sample()).encode())
    assert without_source(with_all_set) == without_source(as_it_is)
    assert list(as_it_is.topics) == ["orders"]


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("system", SYSTEM_KEYS),
        ("zookeeper", ZOOKEEPER_KEYS),
        ("replication", REPLICATION_KEYS),
        ("limits", LIMITS_KEYS),
    ],
)
def test_the_sample_names_every_key_once(section: str, keys: frozenset[str]) -> None:
    text = sample().split(f"[{section}]\n")[1].split("\n[")[0]
    assert sorted(re.findall(r"(?m)^;? ?([\w.]+)=", text)) == sorted(keys)


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(page())

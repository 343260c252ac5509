"""From a URL on the command line to the SQL table in which 1.x's MysqlOffsetStorage keeps offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from metaq.coordination.sql_offset_store import SqlOffsetStore
from metaq.protocol.errors import ConfigError

__all__ = ["sql_store"]

_BACKTICKS = ("pymysql", "MySQLdb", "mysql.connector")
"""Drivers of databases that quote names so."""


def sql_store(option: str, url: str) -> SqlOffsetStore:
    """The store at `driver://user:password@host:port/database`, or `sqlite3:///path`, which is opened read-only.

    driver: name of a DB-API 2.0 module that takes host, port, user, password and database. Raises ConfigError naming
    `option`, without the URL: it may hold a password.
    """
    scheme, slashes, _ = url.partition("://")  # not urlsplit's scheme, which is in lower case
    parts = urlsplit(url)
    try:
        driver = import_module(scheme) if slashes and scheme else None
    except ImportError:
        driver = None
    if driver is None or not hasattr(driver, "paramstyle"):
        remedy = "names no installed DB-API driver: write driver://user:password@host/database, and install the driver"
        raise ConfigError(option, scheme, remedy)
    marks = "`" if scheme in _BACKTICKS else '"'
    return SqlOffsetStore(_connector(driver, scheme, parts), paramstyle=driver.paramstyle, quote=marks)


def _connector(driver: Any, scheme: str, parts: SplitResult) -> Callable[[], Any]:
    if scheme == "sqlite3":
        return partial(driver.connect, f"file:{quote(unquote(parts.path))}?mode=ro", uri=True)
    named = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username and unquote(parts.username),
        "password": parts.password and unquote(parts.password),
        "database": parts.path.strip("/"),
    }
    return partial(driver.connect, **{name: value for name, value in named.items() if value})

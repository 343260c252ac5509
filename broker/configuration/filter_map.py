"""filters.ini maps the Java filter classes of metaq 1.x to Python callables. This module does no I/O.

    [filters]
    com.acme.OnlyLargeOrders = acme_filters:only_large_orders
    com.acme.Everything = *

server.ini keeps the Java names, so that a Java broker can still use it without changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaq.protocol.errors import ConfigError

from .ini import Section, parse_ini

__all__ = ["ACCEPT_ALL", "FILTERS_FILE", "parse_filter_map"]

ACCEPT_ALL = "*"
"""In filters.ini, each name of a Java filter class is followed by a callable or by this value. With this value, the
consumer group gets all messages.
"""

FILTERS_FILE = "filters.ini"
"""Name of the filters file that is used if no other file is named. A file with this name is looked for in the directory
of server.ini.
"""

_SECTION = "filters"


def parse_filter_map(source: bytes, name: str = FILTERS_FILE) -> Mapping[str, str]:
    """Return for each Java class name in the file either `package.module:callable` or ACCEPT_ALL. Raises a ConfigError
    that names the line and the value.
    """
    sections = parse_ini(source.decode("utf-8", "surrogateescape"), name)
    if others := sections.keys() - {_SECTION}:
        raise ConfigError(name, f"[{min(others)}]", f"is not a section of this file: use [{_SECTION}]")
    entries = sections.get(_SECTION, Section())
    for entry in entries.values():
        if entry.value != ACCEPT_ALL and ":" not in entry.value:
            raise ConfigError(
                f"{entry.where}: {entry.key}",
                entry.value,
                f"is not a Python callable: use package.module:callable, or {ACCEPT_ALL} to let all messages through",
            )
    return {entry.key: entry.value for entry in entries.values()}

"""filters.ini maps the Java filter classes of metaq 1.x to Python callables. This module does no I/O.

    [filters]
    com.acme.OnlyLargeOrders = acme_filters:only_large_orders
    com.acme.Everything = *

server.ini itself names the Java classes, so a Java broker can use the same server.ini.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaq.protocol.errors import ConfigError

from .ini import Section, parse_ini

__all__ = ["ACCEPT_ALL", "FILTERS_FILE", "parse_filter_map"]

ACCEPT_ALL = "*"
"""A line of filters.ini gives the name of a Java filter class and, after `=`, a Python callable or this value. This
value means that the consumer group gets all messages.
"""

FILTERS_FILE = "filters.ini"
"""Default name of the filters file. If no other file is named, the broker uses the file with this name in the directory
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

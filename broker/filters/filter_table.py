"""Import the callables of the filters that server.ini names, and find the filter for a topic and a consumer group."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from metaq.protocol.errors import ConfigError, FilterUnavailable

from ..configuration.filter_map import ACCEPT_ALL
from ..configuration.server_ini import BrokerConfig
from .message import FilteredMessage

__all__ = ["Filter", "FilterTable", "load_filters"]

_log = logging.getLogger(__name__)

GroupAccept = Callable[[str, FilteredMessage], object]
"""accept(group, message) returns a true value if the consumer group gets the message."""


class Filter:
    """A filter: a callable that a user has written. Any thread may use a Filter object. `failures` is the number of
    exceptions that the callable has raised. This number is only shown to operators. It can be too low, because several
    threads increase it without a lock.
    """

    def __init__(self, name: str, accept: GroupAccept) -> None:
        """name: `package.module:callable`."""
        self.name = name
        self.failures = 0
        self._accept = accept

    def accepts(self, group: str, message: FilteredMessage) -> bool:
        """Return whether the group gets the message. If the callable raises an exception, the group does not get the
        message, as in 1.x. Only the first exception of each filter is logged.
        """
        try:
            return bool(self._accept(group, message))
        except Exception:
            self.failures += 1
            if self.failures == 1:
                _log.exception(
                    "filter %s failed for group %s on %r, so it is not accepted; further ones are only counted",
                    self.name,
                    group,
                    message,
                )
            return False


class FilterTable:
    """The filters by topic and group. The table is immutable; a reload of server.ini creates a new table."""

    def __init__(self, filters: Mapping[tuple[str, str], Filter | str] | None = None) -> None:
        """filters: the filters by (topic, group). A string in place of a Filter is the name of a Java class for which
        filters.ini names no Python callable.
        """
        self._filters = dict(filters or {})

    def find(self, topic: str, group: str) -> Filter | None:
        """Return the group's filter for a topic, or None if the group gets everything. Raises FilterUnavailable if the
        group's filter is a Java class without a Python callable.
        """
        found = self._filters.get((topic, group))
        if isinstance(found, str):
            raise FilterUnavailable(found, topic, group)
        return found

    def filters(self) -> list[Filter]:
        """Return all filters that have a Python callable."""
        return list({id(each): each for each in self._filters.values() if isinstance(each, Filter)}.values())


def load_filters(config: BrokerConfig, known: FilterTable | None = None) -> FilterTable:
    """Import every callable that the configuration names. The imports run users' code, so this function must not be
    called on the thread of a running reactor.

    known: the table of an earlier configuration; callables that this table has are not imported again. Raises
    ConfigError if an import fails. If filters.ini has no callable for a Java class, this is logged, and the broker will
    refuse the requests of a consumer group whose filter is this class. The group is refused because without its filter
    it would either get unwanted messages or skip wanted ones.
    """
    _extend_path(config.app_class_path)
    filters = {each.name: each for each in (known.filters() if known else ())}
    table: dict[tuple[str, str], Filter | str] = {}
    for topic in config.topics.values():
        for group, named in topic.filters.items():
            name = named if ":" in named else config.filter_classes.get(named)
            if name is None:
                _log.error("%s", FilterUnavailable(named, topic.name, group))
                table[topic.name, group] = named
            elif name != ACCEPT_ALL:
                option = f"[topic={topic.name}] group.{group}"
                table[topic.name, group] = filters.setdefault(name, filters.get(name) or _load(name, option))
    return FilterTable(table)


def _extend_path(directory: str | None) -> None:
    if directory is not None and directory not in sys.path:
        sys.path.append(directory)


def _load(name: str, option: str) -> Filter:
    module, _, attribute = name.partition(":")
    try:
        accept = import_module(module)
        for part in attribute.split("."):
            accept = getattr(accept, part)
    except Exception as error:  # an import may run any code
        reason = f"{type(error).__name__}: {error}"
        remedy = f"cannot be imported ({reason}): put the module into appClassPath or install it"
        raise ConfigError(option, name, remedy) from error
    if not callable(accept):
        raise ConfigError(option, name, "is not callable: name a function (group, message) -> bool")
    return Filter(name, accept)

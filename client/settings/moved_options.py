"""Accept arguments that constructors and methods had in earlier releases. These arguments are settings of a
configuration object now, or are passed by keyword. Until the next release such an argument still has its effect, and
causes a DeprecationWarning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

__all__ = ["MovedProtocol", "by_position", "with_moved"]

_Config = TypeVar("_Config")


class MovedProtocol(TypedDict, total=False):
    """Arguments that producers and iterators over topics formerly had, and that are settings of ConnectionConfig
    now.
    """

    protocol: str


def with_moved(config: _Config, caller: str, given: Mapping[str, object], *moved: str) -> _Config:
    """Return a copy of `config` in which the settings named like the arguments in `given` have the arguments' values. A
    setting is an attribute of `config` or of its `connection`. given: the keyword arguments of the user's call that are
    no parameters of the method any more. caller: the name of the method that the user has called.

    moved: the names that `given` may contain. An argument with the value None leaves the setting unchanged. The method
    that the user's code calls must call this function itself, not through another function. The reason is that the
    warning names the source line two calls up, and this must be the user's line. Raises TypeError for an argument that
    `caller` never had, as Python does, and ConfigError for a wrong value.
    """
    changed: Any = config
    kind = type(config).__name__
    for name, value in given.items():
        if name not in moved:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
        of_connection = not hasattr(config, name)
        setting = f"connection=ConnectionConfig({name}=…)" if of_connection else f"{name}=…"
        warnings.warn(
            f"{caller}({name}=…) ends with the next release: write {caller}(config={kind}({setting}))",
            DeprecationWarning,
            stacklevel=3,
        )
        if value is None:
            continue
        if of_connection:
            changed = replace(changed, connection=replace(changed.connection, **{name: value}))
        else:
            changed = replace(changed, **{name: value})
    return changed  # type: ignore[no-any-return]


def by_position(caller: str, given: Sequence[object], *names: str) -> dict[str, Any]:
    """Return, by name, the arguments that a user has passed by position although they are passed by keyword now. given:
    the positional arguments that have no place any more. names: the arguments that had these places formerly, in order.
    caller: the name of the method that the user has called; this method must call the function itself (see
    `with_moved`). Raises TypeError for more arguments than there were, as Python does.
    """
    if len(given) > len(names):
        raise TypeError(f"{caller}() takes no further positional arguments: {given[len(names)]!r:.80}")
    found = dict(zip(names, given, strict=False))
    keywords = ", ".join(f"{name}={value!r:.80}" for name, value in found.items())
    warnings.warn(
        f"{caller}() takes {' and '.join(found)} by keyword from the next release on: write {caller}({keywords})",
        DeprecationWarning,
        stacklevel=3,
    )
    return found

"""Support former arguments of constructors and methods that have become settings of a configuration object. The former
arguments work for one more release, with a DeprecationWarning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

__all__ = ["MovedProtocol", "with_moved"]

_Config = TypeVar("_Config")


class MovedProtocol(TypedDict, total=False):
    """Former arguments of producers and of iterators over topics, which are settings now."""

    protocol: str


def with_moved(config: _Config, caller: str, given: Mapping[str, object], *moved: str) -> _Config:
    """Return a copy of `config` that contains the values of the former arguments in `given`. caller: the name of the
    called method. Each former argument is now a setting of `config` or of its connection.

    moved: names of the arguments that `caller` once had. An argument with the value None leaves the setting unchanged.
    Call this function directly in the method that the user's code called, so that the warning names the user's line.
    Raises TypeError for an argument that `caller` never had, as Python does, and ConfigError for a wrong value.
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

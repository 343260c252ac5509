"""The versions of Apache's ZooKeeper server that a cluster should not use."""

from __future__ import annotations

import re

__all__ = ["MIN_VERSION", "is_unsafe"]

MIN_VERSION = (3, 9, 6)
"""The oldest allowed server version. In earlier versions, anybody can delete any empty znode that is not ephemeral,
without a login (CVE-2026-79993).
"""

_MIN_VERSION_38 = (3, 8, 7)
"""The first version of the older branch 3.8 without this defect."""

_APACHE = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(?!\S*-metaq-)")
"""Matches the version that a server of Apache reports, but not the version that metaq's own server reports, which
contains `-metaq-`.
"""


def is_unsafe(version: str) -> bool:
    """Return whether anybody can delete znodes of a server that reports this version, without a login. The result is
    False for metaq's own server, and for a text that is no version.
    """
    found = _APACHE.match(version)
    if found is None:
        return False
    numbers = tuple(map(int, found.groups()))
    return numbers < (_MIN_VERSION_38 if numbers < (3, 9) else MIN_VERSION)

"""Topics that every broker of ours serves without a section in server.ini.

    %RETRY%<group>   messages that a handler of the group failed on, until they come again
    %DEAD%<group>    messages that failed as often as they may: the group's dead letters
    %REPLY%          answers to requests

No group has `%` in its name, so each of these names belongs to one group. To 1.x clients they are topics like any
others.
"""

from __future__ import annotations

from .errors import InvalidName
from .limits import check_group, check_topic

__all__ = [
    "DEAD_PREFIX",
    "OWN_MARK",
    "OWN_PARTITIONS",
    "REPLY_TOPIC",
    "RETRY_PREFIX",
    "dead_topic",
    "is_own_topic",
    "retry_topic",
]

OWN_MARK = "%"
"""The first character of these names. Lists of topics leave them out unless requested."""

RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DEAD%"
REPLY_TOPIC = "%REPLY%"

OWN_PARTITIONS = 1
"""Number of partitions of each of these topics on a broker without a section for it."""


def retry_topic(group: str) -> str:
    """Return the topic where failed messages of `group` wait. Raises InvalidName, also if the topic's name would be too
    long, and TypeError.
    """
    return check_topic(RETRY_PREFIX + check_group(group))


def dead_topic(group: str) -> str:
    """Return the topic of the dead letters of `group`. Raises the errors of retry_topic."""
    return check_topic(DEAD_PREFIX + check_group(group))


def is_own_topic(name: str) -> bool:
    """Whether every broker of ours serves `name` without a section. Cheap for any other name."""
    if name[:1] != OWN_MARK:
        return False
    if name == REPLY_TOPIC:
        return True
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if name.startswith(prefix):
            try:
                check_topic(prefix + check_group(name.removeprefix(prefix)))
            except InvalidName:
                return False
            return True
    return False

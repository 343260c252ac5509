"""The topics that every metaq broker (not a Java broker) serves without a section in server.ini.

    %RETRY%<group>   messages on which a handler of the group has failed, until they are delivered again
    %DEAD%<group>    messages on which handlers failed the maximum number of times: the group's dead letters
    %REPLY%          answers to requests

No group has `%` in its name, so each name %RETRY%<group> or %DEAD%<group> belongs to exactly one group. 1.x clients can
use these topics like all other topics.
"""

from __future__ import annotations

from .errors import InvalidName
from .limits import check_group, check_topic

__all__ = [
    "DEAD_PREFIX",
    "INBOX_CHARACTERS",
    "OWN_MARK",
    "OWN_PARTITIONS",
    "REPLY_TOPIC",
    "RETRY_PREFIX",
    "dead_topic",
    "is_own_topic",
    "owner_of",
    "retry_topic",
]

OWN_MARK = "%"
"""The first character of the names of metaq's own topics. Functions that list topics include metaq's own topics only if
the caller asks for them.
"""

RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DEAD%"
REPLY_TOPIC = "%REPLY%"

INBOX_CHARACTERS = 16
"""Least length of the name of an inbox, the tag of all replies to one asker. An inbox is random, so that only those who
have read one of its requests know it.
"""

OWN_PARTITIONS = 1
"""Number of partitions of each of metaq's own topics on a broker whose server.ini has no section for the topic."""


def retry_topic(group: str) -> str:
    """Return the name of the topic for failed messages of `group`, which wait there for another attempt. Raises
    TypeError if `group` is not a text. Raises InvalidName if it is not a valid name of a group, or if the topic's name
    would be too long.
    """
    return check_topic(RETRY_PREFIX + check_group(group))


def dead_topic(group: str) -> str:
    """Return the topic of the dead letters of `group`. Raises the errors of retry_topic."""
    return check_topic(DEAD_PREFIX + check_group(group))


def is_own_topic(name: str) -> bool:
    """Return whether `name` is one of the topics that every metaq broker serves without a section in server.ini. The
    check is fast for ordinary names.
    """
    if name[:1] != OWN_MARK:
        return False
    if name == REPLY_TOPIC:
        return True
    group = owner_of(name)
    if group is None:
        return False
    try:
        check_group(group)
        check_topic(name)
    except InvalidName:
        return False
    return True


def owner_of(topic: str) -> str | None:
    """Return the group whose failed messages or dead letters this topic holds, or None if it is no such topic. The
    group's name is not checked.
    """
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None

"""The limits of the protocols, and the rules for names, in one place.

They are checked before memory is allocated: a header that announces more than a limit is refused at once.
"""

from __future__ import annotations

import re

from .errors import InvalidName
from .printable import has_control

__all__ = [
    "COMPRESSED_MARK",
    "DEFAULT_PORT",
    "DELAYS_MARK",
    "FRAMES_MARK",
    "HALF_CHECK_MARK",
    "HALF_GRACE_SECONDS",
    "HALVES_MARK",
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "MANY_MARK",
    "MAX_ACQUIRED",
    "MAX_BATCH_RECORDS",
    "MAX_BODY_BYTES",
    "MAX_CHECKED_HALVES",
    "MAX_CHECK_AFTER_SECONDS",
    "MAX_CHECK_WAIT_MS",
    "MAX_DELAY_SECONDS",
    "MAX_ENDED_HALVES",
    "MAX_FOUND_MESSAGES",
    "MAX_FRAME_BYTES",
    "MAX_FRAME_HEADER_BYTES",
    "MAX_KEY_CHARACTERS",
    "MAX_LEASE_MS",
    "MAX_LINE_BYTES",
    "MAX_LISTED_DELAYED",
    "MAX_LISTED_GROUPS",
    "MAX_LISTED_HALVES",
    "MAX_MEMBER_CHARACTERS",
    "MAX_NODE_NAME",
    "MAX_PARTS",
    "MAX_PAYLOAD_BYTES",
    "MAX_PULL_BYTES",
    "MAX_RECORD_BODY_BYTES",
    "MAX_RELEASE_MS",
    "MAX_SETTLEMENTS",
    "MAX_TX_BATCH_RECORDS",
    "MAX_TX_KEY_CHARACTERS",
    "MAX_WHERE_ATTRIBUTE",
    "MAX_WHERE_CHARACTERS",
    "MAX_WHERE_CONDITIONS",
    "MAX_WHERE_DEPTH",
    "MAX_WHERE_NUMBER",
    "OWN_PROPERTIES_BYTES",
    "SEQUENCES_MARK",
    "SHARED_MARK",
    "SLAVE_STATUS_TOPIC",
    "WHERE_MARK",
    "check_group",
    "check_label",
    "check_made_topic",
    "check_new_topic",
    "check_node",
    "check_topic",
    "check_znode",
    "check_zookeeper_group",
    "check_zookeeper_topic",
    "is_utf8",
    "no_text",
]

DEFAULT_PORT = 8123
"""TCP port of a broker (storage.md §9)."""

FRAMES_MARK = "frames/1"
"""A broker whose `version` answer contains this word speaks frames; a Java broker's answer does not."""

MANY_MARK = "many/1"
"""A broker whose `version` answer contains this word takes SEND_MANY; our first brokers did not."""

SEQUENCES_MARK = "sequences/1"
"""A broker whose `version` answer contains this word stores a send with a producer's number only once, even if it is
repeated (sends.py). Java brokers, our older ones and both sides of 1.x's synchronous replication do not."""

DELAYS_MARK = "delays/1"
"""A broker whose `version` answer contains this word keeps delayed messages until their time (delays.py)."""

HALVES_MARK = "halves/1"
"""A broker whose `version` answer contains this word keeps half messages until their outcome is known
(half_messages.py)."""

HALF_CHECK_MARK = "half-check/"
"""Prefix of a word of the `version` answer of a broker that asks a half message's own producer before others
(half_messages.py). The rest of the word is, in decimal, the delay of the first check in milliseconds for half messages
that do not set one.
"""

HALF_GRACE_SECONDS = 3.0
"""Seconds between the time when the first check is due and the earliest time when another producer is asked."""

MAX_CHECK_AFTER_SECONDS = 24 * 3600
"""Maximum time from a half message's arrival to its first check."""

MAX_ENDED_HALVES = 256
"""Maximum half messages of one END_HALVES."""

MAX_CHECKED_HALVES = 256
"""Maximum half messages of one answer to CHECK_HALVES."""

MAX_CHECK_WAIT_MS = 60_000
"""Maximum time that a CHECK_HALVES may wait for its answer."""

MAX_LISTED_HALVES = 1000
"""Maximum half messages of one answer to LIST_HALVES."""

MAX_LISTED_GROUPS = 1000
"""Maximum producer groups of one answer to LIST_HALVES."""

MAX_DELAY_SECONDS = 366 * 24 * 3600
"""Maximum delay of a delayed message: a year."""

MAX_LISTED_DELAYED = 1000
"""Maximum delayed messages of one answer to LIST_DELAYED."""
COMPRESSED_MARK = "compressed/1"
"""A broker whose `version` answer contains this word takes compressed messages only for topics that allow them, and
gives them only to clients that can read them. All other brokers would give them to anybody."""
WHERE_MARK = "where/1"
"""A broker whose `version` answer contains this word filters a pull by content (docs/filters.md)."""
SHARED_MARK = "shared/1"
"""A broker whose `version` answer contains this word leases messages to shared consumers (shared.py); Java brokers, our
older ones and both sides of 1.x's replication do not."""

MAX_LINE_BYTES = 64 * 1024
"""Longest header line without its CR LF. Java has no limit; a line is at most two names and a few numbers."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body of one message as its user made it. Java has no limit, but its own consumers stop at 2 MiB."""

OWN_PROPERTIES_BYTES = 16 * 1024
"""Room for metaq's own properties, such as a time or a failure: they do not make a message too large. The place and the
cause of a failure and two group names together have less than 6 KiB.
"""

MAX_RECORD_BODY_BYTES = MAX_BODY_BYTES + OWN_PROPERTIES_BYTES
"""Largest body of a record in a frame. A text put has at most MAX_BODY_BYTES."""

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""Maximum uncompressed size of a compressed payload, and so the maximum memory that a reader takes for one. Without a
limit, a message of a few hundred bytes could claim gigabytes.
"""

MAX_FRAME_BYTES = (1 << 24) - 1
"""Largest frame, length word included: its first byte is zero, which distinguishes a frame from a text command."""

MAX_FRAME_HEADER_BYTES = 1024 * 1024
"""Largest JSON header of a frame (its length is a u24)."""

PLAIN_HEADER_BYTES = 64 * 1024
"""Above this size a header must have few values: it is only legitimate if one of them is long, such as a list of
topics."""

MAX_HEADER_TEXTS = 256
"""Maximum number of names and values of a header above PLAIN_HEADER_BYTES; no request has more than fifty."""

MAX_PULLED_TAGS = 1 << 13
"""Maximum tags of a PULL, and of an ACQUIRE."""

MAX_CHECKED_TOPICS = 1 << 12
"""Maximum topics of a CHECK_HALVES."""

MAX_PULL_BYTES = 4 << 20
"""Maximum data of one PULL's answer, unless the broker's maxTransferSize is more: larger answers would block the
broker's event loop.
"""

MAX_BATCH_RECORDS = 1 << 16
"""Maximum records in one SEND_BATCH or SEND_MANY frame, and in the answer to a PULL: a partition takes them in one
step."""

MAX_TX_BATCH_RECORDS = 1 << 10
"""Maximum records in one SEND_BATCH frame of a transaction, which takes them one by one, but in one step of the
loop.
"""

MAX_PARTS = 1 << 14
"""Maximum parts in one SEND_MANY frame: each is a separate append, regardless of its size."""

MAX_FOUND_MESSAGES = 1024
"""Maximum messages in the answer to one search by key."""

MAX_KEY_CHARACTERS = 64 * 1024
"""Longest key that can be searched for, in characters."""

MAX_TX_KEY_CHARACTERS = 1024
"""Longest transaction key. XA's own parts have at most 64 bytes each; Java has no limit."""

MAX_WHERE_ATTRIBUTE = 64 * 1024
"""Bytes of the longest attribute that a filter by content reads; a message with a longer attribute counts as one
without an attribute.
"""

MAX_WHERE_CHARACTERS = 4096
"""Longest filter by content, in characters."""

MAX_WHERE_CONDITIONS = 64
"""Maximum conditions of one filter, each of which costs something for every message; an IN counts as one condition."""

MAX_WHERE_DEPTH = 32
"""Maximum nesting of parentheses in one filter."""

MAX_WHERE_NUMBER = 64
"""Longest number in one filter, and longest text that counts as a number, in characters."""

MAX_NODE_NAME = 64
"""Longest name of a node of a broker set, in characters."""

MAX_LEASE_MS = 12 * 3600 * 1000
"""Maximum time of a lease, and of its extension from now on, milliseconds."""

MAX_RELEASE_MS = 7 * 24 * 3600 * 1000
"""Maximum time for which a released message is held back, milliseconds."""

MAX_ACQUIRED = 1 << 12
"""Maximum messages that one ACQUIRE leases."""

MAX_SETTLEMENTS = 1 << 16
"""Maximum messages of one SETTLE."""

MAX_MEMBER_CHARACTERS = 128
"""Longest name of a shared consumer, in characters."""

SLAVE_STATUS_TOPIC = "_metaq_slave_status_test"
"""Topic to which a synchronous master writes on its slave while it checks whether the slave works again (1.x)."""

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

MAX_NAME_BYTES = 240  # "<topic>-<partition>" is a directory name: 255 bytes on the usual file systems
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
# zookeeper.md §5: the characters that the Java client refuses in a group name
_GROUP_FORBIDDEN = re.compile(r"[~!#$%^&*()+=`'\",;/?\[\]<>.: \x00-\x1f\x7f]")


def check_topic(topic: str) -> str:
    """Return `topic` if it can be a directory's name and a word on the wire. Raises InvalidName saying why not,
    TypeError if it is not a text.

    1.x allows any UTF-8 without blanks; `/`, `.`, `..` and control characters are refused here because a topic becomes
    a directory. `*` is refused because it is a pattern in server.ini. This check is enough for a stored topic;
    check_zookeeper_topic is for topics looked up in ZooKeeper, check_new_topic for topics to be created.
    """
    if not isinstance(topic, str):
        raise no_text("topic", topic, "give it a name")
    if not topic:
        raise InvalidName("topic '' is empty: give it a name")
    if len(topic.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidName(f"topic {topic[:40]!r}… is longer than {MAX_NAME_BYTES} bytes: use a shorter name")
    if "/" in topic or topic in (".", ".."):
        raise InvalidName(f"topic {topic!r} would be a path: use a name without '/'")
    if "*" in topic:
        raise InvalidName(f"topic {topic!r} is a pattern: '*' is only allowed in server.ini sections")
    if _CONTROL.search(topic):
        raise InvalidName(f"topic {topic!r} has a blank or control character: remove it")
    if not is_utf8(topic):
        raise InvalidName(f"topic {topic!r} is not valid UTF-8: use proper text")
    return topic


def check_label(label: str) -> str:
    """Return `label`, the group of a pull; "" means no group. Raises InvalidName for a long one, and for a blank or
    control character.

    A pull creates nothing for its group, so 1.x's rules for groups do not apply.
    """
    if len(label.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidName(f"group {label[:40]!r}… is longer than {MAX_NAME_BYTES} bytes: use a shorter name")
    if _CONTROL.search(label):
        raise InvalidName(f"group {label!r} has a blank or control character: remove it")
    return label


def check_zookeeper_topic(topic: str) -> str:
    """Return `topic` if ZooKeeper can hold it. Raises the errors of check_topic."""
    return check_znode("topic", check_topic(topic))


def check_new_topic(topic: str) -> str:
    """Return `topic` if it can be created, and subscribed to. Raises the errors of check_topic."""
    if "," in check_zookeeper_topic(topic):
        raise InvalidName(f"topic {topic!r} has a ',', which separates the topics of a consumer: take another name")
    return topic


def check_made_topic(topic: str) -> str:
    """Return `topic` if a client's message may create it at a broker whose server.ini has a pattern for it. Refuses
    control characters, because operators see the name on their terminals. Raises the errors of check_topic.
    """
    if has_control(check_new_topic(topic)):
        raise InvalidName(f"topic {topic!r} has a character that ends a line or turns the direction of text: remove it")
    return topic


def check_group(group: str) -> str:
    """Return `group` if 1.x clients would accept it as a consumer group. Raises the errors of check_topic."""
    if not isinstance(group, str):
        raise no_text("group", group, "give it a name")
    if not group:
        raise InvalidName("group '' is empty: give it a name")
    if len(group.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidName(f"group {group[:40]!r}… is longer than {MAX_NAME_BYTES} bytes: use a shorter name")
    found = _GROUP_FORBIDDEN.search(group)
    if found:
        raise InvalidName(f"group {group!r} has the character {found.group()!r}, which metaq 1.x forbids: remove it")
    if not is_utf8(group):
        raise InvalidName(f"group {group!r} is not valid UTF-8: use proper text")
    return group


def check_zookeeper_group(group: str) -> str:
    """Return `group` if check_group accepts it, and ZooKeeper accepts it and its topics. Raises the errors of
    check_topic.
    """
    return check_znode("group", check_group(group))


# characters that ZooKeeper's servers refuse in a path (PathUtils): they see UTF-16, so they refuse every character
# above U+FFFF, too
_NO_ZNODE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def check_znode(what: str, name: str) -> str:
    """Return `name` if ZooKeeper accepts it in a path. what: what has the name, for the error: a topic, a group or a
    znode. Raises InvalidName.
    """
    if (found := _NO_ZNODE.search(name)) is not None:
        raise InvalidName(f"{what} {name!r} has {found.group()!a}, which ZooKeeper does not take in a name: remove it")
    return name


def check_node(name: str) -> str:
    """Return `name` if it can name a node of a broker set, that is, if it can be a znode and a word in a list. Raises
    InvalidName.
    """
    if not name:
        raise InvalidName("a node's name is empty: give each node of a broker set a name of its own")
    if len(name) > MAX_NODE_NAME:
        raise InvalidName(f"node {name[:40]!r}… is longer than {MAX_NODE_NAME} characters: use a shorter name")
    if "/" in name or name in (".", ".."):
        raise InvalidName(f"node {name!r} would be a path: use a name without '/'")
    if _CONTROL.search(name) or "," in name or not name.isprintable():
        raise InvalidName(f"node {name!r} has a blank, a comma or a character that cannot be printed: remove it")
    return name


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode `text`, that is, whether it contains no half of a surrogate pair."""
    return text.isascii() or not any(0xD800 <= ord(c) <= 0xDFFF for c in text)


def no_text(what: str, value: object, none: str = "leave it out") -> TypeError:
    """Return the error for an argument `what` that has to be a text. none: advice for None."""
    if value is None:
        remedy = none
    elif isinstance(value, bytes):
        remedy = f"decode it, for example {value!r}.decode()"
    else:
        remedy = f"write it as a text, for example {str(value)!r}"
    return TypeError(f"{what}={value!r} is no text (str) but {type(value).__name__}: {remedy}")

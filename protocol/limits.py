"""Define the limits of the text protocol and of the framed protocol, and check the names of topics, groups and nodes.

Limits are checked before memory is allocated. A header that announces a size above a limit is refused at once.
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
"""A broker whose `version` answer contains this word accepts frames. The answer of a Java broker does not contain
it.
"""

MANY_MARK = "many/1"
"""A broker whose `version` answer contains this word accepts SEND_MANY. The first versions of metaq's own broker did
not accept SEND_MANY.
"""

SEQUENCES_MARK = "sequences/1"
"""A broker whose `version` answer contains this word stores a send with a producer's sequence number only once, even if
the send is repeated (sends.py). Java brokers, older metaq brokers, and the masters and slaves of 1.x's synchronous
replication store a repeated send a second time.
"""

DELAYS_MARK = "delays/1"
"""A broker whose `version` answer contains this word keeps delayed messages until their time (delays.py)."""

HALVES_MARK = "halves/1"
"""A broker whose `version` answer contains this word keeps half messages until their outcome is known
(half_messages.py)."""

HALF_CHECK_MARK = "half-check/"
"""A broker whose `version` answer contains a word with this prefix first asks the producer that sent a half message for
its outcome, and asks other producers only after that (half_messages.py). After the prefix, the word has a decimal
number: the milliseconds from the arrival of a half message to its first check. The number applies to half messages that
set no number of their own.
"""

HALF_GRACE_SECONDS = 3.0
"""If the producer that sent a half message has lost its connection to the broker, or has never sent a CHECK_HALVES, the
broker waits this number of seconds for that producer before it asks other producers of the group for the outcome.
"""

MAX_CHECK_AFTER_SECONDS = 24 * 3600
"""Maximum value in seconds that a half message may set for the time from its arrival to its first check, when the
broker first asks a producer for the outcome.
"""

MAX_ENDED_HALVES = 256
"""Maximum number of half messages in one END_HALVES."""

MAX_CHECKED_HALVES = 256
"""Maximum number of half messages in one answer to CHECK_HALVES."""

MAX_CHECK_WAIT_MS = 60_000
"""Maximum time in milliseconds that a broker may wait before it answers a CHECK_HALVES."""

MAX_LISTED_HALVES = 1000
"""Maximum number of half messages in one answer to LIST_HALVES."""

MAX_LISTED_GROUPS = 1000
"""Maximum number of producer groups in one answer to LIST_HALVES."""

MAX_DELAY_SECONDS = 366 * 24 * 3600
"""Maximum delay of a delayed message in seconds: a year."""

MAX_LISTED_DELAYED = 1000
"""Maximum number of delayed messages in one answer to LIST_DELAYED."""
COMPRESSED_MARK = "compressed/1"
"""If a broker's `version` answer contains this word, the broker accepts compressed messages only for topics that allow
them, and delivers them only to clients that can read them. All other brokers deliver compressed messages to any client.
"""
WHERE_MARK = "where/1"
"""A broker whose `version` answer contains this word filters a pull by content (docs/filters.md)."""
SHARED_MARK = "shared/1"
"""A broker whose `version` answer contains this word leases messages to shared consumers (shared.py). Java brokers,
older metaq brokers, and the masters and slaves of 1.x's replication do not lease messages.
"""

MAX_LINE_BYTES = 64 * 1024
"""Maximum length in bytes of a header line of the text protocol, without its CR LF. Java brokers have no such limit,
but a valid header line contains at most two names and a few numbers, so it is much shorter.
"""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Maximum size in bytes of the body of a message, without metaq's own properties. Java brokers have no limit, but Java
consumers cannot read more than 2 MiB.
"""

OWN_PROPERTIES_BYTES = 16 * 1024
"""Bytes that a record's body may have in addition to MAX_BODY_BYTES for metaq's own properties, such as a due time or
the description of a handler's failure. Because of these additional bytes, a body of MAX_BODY_BYTES can still get such
properties. All of metaq's own properties of one record need less than 6 KiB, even if they are the place and the cause
of a failure and two group names.
"""

MAX_RECORD_BODY_BYTES = MAX_BODY_BYTES + OWN_PROPERTIES_BYTES
"""Maximum size in bytes of a record's body in a frame. In the text protocol, the body of a put has at most
MAX_BODY_BYTES.
"""

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""Maximum uncompressed size in bytes of a compressed payload. A reader allocates at most this much memory for a
payload. If there were no limit, a message of a few hundred bytes could make a reader allocate gigabytes.
"""

MAX_FRAME_BYTES = (1 << 24) - 1
"""Maximum size of a frame in bytes, including the four bytes of its length. So the first byte of a frame is always
zero, which distinguishes it from a text command.
"""

MAX_FRAME_HEADER_BYTES = 1024 * 1024
"""Maximum size in bytes of a frame's JSON header. (The u24 that states this length in a frame could express larger
headers.)
"""

PLAIN_HEADER_BYTES = 64 * 1024
"""If a JSON header has more than this number of bytes, it may have at most MAX_HEADER_TEXTS names and values. A valid
header exceeds this size only if one of its values is long, for example a list of topics.
"""

MAX_HEADER_TEXTS = 256
"""Maximum number of names and values in a JSON header that is larger than PLAIN_HEADER_BYTES. No request of metaq has
more than fifty names and values.
"""

MAX_PULLED_TAGS = 1 << 13
"""Maximum number of tags in a PULL or an ACQUIRE."""

MAX_CHECKED_TOPICS = 1 << 12
"""Maximum number of topics in a CHECK_HALVES."""

MAX_PULL_BYTES = 4 << 20
"""The data in the answer to a PULL has at most this number of bytes, or the broker's maxTransferSize if that is more.
While the broker prepares an answer, its event loop serves no other connection, so larger answers would take too long.
"""

MAX_BATCH_RECORDS = 1 << 16
"""Maximum number of records in one SEND_BATCH or SEND_MANY frame, and in the answer to a PULL. The number is limited
because the broker appends the records of a batch to a partition without serving other connections meanwhile.
"""

MAX_TX_BATCH_RECORDS = 1 << 10
"""Maximum number of records in one SEND_BATCH frame of a transaction. The limit is lower than MAX_BATCH_RECORDS,
because the broker adds the records of such a frame to the transaction one by one. This takes longer than an append of a
batch, and the broker's event loop serves no other connection meanwhile.
"""

MAX_PARTS = 1 << 14
"""Maximum number of parts in one SEND_MANY frame. A part consists of the records for one partition. The number is
limited because the broker makes a separate append for each part, even for a part of one record.
"""

MAX_FOUND_MESSAGES = 1024
"""Maximum number of messages in the answer to one search by key."""

MAX_KEY_CHARACTERS = 64 * 1024
"""Maximum length in characters of a key that a client can search for."""

MAX_TX_KEY_CHARACTERS = 1024
"""Maximum length of a transaction key in characters. The key of an XA transaction consists of a few parts of at most 64
bytes each, so its length is far below this limit. Java brokers have no limit.
"""

MAX_WHERE_ATTRIBUTE = 64 * 1024
"""Maximum size in bytes of an attribute that a filter by content reads. If a message's attribute is longer, the filter
treats the message like one without an attribute.
"""

MAX_WHERE_CHARACTERS = 4096
"""Maximum length of a filter by content, in characters."""

MAX_WHERE_CONDITIONS = 64
"""Maximum number of conditions in one filter. The number is limited because the broker spends time on each condition
for every message. An IN counts as one condition, regardless of the number of its literals.
"""

MAX_WHERE_DEPTH = 32
"""Maximum nesting depth of parentheses in one filter."""

MAX_WHERE_NUMBER = 64
"""Maximum length in characters of a number in a filter. If a property's value is a text with more characters than this,
a filter does not treat it as a number.
"""

MAX_NODE_NAME = 64
"""Maximum length in characters of the name of a node of a broker set."""

MAX_LEASE_MS = 12 * 3600 * 1000
"""Maximum duration of a lease in milliseconds. If a member extends a lease, the new end of the lease can be at most
this long after the moment of the extension.
"""

MAX_RELEASE_MS = 7 * 24 * 3600 * 1000
"""A member that releases a message can say how long the broker must not lease the message again: at most this number of
milliseconds.
"""

MAX_ACQUIRED = 1 << 12
"""Maximum number of messages that one ACQUIRE leases."""

MAX_SETTLEMENTS = 1 << 16
"""Maximum number of messages in one SETTLE."""

MAX_MEMBER_CHARACTERS = 128
"""Maximum length in characters of the name of a shared consumer."""

SLAVE_STATUS_TOPIC = "_metaq_slave_status_test"
"""A synchronous master of 1.x sends messages for this topic to its slave to check whether the slave works again."""

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

MAX_NAME_BYTES = 240  # "<topic>-<partition>" is a directory name: 255 bytes on the usual file systems
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
# zookeeper.md §5: the characters that the Java client refuses in a group name
_GROUP_FORBIDDEN = re.compile(r"[~!#$%^&*()+=`'\",;/?\[\]<>.: \x00-\x1f\x7f]")


def check_topic(topic: str) -> str:
    """Return `topic` if it can be the name of a directory and a token of the text protocol. If it cannot, raise
    InvalidName, which tells the reason. Raises TypeError if `topic` is not a text.

    1.x allows any UTF-8 without blanks; `/`, `.`, `..` and control characters are refused here because a topic becomes
    a directory. `*` is refused because it is a pattern in server.ini. Use this check for a topic that brokers already
    have. Use check_zookeeper_topic for a topic that is looked up in ZooKeeper, and check_new_topic for a topic that is
    to be created.
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
    """Return `label`, the name of the group in a pull; "" means no group. Raises InvalidName if the name is too long,
    or if it contains a blank or a control character.

    A pull creates nothing for its group, so 1.x's rules for groups do not apply.
    """
    if len(label.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidName(f"group {label[:40]!r}… is longer than {MAX_NAME_BYTES} bytes: use a shorter name")
    if _CONTROL.search(label):
        raise InvalidName(f"group {label!r} has a blank or control character: remove it")
    return label


def check_zookeeper_topic(topic: str) -> str:
    """Return `topic` if it can also be the name of a znode in ZooKeeper. Raises the errors of check_topic."""
    return check_znode("topic", check_topic(topic))


def check_new_topic(topic: str) -> str:
    """Return `topic` if a topic with this name can be created, and consumers can subscribe to it. Raises the errors of
    check_topic.
    """
    if "," in check_zookeeper_topic(topic):
        raise InvalidName(f"topic {topic!r} has a ',', which separates the topics of a consumer: take another name")
    return topic


def check_made_topic(topic: str) -> str:
    """Return `topic` if a broker may create this topic when a client sends a message to it, because a pattern in
    server.ini matches its name. Control characters are refused, because operators see the name on their terminals.
    Raises the errors of check_topic.
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
    """Return `group` if check_group accepts it, and if ZooKeeper accepts the names of the group and of its own topics
    (own_topics.py). Raises the errors of check_topic.
    """
    return check_znode("group", check_group(group))


# characters that ZooKeeper's servers refuse in a path (PathUtils): they see UTF-16, so they refuse every character
# above U+FFFF, too
_NO_ZNODE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def check_znode(what: str, name: str) -> str:
    """Return `name` if ZooKeeper accepts it in a path. what: the kind of object with this name, for the error text: a
    topic, a group or a znode. Raises InvalidName.
    """
    if (found := _NO_ZNODE.search(name)) is not None:
        raise InvalidName(f"{what} {name!r} has {found.group()!a}, which ZooKeeper does not take in a name: remove it")
    return name


def check_node(name: str) -> str:
    """Return `name` if a node of a broker set can have this name. The name must be usable as a znode's name and as an
    item of a list, otherwise the function raises InvalidName.
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
    """Return a TypeError for an argument that must be a text, but has `value`, which is of another type.
    what: the name of the argument. none: the advice in the error text if the value is None.
    """
    if value is None:
        remedy = none
    elif isinstance(value, bytes):
        remedy = f"decode it, for example {value!r}.decode()"
    else:
        remedy = f"write it as a text, for example {str(value)!r}"
    return TypeError(f"{what}={value!r} is no text (str) but {type(value).__name__}: {remedy}")

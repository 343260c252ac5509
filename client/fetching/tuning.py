"""The constants of consuming that are no options: unit, and why this value. None is on the way of a message, so no
benchmark depends on one; the sizes that `bench --scenario consume` was tuned with are options (ConsumerConfig).
"""

from __future__ import annotations

__all__ = [
    "ALONE_LOOK_SECONDS",
    "BEGINNINGS_GATHER_SECONDS",
    "CAREFUL_MESSAGES",
    "CLOSE_SECONDS",
    "CONNECT_SECONDS",
    "DAMAGE_TRIES",
    "DOUBT_LOOK_SECONDS",
    "EMPTY_GETS",
    "HANDLER_MESSAGES",
    "HELD_LOOK_SECONDS",
    "LARGEST_GET_BYTES",
    "PROOF_SHARE",
    "RECOVERED_PAGE",
    "SENDING_LOOK_SECONDS",
    "STOP_LOOK_SECONDS",
    "SUSPECT_MESSAGES",
    "SUSPENDED_SHARE",
    "UNPROVED_SHARE",
    "WAITED_SHARE",
    "ZONE_SETTLE_SECONDS",
]

BEGINNINGS_GATHER_SECONDS = 0.01
"""How long a partition that the group has no offset for waits for others, so that their offsets are written together:
brokers say one by one where partitions end."""
ALONE_LOOK_SECONDS = 0.05
"""How often a worker looks whether nothing else is handled, for a message at which a process has died."""
SUSPECT_MESSAGES = 64
"""Behind a death, so many messages are written down one by one before they are begun. Each costs two writes to
ZooKeeper, some milliseconds, so that this is a fraction of a second."""
CAREFUL_MESSAGES = 1 << 16
"""Behind these the offset is committed before twice as many are begun, until so many."""
CLOSE_SECONDS = 10.0
"""close() takes at most: what a program's user waits for without asking why."""
CONNECT_SECONDS = 3.0
"""For a connection to a broker, on that broker's thread: a frozen one holds up its own partitions only."""
DOUBT_LOOK_SECONDS = 0.1
"""How often poll() looks whether a doubt about what it owns is over: nothing wakes it then."""
STOP_LOOK_SECONDS = 1.0
"""How long the thread in run() waits at most before it looks whether it shall stop, should a wake-up be missed."""
HELD_LOOK_SECONDS = 5.0
"""Pause before a partition that another member holds is asked for again, if ZooKeeper does not tell that it is free."""
HANDLER_MESSAGES = 500
"""Most messages that a worker takes before the next partition has its turn: as poll() gives by default."""
ZONE_SETTLE_SECONDS = 120.0
"""For so long a broker must stand in another zone before a group with strategy="zone" moves its partitions there:
longer than a restart, after which the preferred leader leads again 60 s after it has joined."""
SENDING_LOOK_SECONDS = 0.25
"""How long a worker waits for a failed message to be stored before it works on other partitions, and how often it looks
then: storing takes milliseconds while the broker is there."""
RECOVERED_PAGE = 100
"""Messages that a LocalRecoverStore reads at once."""

DAMAGE_TRIES = 3
"""A record that fails its check is fetched again so often, for it may be damaged on the way, before the broker is asked
how far the damage goes."""
EMPTY_GETS = 60
"""Text protocol: after so many empty answers in a row the end is asked for, since nothing ever comes behind it. At the
longest pause that is half a minute; a Java broker may hand out bytes that its flushed end has not reached yet."""
WAITED_SHARE = 0.5
"""Framed protocol: a broker that has nothing after less of the wait that it was asked for does not wait, whatever the
reason, and is asked with pauses."""
LARGEST_GET_BYTES = 32 << 20
"""Text protocol: a request stops growing here; no message is larger."""

SUSPENDED_SHARE = 1 / 3
"""Of the session timeout: without a connection for longer, the session may be over (ZkSession.suspended_seconds)."""
UNPROVED_SHARE = 2 / 3
"""Of the session timeout: with no younger proof of the session it may be over, for all that this process knows."""
PROOF_SHARE = 1 / 9
"""Of the session timeout: how often it is proved, so that two proofs may fail before it is doubted."""
RETURN_SECONDS = 5.0
"""Beyond its session timeout: how long a member whose ZooKeeper was set back leaves partitions that it did not own to
the members that did. They all lost their connections at the same moment, and come back within this time."""

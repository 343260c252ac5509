"""Constants of consuming that are not options, each with its unit and the reason for its value.

No message waits for any of them on its normal path, so no benchmark depends on them. The sizes tuned with `bench
--scenario consume` are options (ConsumerConfig).
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
"""How long a partition without a committed offset waits for other such partitions, so that their offsets are written
together: brokers report the ends of partitions one by one."""
ALONE_LOOK_SECONDS = 0.05
"""How often a worker checks that no other message is handled, before it handles a message at which a process has
died."""
SUSPECT_MESSAGES = 64
"""Number of messages that are recorded one by one before they are begun, after a process has died. Each costs two
writes to ZooKeeper of some milliseconds, so all of them take a fraction of a second."""
CAREFUL_MESSAGES = 1 << 16
"""After SUSPECT_MESSAGES, the offset is committed before twice as many messages are begun each time, up to this
number."""
CLOSE_SECONDS = 10.0
"""Default time limit of close(): how long the user of a program waits without suspecting a fault."""
CONNECT_SECONDS = 3.0
"""Timeout of a connection to a broker, on that broker's thread: a frozen broker blocks only its own partitions."""
DOUBT_LOOK_SECONDS = 0.1
"""How often poll() checks whether a doubt about its ownership is over: nothing wakes it then."""
STOP_LOOK_SECONDS = 1.0
"""Longest wait of the thread in run() before it checks whether to stop, in case a wake-up is missed."""
HELD_LOOK_SECONDS = 5.0
"""Pause before this member tries again to claim a partition that another member holds, if ZooKeeper does not report
that it is free."""
HANDLER_MESSAGES = 500
"""Maximum number of messages that a worker takes before the next partition's turn. It equals the default of poll()."""
ZONE_SETTLE_SECONDS = 120.0
"""How long a broker must be in another zone before a group with strategy="zone" moves its partitions there. This is
longer than a restart: the preferred leader leads again 60 s after it has joined."""
SENDING_LOOK_SECONDS = 0.25
"""How long a worker waits for the storage of a failed message before it works on other partitions, and how often it
checks then. Storing takes milliseconds while the broker is reachable."""
RECOVERED_PAGE = 100
"""Number of messages that a LocalRecoverStore reads at once."""

DAMAGE_TRIES = 3
"""Number of fetches of a record that fails its check, before the broker is asked how far the damage goes. Fetching
again may help, because possibly only the transport has damaged the record.
"""
EMPTY_GETS = 60
"""Number of empty answers in a row after which the client asks for the end of the partition (text protocol), because a
position after the end gets nothing. At the longest pause that is half a minute; a Java broker may deliver bytes that
its flushed end has not reached yet."""
WAITED_SHARE = 0.5
"""Share of the requested wait (framed protocol). A broker that answers earlier than this, with nothing, does not wait,
for any reason; requests to it are then sent with pauses."""
LARGEST_GET_BYTES = 32 << 20
"""Text protocol: largest size of a request; no message is larger."""

SUSPENDED_SHARE = 1 / 3
"""Share of the session timeout: after a longer time without a connection the session may be over
(ZkSession.suspended_seconds)."""
UNPROVED_SHARE = 2 / 3
"""Share of the session timeout: without a newer proof this process must assume that the session may be over."""
PROOF_SHARE = 1 / 9
"""Share of the session timeout: how often the session is proved, so that two proofs may fail before it is doubted."""
RETURN_SECONDS = 5.0
"""Seconds beyond the session timeout: after ZooKeeper was set back, how long a member leaves partitions that it did not
own to their former owners. All of these lost their connections at the same moment, and come back within this time."""

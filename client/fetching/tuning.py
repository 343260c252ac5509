"""Constants of the consumer that users cannot set, each with its unit and the reason for its value.

In normal operation no message waits for any of these times, so no benchmark depends on them. The sizes on which the
benchmark `bench --scenario consume` depends are options that users can set (ConsumerConfig).
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
"""Seconds that a partition without a committed offset waits for other such partitions, so that their first offsets are
committed together. The first offsets are not known at the same moment, because brokers report the ends of partitions
one by one.
"""
ALONE_LOOK_SECONDS = 0.05
"""If a process may have died because of a message, the next worker thread that has this message gives it to the handler
only when no other message is being handled in its process. This is the number of seconds between two checks whether
another message is still being handled.
"""
SUSPECT_MESSAGES = 64
"""After a process has died, the next owner of a partition records each of this many messages in ZooKeeper before it
handles the message. Each message costs two writes to ZooKeeper of some milliseconds each, so the writes for all 64 take
a fraction of a second.
"""
CAREFUL_MESSAGES = 1 << 16
"""After the first SUSPECT_MESSAGES messages, the number of messages between two commits doubles with each commit, up to
this number.
"""
CLOSE_SECONDS = 10.0
"""Default time limit of close() in seconds. A person who ends a program waits this long without suspecting a fault."""
CONNECT_SECONDS = 3.0
"""Time limit in seconds for connecting to a broker. The limit can be this long because each broker has its own thread
that connects, so a frozen broker blocks only its own partitions.
"""
DOUBT_LOOK_SECONDS = 0.1
"""If the ZooKeeper session may be over, poll() delivers nothing until ZooKeeper has confirmed that the member owns its
partitions. This is the number of seconds after which poll() checks again whether the confirmation has come, because the
confirmation does not wake poll().
"""
STOP_LOOK_SECONDS = 1.0
"""Maximum seconds that the thread in run() waits before it checks whether stop() was called, in case a wake-up is
missed.
"""
HELD_LOOK_SECONDS = 5.0
"""Seconds before this member tries again to claim a partition that another member holds, if ZooKeeper does not report
earlier that the partition is free.
"""
HANDLER_MESSAGES = 500
"""Maximum number of messages that a worker takes from a partition before it continues with the next partition. The
value equals the default of poll().
"""
ZONE_SETTLE_SECONDS = 120.0
"""When a broker's leader is in another zone than before, a group with strategy="zone" waits this many seconds before it
reassigns the broker's partitions. After a restart, the preferred leader leads again 60 s after it has joined the broker
set again. ZONE_SETTLE_SECONDS is longer than the restart and these 60 s, so such a restart causes no rebalance.
"""
SENDING_LOOK_SECONDS = 0.25
"""Seconds that a worker waits until the broker has stored a failed message, before it works on other partitions. Later
checks whether the message is stored come at intervals of the same length. Storing takes milliseconds while the broker
is reachable.
"""
RECOVERED_PAGE = 100
"""Number of messages that a LocalRecoverStore reads at once."""

DAMAGE_TRIES = 3
"""Number of times that a record with a wrong checksum is fetched before the broker is asked how far the damage goes.
Fetching again may help, because the record may have been damaged only during its transport.
"""
EMPTY_GETS = 60
"""Number of empty answers in a row after which the client asks the broker for the end of the partition (text protocol).
The client must ask because its position may be after the end of the partition, if the broker has lost data; requests
from such a position get only empty answers. With the longest pauses this takes half a minute. The time must not be much
shorter, because a Java broker may deliver bytes before it counts them as flushed and as part of the partition.
"""
WAITED_SHARE = 0.5
"""A fraction of the time for which a request asks the broker to wait for data (framed protocol). If an empty answer
comes before this fraction of the time has passed, the broker has not waited, for whatever reason. Then the client
itself pauses before its next request.
"""
LARGEST_GET_BYTES = 32 << 20
"""Maximum number of bytes that a request of the text protocol asks for. No message is larger."""

SUSPENDED_SHARE = 1 / 3
"""A share of the ZooKeeper session timeout. If the client has had no connection for longer than this, the session may
be over (ZkSession.suspended_seconds).
"""
UNPROVED_SHARE = 2 / 3
"""A share of the ZooKeeper session timeout. If the last proof that the session is alive is older than this, the process
must assume that the session may be over.
"""
PROOF_SHARE = 1 / 9
"""A share of the ZooKeeper session timeout: the time between two proofs that the session is alive. Two proofs may fail
before the session is doubted.
"""
RETURN_SECONDS = 5.0
"""If ZooKeeper was set back to an older state, a member leaves partitions that it did not own to their former owners
for the session timeout plus this many seconds. The former owners all lost their connections to ZooKeeper at the same
moment, and come back within this time.
"""

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
    "PAUSED_LOOK_SECONDS",
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
"""When a consumer has found the first offset of a partition without a committed offset, it waits this many seconds
before it commits the offset. So one commit can contain the first offsets of several partitions, although brokers report
the ends of partitions one by one.
"""
ALONE_LOOK_SECONDS = 0.05
"""If a message may have killed a process, the worker thread that has the message next gives it to the handler only when
no other thread of the worker's process is handling a message. This is the number of seconds between two checks whether
another message is still being handled.
"""
PAUSED_LOOK_SECONDS = 0.1
"""If the user pauses a partition while run() has messages of it that no handler has got yet, the number of seconds
between two checks whether the user has resumed the partition.
"""
SUSPECT_MESSAGES = 64
"""If the last owner of a partition has died, the next owner records each of the partition's first messages in ZooKeeper
before it handles the message, up to this number of messages. Each message costs two writes to ZooKeeper of some
milliseconds each, so the writes for all 64 take a fraction of a second.
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
"""A worker that sends a failed message back to the broker waits at most this many seconds until the broker has stored
it, and then works on other partitions. Later it checks at intervals of this length whether the message is stored.
Storing takes milliseconds while the broker is reachable.
"""
RECOVERED_PAGE = 100
"""Number of messages that a LocalRecoverStore reads at once."""

DAMAGE_TRIES = 3
"""Number of times that a record with a wrong checksum is fetched before the broker is asked how far the damage goes.
Fetching again may help, because the record may have been damaged only during its transport.
"""
EMPTY_GETS = 60
"""Number of empty answers in a row after which the client asks the broker for the end of the partition (text protocol).
If the broker has lost data, the client's position may be after the end of the partition, where requests get only empty
answers; so the client must ask. With the longest pauses this takes half a minute. The time must not be much shorter,
because a Java broker may deliver bytes before it counts them as flushed and as part of the partition.
"""
WAITED_SHARE = 0.5
"""A fraction of the time for which a request asks the broker to wait for data (framed protocol). If an empty answer
comes before this fraction of the time has passed, the broker has not waited, for whatever reason. Then the client
itself pauses before its next request.
"""
LARGEST_GET_BYTES = 32 << 20
"""Maximum number of bytes that a request of the text protocol asks for. No message is larger."""

SUSPENDED_SHARE = 1 / 3
"""A fraction of the ZooKeeper session timeout. If the client has had no connection to ZooKeeper for longer than this
fraction, the session may be over (ZkSession.suspended_seconds).
"""
UNPROVED_SHARE = 2 / 3
"""A fraction of the ZooKeeper session timeout. If the last proof that the session is alive is older than this fraction,
the process must assume that the session may be over.
"""
PROOF_SHARE = 1 / 9
"""A fraction of the ZooKeeper session timeout: the client seeks a proof that the session is alive at intervals of this
length. Two proofs in a row may fail before the client doubts the session.
"""
RETURN_SECONDS = 5.0
"""If ZooKeeper was set back to an older state, a member at first reads only partitions that it owned before. It leaves
the other partitions to their former owners for the session timeout plus this many seconds. The former owners all lost
their connections to ZooKeeper at the same moment, and come back within this time.
"""

"""Constants of consuming that are not options: unit, and the reason for the value. None affects the path of a
message, so no benchmark depends on them; the sizes tuned with `bench --scenario consume` are options
(ConsumerConfig).
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
"""How long a partition without an offset of the group waits for others, so that their offsets are written together:
brokers report the ends of partitions one by one."""
ALONE_LOOK_SECONDS = 0.05
"""How often a worker checks that no other message is handled, before a message at which a process has died."""
SUSPECT_MESSAGES = 64
"""After a death, so many messages are recorded one by one before they are begun. Each costs two writes to ZooKeeper of
some milliseconds, so this takes a fraction of a second."""
CAREFUL_MESSAGES = 1 << 16
"""After these the offset is committed before twice as many are begun, up to this number."""
CLOSE_SECONDS = 10.0
"""Longest duration of close(): how long a program's user waits without wondering."""
CONNECT_SECONDS = 3.0
"""Timeout of a connection to a broker, on that broker's thread: a frozen broker blocks only its own partitions."""
DOUBT_LOOK_SECONDS = 0.1
"""How often poll() checks whether a doubt about its ownership is over: nothing wakes it then."""
STOP_LOOK_SECONDS = 1.0
"""How long the thread in run() waits at most before it checks whether to stop, in case a wake-up is missed."""
HELD_LOOK_SECONDS = 5.0
"""Pause before a partition that another member holds is claimed again, if ZooKeeper does not report that it is free."""
HANDLER_MESSAGES = 500
"""Most messages that a worker takes before the next partition's turn: the default of poll()."""
ZONE_SETTLE_SECONDS = 120.0
"""How long a broker must be in another zone before a group with strategy="zone" moves its partitions there: longer than
a restart, after which the preferred leader leads again 60 s after it has joined."""
SENDING_LOOK_SECONDS = 0.25
"""How long a worker waits for the storage of a failed message before it works on other partitions, and how often it
checks then: storing takes milliseconds while the broker is there."""
RECOVERED_PAGE = 100
"""Messages that a LocalRecoverStore reads at once."""

DAMAGE_TRIES = 3
"""A record that fails its check is fetched again so often, because transport may have damaged it, before the broker is
asked how far the damage goes."""
EMPTY_GETS = 60
"""Text protocol: after so many empty answers in a row the client asks for the end, since nothing comes after it. At the
longest pause that is half a minute; a Java broker may deliver bytes that its flushed end has not reached yet."""
WAITED_SHARE = 0.5
"""Framed protocol: a broker that answers with nothing after less of the requested wait than this does not wait, for any
reason, and is asked with pauses."""
LARGEST_GET_BYTES = 32 << 20
"""Text protocol: largest size of a request; no message is larger."""

SUSPENDED_SHARE = 1 / 3
"""Share of the session timeout: after longer without a connection the session may be over
(ZkSession.suspended_seconds)."""
UNPROVED_SHARE = 2 / 3
"""Share of the session timeout: without a newer proof this process must assume that the session may be over."""
PROOF_SHARE = 1 / 9
"""Share of the session timeout: how often the session is proved, so that two proofs may fail before it is doubted."""
RETURN_SECONDS = 5.0
"""Beyond its session timeout: after ZooKeeper was set back, how long a member leaves partitions that it did not own to
their former owners. They all lost their connections at the same moment, and come back within this time."""

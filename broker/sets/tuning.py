"""Times (in seconds) and sizes (in bytes) of a broker set."""

PING_SECONDS = 0.2
"""The time between two pings of the leader. With each answer, the follower promises not to stand for election for
rules.GRANT_SECONDS.
"""

PINGS_PER_LOOK = 5
"""Each time the leader has sent this many pings, it checks its disk and logs for failures, and closes connections whose
follower reads nothing. A check takes 1 ms with 10,000 logs.
"""

TELL_SECONDS = 0.005
"""After a commit, the leader tells its followers the number of the last committed block. If it has no new block to
send, it sends a message that contains only this number. This value is the minimum time between two such messages. New
blocks and pings contain the number, too.
"""

LOST_SECONDS = 0.5
"""How long the leader waits for an in-sync follower whose connection was lost to connect again, before it removes this
follower from the in-sync set.
"""

DROP_SECONDS = 2.0
"""If an in-sync follower sends nothing for this long, the leader removes it from the in-sync set. Between the end of
the follower's last grant and the removal, the leader acknowledges no puts.
"""

LAG_SECONDS = 10.0
"""If an in-sync follower takes longer than this to acknowledge a block, the leader removes it from the in-sync set."""

JOIN_LAG_SECONDS = 0.5
"""If the oldest block that a follower has not acknowledged is at most this old, the leader begins to add the follower
to the in-sync set: from then on, commits also wait for it.
"""

CHANGE_PAUSE_SECONDS = 1.0
"""How long a node waits before it tries again to change the set's state when ZooKeeper refused the change or did not
answer.
"""

LIVE_BYTES = 4 << 20
"""When a follower lacks at most this many bytes, the leader ends the copy and begins to send the follower all new
blocks (the live stream).
"""

LOOKED_AT = 1 << 11
"""How many partitions a copy examines in one iteration of the reactor, before the reactor does other work. To examine
this number of partitions takes some 5 ms.
"""

COPY_WRITTEN_FACTOR = 2.0
"""The rate of copies is limited by the configuration, but the limit is never lower than this many times the rate at
which producers write. If it were lower, the copy might never catch up.
"""

PIECE_BYTES = 1 << 20
"""The maximum number of bytes of one partition that a copy reads and sends at once."""

STREAM_READ_BYTES = 256 << 10
"""The maximum number of bytes that one read of a connection returns."""

STUCK_SECONDS = 60.0
"""The leader closes a follower's connection if the follower has read nothing for this long although data for it wait in
the send buffer.
"""

KEPT_PINGS = 64
"""How many unanswered pings the leader remembers per follower. An answer to an older ping would come too late to be a
valid grant.
"""

MAX_BACKLOG_BYTES = 256 << 20
"""The maximum number of bytes in blocks that a follower has not acknowledged. If a follower has more, the leader closes
the connection. When the follower connects again, it gets the data as a copy from the files.
"""

HELD_BACKLOG_BYTES = 32 << 20
"""If any follower has blocks with more than this many bytes to acknowledge, even producers of topics with `ack=leader`
must wait for followers. Otherwise these blocks, which the leader keeps in memory, would use more and more memory.
"""

CONNECT_SECONDS = 2.0
"""The time limit for connecting to the leader. After that, the leader must answer FOLLOW within the same time.
"""

LISTED_SECONDS = 1.0
"""If the leader has not seen the znode of a node that asks to follow, the leader reads ZooKeeper again before it
refuses the node. This value limits the time of the read.
"""

RECONNECT_SECONDS = (0.05, 1.0)
"""The first and the longest pause before a follower tries again to connect, after an attempt has failed."""

TRANSACTIONS_SECONDS = 2.0
"""How long a hand-over waits until open transactions have ended; transactions that are still open after that are lost.
During this time no new transactions begin, but everything else is served.
"""

WRITE_BACK_SECONDS = 3.0
"""If a leader hands over but its process does not stop, it first writes its page cache to the disk and only then
refuses messages. This value limits the time for that.
"""

DRAIN_SECONDS = 5.0
"""How long a hand-over waits until the next leader has all data."""

JOINING_SECONDS = 3.0
"""How long a hand-over waits until a follower that is connected but not in sync yet has become in sync."""

HAND_OVER_SECONDS = 5.0
"""How long a hand-over waits for the next leader's election."""

WITHDRAW_SECONDS = 3.0
"""How long a stopping node waits until ZooKeeper shows the next leader as the broker of its topics."""

PREFERRED_SECONDS = 60.0
"""How long a preferred node must be in sync before the leader hands over to it. The leader also waits this long between
two attempts to hand over.
"""

LEAVE_SECONDS = 3.0
"""How long a stopping follower waits until the leader has removed it from the in-sync set."""

FULL_BYTES = 1 << 20
"""If the disk has fewer free bytes than this, a leader stops leading, provided that another node can lead."""

ROOM_BYTES = 16 << 20
"""A node whose disk was full joins its set again once the disk has this many free bytes in addition to its reserve."""

ROOM_SECONDS = 1.0
"""The time between two checks of whether a full disk has enough free space again."""

LOOK_SECONDS = 0.01

SILENT_SECONDS = 3.0
"""A follower that gets no message for this long assumes that the connection is dead and makes a new one."""

NAMED_LOSSES = 5
"""How many partitions a log line or an error about lost data names at most."""

REMEMBER_SECONDS = 10.0
"""The time between two searches for new partitions, which are then added to the node's file (`history.json`)."""

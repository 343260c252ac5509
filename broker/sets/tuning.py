"""Times and sizes of a broker set. Seconds and bytes."""

PING_SECONDS = 0.2
"""The time between two pings of the leader; each answer grants it rules.GRANT_SECONDS."""

PINGS_PER_LOOK = 5
"""The leader checks its logs for failures once in so many pings: that takes 1 ms with 10,000 logs."""

TELL_SECONDS = 0.005
"""The least time between two messages that only say what is committed; blocks and pings say it too."""

LOST_SECONDS = 0.5
"""How long a lost connection of an in-sync follower may be renewed before the leader drops the node."""

DROP_SECONDS = 2.0
"""How long an in-sync follower may be silent before the leader drops it. Nothing is acknowledged meanwhile."""

LAG_SECONDS = 10.0
"""How long an in-sync follower may take to acknowledge a block before the leader drops it."""

JOIN_LAG_SECONDS = 0.5
"""The greatest lag of a follower at which commits begin to wait for it, so that it can join the in-sync set."""

CHANGE_PAUSE_SECONDS = 1.0
"""The time between two tries to change the in-sync set when ZooKeeper refuses or does not answer."""

LIVE_BYTES = 4 << 20
"""A copy goes over to the live stream when at most this much is missing."""

LOOKED_AT = 1 << 11
"""How many partitions a copy looks at before others are served: some 5 ms."""

COPY_WRITTEN_FACTOR = 2.0
"""A copy gets at least this multiple of the producers' rate, so that it comes to an end."""

PIECE_BYTES = 1 << 20
"""How much of one partition a copy reads and sends at once."""

STREAM_READ_BYTES = 256 << 10
"""The most bytes that one read of a connection takes."""

STUCK_SECONDS = 60.0
"""The leader cuts a follower's connection if data have waited in memory for so long without being read."""

KEPT_PINGS = 64
"""How many unanswered pings the leader remembers per follower; an answer to an older one would grant nothing."""

MAX_BACKLOG_BYTES = 256 << 20
"""The limit of a follower's unacknowledged blocks. Above it the leader cuts the connection: the follower then copies
from the files."""

HELD_BACKLOG_BYTES = 32 << 20
"""The backlog above which producers with `ack=leader` also wait for followers."""

CONNECT_SECONDS = 2.0
"""The time limit for a connection to the leader, and for the answer to FOLLOW."""

LISTED_SECONDS = 1.0
"""How long a leader reads ZooKeeper again for an unknown node before it refuses the node."""

RECONNECT_SECONDS = (0.05, 1.0)
"""The first and the longest pause after a refused connection."""

TRANSACTIONS_SECONDS = 2.0
"""How long a hand-over waits for the end of open transactions that it would lose. None begin meanwhile; everything else
goes on."""

WRITE_BACK_SECONDS = 3.0
"""How long a leader that hands over, but does not stop, writes back its page cache before it refuses messages."""

DRAIN_SECONDS = 5.0
"""How long a hand-over waits until the next leader has everything."""

JOINING_SECONDS = 3.0
"""How long a hand-over waits for a follower that is connected but not in sync yet."""

HAND_OVER_SECONDS = 5.0
"""How long a hand-over waits for the next leader's election."""

WITHDRAW_SECONDS = 3.0
"""How long a stopping node waits until ZooKeeper lists its topics as the next leader's."""

PREFERRED_SECONDS = 60.0
"""How long a preferred node must be in sync before the leader hands over to it, and between two tries."""

LEAVE_SECONDS = 3.0
"""How long a stopping follower waits until it is taken out of the in-sync set."""

FULL_BYTES = 1 << 20
"""With less free space a leader gives up the lead, if another node can lead."""

ROOM_BYTES = 16 << 20
"""A node that had no room takes part again once it has so much free space, and more than its reserve."""

ROOM_SECONDS = 1.0
"""The time between two looks for room."""

LOOK_SECONDS = 0.01

SILENT_SECONDS = 3.0
"""A follower that gets no ping for so long takes the connection for dead and makes a new one."""

NAMED_LOSSES = 5
"""How many lost partitions a log line names."""

REMEMBER_SECONDS = 10.0
"""The time between two looks for partitions that the node's file does not know."""

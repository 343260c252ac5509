"""Times and sizes of a broker set. Seconds and bytes."""

PING_SECONDS = 0.2
"""Between two pings of the leader; each answer grants it rules.GRANT_SECONDS."""

PINGS_PER_LOOK = 5
"""So often the leader looks whether one of its logs has failed: a millisecond with ten thousand of them."""

TELL_SECONDS = 0.005
"""At least so long between two messages that say only what is committed; blocks and pings say it, too."""

LOST_SECONDS = 0.5
"""How long a lost connection of an in-sync follower may be renewed before the leader drops the node."""

DROP_SECONDS = 2.0
"""How long an in-sync follower may be silent before the leader drops it: nothing is acknowledged meanwhile."""

LAG_SECONDS = 10.0
"""How long an in-sync follower may take to acknowledge a block before the leader drops it."""

JOIN_LAG_SECONDS = 0.5
"""How far behind a follower may be when commits begin to wait for it, so that it can join the in-sync set."""

CHANGE_PAUSE_SECONDS = 1.0
"""Between two tries to change the in-sync set when ZooKeeper refuses or does not answer."""

LIVE_BYTES = 4 << 20
"""A copy goes over to the live stream when no more than this is missing."""

LOOKED_AT = 1 << 11
"""Partitions that a copy looks at before others are served: some 5 ms."""

COPY_WRITTEN_FACTOR = 2.0
"""A copy gets at least so many times what producers write, so that it comes to an end."""

PIECE_BYTES = 1 << 20
"""Of one partition that a copy reads and sends at once."""

STREAM_READ_BYTES = 256 << 10
"""Of a connection that are read at once, if there are so many."""

STUCK_SECONDS = 60.0
"""The leader cuts the connection of a follower that has not read for so long what waits for it in memory."""

KEPT_PINGS = 64
"""Of a follower that does not answer them; an answer to an older one would grant nothing."""

MAX_BACKLOG_BYTES = 256 << 20
"""Blocks that a follower has not acknowledged, above which its connection is cut: it copies from the files then."""

HELD_BACKLOG_BYTES = 32 << 20
"""The same, above which producers that wait for nobody (`ack=leader`) wait, too."""

CONNECT_SECONDS = 2.0
"""For a connection to the leader, and for the answer to FOLLOW."""

LISTED_SECONDS = 1.0
"""How long a leader reads ZooKeeper again for a node that it does not know, before it refuses it."""

RECONNECT_SECONDS = (0.05, 1.0)
"""The pause after a refused connection grows between these."""

TRANSACTIONS_SECONDS = 2.0
"""How long a hand-over waits until the open transactions have ended that would be lost with it; none begin meanwhile,
and everything else goes on."""

WRITE_BACK_SECONDS = 3.0
"""How long a leader that hands over, and goes on, writes back its page cache before it stops taking messages."""

DRAIN_SECONDS = 5.0
"""How long a hand-over waits until the next leader has everything."""

JOINING_SECONDS = 3.0
"""How long a hand-over waits for a follower that is connected and not in sync yet."""

HAND_OVER_SECONDS = 5.0
"""How long it waits until that one has been elected."""

WITHDRAW_SECONDS = 3.0
"""How long a node that stops waits until its topics are the next leader's in ZooKeeper."""

PREFERRED_SECONDS = 60.0
"""How long a preferred node must be in sync before the leader hands over to it, and between two tries."""

LEAVE_SECONDS = 3.0
"""How long a follower that stops waits to be taken out of the in-sync set."""

FULL_BYTES = 1 << 20
"""With less free space a leader leaves, if there is another node to lead."""

ROOM_BYTES = 16 << 20
"""A node that had no room takes part again with so much, and above its reserve."""

ROOM_SECONDS = 1.0
"""Between two looks whether there is room."""

LOOK_SECONDS = 0.01

SILENT_SECONDS = 3.0
"""Without a ping for so long, a follower takes the connection for dead and makes a new one."""

NAMED_LOSSES = 5
"""Partitions that are named of those that a node's directories have lost."""

REMEMBER_SECONDS = 10.0
"""How often a node looks whether it has partitions that its file does not know."""

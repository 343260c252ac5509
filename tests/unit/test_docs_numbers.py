"""The numbers of the pages are those of the code: a limit that changes, or a number that nothing keeps, fails here."""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "coordination", "broker", "client", "spark_connector", "metaq")

QUOTAS = (
    *("unfinished_bytes", "unsent_bytes", "transaction_bytes", "open_transactions", "xa_idle_seconds"),
    *("waiting_bytes", "half_messages", "http_connections", "shared_groups", "shared_bytes", "made_topics"),
)
"""Those that the table of docs/broker.md shows as they are in its example."""


def camel(name: str) -> str:
    """As server.ini has it."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


KEPT: Mapping[str, tuple[str, ...]] = {
    "README.md": ("sends {FLIGHTS} real flights",),
    "zk_paths.md": (
        "our slaves read it every {CHECKSUM_POLL_SECONDS:s} |",
        "the values whole numbers from 0 to {MAX_QUOTA}. The",
        "zone, or in none, for {ZONE_SETTLE_SECONDS:seconds}, the first member in",
        "the next leader has taken them over, for {SUCCESSOR_SECONDS:s} at most",
        "are registered. `metaq` commands (for {LEADERLESS_SECONDS:s}) and Spark queries (for "
        "{PLANNING_SECONDS:s}) wait until, in every",
    ),
    "docs/security.md": (
        "delays the user by at most {MAX_USE_SECONDS:seconds}, and all together by at most {MAX_DEBT_SECONDS:seconds}:",
        "rate permits in {BURST_SECONDS:s}.",
    ),
    "docs/standalone-zookeeper.md": (
        "snapshot instead. The server keeps {KEPT_SNAPSHOTS} snapshots.",
        "| ACLs of one node | at most {MOST_ACLS} |",
        "| identities of one connection | at most {MOST_IDENTITIES} |",
        "| at most {MOST_UNSENT_BYTES:bytes}, else a marshalling error |",
        "| is dropped at {MOST_UNSENT_BYTES:bytes}, and gets",
    ),
    "docs/reliability.md": (
        "For its session timeout plus {RETURN_SECONDS:seconds} after it has joined",
        "within the last two session timeouts plus {RETURN_SECONDS:seconds},",
    ),
    "docs/broker.md": (
        "gives connections up to {main.CLOSE_SECONDS:s} to take their answers",
        "reads from, writes to or ends | {MOST_EVENTS} |",
        "call, which writes less than {MAX_FRAME_BYTES:bytes+1}. If the kernel has",
        "broker set](replication.md#operating-a-broker-set) has less than {FULL_BYTES:bytes} of free space, the",
        "and zones have at most {MAX_NODE_NAME} characters, and no `/`,",
        "a PULL gives up to {MAX_PULL_BYTES:bytes}, or up to this value",
        "| `serverPort` | {DEFAULT_PORT:plain} |",
        "`checkpointInterval` | {DEFAULT_MAX_CHECKPOINTS}, {DEFAULT_CHECKPOINT_INTERVAL_MS:plain} |",
        "| `maxTxTimeoutInSeconds` | {DEFAULT_MAX_TX_TIMEOUT_SECONDS} |",
        "| `maxTxTimeoutTimerCapacity` | {DEFAULT_MAX_TX_TIMEOUTS:plain} |",
        "| `-Dmeta.tx_journal_file_size` | fixed at {MAX_REDO_BYTES:bytes} |",
        "| `zk.zkSessionTimeoutMs` | {ZooKeeperConfig.session_timeout_ms:plain} |",
        "| `zk.zkConnectionTimeoutMs` | {ZooKeeperConfig.connection_timeout_ms:plain} |",
        "| `zk.zkSyncTimeMs` | {ZooKeeperConfig.sync_time_ms:plain} |",
        "the partition, by up to {MAX_GAP_BYTES:bytes} or about {PUT_RIGHT_SECONDS:seconds} of consuming. When the",
        "the accepted messages of at most {MAX_GAP_BYTES:bytes} again",
        "Filters run on {FILTER_THREADS} threads",
        "a filter for at most {BUDGET_SECONDS:s}. If the filter has",
        "skips at most {judge.SCAN_BYTES:bytes} of rejected records",
        "{MAX_FILTER_CALLS} requests may wait for filters",
        "the last {KEPT_LINES} lines of the log",
        "sync), `read_only_partitions`, and up to {STATS_NAMED} read-only partitions with the",
        "have its own values. Every {broker/main.TICK_SECONDS:ms} the broker checks which",
        "Every {SIZE_CHECK_SECONDS:s} the broker removes the oldest segments",
        "The reserve is {DEFAULT_RESERVE_PART:percent} of the disk, at most {MAX_DEFAULT_RESERVE_BYTES:bytes},",
        "the free space is {RETURN_FACTOR:above} above the reserve",
        "| name of a topic or a group | {MAX_NAME_BYTES:bytes};",
        "| body of one message | {MAX_BODY_BYTES:bytes} |",
        "A frame may have {OWN_PROPERTIES_BYTES:bytes} more, for the properties that metaq adds",
        "| header line of a text command | {MAX_LINE_BYTES:bytes} |",
        "| a frame | less than {MAX_FRAME_BYTES:bytes+1} |",
        "| the header of a frame | {MAX_FRAME_HEADER_BYTES:bytes} |",
        "a header of more than {PLAIN_HEADER_BYTES:bytes}, and bytes",
        "and bytes beside them | {MAX_HEADER_TEXTS}, {PLAIN_HEADER_BYTES:bytes} |",
        "parts that it repeats | {MAX_PARTS} |",
        "| tags of a PULL or an ACQUIRE | {MAX_PULLED_TAGS} |",
        "| topics of a CHECK_HALVES | {MAX_CHECKED_TOPICS} |",
        "| `requestSeconds` | {Quotas.request_seconds} |",
        *(f"| `{camel(name)}` | {{Quotas.{name}:plain}} |" for name in QUOTAS),
        "or are being worked on | {Quotas.unfinished_bytes:bytes}, and two requests",
        "address; in addition the first {SMALL_READ_BYTES:bytes} of each connection do not count, or the "
        "first {LARGE_READ_BYTES:bytes} if the connection has",
        "with their connection or their timeout | {PERIOD_LINES} in {PERIOD_SECONDS:s} of each kind",
        "| an incomplete request | {Quotas.request_seconds:s} at less than {UNFINISHED_BYTES_PER_SECOND:bytes} per",
        "| unsent answers of a connection | {broker/tuning.WRITE_BYTES:bytes} and one answer |",
        "do not read | {Quotas.unsent_bytes:bytes}, or `unsentBytes`",
        "answer then carries at most {SCARCE_ANSWER_BYTES:bytes} of data. The broker",
        "single record of more than {REFUSED_ANSWER_BYTES:bytes}, and a request for",
        "that take less than {UNFINISHED_BYTES_PER_SECOND:bytes} a second for `requestSeconds`",
        "or for one slice of a large request | {broker/tuning.TURN_SECONDS:ms} |",
        "in one round of the event loop | {ITERATION_SECONDS:ms}, and as much for requests that come in |",
        "from the disk (cold reads) at once | {MAX_COLD_READS} |",
        "read yet | the kernel's choice; {broker/tuning.RECEIVE_BYTES:bytes} for {MAX_LARGE_BUFFERS} connections",
        "allows it); {LARGE_READ_BYTES:bytes} per read |",
        "data being read for it | {MAX_PENDING_BYTES:bytes} and one read |",
        "| {DEFAULT_MAX_PENDING_PUT_BYTES:bytes}, or `--max-pending-puts`; each put counts {PUT_OVERHEAD_BYTES} bytes",
        "what it has read of them ({LARGE_READ_BYTES:bytes}, or a frame being received) waits",
        "When a log has grown to {SEQUENCE_LOG_BYTES:bytes}, the broker shortens it",
        "| parts of a SEND_MANY | {MAX_PARTS} |",
        "| messages of a SEND_BATCH or a SEND_MANY | {MAX_BATCH_RECORDS} |",
        "| messages of a SEND_BATCH in a transaction | {MAX_TX_BATCH_RECORDS} |",
        "| messages in open transactions | {Quotas.transaction_bytes:bytes} (`transactionBytes`), counted as above |",
        "| records in the answer to a PULL | {PULL_SCAN_RECORDS} |",
        "| waiting pulls of a connection | {MAX_PARKED_PULLS} |",
        "or for questions about half messages | {Quotas.waiting_bytes:bytes}; each counts {WAITING_BYTES:bytes} and",
        "that a connection asks questions for | {HALVES_CALLER_GROUPS} |",
        "| wait of a pull | {MAX_WAIT_MS:s/1000} |",
        "has leased, or released | {SHARED_MAX_HELD} |",
        "looks ahead | {SHARED_MAX_AHEAD} (12 MB) and {SHARED_AHEAD_BYTES:bytes}; {SHARED_MAX_AHEAD_ORDERED} with keys",
        "of a shared group between unacknowledged ones | {SHARED_MAX_RANGES} |",
        "rows of a SETTLE | {MAX_ACQUIRED}; {MAX_SETTLEMENTS} |",
        "| messages that one ACQUIRE is given | {SHARED_LEASED} |",
        "| producer groups in the answer to a LIST_HALVES | {MAX_LISTED_GROUPS} |",
        "counted by partition | {Quotas.shared_groups}, or",
        "of their own | {Quotas.made_topics}, or",
        "| half messages that wait for their outcome | {Quotas.half_messages}, or",
        "| connections of the HTTP ports | {Quotas.http_connections}, or",
        "wait for their turn take {Quotas.unfinished_bytes:bytes}. Space for large frames that are arriving takes "
        "another {Quotas.unfinished_bytes:bytes}, and each address adds twice {MAX_FRAME_BYTES:bytes+1}. Requests "
        "that wait for messages take {Quotas.waiting_bytes:bytes}, puts that wait for their sync "
        "{DEFAULT_MAX_PENDING_PUT_BYTES:bytes}, unsent answers {Quotas.unsent_bytes:bytes}, messages in "
        "transactions {Quotas.transaction_bytes:bytes}, and shared groups {Quotas.shared_bytes:bytes}. Memory that "
        "is free, but that the heap does not return to the system, takes {HEAP_KEPT_BYTES:bytes} plus all memory "
        "that was freed in the last {broker/main.HEAP_SECONDS:s}. Each connection takes one read "
        "({LARGE_READ_BYTES:bytes}), space for {SPACE_READ_BYTES:bytes} of a large frame, and one answer "
        "({broker/tuning.WRITE_BYTES:bytes}, or one record)",
        "A page shows {PAGE_ROWS} rows of a table, and has links to the table's other rows (`?from={PAGE_ROWS}`)",
        "| a client of the HTTP ports that takes nothing of an answer, or not the last of it | {ports.IDLE_SECONDS:s}",
        "| the body of a request by HTTP | {MAX_BODY_BYTES:bytes}; until",
        "broker works on up to {MAX_LARGE_WORKS} large requests at once.",
        "to a SHARED_STATUS that are made at once | {MAX_LISTINGS}, as",
        "| pages and metrics that are made and sent at once | {MAX_PAGES} |",
        "| one, of the addresses in turn | {MAX_LISTS} together may wait or be made",
        "| pages that wait for ZooKeeper | {Quotas.waiting_pages}, or",
        "| moves of partitions that a MOVE asks about, each looked at in a thread | {MAX_ASKED_MOVES} |",
        "| `waitingPages` | {Quotas.waiting_pages} |",
        "or looked at ahead | {Quotas.shared_bytes:bytes}, or `sharedBytes`",
        "leases {SHARED_SCARCE} messages of a partition at a time and looks {SHARED_SCARCE} ahead",
        "a log has grown to {SHARED_LOG_BYTES:bytes}, the broker replaces its",
        "| a connection without traffic | {server.IDLE_SECONDS:s} |",
        "does not answer the kernel any more | asked after {KEEPALIVE_SECONDS:s} without data",
        "| index entries (units) of a partition in memory | {MAX_UNSTORED_UNITS} ({MAX_UNSTORED_UNITS:bytes*32}), "
        "{UNITS_IN_MEMORY} after a start |",
        "| index units of all partitions in memory | {MAX_UNITS:bytes*32}, but {LEAST_UNITS} units each in any case |",
        "When more than {GROUPED_FROM} partitions are due for a checkpoint, the broker uses one sync of the whole "
        "file system (`syncfs`) for up to {MAX_GROUP} partitions at a time,",
        "(by hand or after {RESET_SECONDS:minutes})",
        "The broker delivers at most {DELAYED_TURN_RECORDS} messages or {DELAYED_TURN_BYTES:bytes} at a time; between",
        "again after a pause of {DELAYED_RETRY_SECONDS:range}. Messages for other partitions",
        "half messages, and `/metrics` lists {PAGE_GROUPS} groups. The group `*`",
        "group and topic, for the {PAGE_GROUPS} largest values. The value",
        "{DELAYED_SEGMENT_BYTES:bytes}) of a log of",
        "a log has more than {DELAYED_LOG_BYTES:bytes}, and more than half",
        "reads the wall clock at least every {DELAYED_SLEEP_SECONDS:s}.",
        "broker asks another producer after {HALVES_LOST_SECONDS:s}.",
        "The sender counts as gone {HALF_GRACE_SECONDS:s} after its connection was lost, or when it has not polled"
        " for questions for {HALVES_SILENT_SECONDS:s}. When the broker measures",
        "have sent half messages have {HALVES_SILENT_SECONDS:s} to connect and poll",
        "remembers the decisions of the last {HALVES_DECIDED} half messages",
    ),
    "docs/protocol.md": (
        "producers may get it after {HALVES_SILENT_SECONDS:s} in which no CHECK_HALVES of this producer waited at the "
        "broker, or {HALF_GRACE_SECONDS:s} after this producer's connection",
        "check has been due for {HALF_GRACE_SECONDS:s}, and at least until this broker has been the leader for "
        "{HALVES_SILENT_SECONDS:s}. A broker that follows",
        "`file:line in function`; at most {MAX_CAUSE_CHARACTERS} characters",
        "Messages have at most {MAX_LOGIN_CHARACTERS} characters of ASCII",
        "a put is larger than {MAX_BODY_BYTES:bytes}, the broker drops the",
        "client checks the limit of {MAX_BODY_BYTES:bytes}, it does not count",
        "of a SEND may be {OWN_PROPERTIES_BYTES:bytes} larger than 8 MiB,",
        "command line has more than {MAX_LINE_BYTES:bytes}, the broker does not",
        "frame must be shorter than {MAX_FRAME_BYTES:bytes+1}, and its header must not be longer than "
        "{MAX_FRAME_HEADER_BYTES:bytes}.",
        "more than {MAX_PARKED_PULLS} pulls wait on this connection, or {Quotas.waiting_bytes:bytes} of requests",
        "wait on all connections ([limits](broker.md#limits)); {MAX_FILTER_CALLS} requests wait for "
        "[filters](broker.md#filters), or {MAX_SEARCHES} searches run or wait",
        "`keys` (the first ones, of {PREVIEW_KEYS} characters together at most)",
        "`payload` (base64 of its first {PREVIEW_BYTES} bytes, or null if it is compressed)",
        "property list has more than {LONG_LIST_BYTES:bytes}, a broker reads only the first "
        "{MAX_OWN_PROPERTIES} of metaq's own properties",
        "`count` is at most {MAX_TX_BATCH_RECORDS};",
        "| `count` | number of records, 1 … {MAX_BATCH_RECORDS} |",
        "| `count` | number of records of all parts, 1 … {MAX_BATCH_RECORDS} |",
        "the {transactions.MAX_LISTED} transactions that have most bytes",
        "number of rows of the table, 1 … {MAX_PARTS};",
        "If there are more than {MAX_SEQUENCES} entries, the broker forgets",
        "partition. If the limit of {MAX_SEQUENCES} entries has made the",
        "itself have spent up to {REPEAT_LATE_SECONDS:minutes} in transit, so the",
        "most data in the answer (at most {MAX_PULL_BYTES:bytes}, or",
        "the decompressed content, at most {MAX_PAYLOAD_BYTES:bytes}. The checksum covers the",
        "how long the broker may wait for data, 0 … {MAX_WAIT_MS};",
        "the answer has at least {TABLE_RECORDS} records, and `runs` is",
        "most messages in the answer, 1 … {MAX_FOUND_MESSAGES}; default {DEFAULT_FOUND_MESSAGES}",
        "its bound of {MAX_SEARCH_BYTES:bytes} read or {MAX_SEARCH_SECONDS:seconds}.",
        "an answer may have up to {SAME_ID} messages with one id",
        "1 … {MAX_MEMBER_CHARACTERS} printable characters",
        "one tag of at least {INBOX_CHARACTERS} characters",
        "most messages, 0 … {MAX_ACQUIRED:plain}, and bytes",
        "A broker gives at most {SHARED_LEASED} messages at once, and",
        "`groups` (at most {MAX_LISTED_GROUPS}, those",
        "duration of the lease, 1 … {MAX_LEASE_MS} |",
        "number of rows in its body, 1 … {MAX_SETTLEMENTS}:",
        "has sent an ACQUIRE for {SHARED_MEMBER_SECONDS:s}, no ACQUIRE is waiting",
        "together may have at most {MAX_FILTER_BYTES} bytes.",
        "one id. The broker runs {MAX_RUNNING_SEARCHES} of these requests (searches) at once. If further searches "
        "wait, the broker takes the next one from each client address in turn. At most {MAX_SEARCHES} searches may"
        " run or",
        "`limit`: 0 … {MAX_LISTED_DELAYED},",
    ),
    "docs/messages.md": (
        "`lease_seconds` ({SharedConfig.lease_seconds:plain}) only says",
        "A group has at most {SHARED_MAX_HELD} messages leased or released on one partition. The broker looks"
        " at most {SHARED_MAX_AHEAD} messages ({SHARED_MAX_AHEAD_ORDERED} with `ordered_by_key`) or "
        "{SHARED_AHEAD_BYTES:bytes} ahead for a group.",
        "from a new member when {SHARED_MEMBER_SECONDS:s} have passed since the",
    ),
    "docs/client.md": (
        "a topic has at most {MAX_NAME_BYTES:bytes} and contains no blank,",
        "a table with at most {MAX_SEQUENCES} entries, one for each",
        "partitions at once (1 to {MAX_HANDLER_THREADS}). At any time at",
        "`run(handler, threads=…)`, with 1 to {MAX_HANDLER_THREADS} threads,",
        "`threads` threads can handle in {PREFETCH_SECONDS:s}, but at most `prefetch`",
        "tries this for up to {LEADER_SECONDS:s}. The next leader knows",
        "if no leader answers within {LEADER_SECONDS:s}.",
        "`max_requests_in_flight` ({ProducerConfig.max_requests_in_flight}) requests",
        "`compression_from_bytes` ({ProducerConfig.compression_from_bytes}) are not compressed",
        "payload may have at most {MAX_PAYLOAD_BYTES:bytes} before compression and at most {MAX_BODY_BYTES:bytes} "
        "after it. The sizes",
        "`max_batch_bytes` ({ProducerConfig.max_batch_bytes:bytes}) or `max_batch_records` "
        "({ProducerConfig.max_batch_records})",
        "`delivery_timeout_seconds`, {ProducerConfig.delivery_timeout_seconds:s})",
        "{ProducerConfig.max_buffered_messages}) messages of one producer, with together at most "
        "`max_buffered_bytes` ({ProducerConfig.max_buffered_bytes:bytes}), wait for an answer",
        "messages whose deadlines are within {TOGETHER_SECONDS:s} of this deadline. A",
        "after pauses of up to {MAX_PAUSE_SECONDS:s}",
        "events: ZooKeeper shows a change, {TRUSTED_SECONDS:s} have passed, or the",
        "the client waits up to {LAST_ANSWERS_SECONDS:s} for the answers that",
        "their lists of partitions for {LEADERLESS_SECONDS:s}. So in this time",
        "the producer waits up to {LEADERLESS_SECONDS:s} for a leader that",
        "may come up to {PING_SECONDS:s} later",
        "partitions keep their owners for {ZONE_SETTLE_SECONDS:s}, so that a failover",
        "a message ends at most {producer/tuning.LOOK_SECONDS:s} after the message's deadline,",
        "ends with `RequestTimedOut` at most {producer/tuning.LOOK_SECONDS:s} after its timeout",
        "`deliver_at_exit_seconds` ({ProducerConfig.deliver_at_exit_seconds}, for",
        "`transaction_timeout_seconds`, {ProducerConfig.transaction_timeout_seconds}; it is also",
        "the file has at most {ProducerConfig.ordered_wait_messages} messages for the partition, the setting "
        "`ordered_wait_messages`. Then the producer first waits up to {ProducerConfig.ordered_wait_seconds} s, the"
        " setting `ordered_wait_seconds`,",
        "{ProducerConfig.recover_interval_seconds}). So the messages of",
        "concerns at most the last {RESENT_TOGETHER} messages).",
        "`max_per_queue` messages ({MAX_LOCAL_MESSAGES})",
        "every `auto_commit_seconds` ({ConsumerConfig.auto_commit_seconds}; 0: never)",
        "In a group of {SMALL_GROUP} or more",
        "this as a failure; after {HELD_LOOK_SECONDS:seconds} it logs one line",
        "messages of these partitions. After {IDLE_WARNING_SECONDS:minutes} without a call of",
        "`arrow_fetch_bytes` ({ConsumerConfig.arrow_fetch_bytes:bytes})",
        "ended because it had read {MAX_SEARCH_BYTES:bytes} or had taken {MAX_SEARCH_SECONDS:seconds}. If you "
        "repeat the",
        "`retry_step_seconds` ({ConsumerConfig.retry_step_seconds}) × 1, 2, 3",
        "`retry_max_seconds` ({ConsumerConfig.retry_max_seconds})",
        "{settings/config.MAX_RETRIES}; `None`: no limit) have",
        "message to the handler again {RECOVER_FIRST_SECONDS:s} after the start of a consumer of the group on "
        "this machine, and then every {RECOVER_SECONDS:s} until the handler succeeds.",
        "{ConsumerConfig.stop_seconds}) until the running handlers",
        "necessary several times, up to {LARGEST_GET_BYTES:bytes}. If the broker does",
        "but logs a line after {EMPTY_GETS} answers without messages.",
    ),
    "docs/replication.md": (
        "it. It remembers the last {MAX_EPOCHS} epochs, or fewer if these epochs have more than {MAX_ENDS} such "
        "end offsets.",
        "which epochs its data went through | {MAX_HELLO_BYTES:bytes} |",
        "| another message of a follower | {MAX_FOLLOWER_MESSAGE_BYTES:bytes};",
        "has not acknowledged | {MAX_BACKLOG_BYTES:bytes} for each follower |",
        "while something waits for it | {STUCK_SECONDS:s} |",
        "when it stops, and within {REMEMBER_SECONDS:s} of a new partition's",
        "has been in sync for {PREFERRED_SECONDS:seconds}, the current leader automatically",
        "cache to the disk, for {WRITE_BACK_SECONDS:s} at most, while it",
        "open transactions have ended, for {TRANSACTIONS_SECONDS:s} at most. While it",
        "in the new zone after {ZONE_SETTLE_SECONDS:s}. If a preferred node",
        "| slaveMaxDelayInMills | {DEFAULT_MAX_DELAY_MS} |",
        "| sendToSlaveTimeoutInMills | {DEFAULT_SEND_TIMEOUT_MS:plain} |",
        "| slaveContinuousFailureThreshold | {DEFAULT_FAILURE_THRESHOLD} |",
        "| checkSlaveIntervalInMills | {DEFAULT_CHECK_INTERVAL_MS} |",
        "with pauses of {replication/slave.BACKOFF_SECONDS:range},",
        "only after {AHEAD_SECONDS:s}, because a Java master does not report",
        "asynchronous slave requests at most {partition_copy.FETCH_BYTES:bytes} at once. If a",
        "the whole record, up to {MAX_RECORD_BYTES:bytes}. If a record is",
        "our master lets at most {MAX_PARKED_PULLS} PULL requests wait for",
        "of the remaining partitions every {TROUBLE_SECONDS:range}.",
        "slave compares only the last {COMPARED_BYTES:bytes} of each partition with",
    ),
    "docs/transactions.md": (
        "newest file has grown above {MAX_REDO_BYTES:bytes}. The broker deletes a",
        "**A hand-over** waits at most {TRANSACTIONS_SECONDS:s} for the transactions that",
        "these are at most about {STATE_BYTES:bytes} of records. If a",
        "| open transactions | {Quotas.open_transactions}, or",
        "held in memory | {Quotas.transaction_bytes:bytes}, or",
        "list of prepared transactions | {MAX_PREPARED_BYTES:bytes}; each transaction takes up the length of "
        "its key and its topics, and {open_transactions.ROW_BYTES} bytes | the broker",
        "| length of a key | {MAX_TX_KEY_CHARACTERS} characters",
    ),
    "docs/compatibility.md": (
        "a put with a body above {MAX_BODY_BYTES:bytes} is 500",
        "| A body of any size | better | up to {MAX_BODY_BYTES:bytes};",
        "closes the connection at {MAX_LINE_BYTES:bytes};",
        "Connections without traffic are cut after {server.IDLE_SECONDS:s} |",
    ),
}
"""By page: phrases whose `{constant:unit}` stand for what the code says. A constant is found by its name, without the
underscore in front, wherever it stands; `module.NAME`, `folder/module.NAME` or `Class.field` where several have it."""

OTHERS: Mapping[str, tuple[str, ...]] = {
    "README.md": ("yes, up to 5 s |",),  # Java's
    "docs/broker.md": (
        "so such a sync may be up to 250 ms late",
        "of the values that are not among these 1,000",
        # what `bench.worst` fills a broker with, and what it measured
        "type to a broker with 10,240 partitions, 10,000 shared groups and 50,000 half messages. In this test no "
        "slice of the broker's own work takes longer than 20 ms of processor time. The",
        "at hand, a write of 8 MiB takes 3 to 6 ms. On a virtual machine",
        "the same write takes 20 to 25 ms, in any program",
        "22 ms with 10,240 partitions, and 46 ms more with 65,536 half messages.",
        "for it: a batch of 65,536 empty messages takes some 6 MB. The broker works on",
        "once. In a measurement with 4,000 connections, a connection without traffic takes 4.5 KB, and a "
        "connection with a waiting pull takes 6 KB. `python -m bench.worst_memory` sends",
        "2,048 at most",  # in store/files.py's default_open_limit
        "own. In a measurement with 10,240 partitions, each partition took 4 to 5 KB of memory. The broker, which "
        "was registered in ZooKeeper, took 120 MB in all at rest, and 14 files were open after a",
        "another measurement the broker had 10 GB of data and was killed under load with kill -9. It then needed 2 "
        "s of processor time from",
        "last checkpoint. The check handles 2 to 3 GB/s of 1 KiB messages from the page cache, and 0.6 GB/s of 128 "
        "B messages. `python -m bench.startup`",
        "flush. Each waiting message takes 16 bytes of memory. A broker with 5 million waiting messages, "
        "spread over a year, uses 160 MB of memory in all.",
        "some 5 s of processor time for 5 million",
    ),
    "docs/protocol.md": ("topic `t` (3 partitions)", "at most half of these 64 searches"),
    "docs/client.md": (
        "consumer gets it later than 60 s after the send. For",  # ttl=60
        "the last 4,096 that it has processed",  # Java's
        "here at most 17 s",  # 1 + 2 + 4 + 5 + 5: an example's
        "a name of more than 233 bytes, because the names of",  # of limits' 240, without %RETRY%
        "failed, which by default takes 7.5 s of pauses, `run` calls",  # 0.5 × (1 + 2 + 3 + 4 + 5)
        "never earlier, and at most 50 ms later as long as",  # measured: bench/delays.py
    ),
    "docs/compatibility.md": (
        "A record of 512 KiB or more",  # Java's, as the next
        "512 KiB and more on group-commit topics",
        "duplicate filter of 4,096 ids",
        "the same connection less than 5 s before.)",
    ),
    "docs/migrating.md": (
        "1000` the replacement takes 2 to 3 seconds. Nearly all of this",
        "in order. Each replacement takes 2 to 3 seconds. Of 3,349 sends 10 failed, and for each of",
    ),
}
"""By page: phrases whose numbers are no constants of ours: measured, Java's, or an example's."""

PAGES = (
    *("README.md", "zk_paths.md", "docs/broker.md", "docs/protocol.md", "docs/client.md", "docs/replication.md"),
    *("docs/transactions.md", "docs/reliability.md", "docs/compatibility.md", "docs/migrating.md"),
)
UNITS = (
    r"%|[KMG]iB|[KMG]B|µs|ms|s|seconds?|minutes?|bytes|messages|records|threads|partitions|pulls|requests|nodes"
    r"|characters|searches"
)
NUMBER = re.compile(rf"(?<![\w.,/-])(?:\d{{1,3}}(?:,\d{{3}})+\b|\d[\d.]*(?:,\d{{3}})* (?:{UNITS})(?!\w))")
PLACE = re.compile(r"\{([\w./]+)(?::([^}]+))?\}")

Value = int | float | tuple[int | float, ...]

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


def value_of(node: ast.expr | None) -> Value | None:
    """A number, or a tuple that begins with some, written as literals and arithmetic; None if it is anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.Tuple):
        values = [value_of(each) for each in node.elts]
        return tuple(takewhile(lambda each: isinstance(each, int | float), values)) or None  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = value_of(node.left), value_of(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            found: int | float = _OPERATORS[type(node.op)](left, right)
            return found
    return None


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, Value]]:
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign):
                value = value_of(node.value)
                if value is not None:
                    yield target.id.lstrip("_"), value


@cache
def constants() -> dict[str, set[Value]]:
    """All values by each name that an entry may use: NAME, module.NAME, folder/module.NAME, Class.field."""
    found: dict[str, set[Value]] = defaultdict(set)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            for name, value in assigned(tree.body):
                for prefix in ("", f"{path.stem}.", f"{path.parent.name}/{path.stem}."):
                    found[prefix + name].add(value)
            for kind in tree.body:
                if isinstance(kind, ast.ClassDef):
                    for name, value in assigned(kind.body):
                        found[f"{kind.name}.{name}"].add(value)
    return found


def one(name: str) -> Value:
    values = constants().get(name, set())
    assert values, f"no constant {name} with a value in numbers"
    assert len(values) == 1, f"{name} is {sorted(map(str, values))}: say of which module"
    return next(iter(values))


def in_bytes(value: int | float) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value % (1 << shift) == 0:
            return f"{int(value) >> shift} {unit}"
    return f"{value:,} bytes"


def shown(value: Value, unit: str) -> str:
    """A value as the pages write it."""
    if isinstance(value, tuple):
        return f"{value[0]:g} to {value[1]:g} s" if unit == "range" else shown(value[0], unit)
    if unit.startswith("bytes"):
        return in_bytes(value + 1 if unit == "bytes+1" else value * int(unit.partition("*")[2] or 1))
    match unit:
        case "s":
            return f"{value:g} s"
        case "s/1000":
            return f"{value / 1000:g} s"
        case "ms":
            return f"{value * 1000:g} ms"
        case "seconds":
            return f"{value:g} seconds"
        case "minutes":
            return f"{value / 60:g} minutes"
        case "percent":
            return f"{value * 100:g} %"
        case "above":
            return f"{(value - 1) * 100:.0f} %"
        case "plain":
            return f"{value:g}" if isinstance(value, float) else str(value)
        case "":
            return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
    raise AssertionError(f"no unit {unit!r}")


def filled(phrase: str) -> str:
    return PLACE.sub(lambda found: shown(one(found[1]), found[2] or ""), phrase)


def prose(page: str) -> str:
    """The text of a page on one line, without its code blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return " ".join(re.sub(r"^    .*$", "", text, flags=re.MULTILINE).split())


@pytest.mark.parametrize(("page", "phrase"), [(page, phrase) for page, all_ in KEPT.items() for phrase in all_])
def test_a_page_says_what_the_code_says(page: str, phrase: str) -> None:
    assert filled(phrase) in prose(page)


@pytest.mark.parametrize("page", PAGES)
def test_every_number_with_a_unit_is_kept(page: str) -> None:
    text = prose(page)
    kept = [filled(phrase) for phrase in KEPT.get(page, ())] + list(OTHERS.get(page, ()))
    missing = [phrase for phrase in kept if phrase not in text]
    assert missing == []
    spans = [found.span() for phrase in kept for found in re.finditer(re.escape(phrase), text)]
    loose = [
        text[max(0, found.start() - 40) : found.end() + 20]
        for found in NUMBER.finditer(text)
        if not any(start <= found.start() and found.end() <= end for start, end in spans)
    ]
    assert loose == []


def test_a_constant_that_several_modules_have_must_be_told_apart() -> None:
    with pytest.raises(AssertionError, match="of which module"):
        one("CLOSE_SECONDS")


def test_values_are_shown_as_the_pages_write_them() -> None:
    assert [in_bytes(each) for each in (8 << 20, 512 << 10, 1 << 30, 100)] == ["8 MiB", "512 KiB", "1 GiB", "100 bytes"]
    values: list[tuple[Value, str]] = [(16384, ""), (0.005, "ms"), (60.0, "s"), ((0.2, 5.0), "range")]
    assert [shown(value, unit) for value, unit in values] == ["16,384", "5 ms", "60 s", "0.2 to 5 s"]

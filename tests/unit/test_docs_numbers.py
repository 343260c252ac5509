"""The numbers of the pages are those of the code: a limit that changes, or a number that nothing keeps, fails here."""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
        "is changed when that has held for {ZONE_SETTLE_SECONDS:seconds}, by the first",
        "the next leader has taken them over, for {SUCCESSOR_SECONDS:s} at most",
        "has a node ({LEADERLESS_SECONDS:s} and {PLANNING_SECONDS:s})",
    ),
    "docs/standalone-zookeeper.md": (
        "for the one before it; {KEPT_SNAPSHOTS} are kept",
        "| ACLs of one node | at most {MOST_ACLS} |",
        "| identities of one connection | at most {MOST_IDENTITIES} |",
        "| at most {MOST_UNSENT_BYTES:bytes}, else a marshalling error |",
        "| is dropped at {MOST_UNSENT_BYTES:bytes}, and gets",
    ),
    "docs/reliability.md": (
        "For its session timeout and {RETURN_SECONDS:seconds}, such a member begins no partition",
        "no longer ago than twice its session timeout and {RETURN_SECONDS:seconds}",
    ),
    "docs/broker.md": (
        "gives connections up to {main.CLOSE_SECONDS:s} to take their answers",
        "reads from, writes to or ends | {MOST_EVENTS} |",
        "for one partition with one call, less than {MAX_FRAME_BYTES:bytes+1}.",
        "with less than {FULL_BYTES:bytes} lets another in-sync node lead",
        "A name has at most {MAX_NODE_NAME} characters,",
        "a PULL gives up to {MAX_PULL_BYTES:bytes}, or up to this value",
        "| `serverPort` | {DEFAULT_PORT:plain} |",
        "`checkpointInterval` | {DEFAULT_MAX_CHECKPOINTS}, {DEFAULT_CHECKPOINT_INTERVAL_MS:plain} |",
        "| `maxTxTimeoutInSeconds` | {DEFAULT_MAX_TX_TIMEOUT_SECONDS} |",
        "| `maxTxTimeoutTimerCapacity` | {DEFAULT_MAX_TX_TIMEOUTS:plain} |",
        "| `-Dmeta.tx_journal_file_size` | fixed at {MAX_REDO_BYTES:bytes} |",
        "| `zk.zkSessionTimeoutMs` | {ZooKeeperConfig.session_timeout_ms:plain} |",
        "| `zk.zkConnectionTimeoutMs` | {ZooKeeperConfig.connection_timeout_ms:plain} |",
        "| `zk.zkSyncTimeMs` | {ZooKeeperConfig.sync_time_ms:plain} |",
        "up to {MAX_GAP_BYTES:bytes}, and about {PUT_RIGHT_SECONDS:seconds} of consuming, behind its true place",
        "the accepted messages of at most {MAX_GAP_BYTES:bytes} again",
        "Filters run on {FILTER_THREADS} threads",
        "filter calls of one request end after {BUDGET_SECONDS:s},",
        "skips at most {judge.SCAN_BYTES:bytes} of rejected records",
        "{MAX_FILTER_CALLS} requests may wait for filters",
        "the last {KEPT_LINES} lines of the log",
        "up to {STATS_NAMED} of these with their cause",
        "The broker looks every {broker/main.TICK_SECONDS:ms} for syncs",
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
        "each connection may bring up to {SMALL_READ_BYTES:bytes} before it counts, or {LARGE_READ_BYTES:bytes} if",
        "with their connection or their timeout | {PERIOD_LINES} in {PERIOD_SECONDS:s} of each kind",
        "| an incomplete request | {Quotas.request_seconds:s} at less than {UNFINISHED_BYTES_PER_SECOND:bytes} per",
        "| unsent answers of a connection | {broker/tuning.WRITE_BYTES:bytes} and one answer |",
        "do not read | {Quotas.unsent_bytes:bytes}, or `unsentBytes`",
        "an answer carries {SCARCE_ANSWER_BYTES:bytes} of data;",
        "one record of more than {REFUSED_ANSWER_BYTES:bytes} is refused",
        "that take less than {UNFINISHED_BYTES_PER_SECOND:bytes} a second for `requestSeconds`",
        "or for one slice of a large request | {broker/tuning.TURN_SECONDS:ms} |",
        "in one round of the event loop | {ITERATION_SECONDS:ms}, and as much for requests that come in |",
        "from the disk (cold reads) at once | {MAX_COLD_READS} |",
        "has not read yet | {broker/tuning.RECEIVE_BYTES:bytes} (the kernel's choice",
        "is less), {LARGE_READ_BYTES:bytes} per read |",
        "data being read for it | {MAX_PENDING_BYTES:bytes} and one read |",
        "| {DEFAULT_MAX_PENDING_PUT_BYTES:bytes}, or `--max-pending-puts`; each put counts {PUT_OVERHEAD_BYTES} bytes",
        "what it has read of them ({LARGE_READ_BYTES:bytes}, or a frame being received) waits",
        "when they have grown to {SEQUENCE_LOG_BYTES:bytes}.",
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
        "wait for their turn ({Quotas.unfinished_bytes:bytes}, space for as much again of large frames that come, and "
        "twice {MAX_FRAME_BYTES:bytes+1} for each address), "
        "requests that wait for messages ({Quotas.waiting_bytes:bytes})",
        "puts that wait for their sync ({DEFAULT_MAX_PENDING_PUT_BYTES:bytes}),",
        "unsent answers ({Quotas.unsent_bytes:bytes})",
        "transactions ({Quotas.transaction_bytes:bytes}), shared groups ({Quotas.shared_bytes:bytes})",
        "the heap keeps ({HEAP_KEPT_BYTES:bytes}, and memory that was freed in the last {broker/main.HEAP_SECONDS:s}), "
        "and for each connection one read ({LARGE_READ_BYTES:bytes}), "
        "space for {SPACE_READ_BYTES:bytes} of a large frame, and one answer "
        "({broker/tuning.WRITE_BYTES:bytes}, or one record)",
        "A table has {PAGE_ROWS} rows of a page, with links to the others (`?from={PAGE_ROWS}`)",
        "| a client of the HTTP ports that takes nothing of an answer, or not the last of it | {ports.IDLE_SECONDS:s}",
        "| the body of a request by HTTP | {MAX_BODY_BYTES:bytes}; until",
        "some 6 MB, and {MAX_LARGE_WORKS} large requests",
        "to a SHARED_STATUS that are made at once | {MAX_LISTINGS}, as",
        "| pages and metrics that are made and sent at once | {MAX_PAGES} |",
        "| one, of the addresses in turn | {MAX_LISTS} together may wait or be made",
        "| pages that wait for ZooKeeper | {Quotas.waiting_pages}, or",
        "| moves of partitions that a MOVE asks about, each looked at in a thread | {MAX_ASKED_MOVES} |",
        "| `waitingPages` | {Quotas.waiting_pages} |",
        "or looked at ahead | {Quotas.shared_bytes:bytes}, or `sharedBytes`",
        "leases {SHARED_SCARCE} messages of a partition at a time and looks {SHARED_SCARCE} ahead",
        "by the current state when they have grown to {SHARED_LOG_BYTES:bytes}.",
        "| a connection without traffic | {server.IDLE_SECONDS:s} |",
        "| index entries (units) of a partition in memory | {MAX_UNSTORED_UNITS} ({MAX_UNSTORED_UNITS:bytes*32}), "
        "{UNITS_IN_MEMORY} after a start |",
        "| index units of all partitions in memory | {MAX_UNITS:bytes*32}, but {LEAST_UNITS} units each in any case |",
        "When more than {GROUPED_FROM} partitions are due for a checkpoint, up to {MAX_GROUP} at a time",
        "(by hand or after {RESET_SECONDS:minutes})",
        "Each turn delivers at most {DELAYED_TURN_RECORDS} messages or {DELAYED_TURN_BYTES:bytes};",
        "is tried again after {DELAYED_RETRY_SECONDS:range};",
        "messages, `/metrics` {PAGE_GROUPS}, and the group",
        "(the {PAGE_GROUPS} largest values; the group",
        "The oldest segment ({DELAYED_SEGMENT_BYTES:bytes}) goes when",
        "a log of more than {DELAYED_LOG_BYTES:bytes} is of",
        "looks at the clock after {DELAYED_SLEEP_SECONDS:s} at the latest",
        "has gone, another producer is asked after {HALVES_LOST_SECONDS:s}",
        "gone {HALF_GRACE_SECONDS:s} after its connection was lost, or when it has not asked for "
        "{HALVES_SILENT_SECONDS:s}",
        "all senders have {HALVES_SILENT_SECONDS:s} to come back",
        "remembers the decisions of the last {HALVES_DECIDED} half messages",
    ),
    "docs/protocol.md": (
        "no question of that producer has waited for {HALVES_SILENT_SECONDS:s}, or "
        "{HALF_GRACE_SECONDS:s} after its connection was lost",
        "counts as asking for {HALF_GRACE_SECONDS:s} after the first check is due, and for "
        "{HALVES_SILENT_SECONDS:s} after the broker began to lead",
        "`file:line in function`; at most {MAX_CAUSE_CHARACTERS} characters",
        "a put whose body is larger than {MAX_BODY_BYTES:bytes} with 500",
        "A SEND may have {OWN_PROPERTIES_BYTES:bytes} more, for properties",
        "a line above {MAX_LINE_BYTES:bytes}:",
        "A frame is shorter than {MAX_FRAME_BYTES:bytes+1}, and its header has at most {MAX_FRAME_HEADER_BYTES:bytes}.",
        "more than {MAX_PARKED_PULLS} pulls wait on this connection, or {Quotas.waiting_bytes:bytes} of requests",
        "{MAX_FILTER_CALLS} requests wait for [filters](broker.md#filters), or {MAX_SEARCHES} for their search",
        "`keys` (the first ones, of {PREVIEW_KEYS} characters together at most)",
        "`payload` (base64 of its first {PREVIEW_BYTES} bytes, or null if it is compressed)",
        "of more than {LONG_LIST_BYTES:bytes} a broker looks at the first {MAX_OWN_PROPERTIES} properties",
        "`count` is at most {MAX_TX_BATCH_RECORDS};",
        "| `count` | number of records, 1 … {MAX_BATCH_RECORDS} |",
        "| `count` | number of records of all parts, 1 … {MAX_BATCH_RECORDS} |",
        "the {transactions.MAX_LISTED} transactions that have most bytes",
        "number of rows of the table, 1 … {MAX_PARTS};",
        "and beyond {MAX_SEQUENCES} producers and partitions",
        "was forgotten beyond the {MAX_SEQUENCES},",
        "It allows for {REPEAT_LATE_SECONDS:minutes} that a repeated send",
        "most data in the answer (at most {MAX_PULL_BYTES:bytes}, or",
        "has the size of its content in its header, of at most {MAX_PAYLOAD_BYTES:bytes}.",
        "how long the broker may wait for data, 0 … {MAX_WAIT_MS};",
        "there are {TABLE_RECORDS} records or more",
        "most messages in the answer, 1 … {MAX_FOUND_MESSAGES}; default {DEFAULT_FOUND_MESSAGES}",
        "its bound of {MAX_SEARCH_BYTES:bytes} read or {MAX_SEARCH_SECONDS:seconds}.",
        "an answer may have up to {SAME_ID} messages with one id",
        "1 … {MAX_MEMBER_CHARACTERS} printable characters",
        "most messages, 0 … {MAX_ACQUIRED:plain}, and bytes",
        "A broker gives at most {SHARED_LEASED} at once",
        "`groups` (at most {MAX_LISTED_GROUPS}, those",
        "duration of the lease, 1 … {MAX_LEASE_MS} |",
        "number of rows in its body, 1 … {MAX_SETTLEMENTS}:",
        "no member has asked for {SHARED_MEMBER_SECONDS:s}, none waits",
        "together may have {MAX_FILTER_BYTES} bytes",
        "runs {MAX_RUNNING_SEARCHES} searches at once, of the addresses in turn. Together {MAX_SEARCHES} may run",
        "`limit`: 0 … {MAX_LISTED_DELAYED},",
    ),
    "docs/messages.md": (
        "`lease_seconds` ({SharedConfig.lease_seconds:plain}) only says",
        "has at most {SHARED_MAX_HELD} messages leased or released on one partition, and looks {SHARED_MAX_AHEAD} "
        "messages or {SHARED_AHEAD_BYTES:bytes} ahead ({SHARED_MAX_AHEAD_ORDERED} with",
        "may begin with other settings {SHARED_MEMBER_SECONDS:s} after the last request of an old member",
    ),
    "docs/client.md": (
        "A topic has at most {MAX_NAME_BYTES:bytes}, and no blank",
        "A broker remembers {MAX_SEQUENCES} producers and partitions.",
        "It works on `threads` partitions at once (1 to {MAX_HANDLER_THREADS}), on each",
        "`run(handler, threads=…)`, with 1 to {MAX_HANDLER_THREADS} threads,",
        "as much work as `threads` do in {PREFETCH_SECONDS:s},",
        "also after a lost answer, for up to {LEADER_SECONDS:s}.",
        "or no leader answers within {LEADER_SECONDS:s}, is the commit unknown",
        "`max_requests_in_flight` ({ProducerConfig.max_requests_in_flight}) requests",
        "`compression_from_bytes` ({ProducerConfig.compression_from_bytes}) are not compressed",
        "A payload may have {MAX_PAYLOAD_BYTES:bytes} before compression and {MAX_BODY_BYTES:bytes} after it.",
        "`max_batch_bytes` ({ProducerConfig.max_batch_bytes:bytes}) or `max_batch_records` "
        "({ProducerConfig.max_batch_records})",
        "`delivery_timeout_seconds`, {ProducerConfig.delivery_timeout_seconds:s})",
        "`max_buffered_messages` ({ProducerConfig.max_buffered_messages}) and `max_buffered_bytes` "
        "({ProducerConfig.max_buffered_bytes:bytes}) wait",
        "whose deadlines lie within {TOGETHER_SECONDS:s} of",
        "after pauses of up to {MAX_PAUSE_SECONDS:s}",
        "when ZooKeeper's view changes, after {TRUSTED_SECONDS:s}",
        "has not answered {LAST_ANSWERS_SECONDS:s} later",
        "keeps its partitions for {LEADERLESS_SECONDS:s}",
        "and no broker publishes it, the producer waits up to {LEADERLESS_SECONDS:s} for sets",
        "may come up to {PING_SECONDS:s} later",
        "stay where they are for {ZONE_SETTLE_SECONDS:s}, so",
        "A future ends at most {producer/tuning.LOOK_SECONDS:s} after its deadline",
        "ends with `RequestTimedOut` at most {producer/tuning.LOOK_SECONDS:s} after its timeout",
        "`deliver_at_exit_seconds` ({ProducerConfig.deliver_at_exit_seconds}, for",
        "`transaction_timeout_seconds`, {ProducerConfig.transaction_timeout_seconds}, which is also the most",
        "at most `ordered_wait_messages`, {ProducerConfig.ordered_wait_messages}, are saved, the producer first waits "
        "for their delivery, for `ordered_wait_seconds`, {ProducerConfig.ordered_wait_seconds}.)",
        "`recover_interval_seconds` ({ProducerConfig.recover_interval_seconds}). So order",
        "(at most the last {RESENT_TOGETHER} messages)",
        "`max_per_queue` messages ({MAX_LOCAL_MESSAGES})",
        "every `auto_commit_seconds` ({ConsumerConfig.auto_commit_seconds}; 0: never)",
        "In a group of {SMALL_GROUP} or more",
        "after {HELD_LOOK_SECONDS:seconds} one line names the holder",
        "After {IDLE_WARNING_SECONDS:minutes} without a poll",
        "`arrow_fetch_bytes` ({ConsumerConfig.arrow_fetch_bytes:bytes})",
        "has reached its bound ({MAX_SEARCH_BYTES:bytes} read, {MAX_SEARCH_SECONDS:seconds})",
        "`retry_step_seconds` ({ConsumerConfig.retry_step_seconds}) × 1, 2, 3",
        "`retry_max_seconds` ({ConsumerConfig.retry_max_seconds})",
        "After `max_retries` ({settings/config.MAX_RETRIES}; `None` = for ever)",
        "gives it to the handler again {RECOVER_FIRST_SECONDS:s} after a consumer of the group began and every "
        "{RECOVER_SECONDS:s} until it is processed",
        "`run` waits at most `stop_seconds` ({ConsumerConfig.stop_seconds})",
        "twice as much at once, up to {LARGEST_GET_BYTES:bytes}",
        "it logs a line after {EMPTY_GETS} empty answers",
    ),
    "docs/replication.md": (
        "Nodes remember {MAX_EPOCHS} epochs, or fewer if more than {MAX_ENDS} ends of partitions changed in them",
        "which epochs its data went through | {MAX_HELLO_BYTES:bytes} |",
        "| another message of a follower | {MAX_FOLLOWER_MESSAGE_BYTES:bytes};",
        "has not acknowledged | {MAX_BACKLOG_BYTES:bytes} for each follower |",
        "while something waits for it | {STUCK_SECONDS:s} |",
        "when the node stops, and within {REMEMBER_SECONDS:s} of a new partition's",
        "once it has been in sync for {PREFERRED_SECONDS:seconds}, the leader hands over",
        "writes its page cache back, for {WRITE_BACK_SECONDS:s} at most",
        "the open transactions end, for {TRANSACTIONS_SECONDS:s} at most",
        "takes its partitions along after {ZONE_SETTLE_SECONDS:s}:",
        "| slaveMaxDelayInMills | {DEFAULT_MAX_DELAY_MS} |",
        "| sendToSlaveTimeoutInMills | {DEFAULT_SEND_TIMEOUT_MS:plain} |",
        "| slaveContinuousFailureThreshold | {DEFAULT_FAILURE_THRESHOLD} |",
        "| checkSlaveIntervalInMills | {DEFAULT_CHECK_INTERVAL_MS} |",
        "with pauses of {replication/slave.BACKOFF_SECONDS:range},",
        "only after {AHEAD_SECONDS:s}, because a Java master does not report",
        "asks for at most {partition_copy.FETCH_BYTES:bytes} at once",
        "as a whole, up to {MAX_RECORD_BYTES:bytes}.",
        "Our master lets {MAX_PARKED_PULLS} pulls wait on it",
        "asks for further partitions again after {TROUBLE_SECONDS:range}.",
        "compares the last {COMPARED_BYTES:bytes} of a partition",
    ),
    "docs/transactions.md": (
        "when the newest file has more than {MAX_REDO_BYTES:bytes}.",
        "waits {TRANSACTIONS_SECONDS:s} for the transactions that are open",
        "That is about {STATE_BYTES:bytes} at most",
        "| open transactions | {Quotas.open_transactions}, or",
        "held in memory | {Quotas.transaction_bytes:bytes}, or",
        "list of prepared transactions | {MAX_PREPARED_BYTES:bytes}; each has its key, its topics and "
        "{open_transactions.ROW_BYTES} bytes in it",
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
        # what `bench.worst` fills a broker with, and what it measured
        "to a broker with 10,240 partitions, 10,000 shared groups and 50,000 half messages; no step of the broker's "
        "own work takes longer than 20 ms of processor time.",
        "8 MiB take 3 to 6 ms.",
        "the same write takes 20 to 25 ms, in any program",
        "22 ms with 10,240 partitions, and 46 ms more with 65,536 half messages.",
        "one of 65,536 empty messages some 6 MB",
        "with 4,000 connections, a connection without traffic takes 4.5 KB, and 6 KB with a pull that waits.",
        "2,048 at most",  # in store/files.py's default_open_limit
        "Measured with 10,240 partitions: 4 to 5 KB of memory for each (120 MB in all at rest, with ZooKeeper), 14 "
        "open files after a start, and 2 s of processor time from the start of the process to serving, with 10 GB",
        "2 to 3 GB/s of 1 KiB messages from the page cache, 0.6 GB/s of 128 B.",
        "Each message takes 16 bytes of memory: a broker with 5 million, spread over a year, has 160 MB in all.",
        "some 5 s of processor time for 5 million",
    ),
    "docs/protocol.md": ("topic `t` (3 partitions)",),
    "docs/client.md": (
        "no consumer gets the message after 60 s.",  # ttl=60
        "the last 4,096 that it has processed",  # Java's
        "here at most 17 s",  # 1 + 2 + 4 + 5 + 5: an example's
        "a group whose name is longer than 233 bytes",  # of limits' 240, without %RETRY%
        "tries, 7.5 s of pauses",  # 0.5 × (1 + 2 + 3 + 4 + 5)
        "and within 50 ms if the broker has spare capacity.",  # measured: bench/delays.py
    ),
    "docs/compatibility.md": (
        "A record of 512 KiB or more",  # Java's, as the next
        "512 KiB and more on group-commit topics",
        "duplicate filter of 4,096 ids",
    ),
    "docs/migrating.md": ("the move takes 2 to 3 seconds", "A move takes 2 to 3 seconds. Of 3,349 sends 10 failed"),
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


CONSTANTS = constants()


def one(name: str) -> Value:
    values = CONSTANTS.get(name, set())
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
            return f"{value:,.10g}"
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

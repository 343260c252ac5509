"""One life of a store on a disk that is made to fail.

Started by `python -m tests.integration.failed_sync_store write|start|read DIRECTORY`.

write: append to some partitions and print what was acknowledged, as JSON lines; then wait for a line on stdin, by when
the disk is full, checkpoint all of them, and end without closing, as a kill does. Exits with 0 only if that failed.
start: open the store, and close it. read: open it and print every message.
"""

from __future__ import annotations

import json
import os
import sys

from metaq.broker.assembly.kinds import KINDS
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.store import Append, Store, TopicStoreConfig
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import checksum, iter_headers
from tests.doubles.store import run_inline

PARTITIONS = 6
ROUNDS = 40
BODY_BYTES = 4000
NOW_MS = 1_700_000_000_000


def main(action: str, directory: str) -> int:
    threshold = 1_000_000 if os.environ.get("ASYNCHRONOUS") else 0
    config = TopicStoreConfig(1 << 20, threshold, 10_000, None)
    store = Store([directory], lambda topic: config, kinds=KINDS, run_in_thread=run_inline)
    store.open()
    if action == "write":
        return _write(store)
    if action == "read":
        _read(store)
    store.close()
    return 0


def _write(store: Store) -> int:
    logs = [store.get_or_create("t", number) for number in range(PARTITIONS)]
    next_id = message_id(counter_at(NOW_MS), 0)
    for number in range(ROUNDS):
        appends, lines = [], []
        for log in logs:
            next_id += 1
            body = (b"%d of %d " % (number, log.partition)).ljust(BODY_BYTES, b".")
            data, units = encode_puts([(0, checksum(body), body)], log.end_offset, [next_id], NOW_MS)
            appends.append((log, data, units))
            lines.append(json.dumps([log.partition, log.end_offset, body.decode()]))
        assert not any(each.error for each in store.append_many(Append(*each) for each in appends))
        assert all(log.visible_end == log.end_offset for log in logs), "acknowledged"
        print(*lines, sep="\n")  # now: whoever reads the last line fills the disk
    sys.stdout.flush()
    sys.stdin.readline()
    for log in logs:
        log.checkpoint()
    failed = sum(log.read_only is not None for log in logs)
    print(f"{failed} of {PARTITIONS} partitions failed", file=sys.stderr)
    sys.stderr.flush()
    os._exit(0 if failed else 1)


def _read(store: Store) -> None:
    for log in store.logs():
        offset = log.first_offset
        while offset < log.visible_end:
            data = log.segments.snapshot().read(offset, 1 << 30)
            for header in iter_headers(data):
                body = data[header.end - header.length : header.end]
                assert checksum(body) == header.checksum
                print(json.dumps([log.partition, offset + header.start, body.decode()]))
            offset += len(data)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

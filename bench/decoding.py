"""Compare the fast functions that decode records with the plain functions that have the same results: `python -m
bench.decoding`.

One broker answer of 2 MiB is decoded repeatedly on one processor: as messages (`decode_sized` and `decode_walking`) and
as Arrow columns (`decode_columns` and `columns_of`), with and without record sizes from the broker, with and without
checking checksums. It prints records a second: the best of several rounds in which the two functions take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from metaq.client.records.arrow import columns_of, decode_columns
from metaq.client.records.decoding import Records, decode_sized, decode_walking
from metaq.client.records.results import TopicPartition
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import encode_attributes, encode_body, encode_record

ANSWER_BYTES = 2 << 20
ROUNDS = 15
HERE = TopicPartition("bench", 0, 0)

Decode = Callable[[Records], object]


def answer(size: int, *, mixed: bool, tagged: bool) -> Records:
    """Return records with payloads of `size` bytes; mixed: of 0.5 to 1.5 times `size` instead; tagged: each with one of
    four tags.
    """
    random = np.random.default_rng(1)
    first_id = message_id(counter_at(1_700_000_000_000), 1)
    records = []
    for number in range(ANSWER_BYTES // (size + 20)):
        payload = bytes(int(random.integers(size // 2, size * 3 // 2)) if mixed else size)
        flag, attribute = encode_attributes(tag=f"tag-{number % 4}") if tagged else (0, b"")
        records.append(encode_record(encode_body(payload, flag, attribute), first_id + number, flag))
    data = b"".join(records)
    return Records(data, 0, len(data), 0, np.array([len(each) for each in records]))


def rates(records: Records, plain: Decode, fast: Decode) -> tuple[float, float]:
    """Return the records decoded per second by each of the two functions."""
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for number, decode in enumerate((plain, fast)):
            began = time.perf_counter()
            decode(records)
            best[number] = min(best[number], time.perf_counter() - began)
    assert records.sizes is not None
    return len(records.sizes) / best[0], len(records.sizes) / best[1]


def main() -> None:
    ways: dict[str, tuple[Decode, Decode]] = {
        "messages": (
            lambda records: list(decode_walking(records, HERE).messages),
            lambda records: list(decode_sized(records, HERE).messages),
        ),
        "Arrow": (
            lambda records: columns_of(list(decode_walking(records, HERE).messages)).to_batch(),
            lambda records: decode_columns(records, HERE).columns.to_batch(),
        ),
        "Arrow, no checksums": (
            lambda records: columns_of(list(decode_walking(records, HERE, check=False).messages)).to_batch(),
            lambda records: decode_columns(records, HERE, check=False).columns.to_batch(),
        ),
        "Arrow, sizes unknown": (
            lambda records: columns_of(list(decode_walking(records, HERE).messages)).to_batch(),
            lambda records: decode_columns(Records(records.data, 0, records.end, 0, None), HERE).columns.to_batch(),
        ),
    }
    print(f"{'':34}{'plain':>12}{'fast':>12}   ratio")
    for size in (128, 1024):
        for kind in ("", "mixed", "tagged"):
            records = answer(size, mixed=kind == "mixed", tagged=kind == "tagged")
            for name, (plain, fast) in ways.items():
                slow, quick = rates(records, plain, fast)
                title = f"{size:,} B {kind} {name}".replace("  ", " ")
                print(f"{title:34}{slow:12,.0f}{quick:12,.0f}{quick / slow:7.1f}×")


if __name__ == "__main__":
    main()

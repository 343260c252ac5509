"""Measure the cost and the saving of compressing each payload separately: `python -m bench.compression`. Writes
compression.md.

The payloads are events like those of a web service as JSON, alone and as lists, and bytes that cannot be compressed.
Each payload is packed as a producer packs it, and unpacked as `message.payload` unpacks it. The figures are processor
time, the best of several rounds.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from metaq.client.producer.packing import Packer
from metaq.client.settings.config import ProducerConfig
from metaq.protocol.compression import payload_of

from .environment import environment

ROUNDS = 15
SECONDS = 0.05
LEVELS = (1, 3, 9)
OUT = Path(__file__).parent / "compression.md"


def event(rng: random.Random) -> dict[str, object]:
    return {
        "time": f"2026-11-25T04:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}Z",
        "level": rng.choice(["info", "info", "info", "warning", "error"]),
        "service": rng.choice(["orders", "payments", "mail"]),
        "user": rng.randrange(1_000_000),
        "request": f"{rng.getrandbits(64):016x}",
        "text": rng.choice(["order accepted", "payment received", "mail sent", "retried after a time-out"]),
    }


def payloads(events: int, seed: int = 1) -> list[bytes]:
    """Return different payloads of `events` events each. There are so many that no cache holds the results of all of
    them.
    """
    rng = random.Random(seed)
    if not events:
        return [rng.randbytes(10_000) for _ in range(50)]
    made = [[event(rng) for _ in range(events)] for _ in range(50)]
    return [json.dumps(each[0] if events == 1 else each).encode() for each in made]


def microseconds(action: Callable[[], object], count: int) -> float:
    """Return the processor time in µs that `action` takes for one of its `count` items, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        done, began = 0, time.process_time()
        while (spent := time.process_time() - began) < SECONDS:
            action()
            done += count
        best = min(best, spent / done)
    return best * 1e6


def row(name: str, raw: Sequence[bytes], level: int) -> str:
    packer = Packer(ProducerConfig(compression="zstd", compression_level=level, compression_from_bytes=0))
    packed = [packer.pack(each) for each in raw]
    size = sum(map(len, raw)) / len(raw)
    part = sum(len(body) for _, body in packed) / sum(map(len, raw))
    cost = microseconds(lambda: [packer.pack(each) for each in raw], len(raw))
    back = microseconds(lambda: [payload_of(body, flag) for flag, body in packed], len(raw))
    rate = f"{size / cost:,.0f} MB/s"
    return f"| {name} | {size:,.0f} | {level} | {part:.0%} | {cost:.1f} | {rate} | {back:.1f} |"


def main() -> None:
    machine = environment()
    lines = [
        "# Compressed payloads",
        "",
        "Written by `python -m bench.compression`. Each payload by itself, processor time of the client per message.",
        "*stored*: of the payload's bytes. A broker's cost is that of as many bytes as are stored.",
        "",
        f"{machine['processor']}, Python {machine['python']}, zstandard {version('zstandard')}.",
        "",
        "| payload | bytes | level | stored | pack, µs | | unpack, µs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, events in (
        ("one event", 1),
        ("5 events", 5),
        ("50 events", 50),
        ("500 events", 500),
        ("random bytes", 0),
    ):
        raw = payloads(events)
        for level in LEVELS:
            lines.append(row(name, raw, level))
            print(lines[-1])
    OUT.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()

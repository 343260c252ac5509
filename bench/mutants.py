"""Send mutated requests of each verb and text command, and to the dashboard's pages and the gateway: `python -m
bench.mutants --inputs 100000 --seed 1`.

A broker in this process that has many partitions, groups and half messages (`bench.worst`) receives the requests, each
on its own connection. The program reports the reactor's longest steps in processor time with the inputs that caused
them, the memory, and the errors that the broker logged. A sample with a high cost is chosen seldom; otherwise it would
take most of the time.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from metaq.protocol.frames import PREFIX_BYTES, encode_prefix
from metaq.protocol.limits import MAX_FRAME_HEADER_BYTES
from metaq.protocol.statuses import RequestCode

from .worst import FRAMES, LIMIT_MS, PAGES, TEXTS, Worst

__all__ = ["main", "mutated", "swollen"]

_SMALL_BYTES = 8192
"""Largest size in bytes of a worst request (bench.worst) that is used as a sample."""

_INSERTED = (b" ", b"-1", b"99999999999999999999", b"\r\n", b"\0", b"\xff", b"../../x", b"*", b'"', b"[", b"{", b"1e9")
_REPEATED = (
    rb"\"",
    b"\\",
    b'"',
    b'"a":"b",',
    b"[",
    b"{",
    b",",
    b"9",
    b" ",
    b"a",
    b"\xff",
    rb"\ud83d",
    b"\r\n",
    b"a: b\r\n",
    b"%",
    b"'",
)
_SWOLLEN_BYTES = 1 << 10, 1 << 20
_SWOLLEN_PART = 200
"""One input in this many is a large one (see `swollen`)."""
_SHOWN = 10
_WARM_UP = 3
"""Number of times that each sample is sent unchanged before its cost is measured."""


class Sample(NamedTuple):
    """A valid request. port: "broker", or a key of PAGES."""

    name: str
    port: str
    data: bytes


def samples() -> list[Sample]:
    """Return small samples of each verb, text command and page."""
    sources = [
        *(("broker", RequestCode(code).name, requests) for code, requests in FRAMES.items()),
        *(("broker", kind.__name__, requests) for kind, requests in TEXTS.items()),
        *((port, port, requests) for port, requests in PAGES.items()),
    ]
    return [
        Sample(f"{verb}, {name}", port, data)
        for port, verb, requests in sources
        for name, data in requests()
        if isinstance(data, bytes) and len(data) <= _SMALL_BYTES
    ]


def mutated(rng: random.Random, sample: bytes, other: bytes) -> bytes:
    """Return a mutation of the sample: bytes are changed, cut off or inserted, the sample is repeated, or another
    sample is appended. Seldom it is unchanged.
    """
    data = bytearray(sample)
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice(_INSERTED)
    elif kind == 3:
        data += other[: rng.randrange(1, len(other) + 1)]
    elif kind == 4:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 9)] = rng.choice(_INSERTED)
    elif kind == 5:
        data *= rng.randrange(2, 4)
    return bytes(data) or b"\0"


def swollen(rng: random.Random, sample: bytes) -> bytes:
    """Return the sample made large by a part that is repeated in its middle (in a frame: within the header). This finds
    code whose time grows with the square of the length.
    """
    unit = rng.choice(_REPEATED)
    is_frame = not sample[0]
    begin = PREFIX_BYTES if is_frame else 0
    header = int.from_bytes(sample[5:8], "big") if is_frame else len(sample)
    at = begin + rng.randrange(header)
    size = min(rng.randrange(*_SWOLLEN_BYTES), MAX_FRAME_HEADER_BYTES - header)
    data = sample[:at] + unit * (size // len(unit)) + sample[at:]
    if not is_frame:
        return data
    return encode_prefix(header + len(data) - len(sample), len(sample) - PREFIX_BYTES - header) + data[PREFIX_BYTES:]


class _Said(logging.Handler):
    """Collects the errors that the broker logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


def _memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _steps(worst: Worst, port: str, data: bytes) -> list[float]:
    return worst.do(data) if port == "broker" else worst.ask(port == "gateway", data)


@click.command()
@click.option("--inputs", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the inputs above the limit. If it exists, the same inputs are sent again, and those that are above "
    "the limit again stay in it.",
)
def main(inputs: int, seed: int, record: Path | None) -> None:
    """Send mutated requests to a broker.

    The exit code is 1 if a step took longer than the limit (with --record: in each run so far), or if the broker logged
    an error. A virtual machine's host can stop a process for a while, and this counts as the process's own time. A step
    that is long by itself is long in each run.
    """
    before = json.loads(record.read_text()) if record is not None and record.exists() else None
    if before is not None and (before["inputs"], before["seed"]) != (inputs, seed):
        raise click.UsageError(f"{record} is of --inputs {before['inputs']} --seed {before['seed']}")
    said = _Said()
    logging.getLogger("metaq").addHandler(said)
    rng = random.Random(seed)
    longest: list[tuple[float, int, str, bytes]] = []
    above: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        worst = Worst(Path(directory))
        chosen = samples()
        weights = []
        for sample in chosen:
            spent = [sum(_steps(worst, sample.port, sample.data)) for _ in range(_WARM_UP)]
            weights.append(1 / max(0.0005, min(spent)))
        if before is not None:  # the samples were sent nevertheless, because they change the broker
            weights = before["weights"]
        click.echo(f"{len(chosen)} samples, {_memory_mib()} MiB")
        began = time.monotonic()
        for number in range(inputs):
            sample, other = rng.choices(chosen, weights, k=2)
            if rng.randrange(_SWOLLEN_PART):
                data = mutated(rng, sample.data, other.data)
            else:
                data = swollen(rng, sample.data)
            step_ms = max(_steps(worst, sample.port, data), default=0.0) * 1e3
            if step_ms > LIMIT_MS:
                above[number] = step_ms
            entry = (step_ms, number, sample.name, data[:200])
            if len(longest) < _SHOWN:
                heapq.heappush(longest, entry)
            else:
                heapq.heappushpop(longest, entry)
            if not (number + 1) % 20_000:
                click.echo(f"{number + 1} inputs, {time.monotonic() - began:.0f} s, {_memory_mib()} MiB")
    for step_ms, number, name, data in sorted(longest, reverse=True):
        click.echo(f"{step_ms:7.1f} ms  input {number}: {name}: {data!r}")
    if before is not None:
        known = {int(number): step_ms for number, step_ms in before["above"].items()}
        above = {number: min(step_ms, known[number]) for number, step_ms in above.items() if number in known}
        click.echo(f"above {LIMIT_MS:g} ms in each run: {above}")
    if record is not None:
        record.write_text(json.dumps({"inputs": inputs, "seed": seed, "weights": weights, "above": above}))
    click.echo(
        f"{inputs} inputs, seed {seed}: {len(above)} above {LIMIT_MS:g} ms, longest {max(longest)[0]:.1f} ms,"
        f" peak {_memory_mib()} MiB, {len(said.lines)} errors logged"
    )
    for line in said.lines[:_SHOWN]:
        click.echo(line)
    sys.exit(1 if above or said.lines else 0)


if __name__ == "__main__":
    main()

"""Mutated inputs: good requests with bytes changed, cut, inserted or joined, and random bytes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path

from metaq.protocol.frames import encode_frame
from metaq.protocol.login import AuthenticateRequest
from metaq.protocol.pulls import PullRequest
from metaq.protocol.sends import SendRequest
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.access.test_every_verb import CASES

__all__ = ["HTTP", "REQUESTS", "basic", "mutated", "noise"]

_GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "wire" / "wire.json"
_SCRAM = AuthenticateRequest("n,,n=root,r=fyko+d2lbbFgONRv9qkxdawL", "SCRAM-SHA-256")
_FRAMES = [
    encode_frame(RequestCode.SEND, 1, SendRequest("t", 0, 0, -1).to_ext(), 5) + b"hello",
    encode_frame(RequestCode.PULL, 2, PullRequest("t", 0, 0, 1000, "g", ("a", "b"), 10).to_ext()),
    encode_frame(RequestCode.AUTHENTICATE, 3, _SCRAM.to_ext()),
    encode_frame(RequestCode.STATS, 4, {"item": "topics"}),
    encode_frame(9999, 5, {}),
]
REQUESTS: Sequence[bytes] = (
    [bytes.fromhex(entry["request_hex"]) for entry in json.loads(_GOLDEN.read_text())]
    + _FRAMES * 10
    + [encode_frame(code, 6, entry.ext) for code, entry in CASES] * 2
)
"""Good requests: the recorded ones of 1.x, frames with data, and one of each kind of frame that a broker serves."""

_PATHS = ("/", "/topics", "/config", "/logs", "/metrics", "/put/t?partition=0", "/get/t?partition=0&offset=0", "/stats")
HTTP: Sequence[bytes] = [
    f"{method} {path} HTTP/1.1\r\nHost: broker\r\nAuthorization: {{login}}\r\n"
    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    for path in _PATHS
    for method, body in (("GET", ""), ("POST", "data=aGVsbG8"))
]
"""Good HTTP requests; `{login}` stands for the login."""

_INSERTED = (b" ", b"-1", b"99999999999999999999", b"\r\n", b"\0", b"\xff", b"../../x", b"*", b"%0a", b"{}", b'"')


def basic(name: str, password: str) -> bytes:
    """Return the value of an HTTP header with this login."""
    return b"Basic " + base64.b64encode(f"{name}:{password}".encode())


def noise(rng: random.Random) -> bytes:
    """Return random bytes; half of them begin like a frame."""
    return rng.randbytes(rng.randrange(1, 300)) if rng.randrange(2) else b"\0" + rng.randbytes(rng.randrange(1, 60))


def mutated(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return one of the samples with some bytes changed, its end cut off, something inserted or another joined."""
    sample = bytearray(rng.choice(samples))
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.randrange(1, 6)):
            sample[rng.randrange(len(sample))] = rng.randrange(256)
    elif kind == 1:
        del sample[rng.randrange(1, len(sample)) :]
    elif kind == 2:
        at = rng.randrange(len(sample))
        sample[at:at] = rng.choice(_INSERTED)
    else:
        sample += rng.choice(samples)[: rng.randrange(1, 50)]
    return bytes(sample)

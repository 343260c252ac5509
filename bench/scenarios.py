"""What is measured: each scenario as one command of the load generators, and the bar it has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LATENCY", "MESSAGE_BYTES", "SCENARIOS", "Latency", "Scenario"]

MESSAGE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """A rate, in messages a second.

    command: words with {count}, {group} and {size} to fill in; java_command: what the Java pair does in its turns where
    its client cannot do the same (our broker is then not measured under it); own_bar: what our broker and client must
    reach relative to the Java pair; broker_bar: the same for our broker, Java's client; peer_bars: what our broker and
    client must reach relative to other systems, by their names in systems.PEERS.
    """

    name: str
    title: str
    command: str
    java_command: str | None = None
    own_bar: float | None = None
    broker_bar: float | None = None
    peer_bars: Mapping[str, float] = field(default_factory=dict)


SCENARIOS = (
    Scenario(
        "blocking-1",
        "one thread, blocking sends",
        "send_blocking bench 1 {count} {size}",
        own_bar=0.6,
        broker_bar=0.9,
        peer_bars={"rocketmq": 2.0},
    ),
    Scenario(
        "blocking-64",
        "64 threads, blocking sends",
        "send_blocking bench 64 {count} {size}",
        broker_bar=0.9,
        peer_bars={"rocketmq": 2.0},
    ),
    Scenario(
        "pipelined",
        "pipelined single sends, window 256",
        "send_async bench 256 {count} {size}",
        own_bar=1.0,
        broker_bar=0.9,
        peer_bars={"rocketmq": 2.0},
    ),
    Scenario(
        "batch",
        "batch sends, 500 a batch",
        "send_batch bench 500 {count} {size}",
        java_command="send_async bench 256 {count} {size}",
        own_bar=4.0,
        peer_bars={"confluent-kafka": 2.0},
    ),
    Scenario(
        "consume",
        "consuming a backlog",
        "consume backlog {group} {count} 120",
        own_bar=1.5,
        broker_bar=0.9,
        peer_bars={"confluent-kafka": 1.2},
    ),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """End-to-end latency, send call to listener, at `per_second` messages a second; bars in milliseconds."""

    per_second: int = 1000
    warm_up: int = 3000
    count: int = 5000
    p50_bar_ms: float = 2.0
    p99_bar_ms: float = 10.0


LATENCY = Latency()

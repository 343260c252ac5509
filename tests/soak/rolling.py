"""The rolling move: a running cluster of Java brokers becomes ours one by one, and Java again, below Java clients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .members import Group, JavaConsumer, JavaProducer
from .places import Kind, Place
from .run import Outcome, Run, Say

__all__ = ["Move", "Rolled", "move", "rolling"]

TOPIC, GROUP = "orders", "readers"
PARTITIONS = 4
SEGMENT_BYTES = 64 << 10
SEND_PAUSE = 0.003
BETWEEN = 150
"""Messages that must be acknowledged between two moves."""

THERE_AND_BACK: Sequence[Kind] = ("ours", "java")

PATIENT_SECONDS = 60.0
"""Sessions of the consumers: they live to the end, and a busy machine must not take them from them."""


@dataclass(frozen=True, slots=True)
class Move:
    """One broker's move. seconds: from the order to stop until the next one serves."""

    broker: int
    kind: Kind
    seconds: float


@dataclass(frozen=True, slots=True)
class Rolled:
    """failed_sends: what the Java producer was refused, each of which its application saw as a failed SendResult."""

    outcome: Outcome
    moves: Sequence[Move]
    failed_sends: int


def move(run: Run, place: Place, kind: Kind) -> Move:
    """Stop the place's broker as an operator does and start one of `kind` on the same file and directory."""
    began = time.monotonic()
    run.disturb(place.stop, lambda: place.start(kind))
    return Move(place.broker_id, kind, time.monotonic() - began)


def rolling(directory: Path, zookeeper: str, brokers: int, say: Say) -> Rolled:
    """There and back again, then judge. zookeeper: with a chroot that exists. Needs the Java peers."""
    group = Group(zookeeper, GROUP, TOPIC, directory / "group")
    settings = {"maxSegmentSize": SEGMENT_BYTES}
    places = [Place(directory / f"broker-{n}", zookeeper, {TOPIC: PARTITIONS}, n, settings) for n in range(brokers)]
    members = [JavaConsumer(group, name, PATIENT_SECONDS) for name in ("java-1", "java-2")]
    moves: list[Move] = []
    try:
        for place in places:
            place.start("java")
        with Run(group, members) as run:
            producer = JavaProducer(group, "java", SEND_PAUSE)
            run.produce(producer)
            for kind in THERE_AND_BACK:
                for place in places:
                    run.wait_for(BETWEEN)
                    moves.append(move(run, place, kind))
                    say(f"broker {place.broker_id} is {kind} after {moves[-1].seconds:.1f} s")
            run.wait_for(BETWEEN)
            outcome = run.finish()
    finally:
        for place in places:
            place.kill()
    return Rolled(outcome, moves, producer.failed)

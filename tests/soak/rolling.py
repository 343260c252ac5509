"""The rolling move: a running cluster of Java brokers becomes metaq's one by one, and Java again, under Java
clients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kills.outcome import Outcome, Say
from tests.zookeepers import zookeeper_process

from .members import Group, JavaConsumer, JavaProducer
from .places import Kind, Place
from .run import TICK_MS, Judged, Run

__all__ = ["Move", "Rolled", "move", "rolling", "run"]

TOPIC, GROUP = "orders", "readers"
PARTITIONS = 4
SEGMENT_BYTES = 64 << 10
SEND_PAUSE = 0.003
BETWEEN = 150
"""Messages that must be acknowledged between two moves."""

THERE_AND_BACK: Sequence[Kind] = ("ours", "java")

PATIENT_SECONDS = 60.0
"""Session timeout in seconds of the consumers, which live to the end: a busy machine must not end their sessions."""


@dataclass(frozen=True, slots=True)
class Move:
    """One broker's move. seconds: from the order to stop until the next one serves."""

    broker: int
    kind: Kind
    seconds: float


@dataclass(frozen=True, slots=True)
class Rolled:
    """The result of a rolling move. failed_sends: sends of the Java producer that were refused; the application saw
    each as a failed SendResult."""

    judged: Judged
    moves: Sequence[Move]
    failed_sends: int


def move(run: Run, place: Place, kind: Kind) -> Move:
    """Stop the place's broker as an operator does and start one of `kind` on the same file and directory."""
    began = time.monotonic()
    run.disturb(place.stop, lambda: place.start(kind))
    return Move(place.broker_id, kind, time.monotonic() - began)


def run(directory: Path, seed: int, say: Say, *, brokers: int = 3) -> Outcome:
    """A cluster moves from Java to metaq's brokers and back, one by one, under a Java producer and two Java consumers.

    Needs the Java peers. The seed changes nothing.
    """
    with zookeeper_process(directory / "zookeeper", tick_time_ms=TICK_MS) as server:
        rolled = rolling(directory, server.connect_string, brokers, say)
    figures = {"moves": len(rolled.moves), "failed sends of the Java producer": rolled.failed_sends}
    return rolled.judged.outcome(figures)


def rolling(directory: Path, zookeeper: str, brokers: int, say: Say) -> Rolled:
    """Move to metaq's brokers and back, then judge. zookeeper: with a chroot that exists. Needs the Java peers."""
    group = Group(zookeeper, GROUP, TOPIC, directory / "group")
    settings = {"maxSegmentSize": SEGMENT_BYTES}
    places = [Place(directory / f"broker-{n}", zookeeper, {TOPIC: PARTITIONS}, n, settings) for n in range(brokers)]
    members = [JavaConsumer(group, name, PATIENT_SECONDS) for name in ("java-1", "java-2")]
    moves: list[Move] = []
    try:
        for place in places:
            place.start("java")
        with Run(group, members) as under_way:
            producer = JavaProducer(group, SEND_PAUSE)
            under_way.produce(producer)
            for kind in THERE_AND_BACK:
                for place in places:
                    under_way.wait_for(BETWEEN)
                    moves.append(move(under_way, place, kind))
                    say(f"broker {place.broker_id} is {kind} after {moves[-1].seconds:.1f} s")
            under_way.wait_for(BETWEEN)
            judged = under_way.finish()
    finally:
        for place in places:
            place.kill()
    return Rolled(judged, moves, producer.failed)

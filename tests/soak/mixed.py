"""The mixed group: two brokers of ours and a Java one, two Python and two Java consumers, each ended at random."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaq.coordination.embedded import EmbeddedZooKeeper

from .members import Group, JavaConsumer, JavaProducer, Member, PythonConsumer, PythonProducer
from .places import Kind, Place
from .run import Outcome, Run, Say
from .schedule import Blow, Way, steps

__all__ = ["Tally", "mixed"]

TOPIC, GROUP = "soak", "mixed"
PARTITIONS = 4
BROKERS: Mapping[str, tuple[Kind, Mapping[str, object]]] = {
    "broker-0-ours": ("ours", {"unflushThreshold": 0}),
    "broker-1-ours": ("ours", {"unflushThreshold": 1000}),
    "broker-2-java": ("java", {"unflushThreshold": 0}),
}

SEGMENT_BYTES = 64 << 10
"""Small, so that segments roll during the run."""
SEND_PAUSE = 0.005

ZOOKEEPER = "zookeeper"

Victim = Place | Member | EmbeddedZooKeeper


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcome, and what was done to the run: blow -> times. refused_starts: of a Java broker, see Place.start."""

    outcome: Outcome
    blows: Mapping[str, int]
    refused_starts: int


def mixed(
    directory: Path,
    zookeeper: str,
    seconds: float,
    seed: int,
    say: Say,
    freeze: bool = False,
    server: EmbeddedZooKeeper | None = None,
) -> Tally:
    """Run for `seconds` of blows, then drain and judge. zookeeper: with a chroot that exists. Needs the Java peers.

    freeze: also stop the clock of our processes for longer than their sessions. (A Java consumer that thaws goes on
    reading what others own by then.) server: ZooKeeper, to be restarted too.
    """
    group = Group(zookeeper, GROUP, TOPIC, directory / "group")
    places = {
        name: Place(directory / name, zookeeper, {TOPIC: PARTITIONS}, broker_id, _settings(system))
        for broker_id, (name, (_, system)) in enumerate(BROKERS.items())
    }
    members = _members(group)
    victims: dict[str, Victim] = {**places, **members, **({ZOOKEEPER: server} if server else {})}
    frozen = [name for name in (*places, *members) if "java" not in name] if freeze else []
    blows: Counter[str] = Counter()
    try:
        for name, place in places.items():
            place.start(BROKERS[name][0])
        with Run(group, list(members.values())) as run:
            run.produce(PythonProducer(group, "py", SEND_PAUSE))
            run.produce(JavaProducer(group, "java", SEND_PAUSE))
            run.wait_for(500)
            end = time.monotonic() + seconds
            for step in steps(seed, list(places), list(members), frozen, [ZOOKEEPER] if server else []):
                if time.monotonic() + step.pause > end:
                    break
                time.sleep(step.pause)
                say(f"{time.strftime('%X')} {', '.join(map(str, step.blows))}; back after {step.down:.1f} s")
                run.disturb(*(_ending(blow, victims) for blow in step.blows))
                blows.update(map(str, step.blows))
                time.sleep(step.down)
                run.disturb(*(_starting(blow, victims) for blow in step.blows))
            say(f"{time.strftime('%X')} draining")
            outcome = run.finish()
    finally:
        for place in places.values():
            place.kill()
    return Tally(outcome, dict(sorted(blows.items())), sum(place.refused for place in places.values()))


def _settings(system: Mapping[str, object]) -> Mapping[str, object]:
    return {"maxSegmentSize": SEGMENT_BYTES, "unflushInterval": 500, **system}


def _members(group: Group) -> dict[str, Member]:
    kinds: tuple[type[Member], ...] = (PythonConsumer, PythonConsumer, JavaConsumer, JavaConsumer)
    names = ("python-1", "python-2", "java-1", "java-2")
    return {name: kind(group, name) for name, kind in zip(names, kinds, strict=True)}


def _ending(blow: Blow, victims: Mapping[str, Victim]) -> Callable[[], None]:
    victim = victims[blow.victim]
    if isinstance(victim, EmbeddedZooKeeper):
        return victim.stop
    actions: Mapping[Way, Callable[[], None]] = {"kill": victim.kill, "stop": victim.stop, "freeze": victim.freeze}
    return actions[blow.way]


def _starting(blow: Blow, victims: Mapping[str, Victim]) -> Callable[[], None]:
    victim = victims[blow.victim]
    if isinstance(victim, Place):
        kind, _ = BROKERS[blow.victim]
        return lambda: victim.start(kind)
    return victim.start
